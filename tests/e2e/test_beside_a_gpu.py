# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""The device on a host with a GPU that PyTorch can use; tests/gpu has a real one."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

pytestmark = pytest.mark.fast

# Pretends that the host has the files of NVIDIA's driver.
PRETEND = """
import os
exists = os.path.exists
os.path.exists = lambda path: path == "/dev/nvidiactl" or exists(path)
import torch

def accelerator():
    return torch.accelerator.current_accelerator(check_available=False)
"""


def printed(code: str, **environment: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", PRETEND + code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


WITH_CUDA = pytest.mark.skipif(
    not torch.version.cuda, reason="needs a PyTorch with CUDA"
)


@WITH_CUDA
@pytest.mark.parametrize(
    ("code", "environment", "want"),
    [
        ("", {}, "cuda"),
        ("", {"CUDA_VISIBLE_DEVICES": ""}, "mycelya"),
        ("", {"CUDA_VISIBLE_DEVICES": "0"}, "cuda"),
        ("", {"MYCELYA_MACHINE": "local:cpu"}, "mycelya"),
        ("import mycelya_torch", {}, "mycelya"),
    ],
)
def test_import_torch_on_a_host_with_a_gpu(code, environment, want):
    assert printed(f"{code}\nprint(accelerator())", **environment) == [want]


def test_errors_of_backward_stay_as_they_are_beside_a_gpu():
    code = """
import mycelya_torch
x = torch.ones(2, requires_grad=True)
try:
    x.backward()
except RuntimeError as error:
    print("scalar" in str(error))
y = torch.ones(2, device="mycelya", requires_grad=True)
y.sum().backward()
print(y.grad.tolist() == [1, 1])
"""
    assert printed(code) == ["True", "True"]


def test_the_device_is_the_accelerator_without_a_gpu():
    assert torch.accelerator.current_accelerator().type == "mycelya"
