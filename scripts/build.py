# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Builds the native artefacts into mycelya_torch/lib and mycelya_torch/bin.

setup.py (pip), scripts/wheels.py and the Makefile use it. Both tool chains, cmake with
ninja and go, build only what changed. Without a Go tool chain, existing Go artefacts
are used as they are. They depend on neither torch nor Python, so they may be copied
from another machine. The C++ libraries are for one minor version of torch, and lie in a
folder of its name (mycelya_torch/_libraries.py).
"""

from __future__ import annotations

import argparse
import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "mycelya_torch"
LIB, BIN = PACKAGE / "lib", PACKAGE / "bin"
GO_ARTEFACTS = {
    LIB / "libmycelya_go.so": "./client",
    BIN / "mycelya-worker": "./worker/cmd/mycelya-worker",
    BIN / "mycelya-machines": "./client/cmd/mycelya-machines",
}
REQUIRED = ["libmycelya_device.so", "libmycelya_exec.so"]
OPTIONAL = ["libmycelya_exec_cuda.so"]  # needs a CUDA torch and CUDA headers


def module(path: Path) -> ModuleType:
    """Imports a file alone. Importing its package would load what is built here."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


libraries = module(PACKAGE / "_libraries.py")


@dataclass(frozen=True)
class Torch:
    """A torch to build against. It is never imported."""

    root: Path

    @classmethod
    def installed(cls) -> Torch:
        """The torch of this Python's environment."""
        spec = importlib.util.find_spec("torch")
        if spec is None or spec.origin is None:
            sys.exit(f"{sys.executable} has no torch: pip install 'torch>=2.11,<2.16'")
        return cls(Path(spec.origin).parent)  # ccache needs this path, unresolved

    @cached_property
    def version(self) -> str:
        return libraries.version_of(self.root)

    @property
    def has_cuda(self) -> bool:
        return libraries.assigned(self.root, "cuda") is not None

    @property
    def includes(self) -> list[Path]:
        include = self.root / "include"
        return [include, include / "torch" / "csrc" / "api" / "include"]

    def libraries(self) -> Path:
        """The folder of the C++ libraries for it in this checkout."""
        return LIB / libraries.folder_name(self.version)

    def build_folder(self) -> Path:
        """The build folder of cmake, one for each version of Python and torch."""
        python = f"cp{sys.version_info.major}{sys.version_info.minor}"
        return ROOT / "build" / f"{python}-torch{self.version}"


def artefacts(torch: Torch) -> list[Path]:
    """The built files that a wheel for one torch holds besides Python."""
    made = [torch.libraries() / name for name in REQUIRED]
    optional = [torch.libraries() / name for name in OPTIONAL]
    return [*made, *(path for path in optional if path.exists()), *GO_ARTEFACTS]


def tool(name: str) -> str | None:
    """The path of a program in this Python's environment, else in PATH."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else shutil.which(name)


def run(*command: str | Path, env: dict[str, str] | None = None) -> None:
    subprocess.run([str(c) for c in command], cwd=ROOT, env=env, check=True)


def cuda_includes(packages: Path) -> list[Path]:
    """Folders with cuda_runtime_api.h and its includes; empty if they are missing.

    A CUDA tool kit has them in one folder. torch's own pip packages have them too, if
    the package nvidia-cuda-crt is installed.

    Args:
        packages: the folder in which torch and NVIDIA's packages are installed
    """
    kits = [os.environ.get("CUDA_HOME", ""), "/usr/local/cuda"]
    candidates = sorted(packages.glob("nvidia/cu*/include"))
    candidates += [Path(kit) / "include" for kit in kits if kit]
    for folder in candidates:
        needed = ["cuda_runtime_api.h", "crt/host_defines.h", "cublas_v2.h"]
        needed += ["cusparse.h", "cusolver_common.h"]
        if all((folder / header).exists() for header in needed):
            return [folder, *([folder / "cccl"] if (folder / "cccl").exists() else [])]
    return []


@dataclass(frozen=True)
class Target:
    """What the C++ libraries are built for, and where they go."""

    torch: Torch
    cuda: list[Path]  # folders of CUDA's headers; empty: without CUDA
    python_include: Path
    folder: Path  # of cmake
    out: Path

    @classmethod
    def here(cls) -> Target:
        """For this Python's environment, into this checkout."""
        torch = Torch.installed()
        cuda = cuda_includes(torch.root.parent) if torch.has_cuda else []
        include = Path(sysconfig.get_path("include"))
        return cls(torch, cuda, include, torch.build_folder(), torch.libraries())


