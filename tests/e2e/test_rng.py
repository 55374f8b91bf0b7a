# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""A seed gives the same numbers on a CPU worker as on the CPU, bit for bit."""

import pytest
import torch
from helpers import DEVICE
from torch.nn import functional as F  # noqa: N812

DRAWS = {
    "rand": lambda d: torch.rand(5, 3, device=d),
    "randn": lambda d: torch.randn(17, device=d),
    "randn64": lambda d: torch.randn(17, dtype=torch.float64, device=d),
    "randint": lambda d: torch.randint(3, 100, (7,), device=d),
    "randperm": lambda d: torch.randperm(20, device=d),
    "rand_like": lambda d: torch.rand_like(torch.zeros(3, 2, device=d)),
    "normal": lambda d: torch.normal(2.0, 3.0, (9,), device=d),
    "normal_": lambda d: torch.zeros(20, device=d).normal_(1, 2),
    "uniform_": lambda d: torch.zeros(20, device=d).uniform_(-1, 1),
    "bernoulli": lambda d: torch.full((20,), 0.3, device=d).bernoulli(),
    "bernoulli_": lambda d: torch.zeros(20, device=d).bernoulli_(0.7),
    "exponential_": lambda d: torch.zeros(20, device=d).exponential_(),
    "random_": lambda d: torch.zeros(20, device=d).random_(10),
    "multinomial": lambda d: torch.ones(9, device=d).softmax(0).multinomial(4),
    "dropout": lambda d: F.dropout(torch.ones(50, device=d), 0.4),
    "view": lambda d: torch.zeros(4, 6, device=d)[:, ::2].normal_(),
    "xavier": lambda d: torch.nn.init.xavier_uniform_(torch.zeros(4, 5, device=d)),
}


pytestmark = pytest.mark.cpu_worker  # CUDA's generator draws other numbers


@pytest.mark.parametrize("name", DRAWS)
def test_a_seed_gives_the_same_numbers(name):
    torch.manual_seed(42)
    here = [DRAWS[name]("cpu") for _ in range(3)]
    torch.manual_seed(42)
    there = [DRAWS[name](DEVICE).cpu() for _ in range(3)]
    assert all(torch.equal(a, b) for a, b in zip(here, there, strict=True))


def test_draws_keep_their_order_across_cuts_and_unused_draws():
    def draw(device):
        torch.manual_seed(7)
        torch.rand(3, device=device)  # never read, but it advances the generator
        a = torch.rand(3, device=device)
        torch.mycelya.synchronize()
        b = torch.randn(3, device=device)
        torch.manual_seed(7)
        return [t.cpu() for t in (a, b, torch.rand(3, device=device))]

    for here, there in zip(draw("cpu"), draw(DEVICE), strict=True):
        assert torch.equal(here, there)


def test_seeds_of_the_module():
    torch.mycelya.manual_seed(3)
    assert torch.mycelya.initial_seed() == 3
    a = torch.rand(4, device=DEVICE)
    torch.mycelya.manual_seed_all(3)
    assert torch.equal(a.cpu(), torch.rand(4, device=DEVICE).cpu())
    fresh = torch.mycelya.seed()
    assert torch.mycelya.initial_seed() == fresh
    b = torch.rand(4, device=DEVICE).cpu()
    torch.manual_seed(fresh)
    assert torch.equal(torch.rand(4), b)


def test_an_explicit_generator():
    here = torch.Generator().manual_seed(11)
    there = torch.Generator(device="mycelya").manual_seed(11)
    assert there.device.type == "mycelya" and there.initial_seed() == 11
    for _ in range(2):
        a = torch.randn(6, generator=here)
        b = torch.randn(6, generator=there, device=DEVICE)
        assert torch.equal(a, b.cpu())
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    torch.randn(6, generator=there, device=DEVICE)
    assert torch.equal(torch.rand(3, device=DEVICE).cpu(), expected)


def test_an_unseeded_generator():
    here, there = torch.Generator(), torch.Generator(device="mycelya")
    for _ in range(2):
        a = torch.rand(5, generator=here)
        b = torch.rand(5, generator=there, device=DEVICE)
        assert torch.equal(a, b.cpu())


def test_backward_of_dropout_uses_the_same_mask():
    def grads(device):
        torch.manual_seed(1)
        x = torch.ones(40, device=device, requires_grad=True)
        F.dropout(x, 0.5).sum().backward()
        return x.grad.cpu()

    assert torch.equal(grads("cpu"), grads(DEVICE))


def test_default_generators():
    generators = torch.mycelya.default_generators
    assert len(generators) == torch.mycelya.device_count()
    generators[0].manual_seed(5)
    assert torch.mycelya.initial_seed() == 5
    with pytest.raises(IndexError):
        generators[99]
