# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Modules and tensors move between the CPU and the device."""

import copy
import pickle
from concurrent.futures import Future

import pytest
import torch
from helpers import DEVICE, same
from object_helpers import Sub, on_device, ramp, same_storage, to_device
from torch import nn

import mycelya_torch

# ---- Modules ----


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(3, 3)
        self.b = nn.Linear(3, 3)
        self.b.weight = self.a.weight
        self.register_buffer("scale", torch.ones(3))
        self.alias = self.scale

    def forward(self, x):
        return self.b(self.a(x)) * self.scale


MOVES = {
    "to": lambda m: m.to(DEVICE),
    "to a dtype as well": lambda m: m.to(DEVICE, torch.float32),
    "to a tensor's": lambda m: m.to(torch.empty(0, device=DEVICE)),
    "mycelya": lambda m: m.mycelya(),
    "mycelya of an index": lambda m: m.mycelya(0),
}


@pytest.mark.parametrize("move", MOVES)
def test_ties_are_kept(move):
    model = Tied()
    weight, optimizer = model.a.weight, torch.optim.SGD(model.parameters(), lr=0.1)
    expected = copy.deepcopy(model)
    assert MOVES[move](model) is model
    assert model.a.weight is model.b.weight is weight is next(model.parameters())
    assert (
        on_device(weight)
        and on_device(model.scale)
        and len(list(model.parameters())) == 3
    )
    optimizers = [optimizer, torch.optim.SGD(expected.parameters(), lr=0.1)]
    x = torch.randn(4, 3)
    for _ in range(3):
        for m, o in zip((model, expected), optimizers, strict=True):
            o.zero_grad()
            m(x.to(m.a.weight.device)).pow(2).sum().backward()
            o.step()
    same(model.state_dict(), expected.state_dict(), 1e-4, 1e-5)
    model.cpu()
    assert model.a.weight is model.b.weight is weight and weight.device.type == "cpu"
    same(model.state_dict(), expected.state_dict(), 1e-4, 1e-5)


@pytest.mark.parametrize("swap", [False, True])
def test_ties_are_kept_whichever_way_modules_convert(swap):
    torch.__future__.set_swap_module_params_on_conversion(swap)
    try:
        model = Tied()
        weight = model.a.weight
        model.to(DEVICE).half()
        assert model.a.weight is model.b.weight is weight
        assert (weight.dtype, weight.device.type) == (torch.float16, "mycelya")
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def test_a_machine_stands_for_its_device():
    with mycelya_torch.RemoteMachine("local") as machine:
        x = ramp(2, 3)
        moved = [
            x.to(machine),
            x.to(machine, torch.float64),
            x.to(device=machine, dtype=torch.float64, non_blocking=True),
            nn.Linear(2, 2).to(machine).weight,
            nn.LazyLinear(3).to(machine).weight,
            nn.LazyLinear(3).to(machine.device()).weight,
            x.as_subclass(Sub).to(machine),
        ]
        assert {t.device for t in moved} == {machine.device()}
        assert moved[1].dtype == moved[2].dtype == torch.float64
        assert isinstance(moved[-1], Sub)
        assert pickle.loads(pickle.dumps(torch.Tensor.to)) is torch.Tensor.to
        wants = "argument 'device' must be torch.device, not RemoteMachine"
        with pytest.raises(TypeError, match=wants):
            torch.ones(2, device=machine)
        with pytest.raises(TypeError, match=wants):
            nn.Linear(2, 2, device=machine)


def test_a_gradient_moves_with_its_parameter():
    layer = nn.Linear(2, 1)
    layer(torch.ones(1, 2)).sum().backward()
    layer.to(DEVICE)
    assert on_device(layer.weight.grad) and layer.weight.grad.tolist() == [[1.0, 1.0]]
    layer.cpu()
    assert layer.weight.grad.device.type == "cpu"


