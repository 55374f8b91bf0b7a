# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""torch.distributed on the device: several ranks, each with a worker of its own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ROOT

RANKS = Path(__file__).parent / "ranks"
pytestmark = pytest.mark.timeout(600)


def torchrun(script: str, size: int, *arguments: str, **environment: str) -> str:
    """Runs a script under torchrun with several ranks; returns their output."""
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        + [f"--nproc-per-node={size}", str(RANKS / script), *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]
    return done.stdout


@pytest.mark.parametrize("size", [2, 4])
def test_collectives(size):
    out = torchrun("collectives.py", size, MYCELYA_KERNELS="off")
    assert out.count("done") == size


def test_training():
    out = torchrun("training.py", 2, MYCELYA_KERNELS="off")
    assert out.count("done") == 2


@pytest.mark.parametrize("size", [2, 4])
def test_sharded_models(size):
    out = torchrun("sharded.py", size, MYCELYA_KERNELS="off")
    assert out.count("done") == size


@pytest.mark.parametrize(
    ("fault", "first", "second"),
    [
        (
            "differ",
            "Rank 0 waits in all_reduce #1 of 4 elements, .*faults.py:{there}, "
            "but rank 1 is at broadcast #1 of 4 elements, .*faults.py:{here}.",
            "Rank 1 waits in broadcast #1 of 4 elements, .*faults.py:{here}, "
            "but rank 0 is at all_reduce #1 of 4 elements, .*faults.py:{there}.",
        ),
        (
            "fail",
            "Rank 0 waits in all_reduce #1 .*faults.py:{there}, "
            "but rank 1 has failed: index 9 is out of bounds",
            "index 9 is out of bounds",
        ),
        (
            "end",
            "Rank 0 waits in all_reduce #1 .*faults.py:{there}, "
            "and rank 1 does not take part: .*([Cc]onnection|[Pp]ipe)",
            "mycelya:0 is lost: its worker .* was ended by signal killed",
        ),
    ],
)
def test_faults(fault, first, second):
    lines = (RANKS / "faults.py").read_text().splitlines()
    found = {
        mark: next(i for i, line in enumerate(lines, 1) if line.endswith(f"# {mark}"))
        for mark in ("here", "there")
    }
    out = torchrun("faults.py", 2, fault)
    for rank, text in enumerate((first, second)):
        assert re.search(f"<{rank} {text.format(**found)}", out), out
