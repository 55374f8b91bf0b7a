# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Results with a shape that depends on data: the client asks the worker for it."""

import pytest
import torch
import torch.nn.functional as F
from helpers import DEVICE, compare, same, to_device

X = torch.tensor([[0.0, 1.5, -2.0], [3.0, 0.0, 1.5]])
I = torch.tensor([[3, 1, 3], [0, 1, 3]])  # noqa: E741

CASES = {
    "nonzero": (lambda x: x.nonzero(), X),
    "nonzero of nothing": (lambda x: x.nonzero(), torch.zeros(2, 0)),
    "nonzero 0-dim": (lambda x: x.nonzero(), torch.tensor(2.0)),
    "nonzero as_tuple": (lambda x: x.nonzero(as_tuple=True), X),
    "argwhere": (torch.argwhere, X),
    "where": (torch.where, X),
    "count_nonzero": (torch.count_nonzero, X),
    "masked_select": (lambda x: x.masked_select(x > 0), X),
    "masked_select broadcast": (lambda x: x.masked_select(x[:1] > 0), X),
    "mask": (lambda x: x[x > 1], X),
    "mask of a row": (lambda x: x[:, x[0] > 1], X),
    "mask and index": (lambda x: x[x[:, 1] > -1, 1], X),
    "byte mask": (lambda x: x[(x > 1).byte()], X),
    "True": (lambda x: x[True], X),
    "None and mask": (lambda x: x[None, x > 1], X),
    "unique": (lambda x: x.unique(return_inverse=True, return_counts=True), I),
    "unique unsorted": (lambda x: x.unique(sorted=False), I),
    "unique dim": (lambda x: x.unique(dim=1, return_inverse=True), I),
    "unique bool": (lambda x: (x > 1).unique(return_counts=True), I),
    "unique_consecutive": (
        lambda x: x.unique_consecutive(return_inverse=True, return_counts=True),
        I,
    ),
    "unique_consecutive dim": (lambda x: x.unique_consecutive(dim=0), I),
    "bincount": (lambda x: x.flatten().bincount(), I),
    "bincount minlength": (lambda x: x.flatten().bincount(minlength=9), I),
    "bincount weights": (
        lambda x: x.flatten().bincount(weights=x.flatten() * 0.5),
        I,
    ),
    "histc": (lambda x: x.histc(bins=4), X),
    "repeat_interleave": (torch.repeat_interleave, torch.tensor([1, 0, 3])),
    "repeat_interleave of": (lambda x: x.repeat_interleave(x[0], dim=1), I),
    "repeat_interleave sized": (
        lambda x: x.repeat_interleave(x[0], dim=1, output_size=7),
        I,
    ),
    "combinations": (lambda x: torch.combinations(x[0], with_replacement=True), X),
    "lstsq": (lambda x: torch.linalg.lstsq(x.T, x.T[:, :1], driver="gels"), X),
    "one_hot": (F.one_hot, I),
    "tensor_split": (lambda x: x.tensor_split(x[0, 1:2].cpu(), dim=1), I),
}


@pytest.mark.parametrize("case", CASES)
def test_equals_the_cpu(case):
    fn, x = CASES[case]
    compare(fn, x)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.half])
def test_nonzero_of_dtypes(dtype):
    compare(torch.nonzero, X.to(dtype) if dtype != torch.uint8 else X.abs().to(dtype))


def test_gradients():
    x = X.clone().requires_grad_()
    compare(lambda x: x[x > 0] * 2, x)
    compare(lambda x: x.masked_select(x > 0).exp(), x)
    compare(lambda x: x.repeat_interleave(torch.tensor([1, 3], device=x.device), 0), x)


def test_results_are_tensors_like_any_other():
    """They can be viewed, written, concatenated, freed and used in later programs."""

    def use(x):
        found = x.nonzero()
        found[:, 0] += 10
        view = found.T[1:]
        again = torch.cat([view, view * 2]).float().mean(0)
        return found, view, again

    compare(use, X)


def test_masked_writes():
    def write(x, value):
        x[x > 1] = 9
        x[x == 0] = value
        x[:, x[0] > 1] = -1
        x[x < -1] += 5
        x.masked_scatter_(x > 5, torch.arange(6.0, device=x.device))
        return x

    compare(write, X, torch.tensor(4.0))


def test_a_masked_fill_does_not_wait(counters):
    x, value = to_device(X), torch.tensor(4.0, device=DEVICE)
    torch.mycelya.synchronize()
    torch.mycelya.reset_metrics()
    x[x > 1] = 9
    x[x == 0] = value
    assert counters()["round_trips"] == 0


def test_out_forms():
    for make in (lambda d: torch.empty(0, dtype=torch.long, device=d),):
        ours, cpu = make(DEVICE), make("cpu")
        torch.nonzero(to_device(X), out=ours)
        torch.nonzero(X, out=cpu)
        same(ours, cpu)
    ours, cpu = torch.empty(3, device=DEVICE), torch.empty(3)
    torch.masked_select(to_device(X), to_device(X) > 0, out=ours)
    torch.masked_select(X, X > 0, out=cpu)
    same(ours, cpu)
    with pytest.raises(RuntimeError, match="dtype"):
        torch.nonzero(to_device(X), out=torch.empty(0, device=DEVICE))


def test_errors_come_at_the_call():
    x = to_device(I)
    with pytest.raises(RuntimeError, match="non-negative|nonnegative"):
        torch.bincount(x.flatten() - 5)
    with pytest.raises(IndexError, match="mask"):
        x[torch.ones(5, 5, dtype=torch.bool, device=DEVICE)]
    assert x.sum().item() == I.sum().item()


def test_a_loop_like_nms():
    def keep(boxes, scores):
        order = scores.argsort(descending=True)
        kept = []
        while order.numel() > 0:
            first = order[0]
            kept.append(first)
            rest = order[1:]
            top = torch.maximum(boxes[rest, :2], boxes[first, :2])
            bottom = torch.minimum(boxes[rest, 2:], boxes[first, 2:])
            inner = (bottom - top).clamp(min=0).prod(1)
            area = (boxes[:, 2:] - boxes[:, :2]).prod(1)
            iou = inner / (area[rest] + area[first] - inner)
            order = rest[iou <= 0.3]
        return torch.stack(kept)

    torch.manual_seed(3)
    corners = torch.rand(30, 2)
    compare(keep, torch.cat([corners, corners + torch.rand(30, 2)], 1), torch.rand(30))


def test_an_earlier_error_is_raised_at_the_call():
    """The call waits for the shape, so it raises the error of its operand."""
    weight = torch.zeros(2, 2, device=DEVICE)
    bad = F.embedding(torch.tensor([7], device=DEVICE), weight)
    with pytest.raises(IndexError, match="test_dynamic.py"):
        bad.nonzero()
    assert weight.nonzero().shape == (0, 2)
