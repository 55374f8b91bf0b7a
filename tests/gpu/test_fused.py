# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Compares fused groups on a CUDA worker: as kernels, as operators, and eager CUDA.

A group runs as its operators until its kernels are compiled. So a process with
MYCELYA_KERNELS=on calls each case until no kernel is pending. It compares each result
with eager CUDA in the same process. Another test runs the cases without kernels, which
is the default on CUDA.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

WAIT = 120  # seconds until the kernels of a case must be compiled


def made(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(size))
    return torch.randn(size, generator=generator).to(dtype)


def pointwise(d, dtype, n):
    x, y = made(n, dtype=dtype).to(d), made(n, dtype=dtype).to(d)
    return (((x * 1.5 + y).sigmoid() + (x * 0.5).tanh()).relu() + 1,)


def broadcast(d, dtype):
    x, row = made(300, 512, dtype=dtype).to(d), made(512, dtype=dtype).to(d)
    column = made(300, 1, dtype=dtype).to(d)
    return ((x + row).relu() * column, (x[::2, 1:] * row[1:] - 1).exp())


def transposed(d, dtype):
    x, y = made(260, 516, dtype=dtype).to(d), made(516, 260, dtype=dtype).to(d)
    return ((x.exp() + y.t()).abs() * 2,)


def softmax(d, dtype, columns):
    x = made(65, columns, dtype=dtype).to(d)
    return (torch.softmax(x * 0.5, -1), torch.log_softmax(x + 1, -1))


def norms(d, dtype, columns):
    x = made(130, columns, dtype=dtype).to(d).requires_grad_()
    w = made(columns, dtype=dtype).to(d).requires_grad_()
    y = F.gelu(F.layer_norm(x + 1, (columns,), w)) + x
    z = x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6).to(dtype) * w
    (y.square().mean() + z.abs().mean()).backward()
    return y.detach(), z.detach(), x.grad, w.grad


def reductions(d, dtype):
    x = made(1000, 96, dtype=dtype).to(d)
    wide = made(3, 100_000, dtype=dtype).to(d)
    return (
        (x * 2).abs().sum(0),
        (x + 1).abs().mean(1),
        (wide * 0.5).amax(-1),
        (wide.abs() + 1).mean(),
    )


def nothing(d):
    x = made(0, 7).to(d)
    return (x * 2).exp(), (x + 1).abs().sum(0)


def adamw(d, foreach):
    sizes = [(7,), (64, 33), (5, 3, 3), (1,), (4096,), (129, 65)]
    params = [made(*s).to(d).requires_grad_() for s in sizes]
    steps = torch.optim.AdamW(params, lr=0.01, foreach=foreach)
    for i in range(4):
        for p in params:
            p.grad = (p.detach() * (i + 1)).sin()
        steps.step()
    return [p.detach() for p in params]


def dropout(d):
    """Groups that draw random numbers stay operators: a seed gives CUDA's numbers."""
    torch.manual_seed(3)
    x = made(512, 256).to(d).requires_grad_()
    y = F.dropout(F.gelu(x), 0.4) + F.dropout(x * 2, 0.1)
    y.square().sum().backward()
    return y.detach(), x.grad, torch.rand(30, device=d)


def training(d):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, "gelu", batch_first=True)
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(160, 7)).to(d)
    steps = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(5):
        steps.zero_grad()
        loss = F.cross_entropy(model(made(4, 5, 32).to(d)), torch.arange(4).to(d))
        loss.backward()
        steps.step()
        losses.append(loss.detach())
    return losses


HALVES = (torch.float16, torch.bfloat16)
CASES: dict[str, Callable] = {
    **{
        f"pointwise {t} {n}": lambda d, t=t, n=n: pointwise(d, t, n)
        for t in (torch.float32, torch.float64, *HALVES)
        for n in (1, 1023, 1 << 16)
    },
    **{
        f"broadcast {t}": lambda d, t=t: broadcast(d, t)
        for t in (torch.float32, *HALVES)
    },
    **{
        f"transposed {t}": lambda d, t=t: transposed(d, t)
        for t in (torch.float32, *HALVES)
    },
    **{
        f"softmax {t} {n}": lambda d, t=t, n=n: softmax(d, t, n)
        for t in (torch.float32, *HALVES)
        for n in (3, 1000, 4096, 30_000)
    },
    **{
        f"norms {t} {n}": lambda d, t=t, n=n: norms(d, t, n)
        for t in (torch.float32, *HALVES)
        for n in (64, 1000, 10_000)
    },
    **{
        f"reductions {t}": lambda d, t=t: reductions(d, t)
        for t in (torch.float32, *HALVES)
    },
    "nothing": nothing,
    "AdamW": lambda d: adamw(d, False),
    "AdamW foreach": lambda d: adamw(d, True),
    "dropout": dropout,
    "training": training,
}

