# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Sparse compressed tensors (CSR, CSC, BSR, BSC), held against the CPU's.

Two of them are the same if their indices and values are. Where the CPU leaves elements
of a row in another order, or keeps zeros, they are held against each other as dense
ones. A long file, because four layouts share each test.
"""

import copy
import io

import pytest
import torch
from helpers import DEVICE, moved, pairs

pytestmark = pytest.mark.filterwarnings("ignore:.*(beta|prototype).*")

CSR, CSC, BSR, BSC = (
    torch.sparse_csr,
    torch.sparse_csc,
    torch.sparse_bsr,
    torch.sparse_bsc,
)
LAYOUTS = [CSR, CSC, BSR, BSC]
UNARY = """
abs angle asin asinh atan atanh ceil deg2rad erf erfinv expm1 floor frac isinf isnan
isneginf isposinf log1p neg rad2deg relu round sgn sign signbit sin sinh sqrt tan tanh
trunc
""".split()

layouts = pytest.mark.parametrize("layout", LAYOUTS, ids=lambda v: str(v)[-3:])


def dense(sizes=(4, 6), dtype=torch.float64, density=0.4, seed=0) -> torch.Tensor:
    """A CPU tensor of zeros and a few others."""
    generator = torch.Generator().manual_seed(seed)
    some = torch.rand(sizes, generator=generator) < density
    if dtype.is_floating_point or dtype.is_complex:
        values = torch.randn(sizes, dtype=dtype, generator=generator)
    elif dtype == torch.bool:
        values = torch.ones(sizes, dtype=dtype)
    else:
        values = torch.randint(1, 9, sizes, dtype=dtype, generator=generator)
    return torch.where(some, values, torch.zeros((), dtype=dtype))


def to(layout, tensor: torch.Tensor, block=(2, 3)) -> torch.Tensor:
    blocksize = block if layout in (BSR, BSC) else None
    return tensor.to_sparse(layout=layout, blocksize=blocksize)


def stacked(n=3) -> torch.Tensor:
    """A batch of matrices, which must have the same number of elements."""
    return torch.cat([dense((1, 4, 6))] * n)


def sparse(layout=CSR, *args, grad=False, **kwargs) -> torch.Tensor:
    return to(layout, dense(*args, **kwargs)).requires_grad_(grad)


def parts(t: torch.Tensor) -> list[torch.Tensor]:
    if t.layout in (CSR, BSR):
        return [t.crow_indices(), t.col_indices(), t.values()]
    return [t.ccol_indices(), t.row_indices(), t.values()]


def same(got, expected, loose=False, **tolerance) -> None:
    """Asserts that two nests of results agree; loose: as dense tensors."""
    for a, b in pairs(got, expected):
        if b.layout in LAYOUTS and not loose:
            assert (a._nnz(), a.dense_dim()) == (b._nnz(), b.dense_dim())
            same(parts(a), parts(b), **tolerance)
            continue
        if b.layout is not torch.strided:
            a, b = a.to_dense(), b.to_dense()
        torch.testing.assert_close(a.cpu(), b, equal_nan=True, **tolerance)


def compare(fn, *tensors, loose=False, **tolerance):
    """fn on the CPU and on the device: results, operands afterwards, gradients."""
    cpu = [t.detach().clone().requires_grad_(t.requires_grad) for t in tensors]
    ours = [moved(t) for t in tensors]
    expected, got = fn(*cpu), fn(*ours)
    same(got, expected, loose, **tolerance)
    same(ours, cpu, loose, **tolerance)
    if any(t.requires_grad for t in cpu):
        for result in (expected, got):
            total = result if result.layout is torch.strided else result.to_dense()
            weight = torch.arange(1.0, total.numel() + 1, dtype=torch.float64).sin()
            (total * weight.reshape(total.shape).to(total)).sum().backward()
        for a, b in zip(ours, cpu, strict=True):
            assert (a.grad is None) == (b.grad is None)
            if b.grad is not None:
                same(a.grad, b.grad, loose, **tolerance)
    return got


def fails_alike(fn, *tensors, words=True) -> None:
    """fn raises the same kind of error, and if words in the same ones, on both."""
    with pytest.raises(Exception) as cpu:
        fn(*tensors)
    with pytest.raises(type(cpu.value)) as ours:
        fn(*map(moved, tensors))
    if words:
        assert str(ours.value).splitlines()[0] == str(cpu.value).splitlines()[0]


def alike(fn, *tensors, **how) -> None:
    """The same on both, or an error on both."""

    def both_ways(*operands):
        result = fn(*operands)
        if any(t.requires_grad for t in operands):
            total = result if result.layout is torch.strided else result.to_dense()
            total.sum().backward()

    try:
        both_ways(
            *(t.detach().clone().requires_grad_(t.requires_grad) for t in tensors)
        )
    except Exception:
        fails_alike(both_ways, *tensors, words=False)
    else:
        compare(fn, *tensors, **how)


# ---- Making, moving, taking apart ----


@layouts
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
@pytest.mark.parametrize("index", [torch.int64, torch.int32])
def test_made_on_the_device(layout, dtype, index):
    cpu = sparse(layout, dtype=dtype)
    compressed, plain, values = parts(cpu)
    compressed, plain = compressed.to(index), plain.to(index)
    cpu = torch.sparse_compressed_tensor(
        compressed, plain, values, cpu.shape, layout=layout
    )
    here = [t.to(DEVICE) for t in (compressed, plain, values)]
    named = {CSR: "csr", CSC: "csc", BSR: "bsr", BSC: "bsc"}[layout]
    factory = getattr(torch, f"sparse_{named}_tensor")
    for t in (
        torch.sparse_compressed_tensor(*here, cpu.shape, layout=layout),
        factory(*here, cpu.shape),
        factory(compressed, plain, values, cpu.shape, device=DEVICE),
        cpu.to(DEVICE),
        cpu.mycelya(),
    ):
        same(t, cpu)
        assert t.device == torch.device("mycelya", 0)
        assert not t.is_sparse and t.sparse_dim() == 2
        back = t.cpu()
        assert back.device.type == "cpu" and back.layout == layout
        for a, b in zip(parts(back), (compressed, plain, values), strict=True):
            assert torch.equal(a, b) and a.dtype == b.dtype


def test_made_of_lists():
    def make(device):
        return torch.sparse_csr_tensor(
            [0, 2, 3], [0, 2, 1], [1.0, 2.0, 3.0], device=device
        )

    same(make(DEVICE), make("cpu"))
    assert make(DEVICE).shape == (2, 3)


def test_empty_ones():
    for make in (
        lambda device: torch.zeros(3, 4, layout=CSR, device=device),
        lambda device: torch.zeros(2, 3, 4, layout=CSC, device=device),
        lambda device: torch.zeros_like(sparse().to(device)),
        lambda device: torch.zeros_like(sparse(BSR).to(device)),
        lambda device: torch.zeros(3, 4, device=device).to_sparse_csr(),
        lambda device: torch.zeros(0, 4, device=device).to_sparse_csr(),
        lambda device: torch.zeros(4, 0, device=device).to_sparse_csc(),
        lambda device: torch.zeros(4, 4, device=device).to_sparse_bsr((2, 2)),
    ):
        same(make(DEVICE), make("cpu"))
        same(make(DEVICE).to_dense(), make("cpu").to_dense())
    empty = torch.empty(3, 4, layout=CSR, device=DEVICE)
    assert empty._nnz() == 0 and empty.shape == (3, 4)


@layouts
def test_from_and_to_other_layouts(layout):
    for dtype in (torch.float64, torch.float16, torch.bool):
        d = dense(dtype=dtype)
        compare(lambda d: to(layout, d), d)
        compare(lambda d: to(layout, d.t(), (3, 2)), d)
        compare(lambda d: to(layout, d.to_sparse()), d)
        compare(lambda t: t.to_dense(), to(layout, d))
        compare(lambda t: t.to_sparse(), to(layout, d))
    compare(lambda t: t.to_sparse(2), sparse(layout))
    compare(lambda t: t.to_dense(), to(layout, stacked(6).reshape(2, 3, 4, 6)))
    d = stacked()  # as many elements in each of the batch
    compare(lambda d: to(layout, d), d)
    compare(lambda t: t.to_sparse(), to(layout, d))
    hybrid = dense((4, 6))[..., None] * torch.arange(1.0, 3.0)
    blocksize = (2, 3) if layout in (BSR, BSC) else None

    def convert(d):
        return d.to_sparse(layout=layout, blocksize=blocksize, dense_dim=1)

    compare(convert, hybrid)
    compare(lambda d: convert(d).to_dense(), hybrid)


@layouts
def test_between_compressed_layouts(layout):
    t = sparse(layout)
    batch = to(layout, stacked().reshape(3, 1, 4, 6))
    if layout in (CSR, CSC):
        for x in (t, batch, sparse(layout, (0, 6)), to(layout, torch.zeros(4, 6))):
            compare(lambda t: t.to_sparse_csr(), x)
            compare(lambda t: t.to_sparse_csc(), x)
        for block in ((2, 3), (1, 1), (4, 6), (2, 1)):
            compare(lambda t, b=block: t.to_sparse_bsr(b), t)
            compare(lambda t, b=block: t.to_sparse_bsc(b), t)
        compare(lambda t: t.to_sparse_bsr((2, 2)), to(layout, torch.zeros(4, 6)))
        hybrid = dense((4, 6))[..., None] * torch.arange(1.0, 3.0)
        hybrid = hybrid.to_sparse(layout=layout, dense_dim=1)
        compare(lambda t: t.to_sparse_csr(), hybrid)
        compare(lambda t: t.to_sparse_bsc((2, 3)), hybrid)
        fails_alike(lambda t: t.to_sparse_bsr((2, 4)), t)
        fails_alike(lambda t: t.to_sparse_bsr((2, 3)), batch)
    else:
        for x in (t, batch):
            compare(lambda t: t.to_sparse_bsr((2, 3)), x)
            compare(lambda t: t.to_sparse_bsc((2, 3)), x)
        fails_alike(lambda t: t.to_sparse_csr(), t)
        fails_alike(lambda t: t.to_sparse_bsr((1, 3)), t)
    small = torch.sparse_compressed_tensor(
        *(p.int() for p in parts(t)[:2]), t.values(), t.shape, layout=layout
    )
    if layout in (CSR, CSC):
        compare(lambda t: t.to_sparse_csr(), small)
        compare(lambda t: t.to_sparse_csc(), small)
    compare(lambda t: t.to_sparse_bsr((2, 3)), small)
    compare(lambda t: t.to_sparse_bsc((2, 3)), small)


@layouts
def test_gradients_of_conversions(layout):
    d = dense().requires_grad_()
    compare(lambda d: to(layout, d).to_dense(), d)
    t = sparse(layout, grad=True)
    alike(lambda t: t.to_dense(), t)
    alike(lambda t: t.to_dense(masked_grad=False), t)
    alike(lambda t: t.to_sparse(), t)
    alike(lambda t: t.values() * 2, t)


@layouts
def test_parts_are_aliases(layout):
    def f(t):
        t.values().mul_(2)
        t.detach().values().add_(1)
        return t, t.detach(), t.sparse_dim(), t.dense_dim(), t._nnz()

    compare(f, sparse(layout))
    other = "ccol_indices" if layout in (CSR, BSR) else "crow_indices"
    fails_alike(lambda t: getattr(t, other)(), sparse(layout))


@layouts
def test_copies(layout):
    t, u = sparse(layout), sparse(layout) * 3
    compare(lambda t: t.clone(), t)
    same(copy.deepcopy(moved(t)), t)  # which the CPU refuses
    compare(lambda t, u: u.copy_(t), t, u)
    compare(lambda t: t.to(torch.float32), t)
    compare(lambda t: t.half().double(), t)
    compare(lambda t: t.to(t.device, torch.complex64, copy=True), t)
    compare(lambda t: t.clone().zero_(), t)
    compare(lambda t: torch.zeros_like(t), t)
    compare(lambda t: torch.ones_like(t), t)
    compare(lambda t: torch.empty_like(t).fill_(2), t)
    compare(lambda t: torch.empty_like(t, dtype=torch.int8).fill_(2), t)
    compare(lambda t: (t.is_same_size(t), t.is_pinned(), t.numel()), t)
    mine, here = moved(t), torch.empty_like(t)
    here.copy_(mine)
    assert torch.equal(here.values(), t.values())
    mine.copy_(u)
    same(mine, u)
    fails_alike(lambda t, d: t.copy_(d), t, dense())
    fails_alike(lambda t, u: t.copy_(u), t, to(layout, torch.zeros(4, 6).double()))
    grad = moved(t.requires_grad_())
    assert grad.requires_grad and grad.detach().layout == layout


def test_resizing():
    other = sparse(CSR, (7, 9), seed=1)
    compare(lambda t: t.resize_(5, 8), sparse())
    same(parts(moved(sparse()).resize_as_sparse_(moved(other)))[:2], parts(other)[:2])
    fails_alike(lambda t: t.resize_(4, 5), sparse())


@layouts
def test_printed(layout):
    for t in (sparse(layout), to(layout, stacked(2))):
        text, expected = (" ".join(repr(x).split()) for x in (moved(t), t))
        assert text == expected.replace("size=", "device='mycelya:0', size=", 1)


@layouts
def test_saved_and_loaded(layout):
    t = sparse(layout).requires_grad_()
    for weights_only in (True, False):
        buffer = io.BytesIO()
        torch.save(moved(t), buffer)
        buffer.seek(0)
        loaded = torch.load(buffer, weights_only=weights_only)
        same(loaded, t)
        buffer.seek(0)
        on_cpu = torch.load(buffer, map_location="cpu", weights_only=weights_only)
        assert on_cpu.device.type == "cpu" and on_cpu.layout == layout
        assert torch.equal(on_cpu.to_dense(), t.to_dense())


def test_a_module_of_a_compressed_weight():
    module = torch.nn.Linear(6, 4, bias=False).double()
    module.weight = torch.nn.Parameter(sparse(CSR))
    x = torch.randn(3, 6, dtype=torch.float64)
    expected = module(x)
    module.to(DEVICE)
    assert module.weight.layout == CSR and module.weight.is_leaf
    same(module.weight, sparse(CSR))
    same(module(moved(x)), expected)
    module.to("cpu")
    assert torch.equal(module(x), expected)


# ---- Invariants ----

BROKEN = {
    "begin": ([1, 1, 2], [0], [1.0]),
    "end": ([0, 1, 1], [0, 1], [1.0, 1.0]),
    "much": ([0, 3, 3], [0, 1, 0], [1.0] * 3),
    "beyond": ([0, 1, 2], [0, 5], [1.0, 1.0]),
    "negative": ([0, 1, 2], [0, -1], [1.0, 1.0]),
    "order": ([0, 2, 2], [1, 0], [1.0, 1.0]),
    "twice": ([0, 2, 2], [1, 1], [1.0, 1.0]),
    "size": ([0, 2], [1, 1], [1.0, 1.0]),
    "dtype": ([0.0, 1.0, 2.0], [0, 1], [1.0, 1.0]),
}


@pytest.mark.parametrize("layout", [CSR, CSC])
@pytest.mark.parametrize("what", BROKEN)
def test_invariants_are_checked_when_asked_for(layout, what):
    compressed, plain, values = map(torch.tensor, BROKEN[what])

    def make(values):
        here = values.device
        return torch.sparse_compressed_tensor(
            compressed.to(here),
            plain.to(here),
            values,
            (2, 2),
            layout=layout,
            check_invariants=True,
        )

    fails_alike(make, values)


@layouts
def test_good_ones_pass(layout):
    with torch.sparse.check_sparse_tensor_invariants():
        for t in (
            sparse(layout),
            to(layout, torch.zeros(4, 6)),
            to(layout, stacked()),
        ):
            moved = t.to(DEVICE)
            same(moved, t)
            torch._validate_sparse_compressed_tensor_args(
                *parts(moved), moved.shape, layout
            )
            same(to(layout, moved.to_dense()), t)


def test_no_wait_where_nobody_asks(counters):
    t, d = sparse(), dense((6, 6))
    compressed, plain, values = (p.to(DEVICE) for p in parts(t))
    d = d.to(DEVICE)
    before = counters()["cuts"]
    a = torch.sparse_csr_tensor(compressed, plain, values, t.shape)
    total = (a * 2).sin() @ d + a.t().to_sparse_csr().t() @ d + (a * d[:4]).to_dense()
    sampled = torch.sparse.sampled_addmm(a, d[:4], d)
    reduced = torch.sparse.mm(a, d, "amax")
    assert counters()["cuts"] == before
    d = d.cpu()
    same(total, (t * 2).sin() @ d + t @ d + (t * d[:4]).to_dense())
    same(sampled, torch.sparse.sampled_addmm(t, d[:4], d))
    same(reduced, torch.sparse.mm(t, d, "amax"))


# ---- Functions of the values ----


@layouts
@pytest.mark.parametrize("name", UNARY)
def test_functions_of_the_values(layout, name):
    fn = getattr(torch, name)
    compare(fn, sparse(layout))
    if hasattr(torch.Tensor, name + "_"):
        alike(lambda t: getattr(t, name + "_")(), sparse(layout))
    if layout == CSR and name not in ("isinf", "isnan", "relu"):
        dtype = fn(torch.zeros(1, dtype=torch.float64)).dtype
        out = torch.zeros(0, 0, layout=CSR, dtype=dtype)
        compare(lambda t, out: fn(t, out=out), sparse(), out)


@layouts
@pytest.mark.parametrize("name", ["relu", "abs", "neg", "deg2rad", "sin", "tanh"])
def test_gradients_of_functions_of_the_values(layout, name):
    alike(getattr(torch, name), sparse(layout, grad=True))


def test_conjugates():
    t = sparse(dtype=torch.complex128)
    compare(lambda t: t.conj(), t)
    compare(lambda t: t.conj_physical(), t)
    compare(lambda t: t.angle(), t)
    compare(lambda t: t.abs(), t)


# ---- Sums and products ----


def test_sums_of_two():
    a, b = sparse(grad=True), sparse(seed=1, grad=True)
    none = torch.zeros(4, 6, layout=CSR, dtype=torch.float64)
    compare(lambda a, b: a + b, a, b)
    compare(lambda a, b: torch.add(a, b, alpha=3), a, b)
    compare(lambda a: a + a, a)
    plain = a.detach(), b.detach()
    compare(lambda a, b: a.add_(b, alpha=-0.5), *plain)
    compare(lambda a: a.add_(a), plain[0])
    compare(lambda a, b: a + b, none, plain[0])
    compare(lambda a, b: a + b, plain[0], none)
    compare(lambda a, b: torch.add(a, b, out=torch.empty_like(a)), *plain)
    compare(
        lambda a, b: a + b,
        *(t.to(torch.complex64) for t in plain),
        rtol=1e-6,
        atol=1e-6,
    )
    with pytest.raises(RuntimeError, match="same size"):
        moved(plain[0]) + moved(sparse(CSR, (5, 6)))
    for layout in (CSC, BSR, BSC):  # which the CPU has not
        x, y = sparse(layout), sparse(layout, seed=1)
        got = moved(x) + moved(y)
        assert got.layout == layout
        same(got.to_dense(), x.to_dense() + y.to_dense())


@layouts
def test_sums_with_dense(layout):
    t, d = sparse(layout), torch.randn(4, 6, dtype=torch.float64)
    for fn in (
        lambda t, d: d + t,
        lambda t, d: t + d,
        lambda t, d: torch.add(d, t, alpha=-2),
        lambda t, d: d.clone().add_(t, alpha=0.1),
        lambda t, d: d.float() + t,
        lambda t, d: d.t().contiguous().t() + t,
    ):
        if layout in (CSR, CSC):
            compare(fn, t, d)
        else:  # which the CPU has not
            same(fn(moved(t), moved(d)), fn(t.to_dense(), d))
    # alpha is the second operand's, where the CPU gives it to the sparse one.
    same(torch.add(moved(t), moved(d), alpha=-2), t.to_dense() - 2 * d)
    if layout in (CSR, CSC):
        alike(lambda t, d: d + t, t.requires_grad_(), d.requires_grad_())
        fails_alike(lambda t, d: d + t, t.detach(), torch.randn(4, 5), words=False)
        batch = to(layout, stacked())
        compare(lambda t, d: d + t, batch, torch.randn(3, 4, 6, dtype=torch.float64))


@layouts
def test_products_with_numbers(layout):
    for grad in (False, True):
        t = sparse(layout, grad=grad)
        alike(lambda t: t * 3, t)
        alike(lambda t: 3 * t, t)
        compare(lambda t: t.to(torch.int32) * 2.5, t.detach())
    compare(lambda t: t * torch.tensor(2.0), sparse(layout))
    compare(lambda t: t * torch.tensor(2.0, device=t.device), sparse(layout))
    compare(lambda t: t.mul_(2), sparse(layout))
    compare(lambda t: t.mul_(torch.tensor(2.0)), sparse(layout))


def test_products():
    a, b = sparse(grad=True), sparse(seed=1, grad=True)
    d = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    none = torch.zeros(4, 6, layout=CSR, dtype=torch.float64)
    compare(lambda a, b: a * b, a, b)
    alike(lambda a, d: a * d, a, d)
    alike(lambda a, d: d * a, a, d)
    compare(lambda a, d: a * d, a, d.detach())
    a, b, d = a.detach(), b.detach(), d.detach()
    compare(lambda a, b: a.mul_(b), a, b)
    compare(lambda a, d: a.mul_(d), a, d)
    compare(lambda a, b: torch.mul(a, b, out=torch.empty_like(a)), a, b)
    compare(lambda a, b: a * b, a, none)
    compare(lambda a, b: a * b, none, a)
    compare(lambda a, d: a * d, none, d)
    compare(lambda a, d: a.float() * d, a, d)
    compare(lambda a, b: a * b.to_sparse(), a, b)
    for layout in (CSC, BSR, BSC):  # of which the CPU keeps zeros
        compare(lambda a, b, v=layout: a * to(v, b.to_dense()), a, b, loose=True)
        fails_alike(lambda a, b, v=layout: to(v, a) * b, d, b, words=False)


@layouts
def test_masks(layout):
    mask, d = sparse(layout), torch.randn(4, 6, dtype=torch.float64)
    compare(lambda d, m: d.sparse_mask(m), d, mask)
    compare(lambda d, m: d.sparse_mask(m), d, to(layout, torch.zeros(4, 6)))
    compare(lambda d, m: d.float().sparse_mask(m), d, mask)
    if layout == CSR:
        compare(lambda t, m: t.sparse_mask(m), sparse(seed=1), mask)
        compare(lambda t, m: t.to_sparse().sparse_mask(m), sparse(seed=1), mask)
        alike(lambda d, m: d.sparse_mask(m), d.requires_grad_(), mask)


def test_reductions():
    t = sparse()
    compare(lambda t: t.sum(), sparse(grad=True))
    for layout in LAYOUTS:
        compare(lambda t: t.sum(), sparse(layout))
    gaps = dense() * torch.tensor([1.0, 0, 1, 1])[:, None]
    for dtype in (torch.float64, torch.float16, torch.int32, torch.uint8):
        for x in (sparse(dtype=dtype), to(CSR, gaps.to(dtype)), to(CSR, gaps * 0)):
            for dim in (0, 1, -1, (0, 1)):
                if dim == (0, 1) and x._nnz() == 0:
                    continue  # the CPU's has values of no dimension
                compare(lambda t, d=dim: t.sum(d, keepdim=True), x)
                if dtype != torch.uint8:  # of which the CPU's products wrap around
                    compare(lambda t, d=dim: torch._sparse_csr_prod(t, d, True), x)
    compare(lambda t: t.sum(0, keepdim=True, dtype=torch.float32), t)
    compare(lambda t: torch._sparse_csr_sum(t, 1, True, dtype=torch.float32), t)
    fails_alike(lambda t: t.sum(0), t, words=False)
    fails_alike(lambda t: t.sum(0, keepdim=True), sparse(BSR))


# ---- Dimensions ----


@layouts
def test_dimensions(layout):
    t = sparse(layout)
    compare(lambda t: t.t(), t)
    compare(lambda t: t.transpose(0, 1), t)
    compare(lambda t: t.mT.to_dense(), t)
    batch = to(layout, stacked())
    compare(lambda t: t.transpose(-1, -2), batch)
    compare(lambda t: t.select(0, 1), batch)
    compare(lambda t: t[2], batch)
    compare(lambda t: torch.select_copy(t, 0, 1), batch)
    for dim in (0, 1):
        alike(lambda t, d=dim: t.select(d, 1), t)
    alike(lambda t: t.t().to_dense(), t.requires_grad_())


# ---- Matrix products ----


@layouts
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64])
def test_matrix_times_dense(layout, dtype):
    close = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.complex64 else {}
    a = to(layout, dense(dtype=dtype), (2, 2))
    b, c = torch.randn(6, 5, dtype=dtype), torch.randn(4, 5, dtype=dtype)
    left = torch.randn(5, 4, dtype=dtype)
    if layout != BSC:
        compare(lambda a, b: a @ b, a, b, **close)
        compare(lambda a, b: torch.sparse.mm(a, b), a, b, **close)
        compare(
            lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2), c, a, b, **close
        )
        compare(lambda c, a, b: torch.addmm(c[0], a, b), c, a, b, **close)
        compare(lambda a, b: a @ b[:, 0], a, b, **close)
        compare(lambda c, a, b: torch.addmv(c[:, 0], a, b[:, 0]), c, a, b, **close)
        nan = torch.full((4, 5), float("nan"), dtype=dtype)
        compare(lambda c, a, b: torch.addmm(c, a, b, beta=0), nan, a, b, **close)
        compare(
            lambda c, a, b: torch.addmm(c, a, b, out=torch.empty_like(c)),
            c,
            a,
            b,
            **close,
        )
        compare(
            lambda a, b: a @ b, to(layout, torch.zeros(4, 6, dtype=dtype), (2, 2)), b
        )
    if layout != BSR:
        compare(lambda b, a: b @ a, left, a, **close)
        compare(
            lambda b, a: torch.addmm(b @ a.to_dense(), b, a, beta=2), left, a, **close
        )
    fails_alike(lambda a, b: a @ b, a, c, words=False)
    fails_alike(lambda a, b: a @ b.real.half(), a, b, words=False)


@pytest.mark.parametrize("layout", [CSR, CSC])
def test_gradients_of_matrix_products(layout):
    a = sparse(layout, grad=True)
    b = torch.randn(6, 5, dtype=torch.float64, requires_grad=True)
    c = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    left = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    cases = [
        (lambda a, b: a @ b, a, b),
        (lambda a, b: a.detach() @ b, a, b),
        (lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2), c, a, b),
        (lambda b, a: b @ a, left, a),
        (lambda a, b: torch.mv(a, b[:, 0]), a, b),
    ]
    for fn, *operands in cases:
        alike(fn, *operands)


def test_two_sparse_matrices():
    a, b = sparse(), sparse(CSR, (6, 5), seed=1)
    for x in (a, a.to_sparse_csc()):
        for y in (b, b.to_sparse_csc()):
            compare(lambda x, y: x @ y, x, y, loose=True)
    c = sparse(CSR, (4, 5), seed=2)
    compare(lambda c, a, b: torch.addmm(c, a, b, beta=2, alpha=3), c, a, b, loose=True)
    compare(lambda c, a, b: torch.addmm(c, a, b, beta=0), c, a, b, loose=True)
    compare(lambda c, a, b: torch.addmm(c.to_dense(), a, b, beta=2), c, a, b)
    compare(lambda a, b: a @ b, a, to(CSR, torch.zeros(6, 5).double()), loose=True)
    for layout in (BSR, BSC):
        block = to(layout, dense((6, 6)))
        fails_alike(lambda x, y: x @ y, a, block, words=False)
        fails_alike(lambda x, y: x @ y, block, block, words=False)


# ---- Matrix products at places, and reduced ----


def test_sampled_addmm():
    t = sparse(grad=True)
    a = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    b = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    compare(lambda t, a, b: torch.sparse.sampled_addmm(t, a, b), t, a, b)
    compare(
        lambda t, a, b: torch.sparse.sampled_addmm(t, a, b, beta=0.2, alpha=-2), t, a, b
    )
    t, a, b = t.detach(), a.detach(), b.detach()
    compare(
        lambda t, a, b: torch.sparse.sampled_addmm(
            t, a, b, beta=2, out=torch.empty_like(t)
        ),
        *(t, a, b),
    )
    compare(lambda t, a, b: torch.sparse.sampled_addmm(t, a, b, out=t), t, a, b)
    batch_a, batch_b = torch.randn(2, 4, 3).double(), torch.randn(2, 3, 6).double()
    batch = to(CSR, stacked(2))
    compare(lambda *x: torch.sparse.sampled_addmm(*x, beta=3), batch, batch_a, batch_b)
    compare(lambda *x: torch.sparse.sampled_addmm(*x), t, batch_a, batch_b)
    compare(lambda *x: torch.sparse.sampled_addmm(*x, beta=3), t, a[:, :0], b[:0])
    for operands in (
        (t, a, b[:2]),
        (t, a[:3], b),
        (t, a.float(), b.float()),
        (t.half(), a.half(), b.half()),
        (t, batch_a, b),
        (t.to_sparse_csc(), a, b),
    ):
        fails_alike(lambda *x: torch.sparse.sampled_addmm(*x), *operands, words=False)


@pytest.mark.parametrize("reduce", ["sum", "mean", "amax", "amin"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_mm_reduce(reduce, dtype):
    d = dense((5, 6), dtype)
    d[2] = 0
    t = to(CSR, d).requires_grad_()
    b = torch.randn(6, 7, dtype=dtype).requires_grad_()
    compare(lambda t, b: torch.sparse.mm(t, b, reduce), t, b)
    compare(lambda t, b: torch.sparse.mm(t.detach(), b, reduce), t, b)
    compare(lambda t, b: torch.sparse.mm(t, b, reduce), t.detach(), b.detach())
    ties = torch.ones(6, 7, dtype=dtype).requires_grad_()
    compare(lambda t, b: torch.sparse.mm(t, b, reduce), to(CSR, d.sign()), ties)
    none = to(CSR, torch.zeros(5, 6, dtype=dtype)).requires_grad_()
    compare(lambda t, b: torch.sparse.mm(t, b, reduce), none, b)
    t, b = t.detach(), b.detach()
    for operands in ((t, b[:3]), (t, b.to(torch.int32)), (t.to_sparse_csc(), b)):
        fails_alike(lambda t, b: torch.sparse.mm(t, b, reduce), *operands, words=False)
    fails_alike(lambda t, b: torch.sparse.mm(t, b, "prod"), t, b, words=False)


# ---- What is refused ----

REFUSED = {
    "cos": lambda t: t.cos(),
    "pow": lambda t: t**2,
    "div": lambda t: t / 2,
    "norm": lambda t: t.norm(),
    "softmax": lambda t: torch.softmax(t, 1),
    "cat": lambda t: torch.cat([t, t]),
    "index_select": lambda t: t.index_select(0, torch.tensor([0], device=t.device)),
    "view": lambda t: t.view(-1),
    "permute": lambda t: t.permute(1, 0),
    "amax": lambda t: t.amax(1),
    "equal": lambda t: torch.equal(t, t.clone()),
    "where": lambda t: torch.where(t.to_dense() > 0, t, t),
    "clamp": lambda t: t.clamp(0),
    "sub": lambda t: t - t.clone(),
    "numpy": lambda t: t.numpy(),
    "data_ptr": lambda t: t.data_ptr(),
    "bmm": lambda t: torch.bmm(t, t),
    "dropout": lambda t: torch.nn.functional.dropout(t),
}


@layouts
@pytest.mark.parametrize("what", REFUSED)
def test_refused(layout, what):
    t = to(layout, dense((6, 6)))
    with pytest.raises((RuntimeError, TypeError, AttributeError)) as cpu:
        REFUSED[what](t)
    with pytest.raises((RuntimeError, TypeError, AttributeError)) as ours:
        REFUSED[what](moved(t))
    if isinstance(cpu.value, NotImplementedError):
        assert_says_what_to_do(ours.value)


def assert_says_what_to_do(error: BaseException) -> None:
    assert isinstance(error, NotImplementedError)
    text = str(error)
    assert "mycelya" in text and "sparse compressed" in text and ".cpu()" in text


@pytest.mark.filterwarnings("ignore:.*deprecated.*")
def test_refused_where_the_cpu_has_it():
    t = moved(to(CSR, torch.eye(3)))
    with pytest.raises(NotImplementedError) as error:
        torch.triangular_solve(t.to_dense(), t)
    assert_says_what_to_do(error.value)


def test_operands_of_two_devices():
    t, d = sparse(), torch.randn(6, 6, dtype=torch.float64)
    for fn in (
        lambda: moved(t) @ d,
        lambda: t @ moved(d),
        lambda: moved(t) + t,
        lambda: moved(t) * d[:4],
        lambda: torch.sparse.sampled_addmm(moved(t), d[:4], moved(d)),
        lambda: torch.sparse.mm(moved(t), d, "amax"),
    ):
        with pytest.raises(RuntimeError, match="same device"):
            fn()
