# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Modules are moved, copied, pickled, saved and initialized as on the CPU."""

import copy
import io
import pickle

import pytest
import torch
from helpers import DEVICE, on_cuda, same
from module_cases import (
    MODULES,
    build,
    first_input,
    forward,
    inputs_on,
    map_tensors,
    on_device,
    same_state,
    state_tensors,
    takes,
)
from torch.utils import _pytree as pytree

pytestmark = pytest.mark.filterwarnings("ignore")


def prepared(info):
    """A module on the CPU and the device after one run, and its inputs on both."""
    given = first_input(info)
    here, there = build(info, given.constructor_input, torch.float32, True)
    cpu = inputs_on("cpu", given.forward_input)
    ours = inputs_on(DEVICE, given.forward_input)
    forward(here, *cpu)
    forward(there, *ours)
    if info.is_lazy and on_cuda():
        there.load_state_dict(here.state_dict())
    return here, there, cpu, ours


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
    # Compare in float32, because some tensors were computed in float32.
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
        # Both ran the same program on the device, so the bits agree.
        same_bits(got, expected)
        same_bits(list(other.state_dict().values()), list(there.state_dict().values()))


def step(module, args, kwargs):
    """A forward in a trace of its own: equal traces give the same bits."""
    torch.mycelya.synchronize()
    result, _ = forward(module, args, kwargs)
    torch.mycelya.synchronize()
    return result


def same_bits(ours, others):
    pairs = zip(pytree.tree_leaves(ours), pytree.tree_leaves(others), strict=True)
    for a, b in pairs:
        if isinstance(b, torch.Tensor):
            assert (a.device, a.stride()) == (b.device, b.stride())
            same(a.detach().cpu(), b.detach().cpu(), 0, 0)


WITH_DEVICE = [n for n, info in MODULES.items() if takes(info, "device")]


@pytest.mark.cpu_worker
@pytest.mark.parametrize("name", WITH_DEVICE)
def test_initial_parameters(name):
    """`device=` and a torch.device context give the CPU's initial values."""
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
