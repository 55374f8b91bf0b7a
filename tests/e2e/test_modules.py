# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Every module of PyTorch gives on the device what the CPU gives.

They are those of PyTorch's module database, and those of torch.nn that it lacks.

Inputs are made on the CPU and copied, strides and overlaps included. Both sides start
from the same seed, so that what a module draws is the same too. A long
file, because all its tests share what builds and runs a module.
"""

import copy
import dataclasses
import functools
import inspect
import io
import pickle
import re
import warnings

import pytest
import torch
from helpers import DEVICE, named, on_cuda, same
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils import prune
from torch.nn.utils.rnn import PackedSequence
from torch.testing import make_tensor
from torch.testing._comparison import default_tolerances
from torch.testing._internal.common_modules import (
    FunctionInput,
    ModuleErrorEnum,
    ModuleInfo,
    ModuleInput,
    module_db,
)
from torch.utils import _pytree as pytree

pytestmark = pytest.mark.filterwarnings("ignore")


def other(cls, *cases, **facts):
    """Facts on a module that the database lacks, as it has them.

    A case is (constructor's arguments, its keywords, inputs): a shape is an input of
    the module's dtype, and a tensor is itself.
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
    """Where max pooling over 2 in each of the last dimensions found its maxima."""
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

# Too many inputs to run all of them in every test: these run every n-th, an odd number
# since inputs are products of yes and no. test_the_many_other_inputs has the rest.
LARGE = {
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
# Modules that compute in another way in eval, though they need not differ in values.
EVAL = {"nn.Transformer", "nn.TransformerDecoderLayer"}


def case_id(value):
    return str(value).removeprefix("torch.") if isinstance(value, torch.dtype) else None


def run_list():
    """(name, dtype, mode): what tells something new in the fast tier, then the rest."""
    for name, info in MODULES.items():
        for dtype in info.dtypes:
            for mode in ("train", "eval"):
                new = mode == "train" or info.train_and_eval_differ or name in EVAL
                fast = new and dtype == torch.float32
                marks = pytest.mark.fast if fast else pytest.mark.slow
                if new or dtype == torch.float32:
                    yield pytest.param(name, dtype, mode, marks=marks)


def inputs_of(info, dtype, training):
    torch.manual_seed(1)
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
            # PyTorch's own choice is "accurate" on the CPU and "compact" elsewhere.
            kwargs["options"] = dataclasses.replace(options, acc_policy="compact")
    return made


def moved(tensor, device):
    """A leaf on a device with the tensor's content, strides, offset and overlaps."""
    flat = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
    flat = flat.to(device, copy=True)
    there = flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    return there.detach().requires_grad_(tensor.requires_grad)


def map_tensors(fn, nest):
    """fn of every tensor of a nest; the batch sizes of a packed sequence stay put."""

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
    """A gradient on the tensor's device: each element its own, of the same strides."""
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


# A fused group is as far from the exact numbers as PyTorch's operators, but elsewhere:
# by so much of the largest element of a tensor may the two differ. Either was seen off
# by 3e-6 in gradients of float32; for 16 bits it is the distance of two numbers.
ROOM = {
    torch.float32: 1e-5,
    torch.complex64: 0,  # what rounding does to PyTorch's own, no more
    torch.float16: 2e-3,
    torch.bfloat16: 1e-2,
}


def close(ours, cpu, nudged=None):
    """As helpers.same, with room for another kernel's rounding.

    Where the room is too small, for what rounding does to PyTorch's own: `nudged()` is
    what it computes from numbers that differ in their last place.
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
                moved = (pytree.tree_leaves(nudged())[i] - b).detach().abs()
                same(a, b, rtol, max(atol, 8 * moved.nan_to_num(0, 0, 0).max().item()))
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
    """The module on the CPU, and its like on the device."""

    def make():
        args, kwargs = copy.deepcopy((given.args, given.kwargs))
        torch.manual_seed(2)
        module = info.module_cls(*args, **kwargs)
        if any(t.is_floating_point() or t.is_complex() for t in state_tensors(module)):
            module = module.to(dtype)
        return module.train(training)

    here = make()
    # What is not initialized yet cannot be copied.
    there = make() if info.is_lazy else copy.deepcopy(here)
    assert there.to(DEVICE) is there
    return here, there


def state_tensors(module):
    return [*module.parameters(), *module.buffers()]


def forward(module, args, kwargs):
    """(result, whether it drew random numbers of the CPU's generator)."""
    torch.manual_seed(3)
    before = torch.get_rng_state()
    result = module(*args, **kwargs)
    return result, not torch.equal(before, torch.get_rng_state())


def nudge(tensor):
    """Makes each number a near one, a last place up or down."""
    if tensor.is_floating_point() or tensor.is_complex():
        generator = torch.Generator().manual_seed(tensor.numel())
        with torch.no_grad():
            real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
            signs = torch.randint(0, 2, real.shape, generator=generator) * 2 - 1
            real.mul_((1 + signs * torch.finfo(real.dtype).eps).to(real.dtype))
    return tensor


def results_nudged(info, given, dtype, training):
    """What the CPU computes, by name, from inputs and parameters that are near ones."""
    module, _ = build(info, given.constructor_input, dtype, training)
    for parameter in module.parameters():
        nudge(parameter)
    inputs = inputs_on("cpu", given.forward_input)
    map_tensors(nudge, inputs)
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
    """One input, forward and backward, on both sides."""
    here, there = build(info, given.constructor_input, dtype, training)
    cpu = inputs_on("cpu", given.forward_input)

    @functools.cache
    def all_nudged():
        return results_nudged(info, given, dtype, training)

    def nudged(name):
        return None if info.is_lazy else lambda: all_nudged()[name]

    ours = inputs_on(DEVICE, given.forward_input)
    if not training and not info.is_lazy:
        with torch.no_grad():  # modules of attention go another way then
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
    """As same, without values: what CUDA draws is not what the CPU draws."""
    pairs = zip(pytree.tree_leaves(ours), pytree.tree_leaves(cpu), strict=True)
    for a, b in pairs:
        if isinstance(b, torch.Tensor):
            assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())


@pytest.mark.parametrize(("name", "dtype", "mode"), list(run_list()), ids=case_id)
def test_forward_and_backward(name, dtype, mode):
    info, training = MODULES[name], mode == "train"
    every = LARGE.get(name, 1)
    for i, given in enumerate(inputs_of(info, dtype, training)):
        if i % every == 0:
            with named(f"input {i} {given.desc!r}"):
                check(info, given, dtype, training)


def other_inputs():
    for name in LARGE:
        differ = MODULES[name].train_and_eval_differ or name in EVAL
        modes = ("train", "eval") if differ else ("train",)
        yield from ((name, mode) for mode in modes)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "mode"), list(other_inputs()))
