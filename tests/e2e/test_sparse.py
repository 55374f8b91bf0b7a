# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Sparse COO tensors, compared with the CPU's.

Two sparse tensors agree if their shapes, dtypes and coalesced forms do. A sum of two
tensors concatenates their elements here, as on CUDA, while the CPU merges them.
"""

import copy
import io

import pytest
import torch
from helpers import DEVICE, moved, on_cuda, pairs
from torch.testing._internal.common_optimizers import optim_db

UNARY = """
abs asin asinh atan atanh ceil deg2rad erf erfinv expm1 floor frac isinf isnan
isneginf isposinf log1p nan_to_num neg rad2deg relu round sgn sign signbit sin
sinh sqrt square tan tanh trunc
""".split()


def coo(
    sizes,
    nnz,
    sparse_dim=None,
    dtype=torch.float64,
    coalesced=False,
    grad=False,
    seed=0,
) -> torch.Tensor:
    """A sparse CPU tensor. It has duplicates if nnz is near the number of positions."""
    generator = torch.Generator().manual_seed(seed)
    sparse_dim = len(sizes) if sparse_dim is None else sparse_dim
    rows = [torch.randint(n, (nnz,), generator=generator) for n in sizes[:sparse_dim]]
    indices = torch.stack(rows) if rows else torch.empty(0, nnz, dtype=torch.long)
    shape = (nnz, *sizes[sparse_dim:])
    if dtype.is_floating_point or dtype.is_complex:
        values = torch.randn(shape, dtype=dtype, generator=generator)
    elif dtype == torch.bool:
        values = torch.rand(shape, generator=generator) > 0.5
    else:
        values = torch.randint(-9, 9, shape, dtype=dtype, generator=generator)
    t = torch.sparse_coo_tensor(indices, values, sizes)
    if coalesced:
        t = t.coalesce()
    return t.requires_grad_(grad)


def same(got, expected, exact=False, **tolerance) -> None:
    """Asserts that two nests of results agree. exact: also before coalescing."""
    for a, b in pairs(got, expected):
        if not b.is_sparse:
            torch.testing.assert_close(a.cpu(), b, equal_nan=True, **tolerance)
            continue
        assert (a.sparse_dim(), a.dense_dim()) == (b.sparse_dim(), b.dense_dim())
        if exact:
            assert (a.is_coalesced(), a._nnz()) == (b.is_coalesced(), b._nnz())
        else:
            a, b = a.coalesce(), b.coalesce()
        assert a._indices().device.type == a._values().device.type == "mycelya"
        assert torch.equal(a._indices().cpu(), b._indices())
        torch.testing.assert_close(
            a._values().cpu(), b._values(), equal_nan=True, **tolerance
        )


def compare(fn, *tensors, exact=False, **tolerance):
    """Asserts that fn gives the CPU's results, operands and gradients on the device."""
    cpu = [t.detach().clone().requires_grad_(t.requires_grad) for t in tensors]
    ours = [moved(t) for t in tensors]
    expected, got = fn(*cpu), fn(*ours)
    same(got, expected, exact, **tolerance)
    same(ours, cpu, exact, **tolerance)
    if any(t.requires_grad for t in cpu):
        for result in (expected, got):
            total = result.to_dense() if result.is_sparse else result
            weight = torch.arange(1.0, total.numel() + 1, dtype=torch.float64).sin()
            (total * weight.reshape(total.shape).to(total)).sum().backward()
        for a, b in zip(ours, cpu, strict=True):
            assert (a.grad is None) == (b.grad is None)
            if b.grad is not None:
                same(a.grad, b.grad, **tolerance)
    return got


def fails_alike(fn, *tensors) -> None:
    """Asserts that fn raises the same kind of error on both, with the same text."""
    with pytest.raises(Exception) as cpu:
        fn(*tensors)
    with pytest.raises(type(cpu.value)) as ours:
        fn(*map(moved, tensors))
    mine, theirs = (str(e.value).splitlines()[0] for e in (ours, cpu))
    # The texts of CUDA and of newer releases begin with the operator's name.
    assert mine.endswith(theirs)


