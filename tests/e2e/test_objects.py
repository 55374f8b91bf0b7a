# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Kinds of tensors, and tensors as Python objects: subclasses, identity, values."""

import gc
import weakref

import pytest
import torch
from helpers import DEVICE, same
from object_helpers import on_device, ramp, raw, same_storage, to_device
from torch import nn


@pytest.mark.parametrize(
    "dtype",
    [
        *(torch.float8_e4m3fn, torch.float8_e5m2),
        *(torch.float8_e4m3fnuz, torch.float8_e5m2fnuz),
    ],
    ids=str,
)
def test_float8(dtype):
    x = torch.linspace(-4, 4, 9)
    y = to_device(x).to(dtype)
    assert y.dtype == dtype and y.element_size() == 1
    same(y.float(), x.to(dtype).float())
    assert torch.equal(raw(y.clone()[::2]), raw(x.to(dtype)[::2]))
    assert y[3].item() == x.to(dtype)[3].item()
    assert y.view(torch.uint8).tolist() == x.to(dtype).view(torch.uint8).tolist()


def test_complex():
    z = torch.complex(ramp(2, 2), -ramp(2, 2))
    y = to_device(z)
    same([y.conj(), y.real, y.imag, y.conj().imag, y.abs(), y.H], [
        z.conj().resolve_conj(), z.real, z.imag, z.conj().imag, z.abs(),
        z.H.resolve_conj(),
    ])  # fmt: skip
    assert y.conj().is_conj() and not y.conj().resolve_conj().is_conj()
    y.imag.zero_()
    assert y.tolist() == z.real.to(z.dtype).tolist()
    same(torch.view_as_real(y), torch.view_as_real(z.real.to(z.dtype)))


@pytest.mark.skipif(
    hasattr(torch.Tensor, "refine_names"), reason="only newer PyTorch has no names"
)
def test_named_tensors_are_gone_as_on_cuda():
    with pytest.raises(TypeError, match="names"):
        torch.ones(2, names=("a",), device=DEVICE)


@pytest.mark.skipif(
    not hasattr(torch.Tensor, "refine_names"), reason="newer PyTorch has no names"
)
@pytest.mark.skipif(
    torch.__version__.startswith("2.11."),
    reason="torch 2.11 names dims of tensors on the CPU, CUDA and XPU only",
)
def test_named_tensors():
    x = to_device(ramp(2, 3)).refine_names("a", "b")
    assert x.names == ("a", "b") and x.sum("a").names == ("b",)
    same(x.align_to("b", "a").rename(None), ramp(2, 3).t())


def jagged(device):
    parts = [ramp(2, 4), ramp(3, 4) + 1]
    return torch.nested.nested_tensor(parts, layout=torch.jagged, device=device)


def test_jagged_tensors():
    x, y = jagged(DEVICE), jagged("cpu")
    assert on_device(x) and on_device(x.offsets())
    weight = torch.randn(5, 4)
    for function in (
        lambda t: t * 2 + 1,
        lambda t: t.sin(),
        lambda t: t.softmax(-1),
        lambda t: nn.functional.linear(t, weight.to(t.device)),
        lambda t: nn.functional.layer_norm(t, (4,)),
    ):
        same(function(x).values(), function(y).values(), 1e-4, 1e-5)
    same(list(x.unbind()), list(y.unbind()))
    same(x.sum(1), y.sum(1))
    same(x.to_padded_tensor(-1.0), y.to_padded_tensor(-1.0))
    same(jagged("cpu").to(DEVICE).values(), y.values())
    same(x.cpu().values(), y.values())
    values = to_device(ramp(5, 4)).requires_grad_()
    offsets = to_device(torch.tensor([0, 2, 5]))
    nested = torch.nested.nested_tensor_from_jagged(values, offsets)
    (nested * nested).values().sum().backward()
    same(values.grad, 2 * ramp(5, 4))


class Logged(torch.Tensor):
    """A subclass that logs the functions that receive it."""

    calls: list = []

    @classmethod
    def __torch_function__(cls, function, kinds, args=(), kwargs=None):
        cls.calls.append(getattr(function, "__name__", str(function)))
        return super().__torch_function__(function, kinds, args, kwargs or {})


def test_torch_function():
    """All functions go through it, also the methods that this package replaces."""
    x = to_device(ramp(3)).as_subclass(Logged)
    Logged.calls.clear()
    y = (x + 1).to("cpu").to(DEVICE).mycelya()
    future = x.cpu_future()
    assert Logged.calls == ["add", "to", "to", "mycelya", "cpu_future"]
    assert isinstance(y, Logged) and on_device(y) and y.is_mycelya
    assert future.result(60).tolist() == [0.0, 1.0, 2.0]

    seen = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, kinds, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    with Mode():
        ramp(1).to(DEVICE)
    assert torch.Tensor.to in seen


def test_torch_dispatch():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.seen = []

        def __torch_dispatch__(self, function, kinds, args=(), kwargs=None):
            self.seen.append(function.__name__)
            return function(*args, **(kwargs or {}))

    x = to_device(ramp(3))
    with Mode() as mode:
        y = x * 2 + x.sum()
        z = y.cpu()
    assert mode.seen == ["mul.Tensor", "sum.default", "add.Tensor", "_to_copy.default"]
    same(y, z)


