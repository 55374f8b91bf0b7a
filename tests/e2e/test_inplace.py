# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""In-place and out= ops: values, checks at the call, and version counters."""

import pytest
import torch
from helpers import DEVICE, compare, same, to_device

IN_PLACE = {
    "add_": lambda x, y: x.add_(y, alpha=2),
    "mul_ number": lambda x, y: x.mul_(1.5),
    "div_": lambda x, y: x.div_(y),
    "sub broadcast": lambda x, y: x.sub_(y[0]),
    "relu_": lambda x, y: x.relu_(),
    "sigmoid_": lambda x, y: x.sigmoid_(),
    "clamp_": lambda x, y: x.clamp_(-0.5, 0.5),
    "copy_": lambda x, y: x.copy_(y),
    "copy_ broadcast": lambda x, y: x.copy_(y[0]),
    "copy_ cast": lambda x, y: x.copy_(y.double()),
    "fill_": lambda x, y: x.fill_(2.5),
    "zero_": lambda x, y: x.zero_(),
    "addmm_": lambda x, y: x.addmm_(y, y.t() @ x),
    "addcmul_": lambda x, y: x.addcmul_(y, y, value=0.5),
    "addcdiv_": lambda x, y: x.addcdiv_(y, y.abs() + 1),
    "lerp_": lambda x, y: x.lerp_(y, 0.25),
    "masked_fill_": lambda x, y: x.masked_fill_(y > 0, 7.0),
    "setitem": lambda x, y: x.__setitem__((slice(None), 1), y[:, 0]),
    "setitem mask": lambda x, y: x.__setitem__(y > 0, 9.0),
    "setitem ints": lambda x, y: x.__setitem__([0, 2], y[:2]),
    "index_put_": lambda x, y: x.index_put_((y[:, 0].argsort(),), y, accumulate=True),
    "index_add_": lambda x, y: x.index_add_(0, y[:, 0].argsort(), y),
    "scatter_": lambda x, y: x.scatter_(1, y.argsort(1), y),
    "index_fill_": lambda x, y: x.index_fill_(1, y[0].argsort()[:2], 3.0),
    "tril_": lambda x, y: x.tril_(),
    "self twice": lambda x, y: x.add_(x).mul_(x),
    "own transpose": lambda x, y: x[:, :3].add_(x[:, :3].t().clone()),
}


@pytest.mark.parametrize("name", IN_PLACE)
@pytest.mark.parametrize("cut", [False, True], ids=["one trace", "cut between"])
def test_in_place(name, cut):
    def fn(x, y):
        IN_PLACE[name](x, y)
        if cut:
            torch.mycelya.synchronize()
        IN_PLACE[name](x, y)
        return x.sum()

    compare(fn, torch.randn(3, 4), torch.randn(3, 4), rtol=1e-5, atol=1e-5)


def test_earlier_results_keep_their_values():
    def fn(x):
        kept = [x * 1]
        for i in range(4):
            x.add_(i)
            kept.append(x * 1)
        return kept

    compare(fn, torch.randn(3, 4))


def both_raise(fn, kind=RuntimeError):
    """Asserts that fn raises `kind` on both devices; returns both messages."""
    messages = []
    for device in ("cpu", DEVICE):
        with pytest.raises(kind) as error:
            fn(device)
        messages.append(str(error.value))
    return messages


def test_checks_are_made_at_the_call():
    cpu, ours = both_raise(
        lambda d: torch.zeros(3, device=d).add_(torch.zeros(2, 3, device=d))
    )
    assert "output with shape [3]" in ours and "output with shape [3]" in cpu
    cpu, ours = both_raise(
        lambda d: torch.zeros(3, dtype=torch.int64, device=d).add_(1.5)
    )
    assert "result type Float can't be cast" in ours
    both_raise(lambda d: torch.zeros(3, device=d).add_(torch.zeros(4, device=d)))
    both_raise(lambda d: torch.zeros(2, 3, device=d) @ torch.zeros(2, 3, device=d))


def test_out():
    def fn(x, y):
        out = torch.empty(3, 4, device=x.device)
        torch.mul(x, y, out=out)
        part = torch.zeros(3, 8, device=x.device)
        torch.add(x, y, out=part[:, ::2])
        empty = torch.empty(0, device=x.device)
        torch.matmul(x, y.t(), out=empty)
        values = torch.empty(0, device=x.device)
        indices = torch.empty(0, dtype=torch.int64, device=x.device)
        torch.max(x, 1, out=(values, indices))
        return out, part, empty, values, indices

    compare(fn, torch.randn(3, 4), torch.randn(3, 4))


