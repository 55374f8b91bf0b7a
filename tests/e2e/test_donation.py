# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""An operator gives the same bits whether or not it overwrites an operand.

The catalogue names the operators that overwrite an operand. Each is compared with the
operator that allocates its result.
"""

from __future__ import annotations

import itertools
import json

import pytest
import torch
from helpers import DEVICE, ROOT, compare, same, to_device

pytestmark = [pytest.mark.fast]

ROWS = json.loads((ROOT / "catalogue" / "operators.json").read_text())["operators"]
PAIRS = [
    (row["name"], row[column])
    for row in ROWS
    for column in ("in_place", "out")
    if column in row
]

# No complex dtypes: compilers vectorise complex loops only where memory doesn't
# overlap, and round quotients differently there. So complex operands are not donated.
DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64,
    torch.int32, torch.int16, torch.uint8, torch.bool,
]  # fmt: skip
# One element, the tail of a vector, several vectors, more than one thread's share.
SIZES = [(1,), (7,), (3, 41), (4, 16411)]


def operator(name: str):
    op, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, op), overload or "default")


def operand(dtype: torch.dtype, size: tuple[int, ...], seed: int) -> torch.Tensor:
    """Numbers around 0; for floats also NaN, infinities, -0.0 and 1e30."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(size, generator=g, dtype=torch.float64) * 4
    if dtype.is_floating_point:
        odd = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1e30])
        at = torch.randint(0, x.numel(), (5,), generator=g)
        x.view(-1)[at] = odd[: len(at)].double()
        return x.to(dtype)
    if dtype == torch.bool:
        return x > 0
    return x.abs().add(1).to(dtype)  # no division by zero, no negative exponent


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(-1).view(torch.uint8)


def arguments(form: str, dtype: torch.dtype, size: tuple[int, ...]):
    """Arguments for an operator: tensors of the dtype, and numbers for scalars."""
    args, named = [], {}
    for i, a in enumerate(operator(form)._schema.arguments):
        if a.name in ("condition", "mask"):
            args.append(operand(torch.bool, size, i))
        elif str(a.type) == "Tensor":
            args.append(operand(dtype, size, i))
        elif a.name == "rounding_mode":
            named[a.name] = "floor"
        elif str(a.type) == "bool":
            args.append(False)
        elif a.name == "min" or not a.has_default_value():
            args.append(2.5 if dtype.is_floating_point else dtype != torch.bool and 3)
    return args, named


@pytest.mark.parametrize(("form", "over"), PAIRS, ids=[over for _, over in PAIRS])
def test_writing_over_an_operand_gives_the_same_bits(form: str, over: str):
    compared = 0
    for dtype, size in itertools.product(DTYPES, SIZES):
        args, named = arguments(form, dtype, size)
        try:
            want = operator(form)(*args, **named)
        except (RuntimeError, TypeError, NotImplementedError):
            continue  # PyTorch does not support this dtype
        *_, last = operator(over)._schema.arguments
        for i, a in enumerate(args):
            if not torch.is_tensor(a):
                continue
            if (a.dtype, a.shape) != (want.dtype, want.shape):
                continue
            ours = [x.clone() if torch.is_tensor(x) else x for x in args]
            if last.is_out:
                operator(over)(*ours, **named, **{last.name: ours[i]})
            elif i == 0:
                given = len(operator(over)._schema.arguments)
                operator(over)(*ours[:given], **named)
            else:
                continue
            assert torch.equal(bits(ours[i]), bits(want)), (dtype, size, i)
            compared += 1
    assert compared >= len(SIZES)


def test_the_catalogue_is_read():
    assert len(ROWS) > 300 and len(PAIRS) > 60


@pytest.mark.usefixtures("used")
def test_operands_that_end_and_operands_that_are_held():
    """Chains of values that end, and operands that the user still holds."""

    def f(x, y):
        a = (x.exp() - y) * 2  # the subtraction and the product run in place
        b = y - a.sigmoid()  # overwrites the second operand
        c = torch.where(b > 0, x, b) / (a + 1)
        d = 3.0 - c.clone().t().contiguous()
        return d.maximum(x.t()), x + 0, torch.full_like(c, 2.0)

    compare(f, torch.randn(5, 7), torch.randn(5, 7))


@pytest.mark.usefixtures("used")
def test_results_that_fit_in_no_operand():
    """Near misses: other dtypes and sizes, expanded operands, windows, complex."""

    def f(x, n, m):
        row = x.sum(0, keepdim=True)
        return (
            (x * 2) < x,
            (n + 1) / n,
            ~m + 2,
            torch.complex(x, x).exp().abs(),
            row.neg() + x,
            x.sum(0).expand(5, 7) * x,
            (x.exp() + 0)[:, :5] + (x.exp() + 0)[:, :5].t(),
            (n * 3).view(-1)[:4] * 2,
            torch.complex(x, x) * 2 / torch.complex(x, x + 1),
        )

    compare(f, torch.randn(5, 7), torch.arange(1, 36).view(5, 7), torch.rand(5, 7) > 0)


@pytest.mark.usefixtures("used")
@pytest.mark.cpu_worker
def test_an_error_leaves_the_operands():
    x = to_device(torch.ones(3))
    y = x * 2
    bad = y[:2].clone().scatter_(0, torch.tensor([7]).to(DEVICE), 1.0)
    z = (bad + 1) * y[:2]
    with pytest.raises(RuntimeError, match="scatter"):
        z.tolist()
    same([x, y], [torch.ones(3), torch.full((3,), 2.0)])
