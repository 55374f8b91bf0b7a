# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Builds the Python module of rules_module.cpp and prints its path.

Usage: python build_rules.py [OUT_DIR]
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from torch.utils.cpp_extension import include_paths, library_paths

HERE = Path(__file__).resolve().parent
DEVICE = HERE.parent
NAME = "rules_module"


def compile_one(source: Path, out: Path, flags: list[str]) -> Path:
    target = out / (source.stem + ".o")
    command = [*flags, "-c", str(source), "-o", str(target)]
    start = time.monotonic()
    subprocess.run(command, check=True)
    print(f"{time.monotonic() - start:6.1f} s  {source.name}", file=sys.stderr)
    return target


def build(out: Path) -> Path:
    """Compiles the sources (unchanged ones come from ccache) and links the module."""
    out.mkdir(parents=True, exist_ok=True)
    tables = subprocess.run(
        [sys.executable, str(DEVICE / "rules" / "gen_meta.py"), str(out)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    compiler = ["ccache", "g++"] if shutil.which("ccache") else ["g++"]
    flags = [
        *compiler,
        *"-O1 -std=c++20 -fPIC -fvisibility=hidden -Wall".split(),
        f"-DTORCH_EXTENSION_NAME={NAME}",
        f"-I{DEVICE.parent}",
        f"-isystem{sysconfig.get_paths()['include']}",
        *(f"-isystem{p}" for p in include_paths()),
    ]
    sources = [
        HERE / f"{NAME}.cpp",
        *sorted((DEVICE / "rules").glob("Rules*.cpp")),
        *map(Path, tables),
    ]
    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(lambda s: compile_one(s, out, flags), sources))
    module = out / f"{NAME}.so"
    link = [*compiler, "-shared", *map(str, objects), "-o", str(module)]
    for path in library_paths():
        link += [f"-L{path}", f"-Wl,-rpath,{path}"]
    link += "-lc10 -ltorch_cpu -ltorch -ltorch_python".split()
    subprocess.run(link, check=True)
    return module


if __name__ == "__main__":
    default = DEVICE.parent.parent / "build" / "rules"
    print(build(Path(sys.argv[1]) if len(sys.argv) > 1 else default))
