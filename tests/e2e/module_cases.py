# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""The modules of PyTorch's module database, and helpers that run and compare them.

Inputs are made on the CPU and copied with their strides and overlaps. Both sides start
from the same seed, so random modules draw the same numbers on both.
"""

import copy
import dataclasses
import functools
import inspect

import pytest
import torch
from helpers import DEVICE, named, on_cuda, same, seed
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils.rnn import PackedSequence
from torch.testing import make_tensor
from torch.testing._comparison import default_tolerances
from torch.testing._internal.common_modules import (
    FunctionInput,
    ModuleInfo,
    ModuleInput,
    module_db,
)
from torch.utils import _pytree as pytree


def other(cls, *cases, **facts):
    """A database entry for a module that PyTorch's database lacks.

    A case is (constructor's arguments, its keywords, inputs). A tuple among the inputs
    is the shape of a random tensor in the module's dtype.
    """

    def inputs(info, device, dtype, requires_grad, training, **kwargs):
        def make(given):
            if isinstance(given, torch.Tensor):
                return given
            return make_tensor(
                given, dtype=dtype, device=device, requires_grad=requires_grad
            )

        return [
            ModuleInput(
                constructor_input=FunctionInput(*args, **copy.deepcopy(keywords)),
                forward_input=FunctionInput(*[make(x) for x in given]),
            )
            for args, keywords, given in cases
        ]

    return ModuleInfo(cls, module_inputs_func=inputs, **facts)


def unpooled(dims):
    """The indices of max pooling with a window of size 2 in each of the last dims."""
    pool = getattr(F, f"max_pool{dims}d")
    image = make_tensor((2, 3) + (4,) * dims, dtype=torch.float32, device="cpu")
    return pool(image, 2, return_indices=True)[1]


BAG = torch.tensor([[1, 2, 4], [4, 3, 9]])
SOME = torch.tensor([1, 2, 4, 5, 4, 3])
DRAWS = {"train_and_eval_differ": True}
OTHERS = [
    other(nn.Dropout, ((0.4,), {}, [(5, 6)]), ((), {"p": 1.0}, [(5, 6)]), **DRAWS),
    other(nn.Dropout1d, ((0.4,), {}, [(4, 3, 6)]), ((0.4,), {}, [(3, 6)]), **DRAWS),
    other(nn.Dropout2d, ((0.4,), {}, [(4, 3, 5, 6)]), **DRAWS),
    other(nn.Dropout3d, ((0.4,), {}, [(4, 3, 2, 5, 6)]), **DRAWS),
    other(nn.AlphaDropout, ((0.4,), {}, [(5, 6)]), **DRAWS),
    other(nn.FeatureAlphaDropout, ((0.4,), {}, [(4, 3, 6)]), **DRAWS),
    other(nn.RReLU, ((), {}, [(5, 6)]), ((0.2, 0.4), {}, [(3,)]), **DRAWS),
    other(nn.Hardsigmoid, ((), {}, [(5, 6)])),
    other(nn.Identity, ((), {}, [(5, 6)])),
    other(nn.Flatten, ((), {}, [(2, 3, 4)]), ((0, 1), {}, [(2, 3, 4)])),
    other(nn.Unflatten, ((1, (2, 3)), {}, [(4, 6)])),
    other(nn.Fold, (((4, 5), 2), {}, [(2, 12, 12)]), (((4, 4), 2), {}, [(12, 9)])),
    other(nn.Unfold, ((2,), {}, [(2, 3, 4, 5)]), ((2, 1, 1, 2), {}, [(3, 4, 5)])),
    other(nn.PixelShuffle, ((2,), {}, [(2, 8, 3, 3)])),
    other(nn.PixelUnshuffle, ((2,), {}, [(2, 3, 4, 6)])),
    other(nn.ChannelShuffle, ((2,), {}, [(2, 4, 3, 3)])),
    other(
        nn.Upsample,
        ((), {"scale_factor": 2}, [(2, 3, 4)]),
        ((), {"size": 7, "mode": "linear"}, [(2, 3, 4)]),
        ((), {"scale_factor": 2, "mode": "bilinear"}, [(2, 3, 4, 5)]),
        ((), {"size": 7, "mode": "bicubic", "align_corners": True}, [(2, 3, 4, 5)]),
        ((), {"scale_factor": 1.7, "mode": "nearest"}, [(2, 3, 4, 5)]),
        ((), {"scale_factor": 2, "mode": "nearest-exact"}, [(2, 3, 4, 5)]),
        ((), {"scale_factor": 2, "mode": "trilinear"}, [(2, 3, 2, 3, 4)]),
    ),
    other(nn.UpsamplingNearest2d, ((), {"scale_factor": 2}, [(2, 3, 4, 5)])),
    other(nn.UpsamplingBilinear2d, ((), {"size": (5, 7)}, [(2, 3, 4, 5)])),
    other(nn.MaxUnpool1d, ((2,), {}, [(2, 3, 2), unpooled(1)])),
    other(nn.MaxUnpool2d, ((2,), {}, [(2, 3, 2, 2), unpooled(2)])),
    other(nn.MaxUnpool3d, ((2,), {}, [(2, 3, 2, 2, 2), unpooled(3)])),
    other(nn.CrossMapLRN2d, ((3,), {}, [(2, 5, 4, 4)])),
    other(nn.CosineSimilarity, ((), {}, [(5, 6), (5, 6)])),
    other(nn.PairwiseDistance, ((), {}, [(5, 6), (5, 6)]), ((1.0,), {}, [(6,), (6,)])),
    other(
        nn.EmbeddingBag,
        ((10, 3), {"mode": "sum"}, [BAG]),
        ((10, 3), {"mode": "mean"}, [BAG]),
        ((10, 3), {"mode": "max"}, [BAG]),
        ((10, 3), {"mode": "sum"}, [SOME, torch.tensor([0, 4])]),
        ((10, 3), {"mode": "sum", "padding_idx": 4}, [SOME, torch.tensor([0, 4])]),
        (
            (10, 3),
            {"mode": "mean", "include_last_offset": True},
            [SOME, torch.tensor([0, 3, 6])],
        ),
    ),
    other(nn.TripletMarginLoss, ((), {"swap": True}, [(5, 6), (5, 6), (5, 6)])),
    other(nn.TripletMarginWithDistanceLoss, ((), {}, [(5, 6), (5, 6), (5, 6)])),
    other(nn.AdaptiveLogSoftmaxWithLoss, ((6, 12, [4, 8]), {}, [(5, 6), SOME[:5] * 2])),
    other(
        nn.TransformerDecoder,
        ((nn.TransformerDecoderLayer(4, 2, 8), 2), {}, [(3, 2, 4), (5, 2, 4)]),
        **DRAWS,
    ),
    other(nn.LazyLinear, ((3,), {}, [(5, 6)])),
    other(nn.LazyBatchNorm1d, ((), {}, [(5, 6)]), **DRAWS),
    other(nn.LazyBatchNorm2d, ((), {}, [(2, 3, 4, 5)]), **DRAWS),
    other(nn.LazyBatchNorm3d, ((), {}, [(2, 3, 4, 5, 2)]), **DRAWS),
    other(nn.LazyInstanceNorm1d, ((), {"affine": True}, [(2, 3, 4)])),
    other(nn.LazyInstanceNorm2d, ((), {"affine": True}, [(2, 3, 4, 5)])),
    other(nn.LazyInstanceNorm3d, ((), {"affine": True}, [(2, 3, 4, 5, 2)])),
]
MODULES = {info.name: info for info in (*module_db, *OTHERS)}
assert len(MODULES) == len(module_db) + len(OTHERS)

# These modules have too many inputs to run all of them in every test: run every n-th.
# n is odd, because the inputs are products of options with two values.
# test_the_many_other_inputs runs the other inputs.
EVERY_NTH = {
    "nn.LinearCrossEntropyLoss": 37,
    "nn.CrossEntropyLoss": 7,
    "nn.CTCLoss": 3,
    "nn.GRU": 3,
    "nn.LSTM": 7,
    "nn.MultiheadAttention": 7,
    "nn.RNN": 7,
    "nn.Transformer": 7,
    "nn.TransformerDecoderLayer": 7,
    "nn.TransformerEncoder": 5,
    "nn.TransformerEncoderLayer": 5,
}
LARGE = {name: n for name, n in EVERY_NTH.items() if name in MODULES}
# Modules that take another code path in eval mode, although the values may be equal.
EVAL = {"nn.Transformer", "nn.TransformerDecoderLayer"}


def inputs_of(info, dtype, training):
    seed(1)
    made = info.module_inputs_func(
        info,
        device="cpu",
        dtype=dtype,
        requires_grad=True,
        training=training,
        with_packed_sequence=True,
    )
    for given in made:
        kwargs = given.constructor_input.kwargs
        options = kwargs.get("options")
        if getattr(options, "acc_policy", None) == "auto":
            # "auto" means "accurate" on the CPU and "compact" on other devices.
            kwargs["options"] = dataclasses.replace(options, acc_policy="compact")
    return made


def moved(tensor, device):
    """A leaf on a device with the tensor's content, strides, offset and overlaps."""
    flat = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
    flat = flat.to(device, copy=True)
    there = flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    return there.detach().requires_grad_(tensor.requires_grad)


def map_tensors(fn, nest):
    """Applies fn to every tensor of a nest, except a packed sequence's batch sizes."""

    def one(leaf):
        if isinstance(leaf, PackedSequence):
            data, batch_sizes, *order = leaf
            order = [None if t is None else fn(t) for t in order]
            return PackedSequence(fn(data), batch_sizes, *order)
        return fn(leaf) if isinstance(leaf, torch.Tensor) else leaf

    return pytree.tree_map(one, nest, is_leaf=lambda x: isinstance(x, PackedSequence))


def inputs_on(device, given):
    """A module input's (args, kwargs) as leaves on a device."""
    return map_tensors(lambda t: moved(t, device), (given.args, given.kwargs))


def with_grad(nest):
    leaves = pytree.tree_leaves(nest)
    return [t for t in leaves if isinstance(t, torch.Tensor) and t.requires_grad]


def weights_like(tensor):
    """A gradient with the tensor's device and strides, and different elements."""
    real = torch.arange(tensor.numel(), dtype=torch.float64).sin() + 1.5
    weights = real.reshape(tensor.shape).to(tensor.dtype)
    there = torch.empty_like(tensor, requires_grad=False)
    return there.copy_(weights)


def refusal(call):
    """(result, None), or (None, the error) if PyTorch refuses the call."""
    try:
        return call(), None
    except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError) as e:
        return None, e


