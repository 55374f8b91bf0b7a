# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Views are windows of a storage: reads and writes through them, also across cuts."""

import itertools

import pytest
import torch
from helpers import DEVICE, compare, on_cuda, same, to_device


def sync():
    torch.mycelya.synchronize()


def base():
    return torch.arange(24.0).reshape(2, 3, 4)


VIEWS = {
    "view": lambda x: x.view(6, 4),
    "reshape": lambda x: x.reshape(-1),
    "transpose": lambda x: x.transpose(0, 2),
    "permute": lambda x: x.permute(2, 0, 1),
    "select": lambda x: x[1],
    "slice": lambda x: x[:, 1:, ::2],
    "narrow": lambda x: x.narrow(2, 1, 2),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "squeeze": lambda x: x[:1].squeeze(0),
    "diagonal": lambda x: x.diagonal(0, 1, 2),
    "unfold": lambda x: x.unfold(2, 2, 2),
    "as_strided": lambda x: x.as_strided((3, 2), (4, 1), 5),
    "chain": lambda x: x.transpose(0, 1)[1:].permute(2, 1, 0)[1::2],
    "split": lambda x: x.split(2, 2)[1],
    "chunk": lambda x: x.chunk(2, 2)[0],
    "unbind": lambda x: x.unbind(1)[2],
    "flatten": lambda x: x.flatten(1),
    "detach": lambda x: x.detach(),
    "view dtype": lambda x: x.view(torch.int32).view(torch.float32),
    "movedim": lambda x: x.movedim(0, -1),
    "T": lambda x: x[0].T,
}


@pytest.mark.parametrize("name", VIEWS)
def test_read(name):
    compare(VIEWS[name], base())
    compare(lambda x: VIEWS[name](x) * 2, base().requires_grad_())


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("cut", [False, True], ids=["one trace", "cut between"])
def test_write_shows_in_the_base_and_in_other_views(name, cut):
    def fn(x):
        view, other = VIEWS[name](x), x[0]
        if cut:
            sync()
        view.mul_(3)
        view += 1
        return x + 0, other + 0, view + 0

    compare(fn, base())


@pytest.mark.parametrize("cut", [False, True], ids=["one trace", "cut between"])
def test_write_to_the_base_shows_in_views_made_before(cut):
    def fn(x):
        row, column = x[0], x[..., 1]
        if cut:
            sync()
        x.add_(100)
        first = row + column.sum()
        x.zero_()
        return first, row + 0, column + 0

    compare(fn, base())


def test_reads_before_a_write_see_the_old_content():
    def fn(x):
        before = x * 1
        old_row = x[0].clone()
        x[0] = -1.0
        return before, old_row, x.sum()

    compare(fn, base())


def test_expanded_views():
    compare(lambda x: x[:, :1].expand(2, 5, 4) + 1, base().requires_grad_())
    compare(lambda x: x.expand(3, 2, 3, 4).sum(0), base().requires_grad_())
    with pytest.raises(RuntimeError, match="single memory location|expanded"):
        torch.zeros(1, device=DEVICE).expand(3).add_(1)


def test_overlapping_windows():
    def fn(x):
        flat = x.view(-1)
        flat[2:10] = flat[12:20] * 2
        flat[4:8] += 1000
        return flat + 0

    compare(fn, base())


def test_overlapping_copy_is_refused_as_on_the_cpu():
    for device in ("cpu", DEVICE):
        x = torch.arange(10.0, device=device)
        with pytest.raises(RuntimeError, match="overlap|single memory location"):
            torch.add(x[:-1], 1, out=x[1:])


