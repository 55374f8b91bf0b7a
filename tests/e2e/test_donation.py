# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""A result in its operand's memory has the bits of one in its own, and nobody sees it.

The catalogue names the operators that overwrite an operand. Each is run here and
compared with the operator that makes a result of its own.
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

# No complex ones: compilers vectorise their loops only where memory doesn't overlap,
# and a quotient then differs in the last bit. So nothing is donated to them.
DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64,
    torch.int32, torch.int16, torch.uint8, torch.bool,
]  # fmt: skip
# One element, the tail of a vector, more than a vector, more than a thread's share.
SIZES = [(1,), (7,), (3, 41), (4, 16411)]


def operator(name: str):
    op, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, op), overload or "default")


def operand(dtype: torch.dtype, size: tuple[int, ...], seed: int) -> torch.Tensor:
    """Numbers about 0 and, of floats, what has no order or no size."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(size, generator=g, dtype=torch.float64) * 4
    if dtype.is_floating_point:
        odd = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1e30])
        at = torch.randint(0, x.numel(), (5,), generator=g)
        x.view(-1)[at] = odd[: len(at)].double()
        return x.to(dtype)
    if dtype == torch.bool:
        return x > 0
    return x.abs().add(1).to(dtype)  # no division by zero, no power below it


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(-1).view(torch.uint8)


def arguments(form: str, dtype: torch.dtype, size: tuple[int, ...]):
    """Operands for a form: tensors of the dtype, and numbers where it wants them."""
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
def test_over_an_operand_has_the_same_bits(form: str, over: str):
    compared = 0
    for dtype, size in itertools.product(DTYPES, SIZES):
        args, named = arguments(form, dtype, size)
        try:
            want = operator(form)(*args, **named)
        except (RuntimeError, TypeError, NotImplementedError):
            continue  # not of this dtype
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


def test_the_table_is_read():
    assert len(ROWS) > 300 and len(PAIRS) > 60


@pytest.mark.usefixtures("settled")
def test_operands_that_end_and_operands_that_stay():
    """Chains whose middle is free, beside operands that a user still sees."""

    def f(x, y):
        a = (x.exp() - y) * 2  # in place from the subtraction on
        b = y - a.sigmoid()  # over the second operand
        c = torch.where(b > 0, x, b) / (a + 1)
        d = 3.0 - c.clone().t().contiguous()
        return d.maximum(x.t()), x + 0, torch.full_like(c, 2.0)

    compare(f, torch.randn(5, 7), torch.randn(5, 7))


@pytest.mark.usefixtures("settled")
def test_what_is_not_of_the_operands_type():
    """Near misses: dtypes and sizes that differ, the same elements in many places."""

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


@pytest.mark.usefixtures("settled")
@pytest.mark.cpu_worker
def test_an_error_spoils_the_result_and_no_operand():
    x = to_device(torch.ones(3))
    y = x * 2
    bad = y[:2].clone().scatter_(0, torch.tensor([7]).to(DEVICE), 1.0)
    z = (bad + 1) * y[:2]
    with pytest.raises(RuntimeError, match="scatter"):
        z.tolist()
    same([x, y], [torch.ones(3), torch.full((3,), 2.0)])
