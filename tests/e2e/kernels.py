# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Cases for fused kernels: each runs on the CPU and on the device.

test_kernels.py runs this script with MYCELYA_KERNELS=on. Each function makes the same
inputs on both devices and returns tensors, in float64 so that rounding can't hide a
mistake.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F


def made(*size: int, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(size))
    return torch.randn(size, generator=generator, dtype=torch.float64)


def reshapes(d):
    x = made(4, 6, 5).to(d)
    y = (x.exp().transpose(0, 2).reshape(-1) * 2).sigmoid()
    z = x.sin().permute(2, 0, 1).reshape(10, 12).cos() + 1
    return y, z, (x.abs().reshape(24, 5).sqrt() + 1).t().contiguous().tanh()


def reshaped_sums(d):
    """Reductions of reshaped values, in the loop that makes these, or not."""
    x = made(3, 4, 2, 5).to(d)
    y, z = x.exp(), x.transpose(1, 2).contiguous()
    w = y.sin()
    return (
        *(y, y.view(12, 10).sum(0), y.view(12, 10).amax(0, keepdim=True)),
        *(z, z.view(6, 20).sum(0, keepdim=True) * 2, z.view(6, 4, 5).mean((0, 2))),
        *(w, w.view(12, 10)[1:].sum(0), w.view(24, 5).t().sum(0), w.view(-1).sum()),
        (x + 1).view(1, 12, 2, 5).sum((0, 3)).cos(),
        (x + 2).permute(3, 0, 1, 2).reshape(15, 8).sum(1) + 1,
    )


def biases(d):
    """Gradients of biases after norms, activations and heads."""
    torch.manual_seed(3)
    of = {"dtype": torch.float64}
    norm, heads, out = (
        nn.LayerNorm(12, **of),
        nn.Linear(12, 24, **of),
        nn.Linear(24, 12, **of),
    )
    model = nn.ModuleList([norm, heads, out]).to(d)
    for sizes in ((2, 5), (1, 7), (3, 1), (4, 4)):
        x = made(*sizes, 12).to(d)
        y = heads(norm(x)).view(*sizes, 3, 8).transpose(1, 2).contiguous() * 0.5
        y = F.gelu(out(F.gelu(y).transpose(1, 2).reshape(*sizes, 24)) + x)
        (y * torch.arange(12, device=d)).sum().backward()
    return [p.grad for p in model.parameters()]


def layouts(d):
    x, y = made(6, 6).to(d), made(6, 6, seed=3).to(d)
    row, column = made(6).to(d), made(6, 1).to(d)
    return (
        (x + y.t()).relu() * 2,
        (x[::2, 1:] * y[1::2, 1:] + row[1:]).exp(),
        (x * column + row).sigmoid() - y.t()[0],
        (row.expand(6, 6) * 2 + x.flip(0)).abs() + 1,
        (x.unsqueeze(0) * y.unsqueeze(1)).tanh().sum((0, 2)),
    )


def in_place(d):
    x, y = made(6, 6).to(d), made(6, 6, seed=3).to(d)
    z = x.clone()
    z.mul_(2).add_(y).tanh_()
    z[1:3].add_(1).exp_()
    z[:, 0] = (x[:, 0] + 1).sqrt().nan_to_num()
    old = x * 3
    x.add_(old).mul_(0.5)
    w = y.t()
    w.mul_(x).sub_(1)
    return x, y, z, old


def reductions(d):
    x = made(5, 3, 7, 4).to(d)
    y = x * 2 + 1
    return (
        y.exp().sum(),
        y.abs().mean((0, 2)),
        y.square().sum(-1, keepdim=True) + x,
        (y - y.amax(-1, keepdim=True)).exp().sum(-1).log(),
        y.sigmoid().amin((1, 3)) * 2,
        (x[:, :1] + 1).abs().sum(1),
        (x[:0] + 1).sum(),
    )


def numbers(d):
    x = torch.arange(-6, 6).to(d)
    b = x > 0
    f = made(12).to(d)
    return (
        (x * 3 - 7).abs() + b,
        (x.to(torch.int8) * 50).to(torch.int64) + 1,
        (x.to(torch.uint8) + 200).to(torch.float64) / 3,
        torch.where(b & (x < 4), f * 2, -f),
        (b | (f > 0)).logical_not() ^ b,
        (f * 1000).to(torch.int32) * 2,
        f.float().mul(0.1).bfloat16().add(f.bfloat16()).float(),
        x.sum() + b.sum(),
    )


def small(d):
    a, b = made(1, 1).to(d), torch.tensor(2.5, dtype=torch.float64)
    none = made(0, 3).to(d)
    return (a * b).exp() + 1, (none * 2).relu() + b, (a.sum() * 3).tanh() - 1


