# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""The plan gives a program's peak memory. A training step needs no more than eager."""

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
    """Bytes of the last program: its own buffers, and the storages that it reads."""
    code = f"import training_peaks\ntraining_peaks.main({name!r})\n"
    path = str(ROOT / "tests" / "e2e")
    code = f"import sys\nsys.path.insert(0, {path!r})\n{code}"
    # Level 2 shuffles the nodes, which changes the order and so the plan.
    env = {"MYCELYA_CHECK": "1", "MYCELYA_DUMP": str(folder / "dump")}
    status, _, err = run(code, folder, **env)
    assert status == 0, err
    last = sorted((folder / "dump").glob("*/plan.txt"))[-1]
    # The step that updates existing optimizer state is compiled last.
    own, _, given = map(int, PEAK.search(last.read_text()).groups())
    return own, given


@pytest.mark.parametrize("name", training_peaks.MODELS)
def test_a_training_step_takes_no_more_than_eager(name: str, tmp_path):
    own, given = planned(name, tmp_path)
    eager = training_peaks.eager_peak(name)
    assert own + given <= eager, f"{own} and {given} bytes, eager {eager}"
    if name != "block":  # its peak is in a softmax's gradient, which is not elementwise
        assert own + given <= 0.95 * eager, f"{own} and {given} bytes, eager {eager}"


SCRIPT = """
    import torch, mycelya_torch

    x = torch.ones(1000, 250, device="mycelya")
    torch.mycelya.synchronize()
    y = ((x * 2 + 1).exp() - x).tanh()
    print(y[0, 0].item())
"""


def test_the_plan_lists_the_values_of_a_buffer(tmp_path):
    environment = {"MYCELYA_CHECK": "1", "MYCELYA_DUMP": "-,plan"}
    status, _, err = run(SCRIPT, tmp_path, **environment, MYCELYA_KERNELS="off")
    assert status == 0, err
    *_, memory = err.split("memory: ")
    # Memory holds x, which the user keeps, and one buffer for the five results.
    assert memory.startswith("at most 1000000 bytes of its own at once, at step 0, ")
    assert "mul.Tensor add_.Tensor exp_ sub_.Tensor tanh_\n" in memory


@pytest.mark.usefixtures("used")
def test_explain_shows_the_peak_of_the_last_call():
    def step(n: int) -> float:
        x = torch.ones(n, device=DEVICE)
        torch.mycelya.synchronize()
        return (x.cos() @ x.sin()).item()

    def last() -> str:
        first = re.split(r"\nmycelya:\d+ ", torch.mycelya.explain())[0]
        return first.split("\n\n")[-1]

    step(500)
    assert "It takes at most 3.9 KiB of its own at once, in step" in last(), last()
    step(5000)
    assert re.search(r"at most 39\.1 KiB of .* aten::dot at \S+\.py:\d+, be", last())
    assert "beside storages of 19.5 KiB." in last()