# ---- Construction, conversions, copies ----


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
def test_made_on_the_device(dtype):
    indices = torch.tensor([[0, 1, 1, 0], [2, 0, 2, 2]])
    values = torch.tensor([1, 0, 3, 4]).to(dtype)
    cpu = torch.sparse_coo_tensor(indices, values, (2, 3))
    for t in (
        torch.sparse_coo_tensor(indices.to(DEVICE), values.to(DEVICE), (2, 3)),
        torch.sparse_coo_tensor(
            indices.tolist(), values.tolist(), (2, 3), device=DEVICE
        ).to(dtype),
        torch.sparse_coo_tensor(indices.to(DEVICE), values.to(DEVICE)),
        cpu.to(DEVICE),
    ):
        same(t, cpu, exact=True)
        assert t.device == torch.device("mycelya", 0)
        assert t.is_sparse and not t.is_coalesced() and t._nnz() == 4
        same(t.coalesce(), cpu.coalesce(), exact=True)
        same(t.to_dense(), cpu.to_dense())
        back = t.cpu()
        assert back.device.type == "cpu" and not back.is_coalesced()
        assert torch.equal(back._indices(), indices)
        assert torch.equal(back._values(), values)


def test_empty_tensors():
    for make in (
        lambda device: torch.sparse_coo_tensor((3, 4), device=device),
        lambda device: torch.zeros(3, 4, layout=torch.sparse_coo, device=device),
        lambda device: torch.empty(3, 4, layout=torch.sparse_coo, device=device),
        lambda device: torch.zeros(3, 4, device=device).to_sparse(),
        lambda device: torch.zeros_like(coo((3, 4), 5).to(device)),
        lambda device: torch.sparse_coo_tensor(
            torch.empty(1, 0, dtype=torch.long), torch.empty(0, 4), (3, 4)
        ).to(device),
    ):
        same(make(DEVICE), make("cpu"), exact=True)
        same(make(DEVICE).to_dense(), make("cpu").to_dense())
        same(make(DEVICE).coalesce(), make("cpu").coalesce(), exact=True)


def test_invariants_are_checked_when_asked_for():
    indices, values = torch.tensor([[0, 5]]), torch.ones(2)
    for device in ("cpu", DEVICE):
        with pytest.raises(RuntimeError, match="size is inconsistent with indices"):
            torch.sparse_coo_tensor(
                indices.to(device), values.to(device), (3,), check_invariants=True
            )


@pytest.mark.parametrize(
    "sizes,nnz,sparse_dim",
    [
        ((7,), 9, 1),
        ((3, 4), 20, 2),
        ((3, 4, 5), 30, 3),
        ((3, 4, 5), 9, 1),
        ((3, 4, 2, 2), 40, 2),
        ((3, 4), 1, 2),
        ((4,), 3, 0),
        ((3, 0), 4, 1),
    ],
)
@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float16, torch.int32, torch.bool, torch.complex64]
)
def test_coalesce(sizes, nnz, sparse_dim, dtype):
    t = coo(sizes, nnz, sparse_dim, dtype)
    # Half values are summed in float here, as on CUDA. The CPU rounds every sum.
    # CUDA sums duplicates in another order.
    close = {"rtol": 0, "atol": 0.01 if dtype == torch.float16 else 0}
    if on_cuda() and dtype != torch.float16:
        close["atol"] = 1e-6
    compare(lambda t: t.coalesce(), t, exact=True, **close)
    compare(lambda t: (t.coalesce().indices(), t.coalesce().values()), t, **close)
    compare(lambda t: t.to_dense(), t, **close)


def test_coalesce_sums_in_the_order_of_the_elements():
    indices = torch.zeros(1, 4, dtype=torch.long)
    values = torch.tensor([1e8, 1.0, -1e8, 1.0])
    t = torch.sparse_coo_tensor(indices, values, (2,))
    compare(lambda t: t.coalesce(), t, exact=True, rtol=0, atol=0)


@pytest.mark.parametrize("dims", [None, 1, 2])
def test_from_dense(dims):
    dense = torch.randn(4, 5, 2) * (torch.rand(4, 5, 1) > 0.5)
    args = () if dims is None else (dims,)
    compare(lambda d: d.to_sparse(*args), dense, exact=True)
    compare(lambda d: d.transpose(0, 1).to_sparse(*args), dense, exact=True)
    compare(lambda d: d.to_sparse(*args).to_dense(), dense.requires_grad_())


def test_scalar():
    compare(lambda d: d.to_sparse(), torch.tensor(3.0), exact=True)
    compare(lambda d: d.to_sparse(), torch.tensor(0.0), exact=True)


def test_parts_are_aliases():
    def f(t):
        t._values().mul_(2)
        c = t.coalesce()
        c.values().add_(1)
        return c, t.detach(), t.sparse_dim(), t.dense_dim(), t._nnz()

    compare(f, coo((3, 4), 6, 1), exact=True)


