# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Where PyTorch's CPU kernels round once, fused kernels do too: the same bits.

Most cases add a product to a value, as the step of SGD does. The step of Adam is not
here: PyTorch uses MKL's sqrt, which is not correctly rounded everywhere.
"""

from __future__ import annotations

import pytest
import torch
from helpers import DEVICE

aten = torch.ops.aten
pytestmark = [
    pytest.mark.fast,
    pytest.mark.cpu_worker,  # CUDA has another formula for addcdiv and others
]

OPERATORS = {
    "add": lambda x, y, z: torch.add(x, y, alpha=0.3),
    "sub": lambda x, y, z: torch.sub(x, y, alpha=0.3),
    "add_": lambda x, y, z: x.clone().add_(y, alpha=-0.3),
    "addcmul": lambda x, y, z: torch.addcmul(x, y, z),
    "addcmul by a number": lambda x, y, z: torch.addcmul(x, y, z, value=0.3),
    "addcmul_": lambda x, y, z: x.clone().addcmul_(y, z, value=-0.7),
    "addcmul, a factor is written": lambda x, y, z: (c := y.clone()).copy_(
        torch.addcmul(x, c, z)
    ),
    "addcdiv": lambda x, y, z: torch.addcdiv(x, y, z, value=0.3),
    "lerp near": lambda x, y, z: torch.lerp(x, y, 0.3),
    "lerp far": lambda x, y, z: torch.lerp(x, y, 0.8),
    "lerp out": lambda x, y, z: torch.lerp(x, y, -0.8),
    "lerp by a tensor": torch.lerp,
    "a list": lambda x, y, z: torch._foreach_add([x, z], [y, x], alpha=0.3)[1],
    "tanh_backward": lambda x, y, z: aten.tanh_backward(x, y),
    "sigmoid_backward": lambda x, y, z: aten.sigmoid_backward(x, y),
    "mse_loss": lambda x, y, z: torch.nn.functional.mse_loss(x, y, reduction="none"),
    "mse_loss_backward": lambda x, y, z: aten.mse_loss_backward(z[0], x, y, 1),
}


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_operators(name, dtype):
    generator = torch.Generator().manual_seed(0)
    operands = [torch.randn(4003, generator=generator, dtype=dtype) for _ in range(3)]
    if "lerp" not in name and "mse" not in name:
        for x in operands:  # some NaN, infinite, zero, huge and denormal numbers
            some = torch.randint(0, 4003, (40,), generator=generator)
            specials = torch.tensor(
                [0.0, -0.0, float("inf"), float("nan"), 3e38, 1e-40]
            )
            x[some] = specials.repeat(7)[:40].to(dtype)

    def of(device: torch.device) -> torch.Tensor:
        x, y, z = (t.to(device) for t in operands)
        # A second operator, so that the first one fuses.
        return (OPERATORS[name](x, y, z) * 0.5).cpu()

    torch.mycelya.synchronize()
    launched = torch.mycelya.metrics()["kernels_launched"]
    want = of(torch.device("cpu"))
    for call in range(3):
        got = of(DEVICE)
        same = (got == want) & (got.signbit() == want.signbit())
        same |= got.isnan() & want.isnan()
        assert same.all(), f"call {call}: {(~same).sum()} elements differ"
    torch.mycelya.synchronize()
    assert torch.mycelya.metrics()["kernels_launched"] > launched


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"momentum": 0.9, "weight_decay": 0.01},
        {"momentum": 0.9, "nesterov": True},
        {"momentum": 0.9, "dampening": 0.1, "maximize": True},
    ],
    ids=str,
)
def test_steps_of_sgd(options, foreach):
    def train(device: torch.device) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(0)

        def random(*sizes: int) -> torch.Tensor:
            return torch.randn(sizes, generator=generator).to(device)

        shapes = (70, 30), (70,), (1,)
        parameters = [random(*s).requires_grad_() for s in shapes]
        optimizer = torch.optim.SGD(parameters, lr=0.1, foreach=foreach, **options)
        for _ in range(8):
            for p in parameters:
                p.grad = random(*p.shape)
            optimizer.step()
        return [p.detach().cpu() for p in parameters]

    for got, want in zip(train(DEVICE), train(torch.device("cpu")), strict=True):
        assert torch.equal(got, want)


WITH_ONE = {
    "add": lambda x, s: torch.add(x, s, alpha=3),
    "sub": lambda x, s: torch.sub(x, s, alpha=-2.5),
    "added to": lambda x, s: torch.add(s, x, alpha=3),
    "add_": lambda x, s: x.clone().add_(s, alpha=3),
    "mul": lambda x, s: x * s,
    "mul by x": lambda x, s: s * x,
    "div": lambda x, s: x / s,
    "div by x": lambda x, s: s / x,
}


@pytest.mark.parametrize("other", [torch.float32, torch.float64, torch.int64], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", WITH_ONE)
def test_a_0_dim_tensor_of_another_dtype(name, dtype, other):
    """ATen rounds it to the other operand's dtype in sums, and not as a factor."""
    x = torch.randn(4000).to(dtype)
    s = (
        (torch.randn(()) * 1000).to(other)
        if other == torch.int64
        else (torch.randn((), dtype=other))
    )

    def program(x, s):
        return WITH_ONE[name](x.neg(), s).abs()

    for one in (s, s.to(DEVICE)):
        got = program(x.to(DEVICE), one).cpu()
        assert torch.equal(got, program(x, s)), (got != program(x, s)).sum()


@pytest.mark.parametrize("exponent", [2, 3, -1, -2, 0.5, -0.5, 2.5])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_powers_of_16_bits(dtype, exponent):
    """PyTorch rounds bf16 after each product of a power, and f16 once.

    The size leaves nothing to its code for single elements, which rounds otherwise.
    """
    x = (torch.rand(4096, generator=torch.Generator().manual_seed(0)) * 8).to(dtype)

    def of(device: torch.device) -> torch.Tensor:
        return (x.to(device).pow(exponent) * 0.5).cpu()

    assert torch.equal(of(DEVICE), of(torch.device("cpu")))