def test_the_many_other_inputs(name, mode):
    info, training = MODULES[name], mode == "train"
    for i, given in enumerate(inputs_of(info, torch.float32, training)):
        if i % LARGE[name] != 0:
            with named(f"input {i} {given.desc!r}"):
                check(info, given, torch.float32, training)


# ---- Moving, copying, saving ----


def first_input(info, training=True):
    return inputs_of(info, torch.float32, training)[0]


def prepared(info):
    """A module on both sides that has run once, with that input on both sides."""
    given = first_input(info)
    here, there = build(info, given.constructor_input, torch.float32, True)
    cpu = inputs_on("cpu", given.forward_input)
    ours = inputs_on(DEVICE, given.forward_input)
    forward(here, *cpu)
    forward(there, *ours)
    if info.is_lazy and on_cuda():
        there.load_state_dict(here.state_dict())
    return here, there, cpu, ours


def on_device(module):
    return all(t.device == torch.device("mycelya", 0) for t in state_tensors(module))


@pytest.mark.parametrize("name", MODULES)
def test_to_and_back(name):
    here, there, _, _ = prepared(MODULES[name])
    assert on_device(there)
    assert repr(there) == repr(here)
    same_state(there, here)
    before = list(there.parameters())
    assert there.to("cpu") is there
    assert all(a is b for a, b in zip(before, there.parameters(), strict=True))
    assert all(t.device.type == "cpu" for t in state_tensors(there))
    same_state(there, here)
    assert all(
        a is b for a, b in zip(before, there.to(DEVICE).parameters(), strict=True)
    )
    there.to(DEVICE, torch.float64)
    here.to(torch.float64)
    assert on_device(there)
    dtypes = [[t.dtype for t in state_tensors(m)] for m in (there, here)]
    assert dtypes[0] == dtypes[1]
    # Some were computed in float32, and are as close as such.
    same_state(there.to(torch.float32), here.to(torch.float32))


