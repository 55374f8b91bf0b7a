# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""What the host has, and whether the package's libraries load there."""

import ctypes
import os
import platform
import time
from pathlib import Path

import torch
from card import DRY, copy_rate, row


def driver() -> str:
    """The version of CUDA that the driver supports."""
    version = ctypes.c_int()
    status = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    return f"{version.value // 1000}.{version.value % 1000 // 10}, status {status}"


def nvrtc() -> str:
    """The version of the compiler in torch's packages, and its path."""
    packages = Path(torch.__file__).parents[1]
    paths = [p for p in packages.glob("nvidia/*/lib/libnvrtc.so.*") if p.is_file()]
    if not paths:
        return "none"
    major, minor = ctypes.c_int(), ctypes.c_int()
    ctypes.CDLL(str(paths[-1])).nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}, {paths[-1].relative_to(packages)}"


row(
    "host",
    python=platform.python_version(),
    torch=torch.__version__,
    cuda=torch.version.cuda,
    cores=os.cpu_count(),
    glibc=platform.libc_ver()[1],
    nvrtc=nvrtc(),
)
if not DRY:
    row("card", driver=driver(), properties=torch.cuda.get_device_properties(0))
begin = time.perf_counter()
import mycelya_torch  # noqa: E402, F401

imported = time.perf_counter() - begin
value = (torch.arange(6.0).reshape(2, 3).to("mycelya") * 2).sum().item()
row(
    "plugin",
    import_seconds=round(imported, 2),
    first_value_seconds=round(time.perf_counter() - begin, 2),
    worker=torch.mycelya.get_device_properties(),
)
assert value == 30, value
row("copy", GBs=round(copy_rate()))
