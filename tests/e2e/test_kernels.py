# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Kernels of fused groups compute the same as PyTorch.

kernels.py and decompositions.py hold the cases. Each file runs in its own process.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import helpers
import pytest
import torch
from helpers import run_file

HERE = Path(__file__).parent
pytestmark = [
    pytest.mark.fast,
    pytest.mark.cpu_worker,  # for CUDA: tests/gpu/test_fused.py
]


def run(script: str, **env: str) -> tuple[list[dict[str, str]], str]:
    out, err = run_file(HERE / script, MYCELYA_KERNELS="on", **env)
    return [json.loads(line) for line in out.splitlines()], err


def wrong(results: list[dict[str, str]]) -> str:
    failed = (r for r in results if r["error"])
    return "\n".join(f"{r['case']} {r.get('dtype', '')}\n{r['error']}" for r in failed)


def test_in_double_precision():
    results, err = run("kernels.py", MYCELYA_DUMP="-,plan")
    assert not wrong(results)
    assert len(results) >= 14
    # Otherwise no kernel was tested.
    assert len(re.findall(r"^ +\d+  kernel \d+ ", err, re.M)) > 50


@pytest.mark.parametrize("capability", ["default", "avx2"])
def test_on_other_processors(capability):
    results, _ = run("kernels.py", ATEN_CPU_CAPABILITY=capability)
    assert not wrong(results)


def test_each_decomposition():
    results, _ = run("decompositions.py")
    assert not wrong(results)
    assert len(results) > 250


@pytest.mark.parametrize("n", [2, 100])
def test_a_clamped_zero_keeps_its_sign(n):
    functions = [
        lambda x: x.clamp(min=0.0),
        lambda x: x.clamp(max=-0.0),
        lambda x: x.clamp(-0.0, 1.0),
        lambda x: x.clamp_min(0.0),
        lambda x: x.clamp_max(0.0),
        lambda x: torch.nn.functional.hardtanh(x, -1.0, 0.0),
        torch.relu,
    ]
    for dtype in [torch.float32, torch.float64, torch.bfloat16]:
        x = torch.tensor([0.0, -0.0], dtype=dtype).repeat(n)
        for i, f in enumerate(functions):
            ours, cpu = f(x.to("mycelya").neg()).cpu(), f(x.neg())
            assert torch.equal(ours.signbit(), cpu.signbit()), (i, dtype)


def test_a_step_that_fails(tmp_path):
    """If a kernel reads a poisoned value, operators run instead and report it."""
    code = """
import mycelya_torch, torch
x = torch.ones(3, device="mycelya")
bad = x.index_select(0, torch.tensor([7]).to("mycelya"))
y = (bad * 2).exp() + 1
z = (x * 2).exp() + 1
for i in range(2):
    try:
        y.cpu()
    except Exception as e:
        print("range" in str(e))
print(((x + 1).exp() * 2).sum().item() > 44)
"""
    status, out, err = helpers.run(code, tmp_path, MYCELYA_KERNELS="on")
    assert (status, out.split()) == (0, ["True", "True", "True"]), err


COUNTED = """
import torch, mycelya_torch
x = torch.ones(8, device="mycelya")
def step(n):
    y = (torch.ones(n, device="mycelya") * 2 + 1).relu()
    torch.mycelya.synchronize()
torch.mycelya.reset_metrics()
for n in (8, 8, 9, 100):
    step(n)
m = torch.mycelya.metrics()
print(m["kernels_compiled"], m["kernels_launched"], m["fused_ops"])
"""


@pytest.mark.parametrize(("kernels", "want"), [("on", "1 4 16"), ("off", "0 0 0")])
def test_metrics_count_kernels(kernels, want, tmp_path):
    """One kernel fits all sizes. Each call launches it instead of four operators."""
    status, out, err = helpers.run(COUNTED, tmp_path, MYCELYA_KERNELS=kernels)
    assert (status, out.strip()) == (0, want), err
