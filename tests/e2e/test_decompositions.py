# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Composite operators are equal to their decompositions, up to rounding.

decompositions.py has a case for each operator with a decomposition, in four dtypes. It
runs with MYCELYA_CHECK=3. TestRowsAreTested in ir/decomp fails if an operator has no
case; it looks for the operator's name in quotes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
pytestmark = pytest.mark.fast


@pytest.fixture(scope="module")
def results() -> list[dict[str, object]]:
    env = {**os.environ, "MYCELYA_CHECK": "3"}
    script = str(HERE / "decompositions.py")
    done = subprocess.run(
        [sys.executable, script], env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_values(results):
    wrong = [r for r in results if r["error"]]
    assert not wrong, "\n".join(
        f"{r['case']} {r['dtype']}\n{r['error']}" for r in wrong
    )
    assert len(results) > 250


def test_each_case_fuses(results):
    """A case that does not fuse does not test its decomposition."""
    alone = {r["case"] for r in results if not r["fused"]}
    assert not alone
