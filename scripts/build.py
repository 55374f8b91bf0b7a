# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Builds the native artefacts into mycelya_torch/lib and mycelya_torch/bin.

setup.py (pip) and the Makefile use it. Both tool chains, cmake with ninja and go, build
only what changed. Without a Go tool chain, existing Go artefacts are used as they are.
They depend on neither torch nor Python, so they may be copied from another machine.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

# Importing torch must not load the device, because this script may be building it.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "mycelya_torch"
LIB, BIN = PACKAGE / "lib", PACKAGE / "bin"

REQUIRED = [
    LIB / "libmycelya_device.so",
    LIB / "libmycelya_exec.so",
    LIB / "libmycelya_go.so",
    BIN / "mycelya-worker",
]
OPTIONAL = [LIB / "libmycelya_exec_cuda.so"]  # needs a CUDA torch and CUDA headers


def artefacts() -> list[Path]:
    """The built files that a wheel holds besides Python."""
    return REQUIRED + [path for path in OPTIONAL if path.exists()]


def tool(name: str) -> str | None:
    """The path of a program in this Python's environment, else in PATH."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else shutil.which(name)


def run(*command: str | Path, env: dict[str, str] | None = None) -> None:
    subprocess.run([str(c) for c in command], cwd=ROOT, env=env, check=True)


def cuda_includes(torch_root: Path) -> list[Path]:
    """Folders with cuda_runtime_api.h and its includes; empty if they are missing.

    A CUDA tool kit has them in one folder. torch's own pip packages have them too, if
    the package nvidia-cuda-crt is installed.
    """
    kits = [os.environ.get("CUDA_HOME", ""), "/usr/local/cuda"]
    candidates = sorted(torch_root.parent.glob("nvidia/cu*/include"))
    candidates += [Path(kit) / "include" for kit in kits if kit]
    for folder in candidates:
        needed = ["cuda_runtime_api.h", "crt/host_defines.h", "cublas_v2.h"]
        needed += ["cusparse.h", "cusolver_common.h"]
        if all((folder / header).exists() for header in needed):
            return [folder, *([folder / "cccl"] if (folder / "cccl").exists() else [])]
    return []


def folder() -> Path:
    """The build folder of cmake, one for each version of Python and torch."""
    import torch

    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    return ROOT / "build" / f"{python}-torch{torch.__version__}"


def build_cpp(jobs: int, tests: bool) -> None:
    """Runs cmake and ninja with torch's include and library folders."""
    import torch
    from torch.utils import cpp_extension

    cmake, ninja = tool("cmake"), tool("ninja")
    if cmake is None or ninja is None:
        sys.exit("Building needs cmake and ninja: pip install cmake ninja")
    torch_root = Path(torch.__file__).resolve().parent
    has_cuda = torch.version.cuda is not None
    cuda = cuda_includes(torch_root) if has_cuda else []
    options = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_MAKE_PROGRAM": ninja,
        "MYC_PYTHON": sys.executable,
        "MYC_PYTHON_INCLUDE": sysconfig.get_path("include"),
        "MYC_TORCH_INCLUDE": ";".join(cpp_extension.include_paths()[:2]),
        "MYC_TORCH_LIB": torch_root / "lib",
        "MYC_TORCH_VERSION": torch.__version__,
        "MYC_CXX11_ABI": int(torch._C._GLIBCXX_USE_CXX11_ABI),
        "MYC_CUDA_INCLUDE": ";".join(map(str, cuda)),
        "MYC_OUT": LIB,
        "MYC_TESTS": "ON" if tests else "OFF",
    }
    if (ccache := tool("ccache")) is not None:
        options["CMAKE_CXX_COMPILER_LAUNCHER"] = ccache
    wanted = "\n".join(f"{name}={value}" for name, value in options.items())
    stamp = folder() / "options.txt"
    if not stamp.exists() or stamp.read_text() != wanted:
        defines = [f"-D{name}={value}" for name, value in options.items()]
        run(cmake, "-S", ROOT / "csrc", "-B", folder(), "-G", "Ninja", *defines)
        stamp.write_text(wanted)
    run(cmake, "--build", folder(), "-j", str(jobs))


def build_go() -> None:
    """Builds the c-shared library and the worker; without Go it uses existing ones."""
    library, worker = LIB / "libmycelya_go.so", BIN / "mycelya-worker"
    go = shutil.which("go")
    if go is None:
        if library.exists() and worker.exists():
            print("build: no go here; using the Go artefacts that are in place")
            return
        sys.exit(
            "Building needs Go 1.26 or newer (https://go.dev/dl), or "
            f"{library.name} and {worker.name} in place in mycelya_torch/."
        )
    env = {**os.environ, "CGO_ENABLED": "1"}
    common = ["-trimpath", "-ldflags=-s -w"]
    shared = [*common, "-buildmode=c-shared", "-o", str(library)]
    run(go, "build", *shared, "./client", env=env)
    library.with_suffix(".h").unlink(missing_ok=True)
    run(go, "build", *common, "-o", worker, "./worker/cmd/mycelya-worker", env=env)


def build(jobs: int | None = None, tests: bool = False) -> None:
    """Builds everything that is not up to date. Only one build runs at a time."""
    for made in (LIB, BIN, ROOT / "build"):
        made.mkdir(exist_ok=True)
    with (ROOT / "build" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        build_go()
        build_cpp(jobs or min(2, os.cpu_count() or 1), tests)
    if missing := [str(path) for path in REQUIRED if not path.exists()]:
        sys.exit(f"The build ended without {', '.join(missing)}.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, help="C++ compilers at once; default 2")
    parser.add_argument("--tests", action="store_true", help="build the C++ tests too")
    parser.add_argument(
        "--print-folder", action="store_true", help="print the build folder and exit"
    )
    args = parser.parse_args()
    if args.print_folder:
        print(folder())
    else:
        build(args.jobs, args.tests)
