# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Every op of PyTorch's op database gives on the device what it gives on the CPU.

Values, dtypes, strides, sharing of memory, writes, gradients and errors; opinfo.py
says how. `--summary` prints tables of the whole and writes COVERAGE.md.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import opinfo_process
import pytest
from opinfo import DTYPES, OPS, Outcome, categories_of, dtypes_of
from opinfo_process import CaseProcess
from opinfo_report import bad, pack

# How many samples of an op a category takes at most; a sample makes several cases.
SAMPLES = {"float32": 64, "float64": 16, "complex64": 16, "bfloat16": 16, "int64": 16}
OTHER_SAMPLES = 8
LARGE = {"grid_sampler_3d": 4}  # a sample takes a second
PARTS = 8  # of the fast test, each with every PARTS-th op


@pytest.fixture(scope="module")
def child() -> Iterator[CaseProcess]:
    """Checks of graphs are those of a user who asks for them, not each pass's."""
    child = CaseProcess(check="1")
    yield child
    child.stop()


@pytest.fixture(scope="module")
def checked_child() -> Iterator[CaseProcess]:
    child = CaseProcess(check="2")
    yield child
    child.stop()


def told(outcomes: dict[str, Outcome]) -> str:
    """What did not pass, a line each."""
    return "\n".join(
        f"{kind} {title}: {where}\n    {text}"
        for title, outcome in outcomes.items()
        for kind, where, text in bad(outcome)
    )


@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(PARTS))
def test_a_sample_or_two_of_each_op(part: int, checked_child: CaseProcess) -> None:
    outcomes = {}
    for name in list(OPS)[part::PARTS]:
        if "float32" in dtypes_of(OPS[name]):
            for category in ("forward", "grad", "inplace", "out"):
                if category in categories_of(OPS[name], "float32"):
                    outcome = checked_child.run(name, "float32", category, 2)
                    outcomes[f"{name} {category}"] = outcome
    assert not (failed := told(outcomes)), failed


def every_op() -> Iterator[tuple[str, str]]:
    for name, op in OPS.items():
        for dtype in dtypes_of(op):
            yield name, dtype


@pytest.mark.sweep
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name, dtype", list(every_op()))
def test_op(name: str, dtype: str, child: CaseProcess, record_property) -> None:
    assert dtype in DTYPES
    cap = min(SAMPLES.get(dtype, OTHER_SAMPLES), LARGE.get(name, 1 << 30))
    outcomes = {
        category: child.run(name, dtype, category, cap)
        for category in categories_of(OPS[name], dtype)
    }
    record_property("opinfo", pack(name, dtype, outcomes))
    assert not (failed := told(outcomes)), failed


# ---- The suite itself ----


def worker_of(pid: int) -> int:
    """The process that the process has started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    if not children:  # another of its threads did
        tasks = Path(f"/proc/{pid}/task").iterdir()
        children = [c for t in tasks for c in (t / "children").read_text().split()]
    (worker,) = children
    return int(worker)


ENDS = {
    "process": ("crashes", lambda pid: os.kill(pid, signal.SIGKILL)),
    "worker": ("crashes", lambda pid: os.kill(worker_of(pid), signal.SIGKILL)),
    "stopped": ("hangs", lambda pid: os.kill(pid, signal.SIGSTOP)),
    "worker stopped": ("hangs", lambda pid: os.kill(worker_of(pid), signal.SIGSTOP)),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", ENDS)
def test_an_end_is_told_and_costs_one_op(
    what: str, child: CaseProcess, monkeypatch
) -> None:
    field, end = ENDS[what]
    assert child.run("add", "float32", "forward", 2).exact >= 2
    monkeypatch.setattr(opinfo_process, "HANG", 5.0)
    worker = worker_of(child.process.pid)
    end(child.process.pid)
    outcome = child.run("add", "float32", "forward", 2)
    with contextlib.suppress(ProcessLookupError):  # one that is stopped ends no more
        os.kill(worker, signal.SIGKILL)
    assert len(getattr(outcome, field)) == 1 and not outcome.failures
    assert len(outcome.crashes + outcome.hangs) == 1
    assert outcome.exact >= 2  # the cases ran after all, in another process
    monkeypatch.undo()
    assert not bad(child.run("mul", "float32", "forward", 2))