def test_copies():
    t = coo((3, 4), 8)
    u = coo((3, 4), 3, seed=1)
    compare(lambda t: t.clone(), t, exact=True)
    compare(lambda t: copy.deepcopy(t), t, exact=True)
    compare(lambda t, u: u.copy_(t), t, u, exact=True)
    compare(lambda t: t.to(torch.float32), t, exact=True)
    compare(lambda t: t.zero_(), t, exact=True)
    compare(lambda t: torch.empty_like(t), t, exact=True)
    mine = moved(t)
    here = torch.empty_like(t)
    here.copy_(mine)
    assert torch.equal(here._indices(), t._indices())
    assert torch.equal(here._values(), t._values())
    mine.copy_(u)
    same(mine, u, exact=True)


def test_resizing():
    compare(lambda t: t.sparse_resize_((5, 6), 2, 0), coo((3, 4), 5), exact=True)
    compare(
        lambda t: t.sparse_resize_and_clear_((2, 6), 1, 1), coo((3, 4), 5), exact=True
    )
    compare(
        lambda t, u: t.resize_as_sparse_(u), coo((3, 4), 5), coo((5, 6), 2), exact=True
    )
    fails_alike(lambda t: t.sparse_resize_((2, 4), 2, 0), coo((3, 4), 5))


def test_printed():
    t = coo((3, 4), 5)
    text = " ".join(repr(moved(t)).split())
    expected = " ".join(repr(t).split())
    assert text == expected.replace("size=", "device='mycelya:0', size=", 1)


def test_saved_and_loaded():
    t = coo((3, 4), 5).requires_grad_()
    for weights_only in (True, False):
        buffer = io.BytesIO()
        torch.save(moved(t), buffer)
        buffer.seek(0)
        loaded = torch.load(buffer, weights_only=weights_only)
        same(loaded, t, exact=True)
        buffer.seek(0)
        on_cpu = torch.load(buffer, map_location="cpu", weights_only=weights_only)
        assert on_cpu.device.type == "cpu"
        assert torch.equal(on_cpu.to_dense(), t.to_dense())


# ---- Arithmetic ----


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_the_values(name):
    t = coo((3, 4), 9)
    compare(getattr(torch, name), t)
    if hasattr(torch.Tensor, name + "_") and name != "square":
        compare(lambda t: getattr(t.coalesce(), name + "_")(), t)


@pytest.mark.parametrize("name", ["relu", "abs", "neg", "deg2rad"])
def test_gradients_of_functions_of_the_values(name):
    t = coo((3, 4), 9, coalesced=True)
    t._values().abs_().add_(0.1)
    compare(getattr(torch, name), t.requires_grad_())


def test_sums_of_two():
    a, b = coo((3, 4), 9, grad=True), coo((3, 4), 5, seed=1, grad=True)
    none = torch.sparse_coo_tensor((3, 4), dtype=torch.float64)
    compare(lambda a, b: a + b, a, b)
    compare(lambda a, b: a - b, a, b)
    compare(lambda a, b: torch.add(a, b, alpha=3), a, b)
    compare(lambda a, b: a.add_(b, alpha=-0.5), a.detach(), b.detach())
    compare(lambda a, b: a.sub_(b), a.detach(), b.detach())
    compare(lambda a: a + a, a)
    compare(lambda a, b: a + b, none, a)
    compare(lambda a, b: a + b, a, none)
    compare(lambda a, b: a + b, coo((3, 4), 30, 1), coo((3, 4), 30, 1, seed=1))
    compare(lambda a, b: a + b, a.detach().to(torch.float32), b.detach())
    compare(
        lambda a, b: torch.add(a, b, out=torch.empty_like(a)), a.detach(), b.detach()
    )
    got = moved(coo((9, 9), 9)) + moved(coo((9, 9), 5, seed=1))
    assert got._nnz() == 14 and not got.is_coalesced()
    with pytest.raises(RuntimeError, match="expected 'self' and 'other' to have same"):
        moved(a.detach()) + moved(coo((4, 4), 3))
    fails_alike(lambda a, b: a + b, coo((3, 4), 5, 1), coo((3, 4), 5, 2))


