# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Arithmetic of sparse compressed tensors: sums, products, matrix products."""

import pytest
import torch
from helpers import moved
from sparse_compressed import (
    BSC,
    BSR,
    CSC,
    CSR,
    LAYOUTS,
    alike,
    compare,
    dense,
    fails_alike,
    layouts,
    same,
    sparse,
    stacked,
    to,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*(beta|prototype).*")

UNARY = """
abs angle asin asinh atan atanh ceil deg2rad erf erfinv expm1 floor frac isinf isnan
isneginf isposinf log1p neg rad2deg relu round sgn sign signbit sin sinh sqrt tan tanh
trunc
""".split()


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
    for layout in (CSC, BSR, BSC):  # not implemented on the CPU
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
        else:  # not implemented on the CPU
            same(fn(moved(t), moved(d)), fn(t.to_dense(), d))
    # alpha scales the second operand. The CPU scales the sparse operand instead.
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
    for layout in (CSC, BSR, BSC):  # the CPU keeps explicit zeros
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
                    continue  # the values of the CPU's result have no dims
                compare(lambda t, d=dim: t.sum(d, keepdim=True), x)
                if dtype != torch.uint8:  # the CPU's products wrap around
                    compare(lambda t, d=dim: torch._sparse_csr_prod(t, d, True), x)
    compare(lambda t: t.sum(0, keepdim=True, dtype=torch.float32), t)
    compare(lambda t: torch._sparse_csr_sum(t, 1, True, dtype=torch.float32), t)
    fails_alike(lambda t: t.sum(0), t, words=False)
    fails_alike(lambda t: t.sum(0, keepdim=True), sparse(BSR))


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


# ---- sampled_addmm, and mm with a reduction ----


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
