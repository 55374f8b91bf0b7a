# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""What a program takes is known before it is sent, and a step takes no more than eager."""

from __future__ import annotations

import re

import pytest
import torch
import training_peaks
from helpers import DEVICE, ROOT, run

pytestmark = [pytest.mark.fast]

PEAK = re.compile(
    r"memory: at most (\d+) bytes of its own at once, at step (\d+), "
    r"beside storages of (\d+)"
)


def planned(name: str, folder) -> tuple[int, int]:
    """Bytes of the largest program: its own, and of the storages that it is given."""
    code = f"import training_peaks\ntraining_peaks.main({name!r})\n"
    path = str(ROOT / "tests" / "e2e")
    code = f"import sys\nsys.path.insert(0, {path!r})\n{code}"
    status, _, err = run(code, folder, MYCELYA_DUMP=str(folder / "dump"))
    assert status == 0, err
    last = sorted((folder / "dump").glob("*/plan.txt"))[-1]
    # The step with the optimizer's state in place: the one that was compiled last.
    own, _, given = map(int, PEAK.search(last.read_text()).groups())
    return own, given


@pytest.mark.parametrize("name", training_peaks.MODELS)
def test_a_training_step_takes_no_more_than_eager(name: str, tmp_path):
    own, given = planned(name, tmp_path)
    eager = training_peaks.eager_peak(name)
    assert own + given <= eager, f"{own} and {given} bytes, eager {eager}"
