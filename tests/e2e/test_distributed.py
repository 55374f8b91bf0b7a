# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""torch.distributed on the device: several ranks, each with a worker of its own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ROOT, SOAK

RANKS = Path(__file__).parent / "ranks"
pytestmark = pytest.mark.timeout(600)


def torchrun(
    script: str | Path,
    size: int,
    *arguments: str,
    under: tuple[str, ...] = (sys.executable,),
    options: tuple[str, ...] = (),
    timeout: float = 500,
    **environment: str,
) -> str:
    """Runs a script under torchrun with several ranks; returns their output."""
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python"]
        + [
            f"--nproc-per-node={size}",
            *options,
            *under,
            str(RANKS / script),
            *arguments,
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]
    return done.stdout


@pytest.mark.parametrize("size", [2, 4])
def test_collectives(size):
    out = torchrun("collectives.py", size, MYCELYA_KERNELS="off")
    assert out.count("done") == size


def test_devices():
    assert torchrun("devices.py", 2).count("done") == 2


def test_a_script_for_cuda():
    under = (sys.executable, "-m", "mycelya_cli", "run", "--as-cuda", "-m", "local:cpu")
    assert torchrun("for_cuda.py", 2, under=under).count("done") == 2


@pytest.mark.parametrize("size", [2, 4])
def test_training(size):
    out = torchrun("training.py", size, MYCELYA_KERNELS="off")
    assert out.count("done") == size


@pytest.mark.parametrize("size", [2, 4])
def test_losses_of_the_joint_batch(size):
    """With kernels, which have other roundings."""
    assert torchrun("joint.py", size).count("done") == size


@pytest.mark.parametrize("size", [2, 4])
def test_sharded_models(size):
    out = torchrun("sharded.py", size, MYCELYA_KERNELS="off")
    assert out.count("done") == size


ALL_REDUCE = "Rank 0 waits in all_reduce #1 of 4 elements, .*faults.py:{there}, "
BROADCAST = "broadcast #1 of 4 elements, .*faults.py:{here}"
FAULTS = {
    "differ": (
        f"{ALL_REDUCE}but rank 1 is at {BROADCAST}.",
        f"Rank 1 waits in {BROADCAST}, but rank 0 is at all_reduce #1 ",
    ),
    "fail": (
        f"{ALL_REDUCE}but rank 1 has failed: index 9 is out of bounds",
        "index 9 is out of bounds",
    ),
    "absent": (
        f"{ALL_REDUCE}and rank 1 does not take part: ",
        r"\[2.0, 2.0, 2.0, 2.0\]",
    ),
    "end": (  # before the worker has said that it takes part, or after
        f"{ALL_REDUCE}and (rank 1 does not take part|the exchange with .* fails): ",
        "mycelya:1 is lost: its worker .* was ended by signal killed",
    ),
}


def raised(out: str, first: str, second: str) -> None:
    lines = (RANKS / "faults.py").read_text().splitlines()
    found = {
        mark: next(i for i, line in enumerate(lines, 1) if line.endswith(f"# {mark}"))
        for mark in ("here", "there")
    }
    for rank, text in enumerate((first, second)):
        assert re.search(f"<{rank} {text.format(**found)}", out), out


@pytest.mark.parametrize("fault", FAULTS)
def test_faults(fault):
    raised(torchrun("faults.py", 2, fault), *FAULTS[fault])


def test_torchrun_starts_all_again():
    out = torchrun("faults.py", 2, "restart", options=("--max-restarts=1",))
    raised(out, *FAULTS["end"])
    assert out.count("[4.0, 4.0, 4.0, 4.0]>") == 2


@pytest.mark.parametrize(
    ("peers", "error"),
    [
        ("", "This worker has no address at which other workers reach it."),
        ("192.0.2.1", "Rank . does not find the workers of the 1 other ranks: "),
    ],
)
def test_workers_that_do_not_find_each_other(peers, error):
    raised(torchrun("faults.py", 2, "none", MYCELYA_PEERS=peers), error, error)


def losses(out: str) -> list[float]:
    return [float(value) for value in re.findall(r"^loss=([\d.]+)$", out, re.M)]


@pytest.mark.parametrize(
    ("name", "steps", "last"),
    [
        ("ddp_digits.py", ("--epochs", "1"), r"accuracy=0\.\d+ .* workers=2"),
        ("fsdp_chargpt.py", ("--steps", "20"), r"workers=2 weights=(\d+) of \d+"),
    ],
)
def test_examples(name, steps, last):
    script = ROOT / "examples" / name
    arguments = (*steps, "--print-losses", "20")
    there = torchrun(script, 2, *arguments)
    here = torchrun(script, 2, *arguments, "--device", "cpu")
    assert re.search(last, there), there
    assert len(losses(there)) == 20 and losses(there)[19] < losses(there)[0]
    assert losses(there) == pytest.approx(losses(here), rel=1e-4)


@pytest.mark.timeout(600 * SOAK)
def test_schedules():
    """Programs that wait for each other in many ways end, and compute right."""
    out = torchrun("schedules.py", 3, "0", str(150 * SOAK), timeout=580 * SOAK)
    assert out.count("done") == 3