def build_cpp(target: Target, jobs: int, tests: bool = False) -> None:
    """Runs cmake and ninja with torch's include and library folders."""
    cmake, ninja = tool("cmake"), tool("ninja")
    if cmake is None or ninja is None:
        sys.exit("Building needs cmake and ninja: pip install cmake ninja")
    options = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_MAKE_PROGRAM": ninja,
        "MYC_PYTHON": sys.executable,
        "MYC_PYTHON_INCLUDE": target.python_include,
        "MYC_TORCH_INCLUDE": ";".join(map(str, target.torch.includes)),
        "MYC_TORCH_LIB": target.torch.root / "lib",
        "MYC_TORCH_VERSION": target.torch.version,
        "MYC_CUDA_INCLUDE": ";".join(map(str, target.cuda)),
        "MYC_OUT": target.out,
        "MYC_TESTS": "ON" if tests else "OFF",
    }
    if ccache := tool("ccache"):
        options["CMAKE_CXX_COMPILER_LAUNCHER"] = ccache
    wanted = "\n".join(f"{name}={value}" for name, value in options.items())
    stamp = target.folder / "options.txt"
    if not stamp.exists() or stamp.read_text() != wanted:
        defines = [f"-D{name}={value}" for name, value in options.items()]
        run(cmake, "-S", ROOT / "csrc", "-B", target.folder, "-G", "Ninja", *defines)
        stamp.write_text(wanted)
    # Objects serve every checkout: paths below this one are relative in ccache's keys.
    shared = {"CCACHE_BASEDIR": str(ROOT), "CCACHE_NOHASHDIR": "true"}
    env = {**shared, **os.environ}
    run(cmake, "--build", target.folder, "-j", str(jobs), env=env)


def build_go(lib: Path = LIB, programs: Path = BIN, cc: str | None = None) -> None:
    """Builds the c-shared library and the programs; without Go existing ones serve.

    Args:
        lib, programs: where to
        cc: the C compiler for Go's C code; None is Go's default
    """
    folders = {LIB: lib, BIN: programs}
    made = {folders[path.parent] / path.name: p for path, p in GO_ARTEFACTS.items()}
    go = shutil.which("go")
    if go is None:
        if all(path.exists() for path in made):
            print("build: no go here; using the Go artefacts that are in place")
            return
        sys.exit(
            "Building needs Go 1.26 or newer (https://go.dev/dl), or "
            f"{', '.join(path.name for path in made)} in place in mycelya_torch/."
        )
    env = {**os.environ, "CGO_ENABLED": "1", **({"CC": cc} if cc else {})}
    for path, package in made.items():
        flags = ["-trimpath", "-ldflags=-s -w", "-o", str(path)]
        if path.suffix == ".so":
            flags.append("-buildmode=c-shared")
        run(go, "build", *flags, package, env=env)
        path.with_suffix(".h").unlink(missing_ok=True)


def remove_former() -> None:
    """Removes C++ libraries from where they were before each torch had a folder."""
    for name in REQUIRED + OPTIONAL:
        (LIB / name).unlink(missing_ok=True)


def build(jobs: int | None = None, tests: bool = False) -> Torch:
    """Builds everything that is not up to date, for the installed torch.

    Only one build runs at a time.
    """
    target = Target.here()
    for made in (LIB, BIN, ROOT / "build"):
        made.mkdir(exist_ok=True)
    with (ROOT / "build" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        remove_former()
        build_go()
        build_cpp(target, jobs or min(2, os.cpu_count() or 1), tests)
    missing = [str(path) for path in artefacts(target.torch) if not path.exists()]
    if missing:
        sys.exit(f"The build ended without {', '.join(missing)}.")
    return target.torch


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, help="C++ compilers at once; default 2")
    parser.add_argument("--tests", action="store_true", help="build the C++ tests too")
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--print-folder", action="store_true", help="print the build folder and exit"
    )
    what.add_argument(
        "--print-libraries",
        action="store_true",
        help="print the folder of the libraries for the installed torch and exit",
    )
    what.add_argument(
        "--print-torch", action="store_true", help="print torch's folder and exit"
    )
    args = parser.parse_args()
    if args.print_folder:
        print(Torch.installed().build_folder())
    elif args.print_libraries:
        print(Torch.installed().libraries())
    elif args.print_torch:
        print(Torch.installed().root)
    else:
        build(args.jobs, args.tests)