def test_out_of_another_size_warns_and_resizes():
    for device in ("cpu", DEVICE):
        out = torch.ones(5, device=device)
        with pytest.warns(UserWarning, match="was resized"):
            torch.add(torch.ones(2, 3, device=device), 1, out=out)
        assert out.shape == (2, 3)
    both_raise(
        lambda d: torch.add(
            torch.ones(3, device=d), 1.5, out=torch.ones(3, dtype=torch.int32, device=d)
        )
    )


def test_writes_to_saved_tensors_are_detected():
    def fn(device):
        x = torch.ones(3, device=device, requires_grad=True)
        y = x.exp()
        y.add_(1)
        y.sum().backward()

    for message in both_raise(fn):
        assert "modified by an inplace operation" in message

    def foreach(device):
        x = torch.ones(3, device=device, requires_grad=True)
        y = x.exp()
        with torch.no_grad():
            torch._foreach_add_([y], 1.0)
        y.sum().backward()

    for message in both_raise(foreach):
        assert "modified by an inplace operation" in message


def test_version_counters():
    def versions(device):
        x = torch.zeros(3, device=device)
        seen = [x._version]
        for write in (
            lambda: x.add_(1),
            lambda: x[0].mul_(2),
            lambda: torch._foreach_mul_([x], 2.0),
            lambda: x.copy_(torch.ones(3)),
            lambda: torch.add(x, 1, out=x),
        ):
            write()
            seen.append(x._version)
        return seen

    assert versions(DEVICE) == versions("cpu")


def test_a_leaf_that_requires_grad_cannot_be_written():
    both_raise(lambda d: torch.ones(2, device=d, requires_grad=True).add_(1))


def test_foreach_writes_all():
    def fn(*t):
        torch._foreach_add_(t[:3], t[3:], alpha=0.5)
        torch._foreach_mul_(t[:3], [1.0, 2.0, 3.0])
        torch._foreach_addcdiv_(t[:3], t[3:], [x.abs() + 1 for x in t[3:]], 0.1)
        torch._foreach_zero_(t[3:4])
        return [x.sum() for x in t]

    compare(fn, *(torch.randn(2, 3) for _ in range(6)), rtol=1e-5, atol=1e-6)


def test_batch_norm_writes_its_running_statistics():
    here, there = torch.nn.BatchNorm2d(3), torch.nn.BatchNorm2d(3).to(DEVICE)
    for _ in range(3):
        x = torch.randn(4, 3, 5, 5)
        same(there(x.to(DEVICE)), here(x), 1e-4, 1e-5)
    same(dict(there.named_buffers()), dict(here.named_buffers()), 1e-5, 1e-6)
    assert there.num_batches_tracked.item() == 3
    here.eval(), there.eval()
    same(there(x.to(DEVICE)), here(x), 1e-4, 1e-5)


def test_writes_to_one_storage_through_two_tensors():
    x = to_device(torch.zeros(4))
    y = x.detach()
    x.add_(1)
    y.mul_(5)
    x.sub_(2)
    assert y.cpu().tolist() == [3.0] * 4


# ---- Overlapping memory: which writes are allowed, and what they give ----


def outcome(fn, device):
    """The result of a call: a tensor's values and strides, or the error."""
    try:
        t = fn(device)
        return t.cpu().tolist(), t.stride()
    except (RuntimeError, IndexError, TypeError) as error:
        return type(error).__name__, str(error)


def line(device, n=6, dtype=torch.float32):
    return torch.arange(n, device=device, dtype=dtype)


def square(device):
    return torch.arange(9.0, device=device).view(3, 3)


def wide(device, dtype=torch.float32):
    """One element, expanded to three."""
    return torch.ones(1, device=device, dtype=dtype).expand(3)


def at(device, *indices):
    return torch.tensor(indices, dtype=torch.int64, device=device)


def into(fn, out):
    fn(out)
    return out


# Writes to tensors with elements that share memory. Most are refused; fills are not.
EXPANDED = {
    "add_": lambda d: wide(d).add_(1),
    "relu_": lambda d: wide(d).relu_(),
    "copy_": lambda d: wide(d).copy_(torch.zeros(3, device=d)),
    "cumsum_": lambda d: wide(d).cumsum_(0),
    "fill_": lambda d: wide(d).fill_(2),
    "fill_ tensor": lambda d: wide(d).fill_(torch.tensor(2.0, device=d)),
    "fill_ itself": lambda d: (x := wide(d)).fill_(x[0]),
    "zero_": lambda d: wide(d).zero_(),
    "setitem": lambda d: into(lambda x: x.__setitem__(slice(1, None), 2), wide(d)),
    "masked_fill_": lambda d: wide(d).masked_fill_(wide(d, torch.bool), 2),
    "masked_scatter_": lambda d: wide(d).masked_scatter_(wide(d) > 0, wide(d)),
    "index_fill_": lambda d: wide(d).index_fill_(0, at(d, 0), 2),
    "index_put_": lambda d: wide(d).index_put_((at(d, 0),), torch.ones(1, device=d)),
    "index_copy_": lambda d: wide(d).index_copy_(0, at(d, 0), torch.ones(1, device=d)),
    "index_add_": lambda d: wide(d).index_add_(0, at(d, 0), torch.ones(1, device=d)),
    "scatter_": lambda d: wide(d).scatter_(0, at(d, 0), 2.0),
    "fill_diagonal_": lambda d: square(d)[:1].expand(3, 3).fill_diagonal_(2),
    "addmm_": lambda d: square(d)[:1].expand(3, 3).addmm_(square(d), square(d)),
    "random": lambda d: wide(d).bernoulli_(0.5),
    "conj_physical_": lambda d: wide(d).conj_physical_(),
    "out": lambda d: torch.add(wide(d), 1, out=wide(d)),
    "out that has to grow": lambda d: torch.add(line(d), 1, out=wide(d)),
    "foreach": lambda d: into(lambda x: torch._foreach_add_([x], 1), wide(d)),
}

