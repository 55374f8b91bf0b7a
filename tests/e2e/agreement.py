# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""agree(): one function gives the same results on the CPU and on the device.

The tests of what PyTorch builds on operators share it: hooks, custom functions,
checkpoints, torch.func and forward AD. A result is a nest of tensors, strings and
numbers.
"""

import re

import torch
from helpers import DEVICE, on_cuda, same
from torch import nn
from torch.utils._pytree import tree_map


def agree(fn, rtol=1e-5, atol=1e-6):
    """fn(device) must return the same on both devices. Returns the device's."""
    torch.manual_seed(0)
    expected = fn(torch.device("cpu"))
    torch.manual_seed(0)
    got = fn(DEVICE)
    if on_cuda():
        rtol, atol = max(rtol, 1e-3), max(atol, 1e-4)
    same(got, expected, rtol, atol)
    return got


def some(device, *shape, grad=False, dtype=torch.float32):
    """Normal numbers, drawn on the CPU."""
    return torch.randn(shape, dtype=dtype).to(device).requires_grad_(grad)


def raised(fn, *args, **kwargs):
    """The error of a call: its type, and its text without the device's name."""
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
