# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Writes the tables of a program into RESULTS.md, with the date and the machine."""

import datetime
import os
import platform
import re
import textwrap
from pathlib import Path

import torch

RESULTS = Path(__file__).resolve().parent / "RESULTS.md"
COLUMNS = 120


def wrapped(text: str) -> str:
    """Markdown with its prose wrapped; a row of a table stays one line."""
    lines = text.split("\n")
    return "\n".join(
        line if line.startswith("|") else textwrap.fill(line, COLUMNS) for line in lines
    )


def write(program: str, how: str, text: str) -> None:
    """Puts text between the two marks of a program.

    program: the name of its file. how: the statistic, as "minimum of 20 repeats".
    """
    worker = torch.mycelya.get_device_properties()
    where = (
        f"{datetime.date.today()}, {os.cpu_count()} cores, torch {torch.__version__}, "
        f"Python {platform.python_version()}, {platform.machine()}, "
        f"worker on {worker.device} ({worker.name}), {how}."
    )
    mark = f"<!-- bench/{program} -->"
    block = f"{mark}\n\n{textwrap.fill(where, COLUMNS)}\n\n{wrapped(text)}\n\n{mark}"
    pattern = re.escape(mark) + ".*" + re.escape(mark)
    new, found = re.subn(pattern, lambda _: block, RESULTS.read_text(), flags=re.S)
    if not found:
        raise SystemExit(f"{RESULTS} lacks the two marks {mark}")
    RESULTS.write_text(new)