# Operators that read the memory that they write.
READ_AND_WRITTEN = {
    "add_ itself": lambda d: (x := line(d)).add_(x),
    "add_ its neighbours": lambda d: (x := line(d))[1:].add_(x[:-1]),
    "add_ one of its own": lambda d: (x := line(d)).add_(x[2]),
    "copy_ a neighbour": lambda d: (x := line(d))[1:].copy_(x[:-1]),
    "copy_ its transpose": lambda d: (x := square(d)).copy_(x.mT),
    "copy_ itself": lambda d: (x := square(d)).copy_(x.view(3, 3)),
    "copy_ itself, expanded": lambda d: (x := wide(d))[1:].copy_(x[:-1]),
    "copy_ a row": lambda d: (x := square(d)).copy_(x[0]),
    "copy_ a negative": lambda d: (x := torch._neg_view(line(d)))[1:].copy_(x[:-1]),
    "setitem": lambda d: into(lambda x: x.__setitem__(0, x[1]), square(d)),
    "setitem itself": lambda d: into(lambda x: x.__setitem__(None, x), line(d, 1)),
    "fill_": lambda d: (x := line(d)).fill_(x[2]),
    "index_put_": lambda d: (x := line(d)).index_put_((at(d, 0),), x[:1]),
    "index_put_ accumulate": lambda d: (x := line(d)).index_put_(
        (at(d, 0),), x[:1], accumulate=True
    ),
    "index_copy_": lambda d: (x := line(d)).index_copy_(0, at(d, 1, 0), x[:2]),
    "index_add_": lambda d: (x := line(d)).index_add_(0, at(d, 1, 0), x[:2]),
    "index_fill_": lambda d: (x := line(d, dtype=torch.int64)).index_fill_(0, x, 7),
    "scatter_": lambda d: (x := line(d))[1:].scatter_(0, at(d, 1, 0), x[:-1]),
    "masked_fill_": lambda d: (x := wide(d, torch.bool).clone())[1:].masked_fill_(
        x[:-1], False
    ),
    "foreach copy": lambda d: into(
        lambda x: torch._foreach_copy_([x], [x[0]]), square(d)
    ),
    "out": lambda d: torch.mul(x := line(d), 2, out=x),
    "out of its transpose": lambda d: torch.clamp(x := square(d), min=4, out=x.mT),
    "out with other strides": lambda d: torch.eq(x := square(d)[:2], 2, out=x.mT),
    "abs": lambda d: torch.abs(x := line(d)[:5].neg_(), out=x[1:4]),
    "cat": lambda d: torch.cat([x := line(d), x], out=x),
    "cat elsewhere": lambda d: torch.cat([(x := line(d))[:1], x[1:2]], out=x[4:]),
    "stack": lambda d: torch.stack([x := line(d)], out=x[None]),
    "mm": lambda d: torch.mm(x := square(d), x, out=x),
}


@pytest.mark.filterwarnings("ignore:Use of .* on expanded tensors is deprecated")
@pytest.mark.parametrize("name", EXPANDED)
def test_writes_to_expanded_tensors(name):
    assert outcome(EXPANDED[name], DEVICE) == outcome(EXPANDED[name], "cpu")


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("name", READ_AND_WRITTEN)
def test_writes_that_read_what_they_write(name):
    fn = READ_AND_WRITTEN[name]
    assert outcome(fn, DEVICE) == outcome(fn, "cpu")


def test_a_number_from_the_cpu_fills_an_expanded_tensor():
    """As on CUDA, where fill_ reads a CPU value as a number; on the CPU it copies."""
    assert wide(DEVICE).fill_(torch.tensor(2.0)).tolist() == [2.0] * 3


