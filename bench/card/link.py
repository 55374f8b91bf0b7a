# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""The step of step.py behind a slow network, and the speed of transfers.

The emulated network (bench/slowlink) lies between client and worker, with round trips
of 0, 50 and 100 ms.
"""

import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from statistics import median

import step
import torch
from card import DRY, ROOT, row

import mycelya_torch  # noqa: F401
from mycelya_torch import _load

FLOATS = (1 << 18) if DRY else (64 << 20)


def slowlink(folder: Path) -> Path:
    """The program of the kit, else one that is built."""
    carried = ROOT / "build" / "kit" / "slowlink"
    if carried.exists():
        return carried
    out = folder / "slowlink"
    command = ["go", "build", "-o", str(out), "./bench/slowlink"]
    subprocess.run(command, cwd=ROOT, check=True)
    return out


def steps(folder: Path) -> int:
    """The step at each round trip time; returns how many have failed."""
    program, first, failed = slowlink(folder), 0.0, 0
    for rtt in (0, 50, 100):
        script = folder / f"worker-{rtt}"
        script.write_text(
            f'#!/bin/sh\nexec "{program}" --delay {rtt * 500}us --rate 0 '
            f'--worker "{_load.WORKER}" -- "$@"\n'
        )
        script.chmod(0o700)
        try:
            found = step.run("on", CARD_WORKER=str(script))
        except RuntimeError as error:
            failed += 1
            row(f"step at {rtt} ms", ok=False, found=str(error))
            continue
        first = first or found["ms"]
        of_first = round(first / found["ms"], 3)
        row(f"step at {rtt} ms", ok=True, ms=found["ms"], speed_of_0_ms=of_first)
    return failed


def transfers() -> None:
    for pinned in (False, True):
        x = torch.ones(FLOATS)
        x = x.pin_memory() if pinned else x
        up, down = [], []
        for _ in range(5):
            x[0] += 1  # other bytes
            torch.mycelya.synchronize()
            begin = time.perf_counter()
            there = x.to("mycelya")
            torch.mycelya.synchronize()
            between = time.perf_counter()
            there.cpu()
            down.append(time.perf_counter() - between)
            up.append(between - begin)
        rates = {
            "up_GBs": round(x.nbytes / median(up) / 1e9, 2),
            "down_GBs": round(x.nbytes / median(down) / 1e9, 2),
        }
        row("transfer, pinned" if pinned else "transfer", MiB=x.nbytes >> 20, **rates)


failed = 0
try:
    transfers()
except Exception:
    failed = 1
    traceback.print_exc()
with tempfile.TemporaryDirectory() as place:
    failed += steps(Path(place))
sys.exit(failed > 0)