def test_strides_of_powers_with_another_dtype():
    """The base becomes a dense copy before PyTorch derives the result's strides."""
    for shape in [(3, 2), (2, 1, 5), (4, 1), (1, 1), (5, 4, 3)]:
        for dtype in (torch.bool, torch.int32, torch.float32):
            for exponent in (2, 3, 2.0, 0.5):
                x = torch.ones(shape, dtype=dtype)
                for index in [(..., slice(None, None, 3)), (slice(None, None, 2),)]:
                    cpu, ours = x[index], x.to(DEVICE)[index]
                    wanted = cpu.pow(exponent)
                    got = ours.pow(exponent)
                    assert (got.stride(), got.dtype) == (wanted.stride(), wanted.dtype)
                    assert ours.square().stride() == cpu.square().stride()


def test_as_strided_windows_that_overlap_themselves():
    compare(lambda x: x.as_strided((5, 4), (1, 1)) * 2, base())
    compare(lambda x: x.as_strided((4, 4), (0, 1)).sum(0), base())


def test_loops_of_views_across_many_cuts():
    def fn(x):
        for i in range(6):
            x[i % 2, :, i % 4].add_(i)
            if i % 2:
                sync()
        return x

    compare(fn, base())


def test_metadata_ops_in_place():
    def fn(x):
        y = x * 1
        y.t_() if y.dim() == 2 else y.transpose_(0, 1)
        y.unsqueeze_(0)
        y.squeeze_(0)
        return y + 1

    compare(fn, base())
    compare(fn, base()[0].clone())


def test_data_and_set():
    def fn(x):
        y = torch.zeros(2, 2, device=x.device)
        y.data = x[0] * 1
        z = torch.empty(0, device=x.device)
        z.set_(y)
        z.add_(1)
        return y, z

    compare(fn, base())


def test_resize():
    def fn(x):
        y = x.flatten().clone()
        y.resize_(8)
        y.add_(1)
        y.resize_(4, 2)
        return y * 1

    compare(fn, base())

    def grow(x):
        y = x.flatten().clone()
        y.resize_(40)
        return y[:24] * 1

    compare(grow, base())


def test_views_share_a_storage_and_keep_it():
    import mycelya_torch

    x = torch.zeros(4, device=DEVICE)
    assert mycelya_torch.get_storage_id(x) == mycelya_torch.get_storage_id(x[1:])
    assert mycelya_torch.get_storage_id(x) != mycelya_torch.get_storage_id(x.clone())
    row = x[1:3]
    del x
    row.add_(1)
    assert row.cpu().tolist() == [1.0, 1.0]


def test_views_as_real_and_complex():
    x = torch.randn(3, 2, dtype=torch.complex64)
    compare(lambda x: torch.view_as_real(x) * 2, x)
    compare(lambda x: torch.view_as_complex(x.view(3, 2)), torch.randn(3, 2))

    def write(x):
        torch.view_as_real(x)[..., 1] = 0.0
        return x * 1

    compare(write, x)


def test_many_windows_of_one_storage_in_one_trace():
    x = torch.zeros(64)
    y = to_device(x)
    for t in (x, y):
        for i in range(63):
            t[i + 1 : i + 2] = t[i : i + 1] + i
    same(y, x)


def window(device, sizes, strides, offset, own=(2, 2), own_strides=(2, 1)):
    """A view that set_ moves to another window of its storage."""
    x = torch.arange(4.0, device=device).as_strided(own, own_strides)
    x.set_(x.untyped_storage(), offset, sizes, strides)
    return x


def test_set_grows_a_storage_or_refuses():
    """As on the CPU and CUDA, it grows unless only the offset changes."""
    for sizes, strides, offset in (
        ((2, 2), (2, 1), 0),
        ((3, 2), (2, 1), 0),
        ((2, 2), (1, 2), 0),
        ((2, 2), (1, 2), 3),
        ((4,), (1,), 2),
        ((0,), (1,), 9),
        ((), (), 4),
    ):
        x, y = (window(d, sizes, strides, offset) for d in ("cpu", DEVICE))
        assert y.untyped_storage().nbytes() == x.untyped_storage().nbytes()
        assert (y.shape, y.stride(), y.storage_offset()) == (sizes, strides, offset)
    for device in ("cpu", DEVICE):
        with pytest.raises(RuntimeError, match="out of bounds for storage of size 16"):
            window(device, (2, 2), (2, 1), 4)


