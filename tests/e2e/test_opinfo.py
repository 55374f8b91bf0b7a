# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Every op of PyTorch's op database computes the same on the device as on the CPU.

opinfo.py compares values, dtypes, strides, shared memory, writes, gradients and errors.
`--summary` prints tables of all results and writes COVERAGE.md.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import opinfo_process
import pytest
from helpers import freeze
from opinfo import DTYPES, OPS, Outcome, categories_of, dtypes_of
from opinfo_process import CaseProcess
from opinfo_report import bad, pack

# The most samples per op and category. One sample makes several cases.
SAMPLES = {"float32": 64, "float64": 16, "complex64": 16, "bfloat16": 16, "int64": 16}
OTHER_SAMPLES = 8
LARGE = {"grid_sampler_3d": 4}  # a sample takes a second
PARTS = 8  # parts of the fast test; each runs every PARTS-th op


@pytest.fixture(scope="module")
def child() -> Iterator[CaseProcess]:
    """A child with MYCELYA_CHECK=1: it verifies graphs but does not print them."""
    child = CaseProcess(check="1")
    yield child
    child.stop()


@pytest.fixture(scope="module")
def checked_child() -> Iterator[CaseProcess]:
    child = CaseProcess(check="2")
    yield child
    child.stop()


def failures_of(outcomes: dict[str, Outcome]) -> str:
    """The cases that did not pass, one per line."""
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
    assert not (failed := failures_of(outcomes)), failed


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
    assert not (failed := failures_of(outcomes)), failed


# ---- The suite itself ----


def child_of(pid: int) -> int:
    """The pid of the only child of a process."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    (child,) = [c for t in tasks for c in (t / "children").read_text().split()]
    return int(child)


def worker_of(pid: int) -> int:
    """The pid of the session process of the worker that a process has started."""
    return child_of(child_of(pid))


ENDS = {
    "process": ("crashes", lambda pid: os.kill(pid, signal.SIGKILL)),
    "worker": ("crashes", lambda pid: os.kill(worker_of(pid), signal.SIGKILL)),
    "stopped": ("hangs", freeze),
    "worker stopped": ("hangs", lambda pid: freeze(worker_of(pid))),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", ENDS)
def test_a_crash_or_hang_is_reported_and_costs_one_case(
    what: str, child: CaseProcess, monkeypatch
) -> None:
    field, end = ENDS[what]
    assert child.run("add", "float32", "forward", 2).exact >= 2
    # For the first case of another process, too, whose worker starts.
    monkeypatch.setattr(opinfo_process, "HANG", 30.0)
    worker = worker_of(child.process.pid)
    end(child.process.pid)
    outcome = child.run("add", "float32", "forward", 2)
    with contextlib.suppress(ProcessLookupError):  # it may have ended
        os.kill(worker, signal.SIGKILL)
    assert len(getattr(outcome, field)) == 1 and not outcome.failures
    assert len(outcome.crashes + outcome.hangs) == 1
    assert outcome.exact >= 2  # the cases ran again in another process
    monkeypatch.undo()
    assert not bad(child.run("mul", "float32", "forward", 2))