@pytest.mark.parametrize("sparse_dim", [1, 2, 3])
def test_sums_with_dense(sparse_dim):
    sparse = coo((3, 4, 2), 9, sparse_dim, grad=True)
    dense = torch.randn(3, 4, 2, dtype=torch.float64, requires_grad=True)
    compare(lambda d, s: d + s, dense, sparse)
    compare(lambda d, s: torch.add(d, s, alpha=-2), dense, sparse)
    compare(lambda d, s: d.add_(s, alpha=0.1), dense.detach(), sparse.detach())
    compare(lambda d, s: d.sub_(s), dense.detach(), sparse.detach())
    compare(lambda d, s: d + s, dense.detach().float(), sparse.detach())

    def into_a_view(d, s):
        d.permute(2, 1, 0).add_(s)

    compare(into_a_view, torch.randn(2, 4, 3, dtype=torch.float64), sparse.detach())
    fails_alike(lambda d, s: d + s, torch.randn(4, 2).double(), sparse.detach())


def test_products():
    a = coo((3, 4, 2), 9, 2, grad=True)
    b = coo((3, 4, 2), 7, 2, seed=1, grad=True)
    dense = torch.randn(3, 4, 2, dtype=torch.float64, requires_grad=True)
    flat_a, flat_b = a.detach().coalesce(), b.detach().coalesce()
    compare(lambda a, b: a * b, a.detach(), b.detach(), exact=True)
    compare(lambda a, b: b * a, a.detach(), b.detach(), exact=True)
    compare(lambda a, b: a * b, flat_a, b.detach(), exact=True)
    compare(lambda a, b: a * b, a.detach(), flat_b, exact=True)
    # For two coalesced tensors, the CPU has a separate kernel. It drops elements that
    # only one of them has.
    compare(lambda a, b: a.clone().mul_(b).to_dense(), flat_a, flat_b)
    grads = []
    for x, y in (
        (flat_a.clone()._coalesced_(False), flat_b.clone()._coalesced_(False)),
        (moved(flat_a), moved(flat_b)),
    ):
        x, y = x.requires_grad_(), y.requires_grad_()
        product = (x * y).to_dense()
        product.sin().sum().backward()
        grads.append([product, x.grad.to_dense(), y.grad.to_dense()])
    same(grads[1], grads[0])
    compare(lambda a, d: a * d, a.detach(), dense.detach())
    compare(lambda a, d: d * a, a.detach(), dense.detach())
    compare(lambda a, d: a * d[0, 0], a.detach(), dense.detach())
    compare(lambda a: a * 3, a)
    compare(lambda a: 3 * a, a)
    compare(lambda a: a / 3, a)
    compare(lambda a: a * torch.tensor(2.0), a.detach())
    compare(lambda a: a.mul_(2).div_(3), a.detach())
    compare(lambda a: a // 2, a.detach())
    compare(lambda a: torch.div(a, 2, rounding_mode="trunc"), a.detach())
    compare(lambda a: a**2, a.detach())
    compare(lambda a: a.pow(3), a.detach().coalesce().requires_grad_())
    none = torch.sparse_coo_tensor((3, 4, 2), dtype=torch.float64)
    none = none.sparse_resize_((3, 4, 2), 2, 1)
    compare(lambda a, b: a * b, a.detach(), none)
    with pytest.raises(RuntimeError, match="sparse inputs with equal dimensionality"):
        moved(a.detach()) * moved(coo((3, 5, 2), 4, 2))


def test_masks():
    mask = coo((3, 4, 2), 6, 2, coalesced=True)
    dense = torch.randn(3, 4, 2, dtype=torch.float64, requires_grad=True)
    compare(lambda d, m: d.sparse_mask(m), dense, mask, exact=True)
    other = coo((3, 4, 2), 8, 2, seed=3)
    compare(lambda t, m: t.sparse_mask(m), other, mask, exact=True)
    compare(lambda t, m: t.sparse_mask(m), other.coalesce(), mask, exact=True)
    compare(lambda t: t.to_dense(masked_grad=False), other.requires_grad_())
    many = coo((3, 4, 2), 9, 2, seed=5)
    for m in (mask, many):
        for t in (other.detach(), other.detach().coalesce()):
            for accumulate in (False, True):
                compare(
                    lambda t, m, a=accumulate: t._sparse_mask_projection(m, a),
                    t,
                    m,
                    exact=True,
                )


def test_reductions():
    t = coo((3, 4, 2), 9, 2, grad=True)
    c = t.detach().coalesce().requires_grad_()
    compare(lambda t: t.sum(), t)
    compare(lambda t: t.norm(), c.detach())
    compare(lambda t: t.norm(1), c.detach())
    compare(lambda t: t.any(), coo((3, 4), 9, dtype=torch.bool))
    compare(lambda t: torch.sparse.sum(t), t)
    for dims in ([0], [1], [0, 1], [2], [0, 2], [0, 1, 2], [-1]):
        compare(lambda t, dims=dims: torch.sparse.sum(t, dim=dims), c)
    compare(lambda t: torch.sparse.sum(t, dim=0, dtype=torch.float32), c.detach())
    compare(lambda t: t.sum(0), c.detach())


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_softmax(dim):
    t = coo((3, 4, 2), 9, 2, coalesced=True, grad=True)
    compare(lambda t: torch.sparse.softmax(t, dim), t)
    compare(lambda t: torch.sparse.log_softmax(t, dim), t)
    compare(lambda t: torch.sparse.softmax(t, dim), coo((3, 4, 2), 30, 2))
    compare(lambda t: torch.sparse.softmax(t, 0), torch.zeros(3, 2).to_sparse())


def test_dimensions():
    t = coo((3, 4, 2), 9, 2, grad=True)
    compare(lambda t: t.transpose(0, 1), t)
    compare(lambda t: t.permute(1, 0, 2), t)
    compare(lambda t: t.unsqueeze(0), t.detach())
    compare(lambda t: torch.cat([t, t], 0), t.detach())
    compare(lambda t: torch.cat([t, t], 2), t.detach())
    compare(lambda t: t.narrow_copy(0, 1, 2), t.detach())
    compare(lambda t: t.t(), coo((3, 4), 5).requires_grad_())
    compare(lambda t: t.transpose_(0, 1), coo((3, 4), 5))
    compare(lambda t: t.select(0, 1), t.detach())
    compare(lambda t: t[1], t.detach())


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_index_select(dim):
    t = coo((3, 4, 2), 9, 2)
    index = torch.tensor([1, 0, 1, 1])
    compare(lambda t: t.index_select(dim, index.to(t.device)), t)
    compare(lambda t: t.index_select(dim, index[:0].to(t.device)), t)


# ---- Matrix products ----


def test_matrix_times_dense():
    for coalesced in (False, True):
        a = coo((3, 4), 9, coalesced=coalesced, grad=coalesced)
        b = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
        c = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
        compare(lambda a, b: a @ b, a, b)
        compare(lambda a, b: torch.mm(a, b), a, b)
        compare(lambda a, b: torch.sparse.mm(a, b), a, b)
        compare(lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2), c, a, b)
        compare(lambda c, a, b: torch.sparse.addmm(c, a, b, beta=0.5, alpha=2), c, a, b)
        compare(lambda a, b: a @ b[:, 0], a.detach(), b.detach())
        compare(lambda a, b: a @ b.t().contiguous().t(), a.detach(), b.detach())
        compare(lambda c, a, b: c.addmm_(a, b), c.detach(), a.detach(), b.detach())
        compare(
            lambda c, a, b: torch.addmm(c[0], a, b), *(t.detach() for t in (c, a, b))
        )
        compare(
            lambda c, a, b: torch.addmm(c, a, b, beta=0),
            torch.full((3, 5), float("nan"), dtype=torch.float64),
            a.detach(),
            b.detach(),
        )
        compare(lambda a, b: torch.hspmm(a, b), a.detach(), b.detach())
        compare(lambda b, a: b.t() @ a.t(), b.detach(), a.detach())
    none = torch.sparse_coo_tensor((3, 4), dtype=torch.float64)
    compare(lambda a, b: a @ b, none, b.detach())
    fails_alike(lambda a, b: a @ b, a.detach(), c.detach())


