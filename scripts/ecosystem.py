# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Runs tests/ecosystem in an environment of its own: `make ecosystem`.

The environment, build/ecosystem, has the libraries of tests/ecosystem/requirements.txt.
Torch and the others come from the environment of the checkout, through a .pth file.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "tests" / "ecosystem" / "requirements.txt"
FOLDER = ROOT / "build" / "ecosystem"


def python() -> Path:
    """The Python of the environment, which is made if it is not that of the file."""
    program, stamp = FOLDER / "bin" / "python", FOLDER / "installed"
    wanted = f"{sysconfig.get_path('purelib')}\n{REQUIREMENTS.read_text()}"
    if stamp.exists() and stamp.read_text() == wanted:
        return program
    venv.create(FOLDER, with_pip=True, clear=True)
    names = {"base": str(FOLDER), "platbase": str(FOLDER)}
    packages = Path(sysconfig.get_path("purelib", "venv", names))
    (packages / "base.pth").write_text(sysconfig.get_path("purelib") + "\n")
    install = [program, "-m", "pip", "install", "-q", "-r", REQUIREMENTS]
    subprocess.run(install, check=True)
    stamp.write_text(wanted)
    return program


def main() -> None:
    command = [python(), "-m", "pytest", "tests/ecosystem", *sys.argv[1:]]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    sys.exit(subprocess.run(command, cwd=ROOT, env=environment).returncode)


if __name__ == "__main__":
    main()