# Eager CUDA rounds float16 and bfloat16 after each op of a chain, and so does a kernel.
# But the order of a sum may differ and change its last place.
TOLERANCES = {
    torch.float64: (1e-12, 1e-12),
    torch.float32: (1e-5, 1e-5),
    torch.float16: (4e-3, 4e-3),
    torch.bfloat16: (3e-2, 3e-2),
}


def close(got: list[torch.Tensor], want: list[torch.Tensor]) -> None:
    for a, b in zip(got, want, strict=True):
        rtol, atol = TOLERANCES[b.dtype]
        scale = max(1.0, b.double().abs().max().item()) if b.numel() else 1.0
        torch.testing.assert_close(a.cpu(), b.cpu(), rtol=rtol, atol=atol * scale)


@functools.cache
def all_expected(device: str = "cuda") -> dict[str, list[torch.Tensor]]:
    """What eager CUDA gives for all cases, computed in a process without the device.

    In this process PyTorch can't run backward on CUDA tensors.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/expected.pt"
        environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
        command = [sys.executable, __file__, "--expected", device, path]
        subprocess.run(command, env=environment, check=True)
        return torch.load(path)


def expected(case: str) -> list[torch.Tensor]:
    return all_expected()[case]


def kernels(case: str) -> dict[str, object]:
    """Calls a case until no kernel is pending, compares results, returns counters."""
    run, want = CASES[case], expected(case)
    metrics = torch.mycelya.metrics
    end = time.monotonic() + WAIT
    first = True
    while True:
        torch.mycelya.reset_metrics()
        got = [t.cpu() for t in run("mycelya")]
        close(got, list(want))
        counted = metrics()
        pending = counted["groups_waiting"] + counted["groups_tried"]
        if first and pending + counted["groups_fused"] == 0:
            return {"case": case, "fused": 0, "unfused": counted["groups_unfused"]}
        first = False
        if pending == 0:
            return {
                "case": case,
                "fused": counted["groups_fused"],
                "unfused": counted["groups_unfused"],
            }
        assert time.monotonic() < end, f"{case}: kernels are still pending: {counted}"


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> dict[str, dict[str, object]]:
    """The results of all cases in a process with kernels and an empty cache."""
    from helpers import run

    folder = tmp_path_factory.mktemp("kernels")
    script = f"import runpy; runpy.run_path({__file__!r}, run_name='__main__')"
    env = {"MYCELYA_KERNELS": "on", "XDG_CACHE_HOME": str(folder)}
    status, out, err = run(script, folder, timeout=1800, **env)
    assert status == 0, err[-4000:]
    assert "fused kernel" not in err, err
    return {r["case"]: r for r in map(json.loads, out.splitlines())}


@pytest.mark.parametrize("case", CASES)
def test_kernels_equal_eager_cuda(results, case):
    result = results[case]
    assert not result.get("error"), result["error"]
    if case not in ("dropout",):
        assert result["fused"], "nothing was computed by a kernel"
        assert not result["unfused"], result


@pytest.mark.parametrize("case", CASES)
def test_operators_equal_eager_cuda(case):
    """The same cases without kernels; shows whether a kernel causes a difference."""
    close([t.cpu() for t in CASES[case]("mycelya")], expected(case))


TIERS = """
import time, torch, mycelya_torch

x = torch.randn(1 << 20, device="mycelya")

def step():
    y = ((x * 1.5 + 2).sigmoid() * x - 1).relu()
    torch.mycelya.synchronize()
    return y.cpu(), torch.mycelya.metrics()

torch.mycelya.synchronize()
torch.mycelya.reset_metrics()
first, m = step()
print(m["groups_waiting"], m["groups_fused"])
while not m["groups_fused"]:
    time.sleep(0.01)
    last, m = step()
last, m = step()
print(m["groups_fused"] > 0, m["kernels_compiled"], m["kernels_cached"])
torch.testing.assert_close(first, last)
"""


def test_tiers(tmp_path):
    """Operators run until kernels are compiled; another process loads these kernels."""
    from helpers import run

    env = {"MYCELYA_KERNELS": "on", "XDG_CACHE_HOME": str(tmp_path)}
    status, out, err = run(TIERS, tmp_path, **env)
    assert status == 0, err
    assert out.splitlines() == ["1 0", "True 1 0"]
    assert len(list(tmp_path.glob("mycelya/kernels/*.cubin"))) == 1
    status, out, err = run(TIERS, tmp_path, **env)
    assert status == 0, err
    assert out.splitlines()[-1] == "True 0 1"


if __name__ == "__main__":
    import traceback

    if "--expected" in sys.argv:
        results = {
            name: [t.cpu() for t in case(sys.argv[-2])] for name, case in CASES.items()
        }
        torch.save(results, sys.argv[-1])
        sys.exit()

    import mycelya_torch  # noqa: F401

    for name in CASES:
        try:
            result = kernels(name)
        except Exception:
            result = {"case": name, "error": traceback.format_exc(limit=-3)}
        print(json.dumps(result))
        sys.stdout.flush()