def test_batches():
    a = coo((2, 3, 4), 11, coalesced=True, grad=True)
    b = torch.randn(2, 4, 5, dtype=torch.float64, requires_grad=True)
    compare(lambda a, b: torch.bmm(a, b), a, b.detach())
    compare(lambda a, b: torch.bmm(a, b), coo((2, 3, 4), 20), b.detach())
    fails_alike(lambda a, b: torch.bmm(a, b), a.detach(), torch.randn(3, 4, 5).double())


def test_two_sparse_matrices():
    a, b = coo((3, 4), 7, grad=True), coo((4, 5), 9, seed=1, grad=True)
    compare(lambda a, b: torch.sparse.mm(a, b), a, b)
    compare(lambda a, b: a @ b, a.detach(), b.detach())
    none = torch.sparse_coo_tensor((4, 5), dtype=torch.float64)
    compare(lambda a, b: a @ b, a.detach(), none)
    fails_alike(lambda a, b: torch.sparse.mm(a, b), a.detach(), coo((3, 4), 2))


# ---- Training ----


@pytest.mark.parametrize("padding", [None, 1])
@pytest.mark.parametrize("again", [False, True])
def test_embedding(padding, again):
    module = torch.nn.Embedding(6, 3, sparse=True, padding_idx=padding).double()
    ours = copy.deepcopy(module).to(DEVICE)
    index = torch.tensor([[1, 2, 2], [5, 1, 0]])
    for m in (module, ours):
        i = index.to(m.weight.device)
        for _ in range(3 if again else 1):  # gradients add up
            m(i).sin().sum().backward()
        if again:
            (m.weight * 2).sum().backward()  # and become dense
    same(ours.weight.grad, module.weight.grad, exact=not again)


