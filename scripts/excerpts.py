# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Copies dumps of real programs into the documents, between marks.

    python scripts/excerpts.py [--check]

A mark names a program of tests/e2e/testdata/excerpts and a file in the dump of its
first compiled trace:

    <!-- excerpt train.py 00-capture.ir -->
    <!-- /excerpt -->

--check changes nothing, and fails if a document is stale.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / "tests" / "e2e" / "testdata" / "excerpts"
MARKED = re.compile(
    r"<!-- excerpt (?P<program>\S+) (?P<file>\S+) -->\n.*?<!-- /excerpt -->", re.S
)


@cache
def dump(program: str) -> dict[str, str]:
    """The files of the first compiled trace's dump, by name.

    The folders of Python files are removed from their content.
    """
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(PROGRAMS / f"{program}.txt", Path(folder, program))
        env = {k: v for k, v in os.environ.items() if not k.startswith("MYCELYA_")}
        env |= {"MYCELYA_DUMP": "dump", "PYTHONPATH": str(ROOT)}
        command = [sys.executable, program]
        subprocess.run(
            command, cwd=folder, env=env, check=True, stdout=subprocess.DEVNULL
        )
        first = min(Path(folder, "dump").glob("001-*"))
        files = {p.name: p.read_text() for p in first.iterdir() if p.suffix != ".html"}
    return {name: re.sub(r"\S*/(?=\w+\.py:)", "", t) for name, t in files.items()}


def filled(text: str) -> str:
    def fill(mark: re.Match[str]) -> str:
        files = dump(mark["program"])
        if mark["file"] not in files:
            raise SystemExit(
                f"{mark['program']} has no {mark['file']}; it has {sorted(files)}"
            )
        lines = files[mark["file"]].strip("\n").splitlines()
        body = "\n".join(f"    {line}".rstrip() for line in lines)
        head = f"<!-- excerpt {mark['program']} {mark['file']} -->"
        return f"{head}\n\n{body}\n\n<!-- /excerpt -->"

    return MARKED.sub(fill, text)


def documents() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "*.md"], cwd=ROOT, check=True, capture_output=True
    )
    paths = [ROOT / name for name in listed.stdout.decode().splitlines()]
    return [path for path in paths if MARKED.search(path.read_text())]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    stale = []
    for path in documents():
        before = path.read_text()
        after = filled(before)
        if after != before:
            stale.append(str(path.relative_to(ROOT)))
            if not args.check:
                path.write_text(after)
    if args.check and stale:
        sys.exit(f"{', '.join(stale)}: scripts/excerpts.py would write other excerpts.")


if __name__ == "__main__":
    main()
