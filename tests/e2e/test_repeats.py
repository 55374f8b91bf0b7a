# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Loops that nothing in the program marks: their traces share one program."""

from __future__ import annotations

import pytest
import torch
from helpers import DEVICE, same, to_device
from torch import nn

pytestmark = pytest.mark.fast


def network(layers: int, width: int = 16) -> nn.Sequential:
    torch.manual_seed(1)
    stack = [m for _ in range(layers) for m in (nn.Linear(width, width), nn.Tanh())]
    return nn.Sequential(*stack)


def reset() -> None:
    torch.mycelya.synchronize()
    torch.mycelya.reset_metrics()


@torch.no_grad()
def test_inference(counters):
    here, there = network(5), network(5).to(DEVICE)

    def rounds(net, h, n):
        for _ in range(n):
            h = net(h) * 0.9 + h * 0.1
        return h

    x = torch.randn(2, 16)
    far = to_device(x)
    reset()
    result = rounds(there, far, 300)
    m = counters()
    assert m["cuts"]["repeat"] >= 10 and set(m["cuts"]) == {"repeat"}
    torch.mycelya.synchronize()
    m = counters()
    # One each for the first trace, the repeated ones, and the last one.
    assert m["program_misses"] <= 3
    same(result, rounds(here, x, 300))


@torch.no_grad()
def test_a_loop_of_one_operator(counters):
    x = to_device(torch.ones(3))
    reset()
    for _ in range(1000):
        x = x * 1.001
    torch.mycelya.synchronize()
    assert counters()["program_misses"] <= 3
    expected = torch.ones(3)
    for _ in range(1000):
        expected = expected * 1.001
    same(x, expected)


def test_an_optimizer_by_hand(counters):
    def train(net, x, steps):
        for step in range(steps):
            loss = net(x).square().mean()
            grads = torch.autograd.grad(loss, list(net.parameters()))
            with torch.no_grad():
                for p, g in zip(net.parameters(), grads, strict=True):
                    p.sub_(g, alpha=0.1 / (step + 1))
        return [p.detach() for p in net.parameters()]

    here, there, x = network(3), network(3).to(DEVICE), torch.randn(4, 16)
    far = to_device(x)
    reset()
    got = train(there, far, 40)
    torch.mycelya.synchronize()
    assert counters()["program_misses"] <= 4
    for mine, theirs in zip(got, train(here, x, 40), strict=True):
        same(mine, theirs, 1e-5, 1e-6)


@torch.no_grad()
def test_a_loop_that_changes(counters):
    """The body changes after a while, and two kinds of rounds alternate."""

    def rounds(net, h):
        for i in range(120):
            h = net(h)
            if i >= 60:
                h = h.sin() if i % 2 else h.cos().neg()
        for i in range(40):
            h = net[:4](h) if i % 7 == 3 else net(h)
        return h

    here, there, x = network(4), network(4).to(DEVICE), torch.randn(2, 16)
    same(rounds(there, to_device(x)), rounds(here, x))


def test_equal_layers_are_not_rounds(counters):
    """Repeated calls within a step that ends with a mark are not rounds either."""
    net = network(40).to(DEVICE)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x = to_device(torch.randn(2, 16))

    def step():
        h = x
        for _ in range(3):  # shared weights, as in a recurrent network
            h = net(h)
        h.sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    step()
    reset()
    for _ in range(5):
        step()
    torch.mycelya.synchronize()
    m = counters()
    assert "repeat" not in m["cuts"] and m["program_misses"] == 0


# ---- Loops that wait ----


@torch.no_grad()
def test_a_loop_that_waits_begins_early(counters):
    """Rounds are cut into parts. The worker runs one while the next is recorded."""
    here, there = network(120), network(120).to(DEVICE)
    x = torch.randn(2, 16)

    def rounds(net, h, n):
        found = []
        for _ in range(n):
            h = net(h)
            found.append(h.sum().item())
            h = h + found[-1] * 0.01  # the round's result depends on the read
        return h, found

    far = to_device(x)
    reset()  # the upload is not part of the first round
    rounds(there, far, 3)
    reset()
    h, got = rounds(there, far, 8)
    m = counters()
    assert m["cuts"] == {"read": 8, "early": 14}  # the first round is not cut
    # The programs of the whole round and of its three parts already exist.
    assert m["program_misses"] == 0 and m["round_trips"] == 8
    expected, values = rounds(here, x, 8)
    same(h, expected, 1e-5, 1e-6)
    same(torch.tensor(got), torch.tensor(values), 1e-4, 1e-5)


@torch.no_grad()
def test_rounds_of_any_length(counters):
    """Parts need a few more programs at first, and none later."""
    here, there = network(300), network(300).to(DEVICE)
    x, far = torch.randn(2, 16), to_device(torch.zeros(2, 16))
    far.copy_(x)

    def rounds(net, h, lengths):
        found = []
        for n in lengths:
            h = net[:n](h)
            found.append(h.sum().item())
        return found

    lengths = [240, 600, 100, 220, 590, 80, 400, 230]
    expected = rounds(here, x, 8 * lengths)
    got = rounds(there, far, 6 * lengths)
    reset()
    got += rounds(there, far, 2 * lengths)
    assert counters()["program_misses"] == 0
    same(torch.tensor(got), torch.tensor(expected), 1e-4, 1e-5)


def test_rounds_that_are_not_cut_early(counters):
    """Short rounds, reads at two places, optimizer steps, non-blocking reads."""
    net = network(60).to(DEVICE)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x = to_device(torch.randn(2, 16))
    reset()
    for _ in range(5):
        with torch.no_grad():
            net[:40](x).sum().item()
    for _ in range(5):
        with torch.no_grad():
            net(net(x)).sum().item()
            net(net(x)).mean().item()
    for _ in range(5):
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
    with torch.no_grad():
        for _ in range(5):
            far = net(net(x)).to("cpu", non_blocking=True)
            torch.mycelya.flush()
    torch.mycelya.synchronize()
    assert "early" not in counters()["cuts"]
    assert far.shape == (2, 16)
