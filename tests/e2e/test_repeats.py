# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Loops that nothing in the program marks: their rounds are traces of one program."""

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
    # The first trace, the others, and what is left at the end.
    assert m["program_misses"] <= 3
    same(result, rounds(here, x, 300))


@torch.no_grad()
def test_a_body_without_a_network(counters):
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
    """Another body after a while, and rounds of two kinds."""

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


def test_layers_that_are_alike_are_no_rounds(counters):
    """Nor is anything else within a step that ends with a mark."""
    net = network(40).to(DEVICE)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x = to_device(torch.randn(2, 16))

    def step():
        h = x
        for _ in range(3):  # shared weights, as of a recurrent network
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
