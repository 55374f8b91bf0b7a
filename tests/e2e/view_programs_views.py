# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Steps that make tensors, and steps that make views of them."""

from __future__ import annotations

from math import prod

import torch
from view_programs_draft import (
    DTYPES,
    MAX_DIMS,
    Draft,
    Lines,
    Menu,
    index,
    ramp,
    small,
    step,
    window,
)

VIEWS: Menu = []

# Tensors

SHAPES = ((6,), (2, 3), (4, 4), (2, 3, 2), (), (1,), (0,), (8, 2), (2, 0), (3, 1, 4))
LARGER = ((9,), (3, 4), (5, 5), (3, 4, 3), (), (1,), (0,), (9, 3), (3, 0), (4, 1, 5))


@step(VIEWS, 8)
def tensor(s: Draft) -> Lines:
    shape, dtype = s.one(*(LARGER if s.larger else SHAPES)), s.one("float32", *DTYPES)
    made = f"{s.new()} = {ramp(shape, dtype, s.pick(5) - 2)}"
    kind = s.pick(4) if dtype not in ("int64", "bool") else 0
    if kind == 1:
        return f"{made}.requires_grad_()"
    if kind > 1:  # a leaf, and a non-leaf that may be written in place
        leaf = made[: made.index(" ")]
        return [f"{made}.requires_grad_()", f"{s.new()} = {leaf} * 1"]
    return made


@step(VIEWS, 1)
def uploaded(s: Draft) -> Lines:
    rows = s.one([[1.0, 2.0], [3.0, 4.0]], [0, 1, 2], [[True], [False]], 7.0)
    if s.larger:
        rows = [*rows, rows[0]] if isinstance(rows, list) else -rows
    return f"{s.new()} = torch.tensor({rows}, device=d)"


@step(VIEWS, 2)
def strided(s: Draft) -> Lines:
    kinds = ((2, 3), (1, 2)), ((3, 2), (4, 1)), ((2, 2, 2), (1, 4, 2)), ((4,), (2,))
    if s.larger:
        kinds = ((3, 4), (1, 3)), ((4, 2), (3, 1)), ((2, 3, 2), (1, 4, 2)), ((5,), (3,))
    shape, stride = s.one(*kinds)
    dtype = s.one("float32", "int64", "complex64")
    v = s.new()
    made = (
        f"{v} = torch.empty_strided({shape}, {stride}, dtype=torch.{dtype}, device=d)"
    )
    return [made, f"fill({v}, 0)", f"{v}.copy_({ramp(shape, dtype, 1)})"]


@step(VIEWS, 2)
def uninitialised(s: Draft) -> Lines:
    """A new storage that the next line writes: directly, by a view, or by out=."""
    v, shape = s.new(), s.one((4 + s.larger,), (2 + s.larger, 3), (3, 2 + s.larger))
    write = s.one(
        f"{v}.fill_(3)",
        f"{v}.view(-1)[:] = 5",
        f"{v}.t().copy_(torch.ones({list(reversed(shape))}, device=d))",
        f"torch.arange({prod(shape)}, out={v}.view(-1))",
        f"{v}.zero_()",
    )
    return [f"{v} = torch.empty({list(shape)}, device=d)", write]


@step(VIEWS, 3)
def made_like(s: Draft) -> Lines:
    x = s.tensor()
    how = s.one(
        "torch.zeros_like({x})",
        "{x}.clone()",
        "torch.ones_like({x})",
        "{x}.new_zeros((2, 3))",
        "{x}.new_full((3,), 1)",
        "torch.full_like({x}, 1)",
        "{x}.contiguous()",
        "{x}.clone(memory_format=torch.contiguous_format)",
    )
    return f"{s.new()} = {how.format(x=x)}"


@step(VIEWS, 2)
def deleted(s: Draft) -> Lines:
    return f"del {s.tensor()}"


# Views


