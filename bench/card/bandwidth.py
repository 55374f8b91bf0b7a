# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""The memory bandwidth of kernels, as a share of the device's own copy.

A measurement is one call for each of several sets of arguments, so that no cache holds
them and no call is like another one. Times are the device's, by events: the median of
seven.
"""

import sys
import traceback

import torch
from card import DRY, compile_all, copy_rate, device_times, row
from torch.nn import functional as F

import mycelya_torch  # noqa: F401

MI = 1 << (14 if DRY else 20)
SETS = 2 if DRY else 4
DEVICE = "mycelya"


def rows(dtype=torch.float32, columns=4096):
    return lambda: [torch.randn(64 * MI // columns, columns, device=DEVICE).to(dtype)]


def flat(dtype=torch.float32):
    return lambda: [torch.randn(64 * MI, device=DEVICE).to(dtype)]


def polynomial(x):
    return ((x * 1.5 + 2.0) * x - 0.5) * x + 1.0


def rms(x):
    return x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6).to(x.dtype)


def optimizer():
    """AdamW over a quarter of 100 million parameters; all sets have 100 million."""
    n = max(1, 25 * MI // (1 << 20))
    params = [torch.randn(1 << 20, device=DEVICE).requires_grad_() for _ in range(n)]
    for p in params:
        p.grad = torch.randn_like(p)
    return [torch.optim.AdamW(params, foreach=True)]


HALF = torch.bfloat16
# By name: what makes the arguments, the function, and the bytes it must read and write
# for a set.
CASES = {
    "pointwise f32": (flat(), polynomial, 8 * 64 * MI),
    "pointwise bf16": (flat(HALF), polynomial, 4 * 64 * MI),
    "two inputs f32": (
        lambda: [torch.randn(64 * MI, device=DEVICE) for _ in "ab"],
        lambda a, b: (a * b + 1).relu(),
        12 * 64 * MI,
    ),
    "sum of rows f32": (rows(), lambda x: (x * x).sum(1), 4 * 64 * MI),
    "sum of rows bf16": (rows(HALF), lambda x: (x * x).sum(1), 2 * 64 * MI),
    "sum of columns f32": (rows(), lambda x: (x * x).sum(0), 4 * 64 * MI),
    "sum of columns bf16": (rows(HALF), lambda x: (x * x).sum(0), 2 * 64 * MI),
    "softmax f32": (rows(), lambda x: (x * 0.5).softmax(-1), 8 * 64 * MI),
    "softmax bf16": (rows(HALF), lambda x: (x * 0.5).softmax(-1), 4 * 64 * MI),
    "layer norm f32": (
        rows(columns=1024),
        lambda x: F.layer_norm(x + 1, x.shape[-1:]),
        8 * 64 * MI,
    ),
    "RMS norm bf16": (rows(HALF), rms, 4 * 64 * MI),
    "GELU bf16": (flat(HALF), lambda x: F.gelu(x + 1), 4 * 64 * MI),
    "AdamW, 100 M": (
        optimizer,
        lambda o: o.step(),
        28 * max(1, 25 * MI // (1 << 20)) << 20,
    ),
}

copy = copy_rate()
row("copy", GBs=round(copy))
failed = 0
for name, (make, f, size) in CASES.items():
    try:
        sets = [make() for _ in range(SETS)]

        def call(sets=sets, f=f):
            return [f(*arguments) for arguments in sets]

        with torch.no_grad():
            counted = compile_all(call)
            ms = device_times(DEVICE, call, 3 if DRY else 7)
        rate = SETS * size / ms / 1e6
        fused = counted["groups_fused"] > 0 and not counted["groups_unfused"]
        row(
            name,
            ok=fused,
            ms=round(ms / SETS, 4),
            GBs=round(rate),
            of_copy=round(rate / copy, 3),
            groups_fused=counted["groups_fused"],
            groups_unfused=counted["groups_unfused"],
        )
        failed += not fused
    except Exception as error:
        failed += 1
        row(name, ok=False, found=f"{type(error).__name__}: {error}"[:500])
        traceback.print_exc()
    sets = []
sys.exit(failed > 0)