def test_set_keeps_strides_where_the_size_stays():
    for device in ("cpu", DEVICE):
        x = torch.zeros(4, device=device)[::2][:0]
        x.set_()
        assert (x.shape, x.stride()) == ((0,), (2,))


LAZY = {
    "conj": lambda x: x.conj(),
    "negative": lambda x: torch._neg_view(x),
    "both": lambda x: torch._neg_view(x.conj()),
    "H": lambda x: x.mH,
    "imag of conj": lambda x: x.conj().imag,
}
LAZY_WRITES = {
    "copy_": lambda y: y.copy_(torch.full_like(y.real, 2)),
    "copy_ bool": lambda y: y.copy_(torch.ones_like(y, dtype=torch.bool)),
    "copy_ from the CPU": lambda y: y.copy_(torch.ones(y.shape)),
    "fill_": lambda y: y.fill_(2),
    "add_": lambda y: y.add_(1),
    "add_ itself": lambda y: y.add_(y),
    "setitem": lambda y: y.__setitem__(0, 3),
    "mask": lambda y: y.masked_fill_(y == y, 3),
    "index_fill_": lambda y: y.index_fill_(0, torch.tensor([0], device=y.device), 2),
    "neg_": lambda y: y.neg_(),
    "conj_physical_": lambda y: y.conj_physical_(),
    "out": lambda y: torch.mul(y, 2, out=y),
    "addmm_": lambda y: y.addmm_(y.clone(), y.clone()),
    "in another": lambda y: torch.zeros_like(y).copy_(y),
}


@pytest.mark.parametrize("view", LAZY)
@pytest.mark.parametrize("write", LAZY_WRITES)
def test_writes_through_conjugate_and_negative_views(view, write):
    def fn(x):
        y = LAZY[view](x)
        LAZY_WRITES[write](y)
        return x * 1, y * 1

    compare(fn, torch.randn(3, 3, dtype=torch.complex64), rtol=1e-5, atol=1e-5)


def test_zeros_keep_their_sign_through_negative_views():
    """ATen negates complex zeros differently in dense and in strided memory."""

    def fn(x):
        results = []
        for layout in (x * 1, x.mT * 1, x[:, ::2] * 1, (x * 1)[:, ::2]):
            y = torch._neg_view(layout)
            y.add_(layout)
            other = torch.zeros(9, 9, dtype=x.dtype, device=x.device)
            other = other.as_strided(layout.shape, (9, 2))
            other.copy_(torch._neg_view(layout))
            flat, plain = y.reshape(-1), y.contiguous()
            for z in (layout, y * 1, other, flat, plain, y.resolve_neg()):
                results.append(torch.view_as_real(z.clone()).signbit())
        return results

    x = torch.arange(16).reshape(4, 4).to(torch.complex64)
    compare(fn, x, device_decides=True)


@pytest.mark.parametrize("view", LAZY)
def test_copies_of_conjugate_and_negative_views_have_their_strides(view):
    def fn(x):
        odd = [x, x.mT, x[:1], x[::2], x[:, :1].mT, x[:0], x.expand(2, 3, 4), x[:, 1]]
        results = []
        for part in odd:
            y = LAZY[view](part) if part.dim() > 1 else part.conj()
            results += [y.clone(), y.resolve_conj().resolve_neg(), torch.zeros_like(y)]
            results += [y.to(torch.complex128), y.flip(0), y.unsafe_chunk(2, 0)]
        return results

    def view_of(x):
        leaves = torch.utils._pytree.tree_leaves(fn(x))
        return [(t.stride(), t.resolve_conj().resolve_neg()) for t in leaves]

    compare(view_of, torch.randn(3, 4, dtype=torch.complex64))