def test_a_conversion_that_writes_elements_twice():
    """PyTorch allows it, and its order of writes decides the values."""

    def run(device):
        x = torch.arange(6, dtype=torch.float32, device=device)
        x.set_(x.untyped_storage(), 0, [2, 3], [1, 1])
        x.copy_(torch.arange(6).reshape(2, 3))
        return x.set_(x.untyped_storage(), 0, [6], [1])

    same(run(DEVICE), run("cpu"))


def test_empty_operands_do_not_overlap():
    def fn(x):
        i = torch.empty(0, dtype=torch.int64, device=x.device)
        x = x[:0]
        x.index_put_((i,), x[:1], accumulate=True)
        x.index_copy_(0, i, x.narrow(0, 0, 0))
        x.index_add_(0, i, x[:1])
        return x

    compare(fn, torch.arange(3.0))


@pytest.mark.parametrize("reduce", ["", "prod", "amax"])
def test_index_add_and_index_reduce_of_own_rows(reduce):
    """The source is the same rows of the tensor, or other rows of it.

    PyTorch's CPU kernel detects an exact self-add by comparing strides, including
    those of size-1 dims.
    """

    def run(device):
        x = torch.empty_strided((3, 2), (4, 1), device=device)
        x.copy_(torch.arange(1.0, 7, device=device).reshape(3, 2))
        y = torch.ones(6, 2, device=device, requires_grad=True)
        wide, version = x.unsqueeze(0).unsqueeze(-1), x._version
        for z in (wide, (x.repeat(2, 1) * y)[::2].unsqueeze(0)):
            for i, dim in (([0], 1), ([2, 0], 1), ([0], -2), ([0], 0)):
                index = torch.tensor(i, device=device)
                rows = z.narrow(dim, 0, len(i))
                if reduce:
                    z.index_reduce_(dim, index, rows, reduce)
                else:
                    z.index_add_(dim, index, rows, alpha=2)
        return x, z, x._version - version, z.stride()

    same(run(DEVICE), run("cpu"))


OUTS = {
    "sum into bool": lambda d: torch.sum(line(d), 0, out=wide(d, torch.bool).clone()),
    "sum into ints": lambda d: torch.sum(line(d), 0, out=line(d, 1, torch.int64)[0]),
    "prod": lambda d: torch.prod(line(d), 0, out=line(d, 1, torch.int64)[0]),
    "cat into ints": lambda d: torch.cat([line(d)] * 2, out=line(d, 0, torch.int64)),
    "neg into double": lambda d: torch.neg(line(d), out=line(d, 0, torch.float64)),
    "abs into double": lambda d: torch.abs(line(d), out=line(d, 0, torch.float64)),
    "clamp into ints": lambda d: torch.clamp(line(d), 0, out=line(d, 0, torch.int64)),
    "abs of complex": lambda d: torch.abs(
        torch.ones(2, 3, dtype=torch.complex64, device=d)[:1], out=line(d, 3)
    ),
    "abs of complex, transposed": lambda d: torch.abs(
        torch.arange(6.0, device=d).to(torch.complex64).view(2, 3).mT, out=line(d, 1)
    ),
    "arange resizes an expanded tensor": lambda d: torch.arange(4, out=wide(d)),
    "arange into one place": lambda d: torch.arange(3, out=line(d)[:1].expand(3)[None]),
    "arange keeps a shape": lambda d: torch.arange(6, out=line(d).view(2, 3)),
    "arange keeps strides": lambda d: torch.arange(6, out=line(d).view(3, 2).mT),
    "linspace keeps a shape": lambda d: torch.linspace(0, 5, 6, out=line(d)[None]),
    "arange resizes": lambda d: torch.arange(3, out=line(d).view(2, 3)),
    "eye resizes": lambda d: torch.eye(2, out=line(d)),
}


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.filterwarnings("ignore:The number of elements in the out tensor")
@pytest.mark.parametrize("name", OUTS)
def test_dtypes_and_shapes_of_out(name):
    assert outcome(OUTS[name], DEVICE) == outcome(OUTS[name], "cpu")


def test_numbers_that_do_not_fit_are_refused():
    """The CPU raises at the call, the device at the next read at the latest."""
    for fn in (
        lambda d: torch.zeros(2, dtype=torch.uint8, device=d).fill_(300).cpu(),
        lambda d: torch.zeros(2, device=d).fill_(1 + 2j).cpu(),
        lambda d: torch.full((2,), 300, dtype=torch.uint8, device=d).cpu(),
    ):
        cpu, ours = both_raise(fn)
        assert ours.startswith(cpu)


def test_index_add_without_indices():
    def fn(x):
        i = torch.empty(0, dtype=torch.int64, device=x.device)
        return x.index_add_(0, i, x[:0].clone()), x.index_add(0, i, x[:0].clone())

    compare(fn, torch.ones(3, 2))
