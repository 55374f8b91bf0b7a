# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Composite operators are what ir/decomp says that they are made of.

decompositions.py holds a case for each operator of the table and runs them with
MYCELYA_CHECK=3, in all dtypes that kernels compute in. TestRowsAreTested of ir/decomp
finds a row without a case here, by the names in quotes.
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


def test_all_meet_others(results):
    """Else nothing has been compared."""
    alone = {r["case"] for r in results if not r["fused"]}
    assert not alone
