# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Chooses the native libraries that belong to a version of torch.

The C++ libraries use torch's C++ ABI, which changes from one minor version to the next.
`lib/torch<major>.<minor>` has those that were built against this minor version. Go's
library and programs use no torch, so the package has them once.

The command line and the build scripts load this file alone: it imports no other module
of the package, and no torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

LIB = Path(__file__).resolve().parent / "lib"
PREFIX = "torch"


def release(version: str) -> tuple[int, int]:
    """The major and the minor number of a version: (2, 15) of "2.15.0+cpu".

    Raises:
        ImportError: the text is not a version.
    """
    found = re.match(r"(\d+)\.(\d+)(?!\d)", version)
    if found is None:
        raise ImportError(
            f"torch has the version {version!r}, which does not begin with two "
            "numbers. Reinstall torch: pip install --force-reinstall torch"
        )
    return int(found[1]), int(found[2])


def folder_name(version: str) -> str:
    """The name of the folder with the libraries for a version: "torch2.15"."""
    major, minor = release(version)
    return f"{PREFIX}{major}.{minor}"


def releases(names: Iterable[str]) -> list[tuple[int, int]]:
    """The minor versions that have folders with these names, the oldest first."""
    pattern = re.compile(re.escape(PREFIX) + r"(\d+)\.(\d+)")
    found = map(pattern.fullmatch, names)
    return sorted((int(m[1]), int(m[2])) for m in found if m is not None)


def choose(version: str, names: Iterable[str]) -> str:
    """The folder for an installed torch: the newest that is not newer than it.

    Args:
        version: torch's version, as "2.13.1+cu130"
        names: the names of the folders that exist

    Raises:
        ImportError: no folder serves this torch; the message says what to install.
    """
    wanted, built = release(version), releases(names)
    if not built:
        raise ImportError(
            f"{LIB} has no libraries for any torch: the package was not built. In a "
            "checkout run 'make build'; otherwise reinstall mycelya-torch."
        )
    fitting = [r for r in built if r[0] == wanted[0] and r <= wanted]
    if not fitting:
        first, last = built[0], built[-1]
        served = " ".join(f"{major}.{minor}" for major, minor in built)
        raise ImportError(
            f"This mycelya-torch has libraries for torch {served}, and none for torch "
            f"{version}. Install a torch that it serves: pip install "
            f"'torch>={first[0]}.{first[1]},<{last[0]}.{last[1] + 1}'. In a checkout, "
            "'make build' builds the libraries for the installed torch."
        )
    major, minor = fitting[-1]
    return f"{PREFIX}{major}.{minor}"


def folder(version: str, lib: Path = LIB) -> Path:
    """The folder with the libraries for an installed torch.

    Raises:
        ImportError: see choose().
    """
    names = [path.name for path in lib.iterdir()] if lib.is_dir() else []
    return lib / choose(version, names)


def version_of(torch: Path) -> str:
    """The version of the torch in a folder, without importing it.

    Raises:
        ImportError: the folder has no version.py with a version.
    """
    version = assigned(torch, "__version__")
    if version is None:
        raise ImportError(
            f"{torch / 'version.py'} names no version of torch. Reinstall torch: pip "
            "install --force-reinstall torch"
        )
    return version


def assigned(torch: Path, name: str) -> str | None:
    """A text that torch's version.py gives to a name; None if there is none."""
    try:
        text = (torch / "version.py").read_text()
    except OSError:
        return None
    pattern = rf"^{name}(?:\s*:[^=\n]*)?\s*=\s*['\"]([^'\"]*)['\"]"
    found = re.search(pattern, text, re.MULTILINE)
    return found[1] if found else None