# How much results may differ, relative to the largest element of the tensor. A fused
# group is as exact as PyTorch's operators but rounds differently. In float32 gradients
# both had errors of 3e-6. For 16 bits the value is one to two epsilons.
ROOM = {
    torch.float32: 1e-5,
    torch.complex64: 0,  # no tolerance beyond the default and `nudged`
    torch.float16: 2e-3,
    torch.bfloat16: 1e-2,
}

NUDGES = 4  # draws: the effect of one depends on its signs


def close(ours, cpu, nudged=None):
    """Compares as helpers.same does, with a tolerance for another kernel's rounding.

    If a tensor exceeds ROOM, its elements may differ by eight times the effect of
    rounding on PyTorch's own result. `nudged()` returns that result for several draws
    of inputs that differ by one epsilon; the largest effect counts.
    """
    leaves = [t for t in pytree.tree_leaves(cpu) if isinstance(t, torch.Tensor)]
    double = any(t.dtype in (torch.float64, torch.complex128) for t in leaves)
    if not on_cuda():
        ours, shape = pytree.tree_flatten(ours)
        cpu, cpu_shape = pytree.tree_flatten(cpu)
        assert shape == cpu_shape
        for i, (a, b) in enumerate(zip(ours, cpu, strict=True)):
            room = ROOM.get(getattr(b, "dtype", None))
            if room is None or b.numel() == 0:
                same(a, b)
                continue
            rtol, atol = default_tolerances(b)
            largest = b.detach().abs().nan_to_num(0, 0, 0).max().item()
            atol = max(atol, room * largest)
            try:
                same(a, b, rtol, atol)
            except AssertionError:
                if nudged is None:
                    raise
                draws = [pytree.tree_leaves(draw)[i] - b for draw in nudged()]
                moved = torch.stack(draws).detach().abs().nan_to_num(0, 0, 0)
                same(a, b, rtol, max(atol, 8 * moved.max().item()))
    elif double:
        same(ours, cpu, 1e-6, 1e-8)
    else:
        same(ours, cpu, 1e-2, 1e-3)


