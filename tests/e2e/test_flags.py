# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""PyTorch's global flags apply on the worker, in the order in which they are set."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from helpers import DEVICE, run, same, to_device
from torch.nn import functional as F

from mycelya_torch import _device

pytestmark = pytest.mark.fast


@pytest.fixture(autouse=True)
def restore_flags() -> Iterator[None]:
    mode = torch.get_deterministic_debug_mode()
    precision = torch.get_float32_matmul_precision()
    yield
    torch.set_deterministic_debug_mode(mode)
    torch.set_float32_matmul_precision(precision)


def put(x: torch.Tensor) -> torch.Tensor:
    """An op that PyTorch refuses on each device under deterministic algorithms."""
    index = torch.tensor([0, 1], device=x.device)
    return x.put(index, torch.ones(2, device=x.device))


@pytest.mark.cpu_worker
def test_deterministic_algorithms():
    x = torch.zeros(3, device=DEVICE)
    before = put(x)
    torch.use_deterministic_algorithms(True)
    with pytest.raises(RuntimeError, match="put_.* deterministic"):
        put(x).tolist()
    torch.use_deterministic_algorithms(True, warn_only=True)
    warned = put(x)
    torch.use_deterministic_algorithms(False)
    after = put(x)
    for allowed in (before, warned, after):
        assert allowed.tolist() == [1, 1, 0]
    torch.set_deterministic_debug_mode("error")
    with pytest.raises(RuntimeError, match="put_.* deterministic"):
        put(x).tolist()


def unwritten(device: str | torch.device) -> list[torch.Tensor]:
    dtypes = (torch.float32, torch.bfloat16, torch.complex64, torch.int16, torch.bool)
    grown = torch.arange(3.0, device=device)
    made = [torch.empty(2, 3, dtype=d, device=device) for d in dtypes]
    made.append(torch.empty_strided((2, 2), (1, 2), device=device))
    made.append(torch.empty_like(made[0]))
    made.append(grown.resize_(5))
    return made


def test_deterministic_algorithms_fill_unwritten_memory():
    torch.use_deterministic_algorithms(True)
    for there, here in zip(unwritten(DEVICE), unwritten("cpu"), strict=True):
        torch.testing.assert_close(there.cpu(), here, rtol=0, atol=0, equal_nan=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    try:
        assert torch.empty(3, device=DEVICE).shape == (3,)
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = True


@pytest.mark.cpu_worker
@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_precision_of_products(precision):
    a, b = torch.randn(64, 96), torch.randn(96, 32)
    x, w = torch.randn(2, 8, 17, 17), torch.randn(16, 8, 3, 3)
    torch.set_float32_matmul_precision(precision)
    same(to_device(a) @ to_device(b), a @ b)
    same(F.conv2d(to_device(x), to_device(w)), F.conv2d(x, w))


@pytest.mark.cpu_worker
def test_flags_of_backends():
    x, w = torch.randn(2, 8, 17, 17), torch.randn(16, 8, 3, 3)
    far = to_device(x), to_device(w)
    results = []
    with torch.backends.mkldnn.flags(enabled=False):
        results.append((F.conv2d(*far), F.conv2d(x, w)))
    results.append((F.conv2d(*far), F.conv2d(x, w)))
    for there, here in results:
        same(there, here)
    with torch.backends.cudnn.flags(deterministic=True, allow_tf32=False):
        same(far[0] + 1, x + 1)  # a CPU worker accepts the flags and ignores them
    assert torch.backends.cudnn.deterministic is False


@pytest.mark.cpu_worker
def test_flags_set_before_the_device_is_used(tmp_path):
    script = """
import torch
torch.use_deterministic_algorithms(True)
torch.backends.cudnn.benchmark = True
torch.set_float32_matmul_precision("high")
x = torch.zeros(3).to("mycelya")
try:
    x.put(torch.tensor([0]).to("mycelya"), torch.ones(1).to("mycelya")).tolist()
except RuntimeError as error:
    print("deterministic" in str(error))
"""
    status, out, err = run(script, tmp_path)
    assert (status, out) == (0, "True\n"), err


def test_each_successful_setting_is_sent(monkeypatch):
    sent = []
    monkeypatch.setattr(_device, "set_flag", lambda *flag: sent.append(flag))
    with pytest.raises((RuntimeError, ValueError, TypeError)):
        torch._C._set_float32_matmul_precision(1)
    assert sent == []
    torch.use_deterministic_algorithms(True)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.use_deterministic_algorithms(False)
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_bf16_reduced_precision_reduction
    matmul.allow_bf16_reduced_precision_reduction = before
    assert sent == [
        ("deterministic_algorithms", "1 0"),
        ("deterministic_algorithms", "1 1"),
        ("deterministic_algorithms", "0 0"),
        ("cublas_allow_bf16_reduced_precision_reduction", f"{int(before)} 1"),
    ]


def test_flags_that_were_set_before_the_import(tmp_path):
    """They apply on the worker, and those that were not set are not sent."""
    code = """
import torch

torch.use_deterministic_algorithms(True, warn_only=True)
torch.set_float32_matmul_precision("high")
torch.backends.cudnn.benchmark = True
import mycelya_torch

torch.ones(1, device="mycelya").cpu()
"""
    environment = {
        **os.environ,
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "MYCELYA_DUMP": str(tmp_path / "dump"),
    }
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    text = "".join(p.read_text() for p in tmp_path.glob("dump/**/*") if p.is_file())
    for words in (
        "deterministic_algorithms=1 1",
        "float32_matmul_precision=high",
        "cudnn_benchmark=1",
    ):
        assert f'"{words}"' in text, text
    assert "cudnn_enabled" not in text and "nnpack" not in text
