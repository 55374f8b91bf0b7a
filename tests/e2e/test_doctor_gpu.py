# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""mycelya doctor about GPUs, with libraries in place of CUDA's driver and of NVRTC."""

import json
import os
import subprocess
import sys

import pytest
from helpers import ROOT

DRIVER = """
#include <string.h>
int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int* version) { *version = 13000; return 0; }
int cuDeviceGetCount(int* count) { *count = GPUS; return 0; }
int cuDeviceGet(int* device, int index) { *device = index; return 0; }
int cuDeviceGetName(char* to, int size, int device) {
  strcpy(to, "Test GPU");
  return 0;
}
int cuDeviceTotalMem_v2(unsigned long* bytes, int device) {
  *bytes = 80ul << 30;
  return 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  *value = attribute == 75 ? 9 : attribute == 76 ? 0 : -1;
  return 0;
}
"""
NVRTC = """
int nvrtcVersion(int* major, int* minor) { *major = 13; *minor = 1; return 0; }
int nvrtcGetNumSupportedArchs(int* n) { *n = 2; return 0; }
int nvrtcGetSupportedArchs(int* to) { to[0] = 80; to[1] = KNOWN; return 0; }
"""
CODE = """
import json, sys
from pathlib import Path
from mycelya_cli import _doctor_gpu, _paths
lib, built, exec_cuda = sys.argv[1:]
_paths.torch_lib = lambda: Path(lib)
_paths.torch_versions = lambda: ("2.15.0", built or None)
_paths.library = lambda name: Path(exec_cuda)
print(json.dumps([f._asdict() for f in _doctor_gpu.gpus()]))
"""


def compile_library(text, path, **macros):
    path.parent.mkdir(parents=True, exist_ok=True)
    source = path.with_suffix(".c")
    source.write_text(text)
    flags = [f"-D{name}={value}" for name, value in macros.items()]
    command = ["cc", "-shared", "-fPIC", *flags, "-o", str(path), str(source)]
    subprocess.run(command, check=True)


def findings(folder, gpus=1, known=90, built="13.0", there=True):
    """What doctor finds with such a driver and NVRTC: by check."""
    compile_library(DRIVER, folder / "driver" / "libcuda.so.1", GPUS=gpus)
    if known:
        path = folder / "site" / "nvidia" / "cu13" / "lib" / "libnvrtc.so.13"
        compile_library(NVRTC, path, KNOWN=known)
    lib = folder / "site" / "torch" / "lib"
    lib.mkdir(parents=True)
    exec_cuda = folder / "driver" if there else folder / "nothing"
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(lib), built, str(exec_cuda)],
        env={
            **os.environ,
            "LD_LIBRARY_PATH": str(folder / "driver"),
            "PYTHONPATH": str(ROOT),
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return {f["check"]: f for f in json.loads(done.stdout)}


def test_a_gpu_that_works(tmp_path):
    found = findings(tmp_path, gpus=2)
    assert list(found) == ["cuda", "cuda:0", "nvrtc", "cuda:1"]
    assert {f["state"] for f in found.values()} == {"ok"}
    assert found["cuda"]["text"].startswith("the driver supports CUDA 13.0")
    assert found["cuda:1"]["text"] == "Test GPU, 80.0 GiB, compute capability 9.0"
    assert found["nvrtc"]["text"].startswith("13.1, ")
    assert "libnvrtc.so.13" in found["nvrtc"]["text"]


@pytest.mark.parametrize(
    ("options", "check", "state", "text"),
    [
        ({"gpus": 0}, "cuda", "note", "finds no GPU"),
        ({"built": ""}, "cuda", "fail", "torch is built without CUDA"),
        ({"built": "14.1"}, "cuda", "fail", "torch is built for CUDA 14.1"),
        ({"there": False}, "cuda", "fail", "the package was built without CUDA"),
        ({"known": 0}, "nvrtc", "note", "not found; fused groups run as single"),
        ({"known": 100}, "nvrtc", "note", "does not know compute capability 9.0"),
    ],
)
def test_what_does_not_work(tmp_path, options, check, state, text):
    finding = findings(tmp_path, **options)[check]
    assert finding["state"] == state and text in finding["text"] and finding["remedy"]