@pytest.mark.parametrize("name", MODULES)
def test_state_dict_loads_across(name):
    here, there, _, _ = prepared(MODULES[name])
    with torch.no_grad():
        for t in state_tensors(here):
            t.copy_(torch.arange(t.numel()).reshape(t.shape))
    assert (
        str(there.load_state_dict(here.state_dict()))
        == "<All keys matched successfully>"
    )
    assert on_device(there)
    same_state(there, here)
    with torch.no_grad():
        for t in state_tensors(there):
            t.add_(1)
    here.load_state_dict(there.state_dict())
    assert all(t.device.type == "cpu" for t in state_tensors(here))
    same_state(there, here)


@pytest.mark.parametrize("name", MODULES)
def test_copy_and_pickle(name):
    _, there, _, ours = prepared(MODULES[name])
    copied = copy.deepcopy(there)
    pickled = pickle.loads(pickle.dumps(there))
    buffer = io.BytesIO()
    torch.save(there, buffer)
    buffer.seek(0)
    saved = torch.load(buffer, weights_only=False)
    expected = step(there, *ours)
    for other in (copied, pickled, saved):
        assert on_device(other)
        assert repr(other) == repr(there)
        taken = {id(t) for t in state_tensors(there)}
        assert not taken & {id(t) for t in state_tensors(other)}
        got = step(other, *ours)
        # Both are the device's and the same step, so bits agree whatever the worker is.
        bits(got, expected)
        bits(list(other.state_dict().values()), list(there.state_dict().values()))


def step(module, args, kwargs):
    """A forward with nothing else in its step: steps alike have the same bits."""
    torch.mycelya.synchronize()
    result, _ = forward(module, args, kwargs)
    torch.mycelya.synchronize()
    return result


def bits(ours, others):
    pairs = zip(pytree.tree_leaves(ours), pytree.tree_leaves(others), strict=True)
    for a, b in pairs:
        if isinstance(b, torch.Tensor):
            assert (a.device, a.stride()) == (b.device, b.stride())
            same(a.detach().cpu(), b.detach().cpu(), 0, 0)


def takes(info, keyword):
    return keyword in inspect.signature(info.module_cls.__init__).parameters


WITH_DEVICE = [n for n, info in MODULES.items() if takes(info, "device")]


@pytest.mark.cpu_worker
@pytest.mark.parametrize("name", WITH_DEVICE)
def test_initial_parameters(name):
    """`device=` and torch.device's context give the CPU's initial values."""
    info = MODULES[name]
    given = first_input(info).constructor_input

    def make(device, keyword):
        args, kwargs = map_tensors(
            lambda t: t.detach().to(device), copy.deepcopy((given.args, given.kwargs))
        )
        kwargs.pop("device", None)
        kwargs["dtype"] = torch.float32
        torch.manual_seed(4)
        if keyword:
            return info.module_cls(*args, **kwargs, device=device)
        with torch.device(device):
            return info.module_cls(*args, **kwargs)

    here = make("cpu", True)
    for there in (make(DEVICE, True), make(DEVICE, False)):
        assert on_device(there)
        if info.is_lazy:
            assert there.has_uninitialized_params()
            continue
        for a, b in zip(state_tensors(there), state_tensors(here), strict=True):
            assert type(a) is type(b) and a.requires_grad == b.requires_grad
            assert torch.equal(a.detach().cpu(), b.detach())


@pytest.mark.parametrize("name", [n for n in WITH_DEVICE if not MODULES[n].is_lazy])
def test_meta_then_to_empty(name):
    here, there, cpu, ours = prepared(MODULES[name])
    empty = copy.deepcopy(here).to("meta")
    assert empty.to_empty(device=DEVICE) is empty
    assert on_device(empty)
    empty.load_state_dict(here.state_dict())
    same_state(empty, here)
    assigned = copy.deepcopy(here).to("meta")
    assigned.load_state_dict(there.state_dict(), assign=True)
    same_state(assigned, here)
    ours, theirs = assigned.state_dict().values(), there.state_dict().values()
    for a, b in zip(ours, theirs, strict=True):
        assert a.untyped_storage()._cdata == b.untyped_storage()._cdata


# ---- Strides ----


def noncontiguous(tensor):
    """The same values at every second place, as in PyTorch's own test of strides."""
    if tensor.numel() < 2 or not (tensor.is_floating_point() or tensor.is_complex()):
        return tensor
    wide = torch.repeat_interleave(tensor.detach(), 2, dim=-1)[..., ::2]
    return wide.requires_grad_(tensor.requires_grad)


def channels_last(tensor):
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    if tensor.ndim not in formats:
        return tensor
    there = tensor.detach().to(memory_format=formats[tensor.ndim])
    return there.requires_grad_(tensor.requires_grad)