def same_state(there, here):
    """Asserts two modules' state_dicts to agree: names, order, versions, tensors."""
    ours, cpu = there.state_dict(), here.state_dict()
    assert list(ours) == list(cpu)
    assert ours._metadata == cpu._metadata
    close(list(ours.values()), list(cpu.values()))


def build(info, given, dtype, training):
    """The module on the CPU, and an equal one on the device."""

    def make():
        args, kwargs = copy.deepcopy((given.args, given.kwargs))
        seed(2)
        module = info.module_cls(*args, **kwargs)
        if any(t.is_floating_point() or t.is_complex() for t in state_tensors(module)):
            module = module.to(dtype)
        return module.train(training)

    here = make()
    # A lazy module has uninitialized parameters, which cannot be copied.
    there = make() if info.is_lazy else copy.deepcopy(here)
    assert there.to(DEVICE) is there
    return here, there


def state_tensors(module):
    return [*module.parameters(), *module.buffers()]


def forward(module, args, kwargs):
    """(result, whether the module drew random numbers from the CPU's generator)."""
    seed(3)
    before = torch.get_rng_state()
    result = module(*args, **kwargs)
    return result, not torch.equal(before, torch.get_rng_state())


def nudge(tensor, draw):
    """Changes each element of a tensor by one epsilon, up or down."""
    if tensor.is_floating_point() or tensor.is_complex():
        generator = torch.Generator().manual_seed(1000 * draw + tensor.numel())
        with torch.no_grad():
            real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
            signs = torch.randint(0, 2, real.shape, generator=generator) * 2 - 1
            real.mul_((1 + signs * torch.finfo(real.dtype).eps).to(real.dtype))
    return tensor