# PyTorch has no sparse gradient of the maximum.
@pytest.mark.parametrize(
    "mode,sparse",
    [
        ("sum", True),
        ("mean", True),
        ("sum", False),
        ("mean", False),
        ("max", False),
    ],
)
def test_embedding_bag(mode, sparse):
    module = torch.nn.EmbeddingBag(6, 3, sparse=sparse, mode=mode).double()
    ours = copy.deepcopy(module).to(DEVICE)
    index, offsets = torch.tensor([1, 2, 2, 5, 1, 0]), torch.tensor([0, 2, 3])
    weights = torch.linspace(1, 2, 6, dtype=torch.float64) if mode == "sum" else None
    for m in (module, ours):
        device = m.weight.device
        for w in (None, weights):
            w = None if w is None else w.to(device)
            m(index.to(device), offsets.to(device), w).sin().sum().backward()
    same(ours.weight.grad, module.weight.grad)


def train(make, device, steps=4):
    """Weights after some steps on an embedding with sparse gradients."""
    torch.manual_seed(0)
    module = torch.nn.Embedding(7, 3, sparse=True).double().to(device)
    with torch.no_grad():
        module.weight.copy_(torch.arange(21.0).reshape(7, 3).sin())
    optimizer = make(module.parameters())
    for step in range(steps):
        optimizer.zero_grad()
        index = torch.tensor([step, 2, 2, 6]).to(device)
        loss = (module(index) ** 2).sum()
        loss.backward()
        optimizer.step()
    return module.weight


SPARSE_OPTIMIZERS = [
    pytest.param(info.optim_cls, form, id=f"{info.optim_cls.__name__}-{form.desc}")
    for info in optim_db
    if info.optim_cls.__name__ in ("SparseAdam", "SGD", "Adagrad")
    for form in info.optim_inputs_func(device="cpu")
]


@pytest.mark.parametrize("cls,form", SPARSE_OPTIMIZERS)
def test_optimizers(cls, form):
    def make(parameters):
        return cls(parameters, **form.kwargs)

    try:
        expected = train(make, "cpu")
    except RuntimeError as error:  # these options need dense gradients
        with pytest.raises(type(error)) as ours:
            train(make, DEVICE)
        assert str(ours.value) == str(error)
        return
    same(train(make, DEVICE), expected)


def test_no_cut_where_cuda_does_not_wait(counters):
    indices, values = torch.tensor([[0, 1, 1], [2, 0, 0]]), torch.randn(3)
    dense = torch.randn(3, 3, device=DEVICE)
    t = torch.sparse_coo_tensor(indices.to(DEVICE), values.to(DEVICE), (2, 3))
    before = counters()["cuts"]
    total = (t + t * 2).to_dense() + t @ dense + t
    assert counters()["cuts"] == before
    cpu = t.cpu()
    expected = (cpu + cpu * 2).to_dense() + cpu @ dense.cpu() + cpu
    same(total, expected)


def test_refused():
    t = moved(coo((3, 4), 5))
    for fn in (
        lambda: t.cos(),
        lambda: t.index_add(0, torch.tensor([0]).to(DEVICE), t),
    ):
        with pytest.raises(NotImplementedError):
            fn()


def test_operands_of_two_devices():
    sparse, dense = coo((3, 4), 5), torch.randn(4, 2, dtype=torch.float64)
    for fn in (
        lambda: moved(sparse) @ dense,
        lambda: sparse @ moved(dense),
        lambda: moved(sparse) + sparse,
        lambda: moved(sparse).sparse_mask(sparse),
    ):
        with pytest.raises(RuntimeError, match="same device"):
            fn()
