# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Assertions about values: the worker checks them, and the next wait raises."""

import pytest
import torch
from helpers import DEVICE, same

# On CUDA a failed assertion ends the CUDA context.
on_cpu = pytest.mark.cpu_worker

TEXT = "the loss is not finite"
aten = torch.ops.aten


def functional(condition, text=TEXT):
    return aten._functional_assert_async.msg(condition, text, torch.empty(()))


WAYS = {
    "plain": (torch._assert_async, "nonzero value"),
    "message": (lambda c: torch._assert_async(c, TEXT), TEXT),
    "functional": (functional, TEXT),
    "functional, token on the device": (
        lambda c: aten._functional_assert_async.msg(
            c, TEXT, aten._make_dep_token(device=DEVICE)
        ),
        TEXT,
    ),
}


@on_cpu
@pytest.mark.parametrize("way", WAYS)
def test_a_failed_assertion_is_raised_by_the_next_wait(way):
    check, text = WAYS[way]
    x = torch.tensor([1.0, float("nan")]).to(DEVICE)
    check(x.isfinite().all())
    with pytest.raises(RuntimeError, match=text) as error:
        torch.mycelya.synchronize()
    message = str(error.value)
    assert "_assert_async" in message and "test_assertions.py:" in message
    torch.mycelya.synchronize()  # it is raised once
    assert x[0].item() == 1.0


@on_cpu
@pytest.mark.parametrize("way", WAYS)
def test_a_true_assertion_does_nothing(way):
    check, _ = WAYS[way]
    x = torch.ones(3, device=DEVICE)
    for value in (x.isfinite().all(), x.sum(), (x > 0).sum(), x[:1].bfloat16()):
        token = check(value)
        torch.mycelya.synchronize()
        if way.startswith("functional"):
            assert token.shape == ()
    same(x + 1, torch.full((3,), 2.0))


@on_cpu
def test_an_assertion_stays_in_the_repeated_program():
    """The check is part of a program that is replayed, with other values."""
    x = torch.ones(4, device=DEVICE)
    for step in range(6):
        if step == 5:
            x[2] = float("inf")
            torch.mycelya.synchronize()
        y = x.mul(2).sum()
        torch._assert_async(y.isfinite(), TEXT)
        if step < 5:
            assert y.item() == 8.0
            torch.mycelya.synchronize()
    with pytest.raises(RuntimeError, match=TEXT):
        torch.mycelya.synchronize()


@on_cpu
def test_an_assertion_of_what_is_overwritten_sees_the_earlier_values():
    x = torch.zeros(4, device=DEVICE)
    torch._assert_async(x.sum() == 0, "before the write")
    x.fill_(1)
    torch._assert_async(x.sum() == 4, "after the write")
    torch.mycelya.synchronize()
    assert x.tolist() == [1.0] * 4


@pytest.mark.parametrize("shape", [(2,), (0,)])
def test_the_condition_has_one_element(shape):
    for device in ("cpu", DEVICE):
        with pytest.raises(RuntimeError, match="ambiguous"):
            torch._assert_async(torch.ones(shape, device=device))


def test_assertions_of_numbers():
    x = torch.ones((), device=DEVICE)
    aten._assert_scalar(x.item(), TEXT)
    token = aten._functional_assert_scalar(1, TEXT, aten._make_dep_token(device=DEVICE))
    assert token.device.type == "mycelya" and token.shape == ()
    for check in (
        lambda: aten._assert_scalar((x - 1).item(), TEXT),
        lambda: aten._functional_assert_scalar(0, TEXT, torch.empty((), device=DEVICE)),
        lambda: torch._assert_scalar(0, TEXT),
    ):
        with pytest.raises(RuntimeError, match=TEXT):
            check()
