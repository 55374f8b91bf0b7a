# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""agree() asserts that a function gives the same result on the CPU and on the device.

The tests of features that PyTorch builds on operators use it: hooks, custom functions,
checkpoints, torch.func and forward AD. A result is a nest of tensors, strings and
numbers.
"""

import re

import torch
from helpers import DEVICE, on_cuda, same
from torch import nn
from torch.utils._pytree import tree_map


def agree(fn, rtol=1e-5, atol=1e-6):
    """Asserts that fn(device) returns the same on both. Returns the device's result."""
    torch.manual_seed(0)
    expected = fn(torch.device("cpu"))
    torch.manual_seed(0)
    got = fn(DEVICE)
    if on_cuda():
        rtol, atol = max(rtol, 1e-3), max(atol, 1e-4)
    same(got, expected, rtol, atol)
    return got


def some(device, *shape, grad=False, dtype=torch.float32):
    """Normally distributed numbers, drawn on the CPU."""
    return torch.randn(shape, dtype=dtype).to(device).requires_grad_(grad)


def raised(fn, *args, **kwargs):
    """The type and text of a call's error, with the device's name replaced by "cpu"."""
    try:
        fn(*args, **kwargs)
    except Exception as error:
        text = str(error).replace("mycelya:0", "cpu")
        return type(error).__name__, re.sub(
            r"mycelya(\w+)Type", r"torch.\1Tensor", text
        )
    return "no error", ""


def on_cpu(nest):
    return tree_map(lambda t: t.cpu() if isinstance(t, torch.Tensor) else t, nest)


def network(device):
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    return model.to(device)


def grads(module):
    return [p.grad for p in module.parameters()]
