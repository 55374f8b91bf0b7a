# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""torch.distributed on the device: several ranks, each with a worker of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ROOT

RANKS = Path(__file__).parent / "ranks"
pytestmark = pytest.mark.timeout(600)


def torchrun(script: str, size: int, **environment: str) -> str:
    """Runs a script under torchrun with several ranks; returns their output."""
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        + [f"--nproc-per-node={size}", str(RANKS / script)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]
    return done.stdout


@pytest.mark.parametrize("size", [2, 4])
def test_collectives(size):
    assert torchrun("collectives.py", size).count("done") == size


def test_training():
    out = torchrun("training.py", 2, MYCELYA_KERNELS="off")
    assert out.count("done") == 2