def shape_of(s: Draft, n: int) -> list[int]:
    """A shape of n elements."""
    if n == 0:
        return s.one([0], [2, 0], [0, 3])
    a = s.one(*[i for i in (1, 2, 3, 4) if n % i == 0])
    return s.one([n], [a, n // a], [n // a, a], [1, n], [a, 1, n // a], [-1], [n + 1])


@step(VIEWS, 6)
def reshaped(s: Draft) -> Lines:
    x = s.tensor(small)
    if not x:
        return None
    how = s.one("view", "reshape", "view", "flatten", "view_as", "ravel", "unflatten")
    if how == "flatten":
        return f"{s.new()} = {x}.flatten({s.pick(2)})"
    if how == "ravel":
        return f"{s.new()} = {x}.ravel()"
    if how == "view_as":
        return f"{s.new()} = {x}.view_as({s.tensor()})"
    if how == "unflatten":
        d = s.dim(x)
        n = s[x].shape[d] if s[x].dim() else 1
        return f"{s.new()} = {x}.unflatten({d}, {shape_of(s, n)})"
    return f"{s.new()} = {x}.{how}({shape_of(s, s[x].numel())})"


@step(VIEWS, 8)
def permuted(s: Draft) -> Lines:
    x = s.tensor()
    t = s[x]
    how = s.one("transpose", "permute", "t", "movedim", "property", "swapaxes", "flip")
    if t.dim() != 2 and how in ("t", "property") and s.pick(8):
        how = "permute"
    if how == "property":
        how = s.one("T", "mT", "H", "mH")
        return f"{s.new()} = {x}.{how}"
    if how == "t":
        return f"{s.new()} = {x}.t()"
    if how == "permute":
        dims = list(range(t.dim()))
        turn = s.pick(t.dim() + 1)
        dims = dims[turn:] + dims[:turn]
        return f"{s.new()} = {x}.permute({dims[:: s.one(1, -1)]})"
    if how == "flip":  # a copy, not a view
        return f"{s.new()} = {x}.flip({[s.dim(x)]})"
    return f"{s.new()} = {x}.{how}({s.dim(x)}, {s.dim(x)})"


@step(VIEWS, 10)
def windowed(s: Draft) -> Lines:
    x = s.tensor()
    t = s[x]
    how = s.one("index", "narrow", "select", "index", "diagonal", "unfold")
    if how == "index" or t.dim() == 0 and s.pick(8):
        if t.dim() >= MAX_DIMS:
            return None
        return f"{s.new()} = {x}[{index(s, t)}]"
    d = s.dim(x)
    n = t.shape[d] if t.dim() else 1
    if how == "narrow":
        start = s.pick(n + 1)
        length = s.pick(n - start + 1) if s.pick(8) < 7 else n + 1
        return f"{s.new()} = {x}.narrow({d}, {start}, {length})"
    if how == "select":
        at = s.pick(n) if n and s.pick(8) else n
        return f"{s.new()} = {x}.select({d}, {s.one(at, at - n)})"
    if how == "diagonal":
        other = s.one((d + 1) % max(t.dim(), 1), s.dim(x))
        return f"{s.new()} = {x}.diagonal({s.pick(3) - 1}, {d}, {other})"
    if t.dim() >= MAX_DIMS:
        return None
    return f"{s.new()} = {x}.unfold({d}, {s.pick(n + 1)}, {s.one(1, 2, 3)})"


@step(VIEWS, 5)
def stretched(s: Draft) -> Lines:
    x = s.tensor(small)
    if not x:
        return None
    t = s[x]
    how = s.one("unsqueeze", "expand", "squeeze", "squeeze_dim", "expand_as", "to")
    if how == "unsqueeze":
        return f"{s.new()} = {x}.unsqueeze({s.pick(2 * t.dim() + 2) - t.dim() - 1})"
    if how == "squeeze":
        return f"{s.new()} = {x}.squeeze()"
    if how == "squeeze_dim":
        return f"{s.new()} = {x}.squeeze({s.one(str(s.dim(x)), '(0, -1)')})"
    if how == "expand_as":
        return f"{s.new()} = {x}.expand_as({s.tensor(small) or x})"
    shape = [n if n != 1 else s.one(1, 2, 3) for n in t.shape]
    shape = s.one([], [2], [1], [0]) + [s.one(n, -1, n) for n in shape]
    if how == "to":
        return f"{s.new()} = torch.broadcast_to({x}, {shape})"
    return f"{s.new()} = {x}.expand({shape})"


@step(VIEWS, 6)
def restrided(s: Draft) -> Lines:
    x = s.tensor()
    shape, stride, offset = window(
        s, s[x].untyped_storage().nbytes(), s[x].element_size()
    )
    return f"{s.new()} = {x}.as_strided({shape}, {stride}, {offset})"


@step(VIEWS, 6)
def reinterpreted(s: Draft) -> Lines:
    x = s.tensor()
    t = s[x]
    if t.is_complex():
        how = s.one(
            "torch.view_as_real({x})",
            "{x}.real",
            "{x}.imag",
            "{x}.conj()",
            "torch._neg_view({x})",
            "{x}.conj().imag",
            "{x}.resolve_conj()",
            "{x}.conj().mT",
            "torch.view_as_real({x}.resolve_conj())",
            "{x}.view(torch.float32)",
        )
        return f"{s.new()} = {how.format(x=x)}"
    how = s.one("view", "view_as_complex", "neg_view", "real")
    if how == "view":
        dtype = s.one("int32", "uint8", "int64", "float32", "bfloat16", "int16")
        if t.dtype == torch.bool or dtype == "bool":
            dtype = "uint8"  # bytes other than 0 and 1 are not valid bools
        return f"{s.new()} = {x}.view(torch.{dtype})"
    if how == "neg_view" and t.dtype != torch.bool:  # bools have no negation
        return f"{s.new()} = torch._neg_view({x})"
    if how == "real":
        return f"{s.new()} = {x}.{s.one(*['real', 'conj()'] * 4, 'imag')}"
    if (t.dim() == 0 or t.shape[-1] != 2) and s.pick(4):
        x = s.tensor(lambda t: t.dtype == torch.float32 and t.shape[-1:] == (2,)) or x
    return f"{s.new()} = torch.view_as_complex({x})"


@step(VIEWS, 4)
def parts(s: Draft) -> Lines:
    x = s.tensor(lambda t: t.dim() > 0)
    if not x:
        return None
    d = s.dim(x)
    n = s[x].shape[d]
    how = s.one(
        f"{x}.split({s.one(1, 2)}, {d})",
        f"{x}.chunk({s.one(2, 3)}, {d})",
        f"{x}.unbind({d})",
        f"{x}.tensor_split({s.one(2, 3)}, {d})",
        f"{x}.split([{n // 2}, {n - n // 2}], {d})",
        f"{x}.unsafe_chunk(2, {d})",
    )
    a, b = s.new(), s.new()
    return f"{a}, {b} = ends({how})"


@step(VIEWS, 5)
def aliased(s: Draft) -> Lines:
    x = s.tensor()
    how = s.one(
        "{x}.detach()",
        "{x}.data",
        "{x}.view_as({x})",
        "torch.ops.aten.alias({x})",
        "{x}[...]",
        "torch.nn.Parameter({x})",
        "{x}.to({x}.dtype)",
        "{x}.positive()",
        "{x}.resolve_neg()",
        "torch.atleast_2d({x})",
    )
    return f"{s.new()} = {how.format(x=x)}"
