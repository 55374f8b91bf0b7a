# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""torch.nn.utils, torch.nn.init, containers and hooks."""

import copy
import functools

import pytest
import torch
from helpers import DEVICE, on_cuda
from module_cases import (
    close,
    forward,
    moved,
    on_device,
    rand,
    same_state,
    weights_like,
)
from torch import nn
from torch.nn.utils import prune
from torch.utils import _pytree as pytree

pytestmark = pytest.mark.filterwarnings("ignore")


def both(module):
    return module, copy.deepcopy(module).to(DEVICE)


def same_step(here, there, *inputs):
    """Compares forward and backward of two modules from one seed."""
    cpu, ours = [moved(x, "cpu") for x in inputs], [moved(x, DEVICE) for x in inputs]
    expected, got = forward(here, cpu, {})[0], forward(there, ours, {})[0]
    close(got, expected)
    expected.backward(weights_like(expected))
    got.backward(weights_like(got))
    close([x.grad for x in ours], [x.grad for x in cpu])
    mine = [p.grad for p in there.parameters()]
    close(mine, [p.grad for p in here.parameters()])
    same_state(there, here)


PARAMETRIZATIONS = {
    "weight_norm": nn.utils.parametrizations.weight_norm,
    "weight_norm, old": nn.utils.weight_norm,
    "spectral_norm": nn.utils.parametrizations.spectral_norm,
    "spectral_norm, old": nn.utils.spectral_norm,
    "orthogonal": nn.utils.parametrizations.orthogonal,
    "orthogonal, cayley": functools.partial(
        nn.utils.parametrizations.orthogonal, orthogonal_map="cayley"
    ),
    "pruned": functools.partial(prune.l1_unstructured, name="weight", amount=0.4),
    "pruned in rows": functools.partial(
        prune.ln_structured, name="weight", amount=1, n=2, dim=0
    ),
}


@pytest.mark.parametrize("name", PARAMETRIZATIONS)
def test_parametrizations(name):
    torch.manual_seed(2)
    layer = nn.Linear(4, 4)
    there = copy.deepcopy(layer).to(DEVICE)
    torch.manual_seed(5)  # some initialize random vectors
    here = PARAMETRIZATIONS[name](layer)
    torch.manual_seed(5)
    there = PARAMETRIZATIONS[name](there)
    if on_cuda():
        there.load_state_dict(here.state_dict())
    same_step(here, there, rand(3, 4))
    same_step(here, there, rand(3, 4))


def test_parameters_as_one_vector():
    here, there = both(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)))
    vectors = [nn.utils.parameters_to_vector(m.parameters()) for m in (here, there)]
    assert vectors[1].device.type == "mycelya"
    close(vectors[1], vectors[0])
    for module, vector in zip((here, there), vectors, strict=True):
        nn.utils.vector_to_parameters(vector.detach() * 2, module.parameters())
    same_state(there, here)
    with pytest.raises(TypeError, match="parameters on different"):
        nn.utils.parameters_to_vector([*here.parameters(), *there.parameters()])


def test_fused_for_inference():
    convs = both(nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)))
    for module in convs:
        module(rand(4, 2, 6, 6, requires_grad=False).to(module[0].weight.device))
        module.eval()
    here, there = (nn.utils.fusion.fuse_conv_bn_eval(*module) for module in convs)
    same_state(there, here)
    same_step(here, there, rand(1, 2, 6, 6))


def test_sync_batch_norm_of_one_process():
    """SyncBatchNorm needs an accelerator. Without process group it is BatchNorm."""
    here = nn.BatchNorm2d(3)
    there = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(here)).to(DEVICE)
    assert isinstance(there, nn.SyncBatchNorm)
    same_step(here, there, rand(4, 3, 5, 5))


def test_sequences_of_several_lengths():
    here, there = both(nn.GRU(3, 4, num_layers=2, bidirectional=True))
    lengths = torch.tensor([2, 5, 3])
    results = []
    for module, padded in zip((here, there), (rand(5, 3, 3),) * 2, strict=True):
        padded = moved(padded, module.weight_hh_l0.device)
        packed = nn.utils.rnn.pack_padded_sequence(
            padded, lengths, enforce_sorted=False
        )
        output, hidden = module(packed)
        back, sizes = nn.utils.rnn.pad_packed_sequence(output, padding_value=-1.0)
        (back.sum() + hidden.sum()).backward()
        parts = nn.utils.rnn.unpad_sequence(back, sizes)
        again = nn.utils.rnn.pad_sequence(parts, batch_first=True)
        results.append([back, hidden, padded.grad, *parts, again])
        assert sizes.device.type == "cpu" and torch.equal(sizes, lengths)
    close(results[1], results[0])


