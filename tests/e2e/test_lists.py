# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Operators on long lists of tensors: their results, programs and cuts."""

from __future__ import annotations

import random

import pytest
import torch
from helpers import DEVICE, same

pytestmark = pytest.mark.fast


def tensors(n: int, seed: int) -> list[torch.Tensor]:
    """Tensors of some ranks, sizes, dtypes and layouts; some are windows on others."""
    torch.manual_seed(seed)
    out = []
    for i in range(n):
        match i % 6:
            case 0:
                t = torch.rand(3 + i % 5)
            case 1:
                t = torch.rand(2 + i % 3, 4)
            case 2:
                t = torch.rand(4, 2 + i % 3).t()
            case 3:
                t = torch.rand(6, 3 + i % 4)[1:4]
            case 4:
                t = torch.rand(5, dtype=torch.float64)
            case _:
                t = torch.rand(())
        out.append(t + 0.5 if i % 6 in (2, 3) else t.add_(0.5))
    return out


def program(lists: dict[str, list[torch.Tensor]], seed: int) -> None:
    """Some operators on lists, which take the tensors in varying order."""
    draw = random.Random(seed)
    for _ in range(6):
        a, b, c = (lists[draw.choice("abc")] for _ in range(3))
        order = list(range(len(a)))
        if draw.random() < 0.3:
            draw.shuffle(order)
        part = order[: draw.choice((len(order), len(order) // 2))]
        a, b, c = ([x[i] for i in part] for x in (a, b, c))
        match draw.randrange(7):
            case 0:
                torch._foreach_mul_(a, 0.5)
            case 1:
                torch._foreach_add_(a, b, alpha=0.25)
            case 2:
                torch._foreach_addcmul_(a, b, c, value=0.125)
            case 3:
                torch._foreach_addcdiv_(a, b, c, [1 / (2 + i) for i in part])
            case 4:
                torch._foreach_div_(a, [1.5 + i % 3 for i in part])
            case 5:
                torch._foreach_copy_(a, torch._foreach_sqrt(torch._foreach_abs(b)))
            case _:
                torch._foreach_lerp_(a, b, 0.1)


@pytest.mark.parametrize("seed", range(12))
def test_random_programs(seed):
    n = random.Random(seed).choice((5, 40, 300))
    here = {k: tensors(n, i) for i, k in enumerate("abc")}
    there = {k: [t.to(DEVICE) for t in v] for k, v in here.items()}
    torch.mycelya.synchronize()
    program(here, seed)
    program(there, seed)
    for k in "abc":
        for x, y in zip(there[k], here[k], strict=True):
            same(x, y)


def adamw(n: int, device: str) -> tuple[list[torch.Tensor], torch.optim.Optimizer]:
    torch.manual_seed(0)
    values = [torch.randn(2 + i % 5, 3) if i % 2 else torch.randn(7) for i in range(n)]
    parameters = [torch.nn.Parameter(v.to(device)) for v in values]
    for p, v in zip(parameters, values, strict=True):
        p.grad = (v * 0.1).to(device)
    return parameters, torch.optim.AdamW(parameters, lr=1e-2, foreach=True)


def test_the_first_step_has_the_program_of_the_others(counters):
    (far, step), (near, reference) = adamw(400, DEVICE), adamw(400, "cpu")
    torch.mycelya.synchronize()
    torch.mycelya.reset_metrics()
    step.step()
    torch.mycelya.synchronize()
    first = counters()
    assert first["cuts"]["list"] == 1
    for _ in range(3):
        step.step()
        torch.mycelya.synchronize()
    m = counters()
    assert m["program_misses"] == first["program_misses"]
    assert m["cuts"]["list"] == 1, "a step that begins with a list is not cut"
    for _ in range(4):
        reference.step()
    for x, y in zip(far, near, strict=True):
        same(x.detach(), y.detach())


def test_a_short_list_ends_no_trace(counters):
    _, step = adamw(100, DEVICE)
    torch.mycelya.synchronize()
    torch.mycelya.reset_metrics()
    step.step()
    torch.mycelya.synchronize()
    assert "list" not in counters()["cuts"]