def test_from_meta_to_the_device():
    def make():
        return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.LayerNorm(3))

    with torch.device("meta"):
        model = make()
    with pytest.raises(NotImplementedError, match="meta"):
        model.to(DEVICE)
    model.to_empty(device=DEVICE)
    assert all(on_device(t) for t in model.state_dict().values())
    for layer in model:
        layer.reset_parameters()
    source = make()
    model.load_state_dict(source.state_dict())
    x = torch.randn(5, 2)
    same(model(to_device(x)), source(x), 1e-4, 1e-5)
    with torch.device("meta"):
        assigned = make()
    assigned.load_state_dict(model.state_dict(), assign=True)
    assert same_storage(assigned[0].weight, model[0].weight)
    assert on_device(nn.utils.skip_init(nn.Linear, 2, 3, device=DEVICE).weight)
    for lazy in (
        nn.LazyLinear(3, device=DEVICE),
        nn.LazyLinear(3).to(DEVICE),
        nn.LazyLinear(3).mycelya(),
    ):
        assert on_device(lazy(to_device(x))) and lazy.weight.shape == (3, 2)


def test_packed_sequences_move():
    packed = nn.utils.rnn.pack_sequence([ramp(3), ramp(2)])
    moved = packed.to(DEVICE)
    assert moved.data.is_mycelya and moved.is_mycelya and not packed.is_mycelya
    same(nn.utils.rnn.unpack_sequence(moved), [ramp(3), ramp(2)])
    assert packed.mycelya().is_mycelya


# ---- Pinned memory and transfers ----


def test_pinned_memory():
    x = ramp(2, 3)
    pinned = x.pin_memory()
    assert pinned.is_pinned() and not x.is_pinned() and pinned[1].is_pinned()
    assert torch.empty(3, pin_memory=True).is_pinned()
    assert torch.zeros_like(x, pin_memory=True).is_pinned()
    assert not to_device(x).is_pinned()
    same(pinned, x)
    sent = pinned.to(DEVICE, non_blocking=True)
    pinned.zero_()
    same(sent, x)
    host = torch.empty(2, 3, pin_memory=True)
    host.copy_(sent, non_blocking=True)
    torch.mycelya.synchronize()
    same(host, x)
    assert pinned.untyped_storage().is_pinned()
    for pin in (to_device(x).pin_memory, to_device(x).untyped_storage().pin_memory):
        with pytest.raises(
            (RuntimeError, TypeError), match="only .*CPU .*can be pinned"
        ):
            pin()
    with pytest.raises(RuntimeError, match="pinned"):
        torch.empty(2, pin_memory=True, device=DEVICE)


def test_cpu_future():
    x = to_device(ramp(3))
    future = (x * 2).cpu_future()
    assert isinstance(future, Future)
    y = x + 1
    before = y.cpu_future()
    y.zero_()
    assert before.result(60).tolist() == [1.0, 2.0, 3.0]
    assert future.result(60).tolist() == [0.0, 2.0, 4.0]
    assert future.result().device.type == "cpu"
    learned = (x.requires_grad_() * 2).cpu_future().result(60)
    assert not learned.requires_grad
    at_once = ramp(2).cpu_future()
    assert at_once.done() and at_once.result().tolist() == [0.0, 1.0]
    futures = [(x.detach() + i).cpu_future() for i in range(20)]
    assert [f.result(60)[0].item() for f in futures] == list(range(20))
    assert torch.Tensor.cpu_future.__doc__


@pytest.mark.cpu_worker
def test_cpu_future_of_a_failed_op():
    bad = to_device(ramp(3)).gather(0, to_device(torch.tensor([5])))
    with pytest.raises(RuntimeError, match="gather"):
        bad.cpu_future().result(60)


def test_moves_with_all_options():
    x = ramp(2, 3, 4, 4)
    y = x.to(DEVICE, torch.float64, non_blocking=True, copy=True)
    assert y.to("mycelya") is y and y.to(torch.float64) is y
    assert y.to("mycelya", copy=True) is not y
    assert y.mycelya() is y and y.mycelya(0) is y and y.mycelya("mycelya:0") is y
    last = x.to(DEVICE, memory_format=torch.channels_last)
    assert last.stride() == x.to(memory_format=torch.channels_last).stride()
    same(last.cpu().contiguous(), x)
    assert y.to(x).device.type == "cpu" and x.to(y).dtype == torch.float64
    assert y.cpu().dtype == torch.float64 and x.cpu() is x
    with pytest.raises(RuntimeError, match="Invalid device, must be mycelya"):
        x.mycelya("cpu")
    with pytest.raises(RuntimeError, match=r"mycelya:99 does not exist"):
        x.to("mycelya:99")
    assert x.is_cpu and not x.is_mycelya and y.is_mycelya and not y.is_cuda
    assert y.get_device() == 0 and y.device.type == "mycelya"
