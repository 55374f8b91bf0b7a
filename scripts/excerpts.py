# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Copies dumps of real programs into the documents, between marks.

    python scripts/excerpts.py [--check]

A mark names a program of tests/e2e/testdata/excerpts and a part of its dump:

    <!-- excerpt train.py 00-capture.ir -->
    <!-- /excerpt -->

A part is a file about the first compiled trace, a file about trace N ("2/plan.txt"), a
file about the whole run ("why.txt"), the program's own lines ("source"), or what the
program has printed ("stdout").

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
    """The parts that marks can name, by name.

    The folders of Python files are removed from their content. Durations, which differ
    from run to run, become "…".
    """
    source = PROGRAMS / f"{program}.txt"
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(source, Path(folder, program))
        env = {k: v for k, v in os.environ.items() if not k.startswith("MYCELYA_")}
        env |= {"MYCELYA_DUMP": "dump", "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, program],
            cwd=folder,
            env=env,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        parts = {"source": source.read_text(), "stdout": done.stdout}
        for path in sorted(Path(folder, "dump").rglob("*")):
            if path.suffix not in (".ir", ".txt", ".cu", ".txtar"):
                continue
            trace = re.match(r"(\d{3})-", path.parent.name)
            text = path.read_text()
            if trace is None or trace[1] == "001":
                parts[path.name] = text
            if trace is not None:
                parts[f"{int(trace[1])}/{path.name}"] = text
    return {name: steady(text) for name, text in parts.items()}


def steady(text: str) -> str:
    """A part without what differs from run to run."""
    text = re.sub(r"\S*/(?=\w+\.py:)", "", text)
    return re.sub(r"\b\d+(\.\d+)? (?:ns|µs|ms|s)\b", "…", text)


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
