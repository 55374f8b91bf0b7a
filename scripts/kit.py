# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Packs .kit: all that scripts/gpu.py needs on a host with a GPU, ready to run.

    python scripts/kit.py            packs .kit/mycelya.tar.xz
    python scripts/kit.py --dry      and runs each part of it here, on a CPU worker

The archive has the tracked files of the checkout, the artefacts for one Python and one
torch, and the packages that such a host lacks. Nothing is compiled there, and neither
Go nor the internet is needed. In build/kit are the environment with that torch, the
build, and with --dry the unpacked archive.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import install
from wheels import Python

import build as native

# What the host has; torch from the package index is the same build, for CUDA 13.0.
PYTHON = "3.12"
TORCH, TORCHVISION = "2.11.0", "0.26.0"
# Headers that torch's CUDA packages lack, in the version of its CUDA.
HEADERS = ["nvidia-cuda-crt==13.0.88", "nvidia-cuda-cccl==13.0.85"]
# Packages that the host lacks. They are of Python alone.
CARRIED = ["expecttest"]
WORK = native.ROOT / "build" / "kit"
ARCHIVE = native.ROOT / ".kit" / "mycelya.tar.xz"
LIMIT = 20 << 20  # bytes


def interpreter() -> str:
    """A Python of the host's version: of PATH, or of pyenv."""
    of_pyenv = Path.home().glob(f".pyenv/versions/{PYTHON}.*/bin/python")
    for program in (f"python{PYTHON}", *map(str, sorted(of_pyenv))):
        found = shutil.which(program)
        if found and not subprocess.run([found, "-V"], capture_output=True).returncode:
            return found
    sys.exit(f"kit: there is no Python {PYTHON} here, which the host has: install it")


def environment() -> Path:
    """Makes the environment with the host's torch; returns its interpreter."""
    program = WORK / "venv" / "bin" / "python"
    if not program.exists():
        install.uv("venv", "--python", interpreter(), str(WORK / "venv"))
    groups = install.groups()
    packages = [f"torch=={TORCH}", f"torchvision=={TORCHVISION}", *HEADERS]
    wanted = [*groups["test"], *groups["demo"], *groups["cli"]]
    packages += [p for p in wanted if not p.startswith("torchvision")]
    install.uv("pip", "install", "--quiet", "--python", str(program), *packages)
    return program


def build(program: Path) -> Path:
    """Builds the artefacts for the host; returns the folder with lib and bin."""
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    done = subprocess.run([program, "-c", code], capture_output=True, check=True)
    torch = native.Torch(Path(done.stdout.decode().strip()) / "torch")
    cuda = native.cuda_includes(torch.root.parent)
    if not cuda:
        sys.exit(f"{torch.root.parent} lacks CUDA's headers: {', '.join(HEADERS)}")
    out = WORK / "made"
    name = native.libraries.folder_name(torch.version)
    include = Python.find(str(program)).include
    target = native.Target(torch, cuda, include, WORK / "cmake", out / "lib" / name)
    native.build_go(out / "lib", out / "bin")
    native.build_cpp(target, 2)
    return out


def add(archive: tarfile.TarFile, path: Path, name: str) -> None:
    """Adds a file without its owner and time."""

    def plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = info.mtime = 0
        info.uname = info.gname = ""
        return info

    archive.add(path, name, filter=plain)


def pack(made: Path, program: Path) -> None:
    """Packs the checkout's tracked files, and the artefacts without their symbols."""
    ARCHIVE.parent.mkdir(exist_ok=True)
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=native.ROOT, capture_output=True, check=True
    )
    with tarfile.open(ARCHIVE, "w:xz", preset=9) as archive:
        for name in filter(None, listed.stdout.decode().split("\0")):
            if (native.ROOT / name).exists():  # a deletion may not be committed yet
                add(archive, native.ROOT / name, name)
        stripped = WORK / "stripped"
        shutil.rmtree(stripped, ignore_errors=True)
        for path in sorted(p for p in made.rglob("*") if p.is_file()):
            copy = stripped / path.relative_to(made)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, copy)
            if path.suffix == ".so":
                native.run("strip", copy)
            add(archive, copy, f"mycelya_torch/{path.relative_to(made)}")
        packages = program.parents[1] / "lib" / f"python{PYTHON}" / "site-packages"
        for package in CARRIED:
            add(archive, packages / package, f"build/kit/site/{package}")
    size = ARCHIVE.stat().st_size
    print(f"kit: {ARCHIVE.relative_to(native.ROOT)}, {size / 2**20:.1f} MiB")
    if size > LIMIT:
        sys.exit(f"kit: that is more than {LIMIT >> 20} MiB")


def dry(program: Path) -> int:
    """Unpacks the archive elsewhere and runs its parts, as the host does."""
    tree = WORK / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tree, filter="tar")
    return subprocess.call([program, "scripts/gpu.py", "--dry"], cwd=tree)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dry", action="store_true", help="run the kit here")
    args = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    program = environment()
    pack(build(program), program)
    if args.dry:
        sys.exit(dry(program))


if __name__ == "__main__":
    main()