SOLVERS = {
    "lu": lambda a, b, **out: torch.linalg.lu_solve(
        *torch.linalg.lu_factor(a), b.mT, left=False, **out
    ),
    "lu, adjoint": lambda a, b, **out: torch.linalg.lu_solve(
        *torch.linalg.lu_factor(a), b.mT, left=False, adjoint=True, **out
    ),
    "solve": lambda a, b, **out: torch.linalg.solve(a, b.mT, left=False, **out),
    "triangular": lambda a, b, **out: torch.linalg.solve_triangular(
        a, b, upper=True, **out
    ),
    "triangular, right": lambda a, b, **out: torch.linalg.solve_triangular(
        a, b.mT, upper=False, left=False, **out
    ),
}


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("dtype", [torch.complex64, torch.float64], ids=str)
def test_solvers_show_how_lapack_was_called(solver, dtype):
    def bits(t):
        return t.is_conj(), t.stride(), t.resolve_conj()

    def fn(a, b):
        results = []
        for left in (a, a.conj(), a.mT, a.mH, a.mH.expand(2, 3, 4, 4), a[:1].mH, a[:0]):
            fits = b[: len(left)] if left.dim() == 3 else b
            for right in (fits, fits.conj()):
                x = SOLVERS[solver](left, right)
                fitting = torch.empty_like(x).resolve_conj()
                conjugate = torch.empty_like(x).conj()
                empty = torch.empty(0, dtype=dtype, device=a.device)
                strided = torch.empty_like(x.mT.contiguous().mT).resolve_conj()
                outs = (fitting, conjugate, empty, strided)
                for out in outs:
                    SOLVERS[solver](left, right, out=out)
                results += [bits(t) for t in (x, *outs, x + 1)]
        return results

    a = torch.randn(3, 4, 4, dtype=dtype) / 4 + torch.eye(4, dtype=dtype)
    compare(fn, a, torch.randn(3, 4, 2, dtype=dtype), rtol=1e-4, atol=1e-4)


def test_strides_of_odd_results():
    def fn(x):
        empty = x.unfold(1, 0, 1)
        pairs = x[:, 1:].unfold(1, 2, 1)
        overlapping = x.unfold(0, 2, 1)
        odd = x[:2, :2].clone().unfold(1, 2, 1)
        other = x.new_ones(2, 4, 2, dtype=torch.complex64).transpose(0, 1)
        return (
            empty.square(),
            empty.exp(),
            empty + 1,
            torch.stack([pairs, pairs], -1),
            torch.stack([odd, odd], -1),
            torch.complex(x, x).as_strided((0, 3), (1, 2)).conj_physical(),
            torch.where(overlapping > 1, overlapping, other.transpose(0, 1)),
        )

    compare(fn, torch.arange(12.0).view(3, 4))


def test_data_of_a_view_that_autograd_has_invalidated():
    def fn(x):
        x.requires_grad_()
        with torch.no_grad():
            view, part = x[1:], x.unbind()[0]
            view.zero_()
            part.zero_()
        view.data = torch.ones_like(view)
        part.data = torch.ones_like(part)
        return view.data, part.data, x.detach()

    compare(fn, torch.randn(3, 2))


# ---- Ranks ----


@pytest.mark.parametrize("rank", [32, 33, 63, 64, 100, 255])
def test_tensors_of_many_dims(rank):
    def f(x):
        y = x.view([1] * (rank - 3) + [2, 3, 4]).transpose(-1, -3)
        y = (y * 2 + y.exp())[..., 1:]
        return y, y.clone(), y.flatten(), y.squeeze()

    x = torch.arange(24.0)
    for there, here in zip(f(x.to(DEVICE)), f(x), strict=True):
        assert there.stride() == here.stride()
        # CUDA's exp has other last bits.
        bounds = {"rtol": 1e-5, "atol": 0} if on_cuda() else {"rtol": 0, "atol": 0}
        assert there.shape == here.shape
        torch.testing.assert_close(there.cpu().flatten(), here.flatten(), **bounds)


