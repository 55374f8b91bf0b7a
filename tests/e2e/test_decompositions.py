# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Composite operators are equal to their decompositions, up to rounding.

decompositions.py has a case for each operator with a decomposition, in four dtypes. It
runs with MYCELYA_CHECK=3. TestRowsAreTested in ir/decomp fails if an operator has no
case; it looks for the operator's name in quotes.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers import on_cuda, run_file

HERE = Path(__file__).parent
pytestmark = pytest.mark.fast


@pytest.fixture(scope="module")
def results() -> list[dict[str, object]]:
    out, _ = run_file(HERE / "decompositions.py", MYCELYA_CHECK="3")
    return [json.loads(line) for line in out.splitlines()]


def rounds_otherwise(result) -> bool:
    """Whether CUDA's operator rounds intermediate values that the kernels do not round.

    Its group norm rounds the mean and the deviation of 16-bit inputs to 16 bits before
    it uses them.
    """
    narrow = result["dtype"] in ("torch.bfloat16", "torch.float16")
    group_norm = result["case"].startswith("aten::native_group_norm")
    return on_cuda() and narrow and group_norm


def test_values(results):
    wrong = [r for r in results if r["error"] and not rounds_otherwise(r)]
    assert not wrong, "\n".join(
        f"{r['case']} {r['dtype']}\n{r['error']}" for r in wrong
    )
    assert len(results) > 250


def test_each_case_fuses(results):
    """A case that does not fuse does not test its decomposition."""
    alone = {r["case"] for r in results if not r["fused"]}
    assert not alone
