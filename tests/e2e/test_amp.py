# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Automatic mixed precision: CUDA's op lists, GradScaler, half-precision training."""

import pytest
import torch
import torch.nn.functional as F
from helpers import DEVICE, same, to_device

HALVES = [torch.float16, torch.bfloat16]
A = torch.randn(4, 4, generator=torch.Generator().manual_seed(1))

LOWER = {
    "matmul": lambda x: x @ x,
    "mm": lambda x: torch.mm(x, x),
    "linear": lambda x: F.linear(x, x),
    "addmm": lambda x: torch.addmm(x, x, x),
    "bmm": lambda x: torch.bmm(x[None], x[None]),
    "einsum": lambda x: torch.einsum("ij,jk->ik", x, x),
    "conv1d": lambda x: F.conv1d(x[None], x[:, :, None]),
    "conv2d": lambda x: F.conv2d(x[None, None], x[None, None, :2, :2]),
    "prelu": lambda x: F.prelu(x, x[0, :1].abs()),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
}
FULL = {
    "exp": torch.exp,
    "log_softmax": lambda x: x.log_softmax(1),
    "softmax": lambda x: x.softmax(1),
    "sum": lambda x: x.sum(),
    "cumsum": lambda x: x.cumsum(0),
    "norm": lambda x: x.norm(),
    "norm dim": lambda x: x.norm(2, 1),
    "layer_norm": lambda x: F.layer_norm(x, (4,)),
    "pow": lambda x: x.pow(2),
    "mse_loss": lambda x: F.mse_loss(x, x + 1),
    "cross_entropy": lambda x: F.cross_entropy(x, x.abs().softmax(1)),
    "cosine_similarity": lambda x: F.cosine_similarity(x, x + 1),
    "reciprocal": lambda x: x.reciprocal(),
}
SAME = {
    "relu": torch.relu,
    "add": lambda x: x + x,
    "sigmoid": torch.sigmoid,
    "view": lambda x: x.reshape(2, 8).T,
    "max_pool": lambda x: F.max_pool1d(x[None], 2),
}


@pytest.mark.parametrize("half", HALVES)
def test_op_lists(half):
    x = to_device(A)
    low = x.to(half)
    with torch.autocast("mycelya", dtype=half):
        assert torch.is_autocast_enabled("mycelya")
        assert torch.get_autocast_dtype("mycelya") == half
        for name, op in LOWER.items():
            assert op(x).dtype == half, name
        for name, op in FULL.items():
            assert op(low).dtype == torch.float32, name
        for name, op in SAME.items():
            assert op(x).dtype == torch.float32, name
            assert op(low).dtype == half, name
        assert torch.cat([x, low]).dtype == torch.float32
        assert torch.addcmul(x, low, low).dtype == torch.float32
        with torch.autocast("mycelya", enabled=False):
            assert (x @ x).dtype == torch.float32
    assert (x @ x).dtype == torch.float32


def test_values_equal_explicit_casts():
    x = to_device(A)
    with torch.autocast("mycelya", dtype=torch.bfloat16):
        got = (x @ x, x.to(torch.bfloat16).softmax(1))
    low = A.bfloat16()
    same(got, (low @ low, low.float().softmax(1)))


def test_unsafe_loss_is_refused():
    p = torch.rand(3, device=DEVICE)
    with torch.autocast("mycelya"), pytest.raises(RuntimeError, match="with_logits"):
        F.binary_cross_entropy(p, p)
    with torch.autocast("mycelya"):
        assert F.binary_cross_entropy_with_logits(p.half(), p).dtype == torch.float32


def test_default_dtype_and_weight_cache():
    linear = torch.nn.Linear(4, 4, device=DEVICE)
    with torch.autocast("mycelya"):
        out = linear(to_device(A)) + linear(to_device(A))
    assert out.dtype == torch.float16  # as on CUDA
    out.float().sum().backward()
    assert linear.weight.grad.dtype == torch.float32


def train(device, half, steps=4, inf_step=None):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16),
        torch.nn.LayerNorm(16),
        torch.nn.GELU(),
        torch.nn.Linear(16, 3),
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**8, growth_interval=2)
    losses, scales = [], []
    for step in range(steps):
        x = torch.randn(6, 8, generator=torch.Generator().manual_seed(step))
        y = torch.tensor([0, 1, 2, 0, 1, 2])
        with torch.autocast(device, dtype=half):
            loss = F.cross_entropy(model(x.to(device)), y.to(device))
        if step == inf_step:
            loss = loss * torch.inf
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
        scales.append(scaler.get_scale())
    return losses, scales, scaler


@pytest.mark.parametrize("half", HALVES)
def test_training_with_a_scaler(half):
    losses, scales, _ = train("mycelya", half)
    expected, expected_scales, _ = train("cpu", half)
    assert losses == pytest.approx(expected, rel=3e-2)
    assert scales == expected_scales


def test_a_step_with_inf_is_skipped():
    losses, scales, scaler = train("mycelya", torch.float16, inf_step=1)
    assert scales[1] == scales[0] / 2
    assert all(torch.isfinite(torch.tensor(losses[2:])))
    again = torch.amp.GradScaler("mycelya")
    again.load_state_dict(scaler.state_dict())
    assert again.get_scale() == scaler.get_scale()


@pytest.mark.parametrize("half", HALVES)
def test_pure_half_training(half):
    def run(device):
        torch.manual_seed(0)
        model = torch.nn.Linear(8, 3).to(device, half)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(3):
            loss = F.mse_loss(
                model(torch.ones(4, 8, device=device, dtype=half)),
                0 * model(torch.ones(4, 8, device=device, dtype=half)).detach(),
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return [p.detach().cpu() for p in model.parameters()]

    same(run("mycelya"), run("cpu"), rtol=2e-2, atol=2e-3)


def test_custom_functions_cast():
    class Double(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="mycelya", cast_inputs=torch.float32)
        def forward(ctx, x):
            assert not torch.is_autocast_enabled("mycelya")
            return x * 2

        @staticmethod
        @torch.amp.custom_bwd(device_type="mycelya")
        def backward(ctx, grad):
            return grad * 2

    x = to_device(A).half().requires_grad_()
    with torch.autocast("mycelya"):
        out = Double.apply(x)
    assert out.dtype == torch.float32
    out.sum().backward()
    same(x.grad, torch.full((4, 4), 2.0, dtype=torch.float16))
