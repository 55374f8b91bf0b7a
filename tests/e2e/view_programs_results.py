# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Steps that compute, differentiate and read, and that end a trace."""

from __future__ import annotations

import torch
from view_programs_draft import (
    MAX_NUMEL,
    Draft,
    Lines,
    Menu,
    broadcasts,
    lazy,
    small,
    step,
    sums,
)

RESULTS: Menu = []

# Results, gradients, reads


@step(RESULTS, 8)
def computed(s: Draft) -> Lines:
    x = s.tensor(lambda t: t.numel() <= MAX_NUMEL)
    if not x:
        return None
    shape = s[x].shape
    y = s.tensor(lambda t: broadcasts(t.shape, shape))
    how = s.one(
        "{x} + {y}",
        "{x} * 2",
        "{x} * {y}",
        "{x}.sum()" if sums(s[x]) else "{x}.neg()",
        "{x}.relu()",
        "{x}.sum(0)" if sums(s[x]) else "{x}.abs()",
        "{x} == {y}",
        "{x}.float()",
        "torch.cat([{x}, {x}])",
        "torch.where({x} == {y}, {x}, {y})",
        "{x}.square()",
        "{x} + {x}.conj()" if lazy(s[x]) else "{x} @ {x}",
        "torch.stack([{x}, {x}], -1)",
        "{x}.to(torch.bfloat16)",
        "{x}.masked_fill({x} == {y}, 0)",
        "{x}.double()",
        "{x}.index_select(-1, torch.arange({x}.shape[-1], device=d))",
        "{x}.tril()",
        "{x}.long()",
        "{x}.repeat(2)",
        "{x}.amax()",
        "torch.complex({x}, {y})",
        "{x}.cumsum(0)",
    )
    return f"{s.new()} = {how.format(x=x, y=y)}"


def differentiable(t: torch.Tensor) -> bool:
    return t.requires_grad


@step(RESULTS, 14)
def gradients(s: Draft) -> Lines:
    x = s.tensor(lambda t: differentiable(t) and sums(t, 2))
    if not x:
        return None
    total = f"{x}.sum()"
    if s[x].is_complex():
        total = f"({x} * {x}.conj()).real.sum()"
    elif s.pick(2):
        total = f"({x} * {x}).sum()"
    retain = s.one("", "retain_graph=True")
    how = s.pick(4)
    if how < 2:
        return f"{total}.backward({retain})"
    y = s.tensor(differentiable)
    if how == 2:
        return (
            f"{s.new()}, = torch.autograd.grad({total}, {y}, allow_unused=True"
            f"{', ' if retain else ''}{retain})"
        )
    return s.one(
        f"{x}.retain_grad()",
        f"{x}.grad = None",
        f"{x}.grad.mul_(2)",
        f"{x}.requires_grad_(False)",
        f"{x}.grad = {y}.detach().clone()",
    )


@step(RESULTS, 10)
def saved(s: Draft) -> Lines:
    """An op that saves tensors for its gradient, a write, and the backward pass."""
    x = s.tensor(
        lambda t: t.requires_grad and not t.is_complex() and small(t) and sums(t, 2)
    )
    if not x:
        return None
    shape = s[x].shape
    y, z = s.tensor(lambda t: broadcasts(t.shape, shape)), s.new()
    # A quotient is seldom exact, and a broadcast operand's gradient is a sum.
    either = "{x} / {y}" if s[y].shape == shape else "{x} - {y}"
    made = s.one("{x} * {x}", "{x} * {y}", "{x}.relu()", "{x}.square()", either)
    target = s.one(x, z, y, f"{x}[...]", f"{z}.view(-1)[:1]", s.tensor())
    target = s.one("{t}", "{t}", "{t}", "{t}.detach()", "{t}.data").format(t=target)
    write = s.one("{t}.add_(1)", "{t}.zero_()", "{t}.mul_(2)", "{t}.copy_({x})")
    write = s.mode(write.format(t=target, x=x))
    return [f"{z} = {made.format(x=x, y=y)}", write, f"{z}.sum().backward()"]


@step(RESULTS, 2)
def leaf(s: Draft) -> Lines:
    return f"{s.tensor()}.requires_grad_({s.one('', 'False')})"


@step(RESULTS, 7)
def read(s: Draft) -> Lines:
    x = s.tensor()
    how = s.one(
        "{x}.detach().tolist()",
        "{x}.detach().sum().item()" if sums(s[x]) else "{x}.dim()",
        "torch.equal({x}, {x}.clone())",
        "bool(({x} == {x}).all())",
        "{x}.to('cpu', copy=True).stride()",
        "{x}.is_set_to({y})",
        "{x}.is_contiguous()",
        "list({x}.untyped_storage())[:4]",
        "{x}.data_ptr() == {y}.data_ptr()",
        "torch._C._overlaps({x}, {y})",
    )
    return f"seen.append({how.format(x=x, y=s.tensor())})"


@step(RESULTS, 7)
def cut(s: Draft) -> Lines:
    """Cuts the open trace, so that later lines get the storages as inputs."""
    return ["torch.get_device_module(d).synchronize()"]