def test_a_rank_above_the_limit():
    x = torch.ones(1, device=DEVICE)
    with pytest.raises(RuntimeError, match="aten::neg .* at most 255 dim.* got 256"):
        x.view([1] * 256).neg()
    with pytest.raises(RuntimeError, match="at most 255 dimensions, got 256"):
        torch.empty([1] * 256, device=DEVICE)
    assert x.neg().item() == -1


def test_a_copy_of_a_bool_has_byte_0_or_1():
    def fn(x):
        mask = x.view(torch.bool)
        results = (mask.clone(), mask.to(torch.bool, copy=True), ~~mask)
        return [t.view(torch.uint8) for t in results]

    # CUDA copies the bytes of a bool as they are.
    x = torch.tensor([0, 1, 2, 255], dtype=torch.uint8)
    compare(fn, x, device_decides=True)


def test_abs_of_complex_numbers_into_a_complex_out():
    def fn(x):
        out = torch.zeros(2, 3, dtype=x.dtype, device=x.device)
        return torch.abs(x.mT, out=out)

    compare(fn, torch.randn(2, 2, dtype=torch.complex64))


LAYOUTS = {
    "rows": ([2, 2, 2], [4, 2, 1]),
    "columns": ([2, 2, 2], [1, 4, 2]),
    "expanded": ([2, 2, 2], [0, 2, 1]),
    "expanded last": ([2, 2, 2], [2, 1, 0]),
    "overlapping": ([2, 2, 2], [1, 2, 1]),
    "with gaps": ([2, 2, 2], [20, 3, 9]),
    "broadcast": ([2, 1, 2], [2, 7, 1]),
    "a column": ([2], [3]),
}


@pytest.mark.parametrize(
    "operator",
    [
        torch.add,
        torch.div,
        torch.eq,
        torch.logical_and,
        torch.maximum,
        torch.atan2,
        torch.floor_divide,
        lambda x, y: torch.addcmul(x, y, y),
        lambda x, y: torch.where(x == x, x, y),
        lambda x, y: torch.where(x == x, y, 0.5),
        lambda x, y: torch.nn.functional.mse_loss(x, y, reduction="none"),
        lambda x, y: torch.sin(x) * y,
        lambda x, y: x.clamp(y, y + y),
        lambda x, y: x * 0.5 - y,
    ],
)
def test_strides_of_results_of_mixed_dtypes(operator):
    """PyTorch's CPU computes them from converted copies and uses their strides.

    CUDA makes no such copies. Without CUDA in this process, test_cuda_rules compares.
    """
    if on_cuda() and not torch.cuda.is_available():
        pytest.skip("the strides are those of CUDA, which this process does not have")
    reference = "cuda" if on_cuda() else "cpu"

    def of(device, dtype, layout):
        elements = torch.arange(64).remainder(3).to(device, dtype)
        return elements.as_strided(*LAYOUTS[layout])

    dtypes = torch.float32, torch.int64, torch.bool, torch.float64
    compared = 0
    for x, y, a, b in itertools.product(LAYOUTS, LAYOUTS, dtypes, dtypes):
        try:
            want = operator(of(reference, a, x), of(reference, b, y))
        except (RuntimeError, TypeError):  # not implemented for bools
            continue
        got = operator(of(DEVICE, a, x), of(DEVICE, b, y))
        assert got.dtype == want.dtype
        assert got.stride() == want.stride(), f"{a} {x}, {b} {y}"
        compared += 1
    assert compared > 500


def test_cat_into_an_out_with_elements_at_one_place():
    """PyTorch's cat allows it; the order of its writes decides."""

    def of(device):
        out = torch.zeros(6, device=device).as_strided((4, 3), (1, 1))
        part = torch.arange(6.0, device=device).reshape(2, 3)
        torch.cat([part, part + 10], out=out)
        return out.cpu()

    assert torch.equal(of(DEVICE), of("cpu"))