def test_containers():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.rows = nn.ParameterList([nn.Parameter(rand(2)) for _ in range(3)])
            self.named = nn.ParameterDict({"a": nn.Parameter(rand(2)), "b": rand(2)})
            self.layers = nn.ModuleDict({"x": nn.Linear(2, 2), "y": nn.Identity()})
            self.register_buffer("kept", rand(2, requires_grad=False))
            self.register_buffer("lost", torch.ones(2), persistent=False)

        def forward(self, x):
            x = x * self.kept + self.lost + sum(self.rows) * self.named["a"]
            return self.layers["y"](self.layers["x"](x)) - self.named["b"]

    here, there = both(Model())
    assert "lost" not in there.state_dict() and there.lost.device.type == "mycelya"
    same_step(here, there, rand(3, 2))


def test_hooks():
    """Each kind of hook gets the device's tensors, in the same order as on the CPU."""
    records = []
    for module in both(nn.Sequential(nn.Linear(3, 4), nn.Tanh())):
        seen = []

        def note(kind, module, *values, seen=seen):
            tensors = [t for t in pytree.tree_leaves(values) if t is not None]
            seen.append((kind, type(module).__name__, tensors))

        for part in module:
            part.register_forward_pre_hook(functools.partial(note, "before"))
            part.register_forward_hook(functools.partial(note, "after"))
            hook = functools.partial(note, "gradients before")
            part.register_full_backward_pre_hook(hook)
            part.register_full_backward_hook(functools.partial(note, "gradients"))
        x = moved(rand(2, 3), module[0].weight.device)
        x.register_hook(lambda grad, seen=seen: seen.append(("input", "", [grad])))
        module(x).sum().backward()
        records.append(seen)
    assert [r[:2] for r in records[1]] == [r[:2] for r in records[0]]
    close([r[2] for r in records[1]], [r[2] for r in records[0]])


INITIALIZERS = {
    "uniform": nn.init.uniform_,
    "normal": nn.init.normal_,
    "trunc_normal": nn.init.trunc_normal_,
    "constant": functools.partial(nn.init.constant_, val=0.3),
    "ones": nn.init.ones_,
    "zeros": nn.init.zeros_,
    "eye": nn.init.eye_,
    "dirac": lambda t: nn.init.dirac_(t.view(6, 2, 2)),
    "xavier_uniform": nn.init.xavier_uniform_,
    "xavier_normal": nn.init.xavier_normal_,
    "kaiming_uniform": nn.init.kaiming_uniform_,
    "kaiming_normal": nn.init.kaiming_normal_,
    "orthogonal": nn.init.orthogonal_,
}


@pytest.mark.cpu_worker  # CUDA draws other numbers
@pytest.mark.parametrize("name", INITIALIZERS)
def test_initializers(name):
    results = []
    for device in ("cpu", DEVICE):
        torch.manual_seed(8)
        tensor = torch.empty(6, 4, device=device)
        INITIALIZERS[name](tensor)
        results.append(tensor)
    close(results[1], results[0])


def test_sparse_initializer():
    """The CPU draws the positions of the zeros, for every device."""
    tensor = nn.init.sparse_(torch.empty(6, 4, device=DEVICE), sparsity=0.3)
    assert (tensor == 0).sum(0).tolist() == [2] * 4


def test_skip_init():
    there = nn.utils.skip_init(nn.Linear, 3, 4, device=DEVICE)
    assert on_device(there) and there.weight.shape == (4, 3)
    nn.init.ones_(there.weight)
    nn.init.zeros_(there.bias)
    assert there(torch.ones(3, device=DEVICE)).tolist() == [3.0] * 4


def test_functional_call():
    here, there = both(nn.Linear(3, 2))
    new = {"weight": rand(2, 3), "bias": rand(2)}
    ours = {name: moved(t, DEVICE) for name, t in new.items()}
    x = rand(4, 3)
    expected = torch.func.functional_call(here, new, x)
    got = torch.func.functional_call(there, ours, moved(x, DEVICE))
    close(got, expected)
    stacked, _ = torch.func.stack_module_state([there, copy.deepcopy(there)])
    assert all(t.device.type == "mycelya" and len(t) == 2 for t in stacked.values())
