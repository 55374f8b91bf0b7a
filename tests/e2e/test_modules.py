# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Every module of PyTorch computes the same on the device as on the CPU.

The tests cover results, gradients, strides and errors. `module_cases.py` lists the
modules.
"""

import copy
import functools
import re
import warnings

import pytest
import torch
from helpers import DEVICE, named, on_cuda
from module_cases import (
    EVAL,
    LARGE,
    MODULES,
    build,
    check,
    close,
    forward,
    inputs_of,
    inputs_on,
    map_tensors,
    moved,
    rand,
    read,
    refusal,
    same_state,
    state_tensors,
    takes,
    weights_like,
    with_grad,
)
from torch import nn
from torch.testing._internal.common_modules import ModuleErrorEnum, module_db
from torch.utils import _pytree as pytree

pytestmark = pytest.mark.filterwarnings("ignore")


def case_id(value):
    return str(value).removeprefix("torch.") if isinstance(value, torch.dtype) else None


def run_list():
    """Cases (name, dtype, mode). Modes with their own code path in float32 are fast."""
    for name, info in MODULES.items():
        for dtype in info.dtypes:
            for mode in ("train", "eval"):
                new = mode == "train" or info.train_and_eval_differ or name in EVAL
                fast = new and dtype == torch.float32
                marks = pytest.mark.fast if fast else pytest.mark.slow
                if new or dtype == torch.float32:
                    yield pytest.param(name, dtype, mode, marks=marks)


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


# ---- Strides ----


def noncontiguous(tensor):
    """The same values with a stride of 2, as in PyTorch's own test of strides."""
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


# The CPU's kernels for these keep channels_last. CUDA and this device compose views.
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
    """A module in channels_last returns channels_last where the CPU does."""
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


# ---- Code paths that the database's inputs do not reach ----


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("padding", [[3, 5, 1], [0, 2, 4]])
def test_encoder_of_padded_rows(padding, norm):
    """In eval mode PyTorch skips padded rows at the end and returns zeros there."""
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
    """The device raises the same type, with a message that PyTorch's test accepts."""
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
    # CUDA has no such message for an index that is out of range on the device.
    if not (on_cuda() and data_dependent):
        assert type(caught.value) is case.error_type or data_dependent
        assert re.search(case.error_regex, str(caught.value))
    assert torch.ones(2, device=DEVICE).sum().item() == 2  # the device goes on


def test_the_database_is_whole():
    # Releases before 2.15 lack nn.LinearCrossEntropyLoss.
    whole = 114 if hasattr(nn, "LinearCrossEntropyLoss") else 113
    assert len(module_db) == len({info.name for info in module_db}) == whole
    classes = {info.module_cls for info in module_db}
    assert nn.TransformerEncoder in classes and nn.CTCLoss in classes


def test_the_device_adds_no_warning():
    """The device does not warn where the CPU does not warn."""
    here = nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True)
    there = copy.deepcopy(here).to(DEVICE)
    x = torch.randn(2, 3, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        close(there(x.to(DEVICE)), here(x))
