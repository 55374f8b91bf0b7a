# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Sparse compressed tensors (CSR, CSC, BSR, BSC) for tests, and their comparison.

Two tensors agree if their indices and values do. For some operators, the CPU orders the
elements of a row differently or keeps explicit zeros. Their results are compared as
dense tensors (loose=True).
"""

import pytest
import torch
from helpers import moved, pairs

CSR, CSC, BSR, BSC = (
    torch.sparse_csr,
    torch.sparse_csc,
    torch.sparse_bsr,
    torch.sparse_bsc,
)
LAYOUTS = [CSR, CSC, BSR, BSC]

layouts = pytest.mark.parametrize("layout", LAYOUTS, ids=lambda v: str(v)[-3:])


def dense(sizes=(4, 6), dtype=torch.float64, density=0.4, seed=0) -> torch.Tensor:
    """A CPU tensor in which most elements are zero."""
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
    """A batch of equal matrices: all matrices of a batch must have the same nnz."""
    return torch.cat([dense((1, 4, 6))] * n)


def sparse(layout=CSR, *args, grad=False, **kwargs) -> torch.Tensor:
    return to(layout, dense(*args, **kwargs)).requires_grad_(grad)


def parts(t: torch.Tensor) -> list[torch.Tensor]:
    if t.layout in (CSR, BSR):
        return [t.crow_indices(), t.col_indices(), t.values()]
    return [t.ccol_indices(), t.row_indices(), t.values()]


def same(got, expected, loose=False, **tolerance) -> None:
    """Asserts that two nests of results agree. loose: compares dense tensors."""
    for a, b in pairs(got, expected):
        if b.layout in LAYOUTS and not loose:
            assert (a._nnz(), a.dense_dim()) == (b._nnz(), b.dense_dim())
            same(parts(a), parts(b), **tolerance)
            continue
        if b.layout is not torch.strided:
            a, b = a.to_dense(), b.to_dense()
        torch.testing.assert_close(a.cpu(), b, equal_nan=True, **tolerance)


def compare(fn, *tensors, loose=False, **tolerance):
    """Asserts that fn gives the CPU's results, operands and gradients on the device."""
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
    """fn raises the same kind of error on both, and if words the same first line."""
    with pytest.raises(Exception) as cpu:
        fn(*tensors)
    with pytest.raises(type(cpu.value)) as ours:
        fn(*map(moved, tensors))
    if words:
        assert str(ours.value).splitlines()[0] == str(cpu.value).splitlines()[0]


def alike(fn, *tensors, **how) -> None:
    """Asserts that fn agrees on both, or raises the same kind of error on both."""

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
