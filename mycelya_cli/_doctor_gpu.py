# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""What doctor finds about GPUs, their driver and the compiler of kernels."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from pathlib import Path

import click

from mycelya_cli import _paths, _show
from mycelya_cli._finding import Finding, ok

# Attributes of a device in CUDA's driver interface.
_MAJOR, _MINOR = 75, 76


def _version(number: int) -> str:
    """A version of CUDA as its libraries write it: 13000 is 13.0."""
    return f"{number // 1000}.{number % 1000 // 10}"


def gpus() -> Iterator[Finding]:
    """The driver, each GPU, and whether torch and this package can use them."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        text = "no CUDA driver; local workers compute on the CPU"
        yield Finding("cuda", "note", text, "For a local GPU install NVIDIA's driver.")
        return
    count, version = ctypes.c_int(0), ctypes.c_int(0)
    failed = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if failed or count.value == 0:
        text = "the CUDA driver is there, and finds no GPU"
        remedy = "Run nvidia-smi; look at CUDA_VISIBLE_DEVICES."
        yield Finding("cuda", "note", text, remedy)
        return
    driver.cuDriverGetVersion(ctypes.byref(version))
    yield _driver(version.value)
    for index in range(count.value):
        name, memory, capability = _gpu(driver, index)
        text = f"{name}, {_show.size(memory)}, compute capability {capability}"
        yield ok(f"cuda:{index}", text)
        yield from _compiler(capability if index == 0 else "")


def _driver(version: int) -> Finding:
    try:
        built = _paths.torch_versions()[1]
    except click.ClickException:
        built = "?"  # the check of torch says so
    text = f"the driver supports CUDA {_version(version)}"
    try:
        module = Path("/proc/driver/nvidia/version").read_text()
        text += f", version {re.findall(r'[0-9]+[.][0-9.]+', module)[0]}"
    except (OSError, IndexError):
        pass
    if not built:
        text += "; torch is built without CUDA"
        return Finding("cuda", "fail", text, "Install a torch with CUDA.")
    if built != "?" and int(built.split(".")[0]) > version // 1000:
        text += f"; torch is built for CUDA {built}"
        remedy = "Install a newer driver, or a torch for an older CUDA."
        return Finding("cuda", "fail", text, remedy)
    try:
        there = _paths.library("exec_cuda").exists()
    except click.ClickException:
        there = False
    if not there:
        text += "; the package was built without CUDA"
        return Finding("cuda", "fail", text, "pip install nvidia-cuda-crt; build anew.")
    return ok("cuda", text)


def _gpu(driver: ctypes.CDLL, index: int) -> tuple[str, int, str]:
    """The name, the bytes of memory and the compute capability of a GPU."""
    device, memory = ctypes.c_int(0), ctypes.c_size_t(0)
    name = ctypes.create_string_buffer(256)
    driver.cuDeviceGet(ctypes.byref(device), index)
    driver.cuDeviceGetName(name, len(name), device)
    driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    parts = [ctypes.c_int(0), ctypes.c_int(0)]
    for part, attribute in zip(parts, (_MAJOR, _MINOR), strict=True):
        driver.cuDeviceGetAttribute(ctypes.byref(part), attribute, device)
    capability = f"{parts[0].value}.{parts[1].value}"
    return name.value.decode(errors="replace"), memory.value, capability


def _compiler(capability: str) -> Iterator[Finding]:
    """NVRTC, with which a worker compiles kernels. capability: of the first GPU."""
    if not capability:
        return
    packages = _paths.torch_lib().parents[1]
    found = [*packages.glob("nvidia/*/lib/libnvrtc.so.*")]
    found += packages.glob("torch/lib/libnvrtc*.so*")
    found = [p for p in found if "builtins" not in p.name and ".alt." not in p.name]
    without = "fused groups run as single operators"
    if not found:
        remedy = "Install a torch with CUDA from PyTorch's index, which brings it."
        yield Finding("nvrtc", "note", f"not found; {without}", remedy)
        return
    newest = max(found, key=lambda p: [int(n) for n in re.findall(r"\d+", p.name)])
    try:
        nvrtc = ctypes.CDLL(str(newest))
    except OSError as error:
        yield Finding("nvrtc", "note", f"{error}; {without}", "Reinstall torch.")
        return
    major, minor, count = ctypes.c_int(0), ctypes.c_int(0), ctypes.c_int(0)
    nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    nvrtc.nvrtcGetNumSupportedArchs(ctypes.byref(count))
    known = (ctypes.c_int * max(1, count.value))()
    nvrtc.nvrtcGetSupportedArchs(known)
    text = f"{major.value}.{minor.value}, {newest}"
    if int(capability.replace(".", "")) not in known:
        text += f"; it does not know compute capability {capability}: {without}"
        remedy = "Install a torch for a CUDA that knows this GPU."
        yield Finding("nvrtc", "note", text, remedy)
    else:
        yield ok("nvrtc", text)