# The CPU has kernels for them that keep channels_last; CUDA composes views, as we do.
SHUFFLES = {"nn.PixelShuffle", "nn.PixelUnshuffle"}
LAYOUTS = {"noncontiguous": noncontiguous, "channels_last": channels_last}


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", MODULES)
def test_strides_of_inputs(name, layout):
    info = MODULES[name]
    every = LARGE.get(name, 1)
    for i, given in enumerate(inputs_of(info, torch.float32, True)):
        if i % every:
            continue
        nest = given.forward_input.args, given.forward_input.kwargs
        changed = map_tensors(LAYOUTS[layout], nest)
        before, after = pytree.tree_leaves(nest), pytree.tree_leaves(changed)
        if all(a is b for a, b in zip(before, after, strict=True)):
            continue
        given.forward_input.args, given.forward_input.kwargs = changed
        if name in SHUFFLES and layout == "channels_last":
            (image,) = changed[0]
            got = info.module_cls(*given.constructor_input.args)(image.to(DEVICE))
            assert got.is_contiguous()
            continue
        with named(f"input {i} {given.desc!r}"):
            check(info, given, torch.float32, True)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n, i in MODULES.items() if not i.is_lazy])
def test_channels_last_parameters(name):
    """A module in channels_last gives channels_last where the CPU does."""
    info = MODULES[name]
    for i, given in enumerate(inputs_of(info, torch.float32, True)):
        here, there = build(info, given.constructor_input, torch.float32, True)
        ranks = {t.ndim for t in state_tensors(here)}
        memory_format = torch.channels_last if 4 in ranks else torch.channels_last_3d
        if not ranks & {4, 5}:
            continue
        cpu = inputs_on("cpu", given.forward_input)
        ours = inputs_on(DEVICE, given.forward_input)
        for module in (here, there):
            module.to(memory_format=memory_format)
        with named(f"input {i} {given.desc!r}"):
            same_state(there, here)
            expected, got = forward(here, *cpu)[0], forward(there, *ours)[0]
            close(got, expected)
            expected.backward(weights_like(expected))
            got.backward(weights_like(got))
            mine = [p.grad for p in there.parameters()]
            close(mine, [p.grad for p in here.parameters()])


INPLACE = [n for n, info in MODULES.items() if takes(info, "inplace")]


@pytest.mark.parametrize("name", INPLACE)
def test_inplace(name):
    info = MODULES[name]
    for i, given in enumerate(inputs_of(info, torch.float32, True)):
        given.constructor_input.kwargs["inplace"] = True
        here, there = build(info, given.constructor_input, torch.float32, True)
        cpu = inputs_on("cpu", given.forward_input)
        ours = inputs_on(DEVICE, given.forward_input)
        with named(f"input {i} {given.desc!r}"):
            kept = []
            for module, (args, kwargs) in ((here, cpu), (there, ours)):
                (leaf,) = with_grad((args, kwargs))
                written = map_tensors(
                    lambda t, leaf=leaf: t.clone() if t is leaf else t, (args, kwargs)
                )
                (target,) = with_grad(written)
                result, _ = forward(module, *written)
                result.backward(weights_like(result))
                facts = result is target, target._version
                kept.append((result, target, leaf.grad, facts))
            close(kept[1], kept[0])


# ---- Second derivatives ----


def twice(module, args, kwargs):
    """The gradient of a weighted sum of the first gradients."""
    torch.manual_seed(3)
    results = with_grad(module(*args, **kwargs))
    leaves = [*with_grad((args, kwargs)), *with_grad(list(module.parameters()))]
    first = torch.autograd.grad(
        results,
        leaves,
        [weights_like(t).requires_grad_() for t in results],
        create_graph=True,
        allow_unused=True,
    )
    rooted = [g for g in first if g is not None and g.requires_grad]
    if not rooted:
        return []
    weights = [weights_like(g) for g in rooted]
    return torch.autograd.grad(rooted, leaves, weights, allow_unused=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n, i in MODULES.items() if i.supports_gradgrad])
def test_second_derivatives(name):
    info = MODULES[name]
    if on_cuda() and name in ("nn.RNN", "nn.LSTM", "nn.GRU"):
        pytest.skip("cuDNN has no second derivative of a recurrent layer")
    for i, given in enumerate(inputs_of(info, torch.float64, True)):
        if i % LARGE.get(name, 1):
            continue
        here, there = build(info, given.constructor_input, torch.float64, True)
        cpu = inputs_on("cpu", given.forward_input)
        ours = inputs_on(DEVICE, given.forward_input)
        with named(f"input {i} {given.desc!r}"):
            expected, refused = refusal(functools.partial(twice, here, *cpu))
            if refused is None:
                close(twice(there, *ours), expected)
            elif not on_cuda():
                with pytest.raises(type(refused)):
                    read(twice(there, *ours))