def norms(d):
    x = made(6, 10).to(d).requires_grad_()
    w, b = (made(10, seed=s).to(d).requires_grad_() for s in (5, 6))
    y = F.gelu(F.layer_norm(x + 1, (10,), w, b)) + x
    y = y + F.silu(F.group_norm(x, 5, w, b))
    z = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w
    loss = y.square().mean() + z.abs().sum() + torch.softmax(x * 0.5, -1)[:, 0].sum()
    loss.backward()
    return loss.detach(), x.grad, w.grad, b.grad


def dropouts(d):
    """Random numbers equal PyTorch's, also those that are drawn after a dropout."""
    torch.manual_seed(3)
    x = made(6, 10).to(d).requires_grad_()
    y = F.dropout(F.gelu(x), 0.4) + F.dropout(x.t() * 2, 0.1).t()
    y = F.dropout(y[:, 2:], 0.9) + torch.rand(6, 8, dtype=torch.float64, device=d)
    # Numbers are drawn in memory order, which is not the order of these dims.
    z = F.dropout(F.gelu(y.reshape(2, 3, 8).permute(0, 2, 1)) + 1, 0.5)
    (y.square().sum() + z.square().sum()).backward()
    return y.detach(), z.detach(), x.grad, torch.rand(3, dtype=y.dtype, device=d)


def parts(d):
    """Groups with an operator inside that no kernel computes."""
    x, y = made(7, 6).to(d), made(7, 6, seed=3).to(d)
    half = torch.cat((-x[:, 3:], x[:, :3]), -1)
    rotated = x * y.cos() + half * y.sin()
    scores = made(7, 5, seed=4).to(d).requires_grad_()
    target = torch.tensor([4, 0, -100, 2, 1, 1, 3]).to(d)
    loss = F.cross_entropy(scores * 2 + 1, target)
    loss.backward()
    masked = ((x + 1).tril() * 2).exp() - (y * y + 1).triu(1).sqrt()
    at = target.clamp(0).unsqueeze(1)
    picked = (y.sigmoid() * 3).gather(1, at).log() + 1
    z = x.clone()
    z.mul_(2).add_(y)
    both = torch.cat((z[:, :2] * 3, y[:, 2:]), 1)
    z.exp_().sub_(both)
    z[:, 1:].mul_(both[:, 1:]).add_(torch.cat((z[:, :2], z[:, 3:]), 1))
    return rotated, loss.detach(), scores.grad, masked, picked, both, z


def training(d, optimizer, foreach):
    """The parameters of a transformer after three steps."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, "gelu", batch_first=True)
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(40, 7)).double().to(d)
    steps = optimizer(model.parameters(), lr=0.01, foreach=foreach)
    for i in range(3):
        x = made(4, 5, 8, seed=i).to(d)
        target = torch.arange(4).to(d)
        steps.zero_grad()
        F.cross_entropy(model(x), target).backward()
        steps.step()
    # The gradient of the keys' bias is 0; Adam makes steps of its rounding errors.
    return [p.detach() for n, p in model.named_parameters() if "in_proj_bias" not in n]


def images(d):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64, 5),
    )
    model = model.double().to(d)
    steps = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for i in range(3):
        steps.zero_grad()
        y = model(made(4, 3, 6, 6, seed=i).to(d))
        F.cross_entropy(y, torch.arange(4).to(d), label_smoothing=0.1).backward()
        steps.step()
    return list(model.state_dict().values())


CASES: dict[str, Callable] = {
    "reshapes": reshapes,
    "reshaped sums": reshaped_sums,
    "biases": biases,
    "layouts": layouts,
    "in place": in_place,
    "reductions": reductions,
    "numbers": numbers,
    "small": small,
    "norms": norms,
    "dropouts": dropouts,
    "parts": parts,
    "images": images,
    **{
        f"training {o.__name__} foreach={f}": (lambda d, o=o, f=f: training(d, o, f))
        for o in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)
        for f in (False, True)
    },
}


def run(name: str) -> str:
    """Runs a case on both devices; returns the error as text, or ""."""
    try:
        here, there = CASES[name]("cpu"), CASES[name]("mycelya")
        for i, (a, b) in enumerate(zip(there, here, strict=True)):
            torch.testing.assert_close(
                a.detach().cpu(),
                b.detach(),
                rtol=1e-9 if b.dtype == torch.float64 else None,
                atol=1e-11 if b.dtype == torch.float64 else None,
                msg=lambda text, i=i: f"result {i}: {text}",
            )
    except Exception:
        return traceback.format_exc(limit=-3)
    return ""


if __name__ == "__main__":
    import mycelya_torch  # noqa: F401

    for case in CASES:
        print(json.dumps({"case": case, "error": run(case)}))
        sys.stdout.flush()
