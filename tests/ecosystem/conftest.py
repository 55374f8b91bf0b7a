# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Notes what each test has shown, and prints the table; --write keeps it in README."""

import importlib.metadata
import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "e2e"))  # zoo.py

# Nothing is downloaded.
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")
for name in ("ACCELERATE_TORCH_DEVICE", "MYCELYA_CHOOSE", "MYCELYA_AHEAD"):
    os.environ.pop(name, None)

import torch  # noqa: E402

import mycelya_torch  # noqa: E402, F401 (registers the device)

ROWS = []

README = HERE.parent.parent / "README.md"
MARK = "<!-- tests/ecosystem -->\n"
HEAD = """
| library | what runs | compared with | waits in a step |
|---|---|---|---:|
"""


def pytest_addoption(parser):
    parser.addoption("--write", action="store_true", help="writes README.md")


@pytest.fixture(autouse=True)
def same_start():
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    torch.manual_seed(0)
    yield
    torch.mycelya.synchronize()


@pytest.fixture
def shows():
    """Notes a row: shows("peft", "LoRA training", "the CPU's losses", waits)."""

    def note(library, what, against, waits=None):
        release = importlib.metadata.version(library)
        text = "" if waits is None else f"{waits:.2g}"
        ROWS.append((f"{library} {release}", what, against, text))

    return note


def pytest_terminal_summary(terminalreporter, exitstatus, config):
    lines = [f"| {' | '.join(row)} |" for row in sorted(ROWS)]
    for line in lines:
        terminalreporter.write_line(line)
    if config.getoption("--write") and exitstatus == 0:
        before, _, after = README.read_text().split(MARK)
        table = HEAD + "\n".join(lines) + "\n\n"
        README.write_text(before + MARK + table + MARK + after)