# ---- What the inputs of the database do not reach ----


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("padding", [[3, 5, 1], [0, 2, 4]])
def test_encoder_of_padded_rows(padding, norm):
    """In eval PyTorch leaves out padded rows that are last, and gives zeros there."""
    torch.manual_seed(2)
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
    final = nn.LayerNorm(8) if norm else None
    here = nn.TransformerEncoder(layer, 2, norm=final).eval()
    there = copy.deepcopy(here).to(DEVICE)
    x = rand(3, 5, 8, requires_grad=False)
    last = torch.arange(5) >= torch.tensor(padding).clamp(min=1)[:, None]
    for mask in (last, last.flip(1)):
        with torch.no_grad():
            expected = here(x, src_key_padding_mask=mask)
            got = there(x.to(DEVICE), src_key_padding_mask=mask.to(DEVICE))
        close(got, expected)


# ---- torch.nn.utils, torch.nn.init ----


def both(module):
    return module, copy.deepcopy(module).to(DEVICE)


def same_step(here, there, *inputs):
    """Forward and backward of two modules from one seed."""
    cpu, ours = [moved(x, "cpu") for x in inputs], [moved(x, DEVICE) for x in inputs]
    expected, got = forward(here, cpu, {})[0], forward(there, ours, {})[0]
    close(got, expected)
    expected.backward(weights_like(expected))
    got.backward(weights_like(got))
    close([x.grad for x in ours], [x.grad for x in cpu])
    mine = [p.grad for p in there.parameters()]
    close(mine, [p.grad for p in here.parameters()])
    same_state(there, here)


def rand(*shape, requires_grad=True):
    generator = torch.Generator().manual_seed(9)
    return torch.randn(shape, generator=generator).requires_grad_(requires_grad)


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
    torch.manual_seed(5)  # some begin with random vectors
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
    """It is for accelerators only, and without a process group it is BatchNorm."""
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
    """Each kind of hook sees the device's tensors, in the CPU's order."""
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
    """Where its zeros are it draws on the CPU, on every device."""
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


# ---- Errors ----


def error_cases():
    for name, info in MODULES.items():
        if info.module_error_inputs_func is not None:
            for i in range(len(error_inputs(info))):
                yield name, i


def error_inputs(info):
    return info.module_error_inputs_func(
        info, device="cpu", dtype=torch.float32, requires_grad=False, training=True
    )


@pytest.mark.parametrize(("name", "i"), list(error_cases()))
def test_error_inputs(name, i):
    """The same exception type, and a message that PyTorch's own test accepts."""
    info = MODULES[name]
    case = error_inputs(info)[i]
    given = case.module_error_input
    args, kwargs = map_tensors(
        lambda t: moved(t, DEVICE),
        (given.constructor_input.args, given.constructor_input.kwargs),
    )
    if takes(info, "device"):
        kwargs["device"] = DEVICE

    def act():
        module = info.module_cls(*args, **kwargs)
        if case.error_on == ModuleErrorEnum.FORWARD_ERROR:
            inputs, named_inputs = inputs_on(DEVICE, given.forward_input)
            read(module.to(DEVICE)(*inputs, **named_inputs))

    data_dependent = "index out of range" in case.error_regex
    kind = (IndexError, RuntimeError) if data_dependent else case.error_type
    with pytest.raises(kind) as caught:
        act()
    # CUDA has no text for an index that is only known to be wrong on the device.
    if not (on_cuda() and data_dependent):
        assert type(caught.value) is case.error_type or data_dependent
        assert re.search(case.error_regex, str(caught.value))
    assert torch.ones(2, device=DEVICE).sum().item() == 2  # nothing else was poisoned


def test_the_database_is_whole():
    assert len(module_db) == len({info.name for info in module_db}) == 114
    classes = {info.module_cls for info in module_db}
    assert nn.TransformerEncoder in classes and nn.CTCLoss in classes


def test_no_warning_of_ours():
    """What the CPU does in silence the device does in silence too."""
    here = nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True)
    there = copy.deepcopy(here).to(DEVICE)
    x = torch.randn(2, 3, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        close(there(x.to(DEVICE)), here(x))
