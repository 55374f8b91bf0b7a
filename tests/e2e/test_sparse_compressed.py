# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Sparse compressed tensors: construction, conversions, copies, printing, errors."""

import copy
import io

import pytest
import torch
from helpers import DEVICE, moved
from sparse_compressed import (
    BSC,
    BSR,
    CSC,
    CSR,
    alike,
    compare,
    dense,
    fails_alike,
    layouts,
    parts,
    same,
    sparse,
    stacked,
    to,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*(beta|prototype).*")


# ---- Construction, conversions, copies ----


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


def test_made_from_lists():
    def make(device):
        return torch.sparse_csr_tensor(
            [0, 2, 3], [0, 2, 1], [1.0, 2.0, 3.0], device=device
        )

    same(make(DEVICE), make("cpu"))
    assert make(DEVICE).shape == (2, 3)


def test_empty_tensors():
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
    d = stacked()  # the same nnz in each matrix of the batch
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
    same(copy.deepcopy(moved(t)), t)  # the CPU raises
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


def test_a_module_with_a_compressed_weight():
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
def test_valid_tensors_pass_the_checks(layout):
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


def test_no_cut_without_invariant_checks(counters):
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


# ---- Refused operators ----

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
        assert_suggests_the_cpu(ours.value)


def assert_suggests_the_cpu(error: BaseException) -> None:
    assert isinstance(error, NotImplementedError)
    text = str(error)
    assert "mycelya" in text and "sparse compressed" in text and ".cpu()" in text


@pytest.mark.filterwarnings("ignore:.*deprecated.*")
def test_refused_although_the_cpu_implements_it():
    t = moved(to(CSR, torch.eye(3)))
    with pytest.raises(NotImplementedError) as error:
        torch.triangular_solve(t.to_dense(), t)
    assert_suggests_the_cpu(error.value)


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