def results_nudged(info, given, dtype, training, draw):
    """The CPU's results, by name, for nudged inputs and parameters."""
    module, _ = build(info, given.constructor_input, dtype, training)
    for parameter in module.parameters():
        nudge(parameter, draw)
    inputs = inputs_on("cpu", given.forward_input)
    map_tensors(lambda tensor: nudge(tensor, draw), inputs)
    found = {}
    if not training:
        with torch.no_grad():
            found["without gradients"] = forward(module, *inputs)[0]
    found["result"], _ = forward(module, *inputs)
    found["inputs"] = inputs
    if results := with_grad(found["result"]):
        torch.autograd.backward(results, [weights_like(t) for t in results])
        found["gradients of inputs"] = [t.grad for t in with_grad(inputs)]
        found.update({name: p.grad for name, p in module.named_parameters()})
    return found


def check(info, given, dtype, training):
    """Runs one input forward and backward on both devices and compares."""
    here, there = build(info, given.constructor_input, dtype, training)
    cpu = inputs_on("cpu", given.forward_input)

    @functools.cache
    def all_nudged():
        return [
            results_nudged(info, given, dtype, training, draw) for draw in range(NUDGES)
        ]

    def nudged(name):
        return None if info.is_lazy else lambda: [draw[name] for draw in all_nudged()]

    ours = inputs_on(DEVICE, given.forward_input)
    if not training and not info.is_lazy:
        with torch.no_grad():  # attention modules have another code path without grad
            expected, refused = refusal(lambda: forward(here, *cpu))
            if refused is None:
                got, _ = forward(there, *ours)
                close(got, expected[0], nudged("without gradients"))
    expected, refused = refusal(lambda: forward(here, *cpu))
    if refused is not None:
        if not on_cuda():
            with pytest.raises(type(refused)):
                read(forward(there, *ours)[0])
        return
    expected, drew = expected
    got, _ = forward(there, *ours)
    if on_cuda() and (drew or info.is_lazy):
        same_kind(got, expected)
        return
    close(got, expected, nudged("result"))
    close(ours, cpu, nudged("inputs"))
    results, mine = with_grad(expected), with_grad(got)
    assert len(mine) == len(results)
    if results:
        grads = [weights_like(t) for t in results]
        _, refused = refusal(lambda: torch.autograd.backward(results, grads))
        if refused is not None:
            if not on_cuda():
                with pytest.raises(type(refused)):
                    torch.autograd.backward(mine, [weights_like(t) for t in mine])
                    read([t.grad for t in with_grad(ours)])
            return
        torch.autograd.backward(mine, [weights_like(t) for t in mine])
        mine = [t.grad for t in with_grad(ours)]
        expected = [t.grad for t in with_grad(cpu)]
        close(mine, expected, nudged("gradients of inputs"))
        theirs = dict(there.named_parameters())
        for name, parameter in here.named_parameters():
            with named(f"the gradient of {name}"):
                close(theirs[name].grad, parameter.grad, nudged(name))
    same_state(there, here)


def read(nest):
    return [t.cpu() for t in pytree.tree_leaves(nest) if isinstance(t, torch.Tensor)]


def same_kind(ours, cpu):
    """Compares dtypes, shapes and strides. CUDA draws other numbers than the CPU."""
    pairs = zip(pytree.tree_leaves(ours), pytree.tree_leaves(cpu), strict=True)
    for a, b in pairs:
        if isinstance(b, torch.Tensor):
            assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())


def first_input(info, training=True):
    return inputs_of(info, torch.float32, training)[0]


def on_device(module):
    return all(t.device == torch.device("mycelya", 0) for t in state_tensors(module))


def takes(info, keyword):
    return keyword in inspect.signature(info.module_cls.__init__).parameters


def rand(*shape, requires_grad=True):
    generator = torch.Generator().manual_seed(9)
    return torch.randn(shape, generator=generator).requires_grad_(requires_grad)