class Wrapper(torch.Tensor):
    """A subclass that wraps another tensor and runs ops on it."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, device=inner.device
        )

    def __init__(self, inner):
        self.inner = inner

    def __repr__(self, *, tensor_contents=None):
        return f"Wrapper({self.inner})"

    @classmethod
    def __torch_dispatch__(cls, function, kinds, args=(), kwargs=None):
        unwrap = torch.utils._pytree.tree_map_only
        result = function(
            *unwrap(cls, lambda t: t.inner, args),
            **unwrap(cls, lambda t: t.inner, kwargs or {}),
        )
        return unwrap(torch.Tensor, cls, result)


def test_wrapper_subclasses():
    x = Wrapper(to_device(ramp(2, 2)))
    y = (x @ x).relu().to("cpu")
    assert isinstance(y, Wrapper) and y.device.type == "cpu"
    same(y.inner, ramp(2, 2) @ ramp(2, 2))
    assert str(x) == f"Wrapper({x.inner})" and on_device(x)


def test_swap_tensors():
    x, y = to_device(ramp(3)), torch.ones(2)
    torch.utils.swap_tensors(x, y)
    assert x.device.type == "cpu" and y.tolist() == [0.0, 1.0, 2.0] and on_device(y)
    p, q = nn.Parameter(to_device(ramp(2))), nn.Parameter(ramp(3))
    torch.utils.swap_tensors(p, q)
    assert on_device(q) and p.shape == (3,)


def test_data_and_set():
    p = nn.Parameter(ramp(2))
    p.data = to_device(ramp(3))
    assert on_device(p) and p.shape == (3,) and p.requires_grad
    p.sum().backward()
    assert on_device(p.grad)
    x = to_device(ramp(4))
    y = torch.empty(0, device=DEVICE).set_(x)
    y.add_(1)
    assert x.tolist() == [1.0, 2.0, 3.0, 4.0] and same_storage(x, y)


def test_assert_close():
    x = to_device(torch.randn(3))
    torch.testing.assert_close(x, x.clone())
    torch.testing.assert_close(x, x.cpu(), check_device=False)
    with pytest.raises(AssertionError, match="'device' do not match"):
        torch.testing.assert_close(x, x.cpu())
    with pytest.raises(AssertionError, match="Mismatched elements: 3 / 3"):
        torch.testing.assert_close(x, x + 1)
    with pytest.raises(AssertionError, match="index"):
        torch.testing.assert_close({"a": [x]}, {"a": [x * 2]})


def test_identity_and_lifetime():
    x = to_device(ramp(3))
    assert hash(x) == id(x) and {x: 1}[x] == 1 and x in [x]
    reference = weakref.ref(x)
    died = []
    weakref.finalize(x, died.append, True)
    assert reference() is x
    gc.collect()
    held = torch.mycelya.memory_allocated()
    storage = x.untyped_storage()
    del x
    gc.collect()
    assert reference() is None and died == [True]
    assert torch.mycelya.memory_allocated() == held  # the storage lives on
    del storage
    assert torch.mycelya.memory_allocated() < held


def test_values_as_python_objects(counters):
    x = to_device(torch.tensor([[1.5, -2.0], [0.0, 3.0]]))
    n = to_device(torch.tensor([0, 2, 1]))
    torch.mycelya.synchronize()

    def reads(function):
        before = counters()["round_trips"]
        value = function()
        return value, counters()["round_trips"] - before

    assert reads(x.tolist) == ([[1.5, -2.0], [0.0, 3.0]], 1)
    assert reads(x[0, 0].item) == (1.5, 1)
    assert reads(lambda: (float(x[0, 0]), int(x[0, 0]), complex(x[0, 0]))) == (
        (1.5, 1, 1.5 + 0j),
        3,
    )
    assert reads(lambda: bool(x[1, 0])) == (False, 1)
    assert reads(lambda: ["a", "b", "c"][n[1]]) == ("c", 1)
    assert reads(lambda: list(range(n[1]))) == ([0, 1], 1)
    assert reads(lambda: (3.0 in x, 9 in x)) == ((True, False), 2)
    assert reads(lambda: (len(x), x.shape, x.dim(), x.numel())) == (
        (2, torch.Size([2, 2]), 2, 4),
        0,
    )
    rows, n_reads = reads(lambda: list(x))
    assert n_reads == 0 and [on_device(r) for r in rows] == [True, True]
    assert [r.tolist() for r in reversed(x)] == [[0.0, 3.0], [1.5, -2.0]]
    a, (b, c) = x.unbind(0)[0], x[1]
    assert (a.tolist(), b.item(), c.item()) == ([1.5, -2.0], 0.0, 3.0)
    for kind, wrong in (
        (RuntimeError, lambda: bool(x)),
        (RuntimeError, lambda: x.item()),
        (TypeError, lambda: ["a"][x[0, 0]]),
        (TypeError, lambda: len(x[0, 0])),
        (TypeError, lambda: iter(x[0, 0])),
        (ValueError, lambda: int(x)),
    ):
        with pytest.raises(kind):
            wrong()
