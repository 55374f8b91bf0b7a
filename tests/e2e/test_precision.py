# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Kernels are as accurate as PyTorch's operators, although they round differently.

The reference is what the CPU computes in float64 from the same inputs. An error is the
largest difference from the reference, relative to the reference's largest element.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from helpers import DEVICE
from torch.nn import functional as F  # noqa: N812

pytestmark = [pytest.mark.fast, pytest.mark.cpu_worker]

# Functions of x and w. w has the size of x's last dim, and x has four channels.
CASES: dict[str, Callable] = {
    "arithmetic": lambda x, w: ((x * w + 2) * x - 0.5) / (w * w + 1),
    "transcendental": lambda x, w: (x * 1.5).sigmoid() + (x * w).tanh() + x.erf(),
    "exponentials": lambda x, w: (x.exp() + 1).log() * (-x * x).expm1() + x.exp2(),
    "circular": lambda x, w: (x * 3).sin() * (w * 5).cos(),
    "powers": lambda x, w: (x.abs() + 0.1).pow(2.3) * (x.abs() + 1).rsqrt() + x.pow(3),
    "GELU": lambda x, w: F.gelu(x + w),
    "GELU, tanh": lambda x, w: F.gelu(x + w, approximate="tanh"),
    "SiLU": lambda x, w: F.silu(x * w) + F.softplus(x) + F.elu(x),
    "softmax": lambda x, w: torch.softmax(x * 4 + w, -1),
    "log softmax": lambda x, w: torch.log_softmax(x * 4, 1) * w,
    "layer norm": lambda x, w: F.layer_norm(x + 3, w.shape, w, w),
    "RMS norm": lambda x, w: F.rms_norm(x * 2, w.shape, w),
    "batch norm": lambda x, w: F.batch_norm(x + 3, None, None, training=True) * 2,
    "group norm": lambda x, w: F.group_norm(x + 3, 2) * w,
    "variance": lambda x, w: (x * w).var(-1) + (x + 1).mean((0, 2)),
    "sums": lambda x, w: (x * w).sum(0) * (x * x).sum() / x.numel(),
    "norms": lambda x, w: (x * 2).norm(dim=-1, keepdim=True) * x,
}
# The largest error of rounding an exact result, relative to its largest element.
ROUNDING = {torch.float32: 2**-24, torch.float16: 2**-11, torch.bfloat16: 2**-8}


def results(f, dtype, device, x, w):
    x, w = (t.to(device, dtype, copy=True).requires_grad_() for t in (x, w))
    y = f(x, w)
    y.backward(torch.linspace(-1, 1, y.numel()).reshape(y.shape).to(y))
    return [t.detach().cpu().double() for t in (y, x.grad, w.grad) if t is not None]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("shape", [(3, 4, 5), (8, 4, 301), (2, 4, 2048)])
@pytest.mark.parametrize("dtype", ROUNDING, ids=lambda d: str(d).removeprefix("torch."))
def test_error_is_near_that_of_pytorch(name, shape, dtype):
    # Rounded to the narrow dtype, so that the inputs are equal in all dtypes.
    x, w = (torch.randn(s).to(dtype) for s in (shape, shape[-1:]))
    exact = results(CASES[name], torch.float64, "cpu", x, w)
    theirs = results(CASES[name], dtype, "cpu", x, w)
    ours = results(CASES[name], dtype, DEVICE, x, w)
    assert len(exact) == len(theirs) == len(ours) >= 2
    for want, eager, got in zip(exact, theirs, ours, strict=True):
        largest = want.abs().max()
        error, eager_error = ((t - want).abs().max() / largest for t in (got, eager))
        assert error <= 2 * eager_error + 4 * ROUNDING[dtype]
