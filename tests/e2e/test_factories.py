# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Functions that make tensors, the default device, and legacy tensor types."""

import warnings

import numpy
import pytest
import torch
from helpers import DEVICE, same
from object_helpers import on_device, ramp, to_device
from torch import nn

import mycelya_torch


@pytest.fixture
def other():
    """The device of a second machine."""
    with mycelya_torch.RemoteMachine("local") as machine:
        yield machine.device()


@pytest.fixture(autouse=True)
def no_default_device():
    yield
    torch.set_default_device(None)


FACTORIES = {
    "tensor": lambda **k: torch.tensor([1, 2], **k),
    "as_tensor": lambda **k: torch.as_tensor([1.5], **k),
    "asarray": lambda **k: torch.asarray(numpy.arange(3), **k),
    "asarray of a tensor": lambda **k: torch.asarray(ramp(2), **k),
    "zeros": lambda **k: torch.zeros(2, **k),
    "full": lambda **k: torch.full((2,), 3.0, **k),
    "arange": lambda **k: torch.arange(3, **k),
    "linspace": lambda **k: torch.linspace(0, 1, 3, **k),
    "eye": lambda **k: torch.eye(2, **k),
    "zeros_like": lambda **k: torch.zeros_like(ramp(2), **k),
    "complex": lambda **k: torch.tensor(1j, **k),
    "hann_window": lambda **k: torch.hann_window(4, **k),
    "logspace": lambda **k: torch.logspace(0, 1, 3, **k),
    "tril_indices": lambda **k: torch.tril_indices(3, 3, **k),
    "empty_strided": lambda **k: torch.empty_strided((2, 2), (1, 2), **k).zero_(),
    "scalar_tensor": lambda **k: torch.scalar_tensor(2.0, **k),
}


@pytest.mark.parametrize("device", ["mycelya", "mycelya:0", torch.device("mycelya"), 0])
@pytest.mark.parametrize("factory", FACTORIES)
def test_factories(factory, device):
    made = FACTORIES[factory](device=device)
    assert on_device(made)
    same(made, FACTORIES[factory](device="cpu"))


def test_factories_on_another_machine(other):
    for name, factory in FACTORIES.items():
        made = factory(device=other)
        assert made.device == other, name
        same(made, factory(device="cpu"))


def test_a_default_device():
    with torch.device("mycelya"):
        layer = nn.Linear(2, 3)
        made = [torch.ones(2), torch.arange(3), torch.tensor([1.0]), layer.weight]
        assert torch.get_default_device() == torch.device("mycelya", 0)
        assert torch.ones(1, device="cpu").device.type == "cpu"
        assert str(torch.zeros(1)) == "tensor([0.], device='mycelya:0')"
    assert all(on_device(t) for t in made) and torch.ones(1).device.type == "cpu"
    torch.set_default_device("mycelya")
    assert on_device(torch.rand(2)) and on_device(nn.Embedding(2, 2).weight)
    assert torch.get_default_device().type == "mycelya"
    assert torch.from_numpy(numpy.ones(2)).device.type == "cpu"  # as on CUDA
    torch.set_default_device(None)
    assert torch.ones(1).device.type == "cpu"


def test_a_default_device_of_another_machine(other):
    with torch.device(other):
        assert torch.ones(2).device == other
        assert nn.Linear(2, 2).weight.device == other
    with torch.mycelya.device(other):
        assert torch.ones(2, device="mycelya").device == other
        with torch.mycelya.device_of(torch.ones(1, device="mycelya:0")):
            assert torch.mycelya.current_device() == 0
    assert on_device(torch.ones(2, device="mycelya"))


@pytest.mark.filterwarnings("ignore:To copy construct from a tensor")
def test_made_like_another_tensor():
    x = to_device(ramp(2, 3))
    assert x.new_tensor([1, 2]).tolist() == [1.0, 2.0] and on_device(x.new_tensor(1))
    for made, expected in (
        (x.new_zeros(2), torch.zeros(2)),
        (x.new_ones((1, 2), dtype=torch.int32), torch.ones(1, 2, dtype=torch.int32)),
        (x.new_full((2,), 7.0), torch.full((2,), 7.0)),
        (x.new([1, 2]), torch.tensor([1.0, 2.0])),
        (torch.ones(2).type_as(x), torch.ones(2)),
        (torch.ones(2, dtype=torch.int64).type_as(x.half()), torch.ones(2).half()),
    ):
        assert on_device(made)
        same(made, expected)
    assert (
        on_device(x.new_empty(3)) and x.new_empty(3, device="cpu").device.type == "cpu"
    )
    assert x.new_empty_strided((2, 2), (1, 2)).stride() == (1, 2) and on_device(
        x.new(2)
    )
    assert x.type_as(torch.ones(1, dtype=torch.float64)).device.type == "cpu"
    assert torch.tensor([x[0, 1], x[1, 0]]).device.type == "cpu"  # as on CUDA
    assert on_device(torch.tensor(x.cpu(), device=DEVICE)) and torch.asarray(x) is x


def test_legacy_types():
    float_tensor = torch.mycelya.FloatTensor
    x = float_tensor([1, 2, 3])
    assert on_device(x) and x.dtype == torch.float32 and x.tolist() == [1.0, 2.0, 3.0]
    assert float_tensor(2, 3).shape == (2, 3) and float_tensor().shape == (0,)
    assert float_tensor(torch.Size([4])).shape == (4,)
    assert float_tensor(x).data_ptr() == x.data_ptr()
    assert x.type() == "torch.mycelya.FloatTensor" and isinstance(x, float_tensor)
    assert isinstance(nn.Parameter(x), float_tensor)
    assert not isinstance(x.half(), float_tensor) and not isinstance(
        x.cpu(), float_tensor
    )
    assert (float_tensor.__name__, float_tensor.__module__) == (
        "FloatTensor",
        "torch.mycelya",
    )
    assert repr(float_tensor) == "<class 'torch.mycelya.FloatTensor'>"
    for kind in ("torch.mycelya.LongTensor", torch.mycelya.LongTensor):
        for source in (x, x.cpu()):
            moved = source.type(kind)
            assert on_device(moved) and moved.tolist() == [1, 2, 3]
            assert moved.type() == "torch.mycelya.LongTensor"
    assert x.type("torch.FloatTensor").device.type == "cpu"
    assert x.type(torch.float64).type() == "torch.mycelya.DoubleTensor"
    for name in ("Double", "Half", "BFloat16", "Int", "Short", "Char", "Byte", "Bool"):
        kind = getattr(torch.mycelya, f"{name}Tensor")
        assert kind([1]).type() == f"torch.mycelya.{name}Tensor"
        assert torch.ones(1, dtype=kind.dtype).type(kind).is_mycelya
    with pytest.raises(TypeError):
        float_tensor(torch.ones(2))  # a CPU tensor is of another type, as on CUDA
    with pytest.raises(AttributeError, match="StringTensor"):
        _ = torch.mycelya.StringTensor
    with pytest.raises(TypeError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.set_default_tensor_type(float_tensor)
