# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""The step of step.py behind a slow network, and the speed of transfers.

The network is emulated (rtt= of the local machine), with round trips of 0, 50 and 100
ms.
"""

import os
import sys
import time
import traceback
from statistics import median

import step
import torch
from card import DRY, row

import mycelya_torch  # noqa: F401

FLOATS = (1 << 18) if DRY else (64 << 20)


def steps() -> int:
    """The step at each round trip time; returns how many have failed."""
    first, failed = 0.0, 0
    for rtt in (0, 50, 100):
        machine = f"{os.environ['MYCELYA_MACHINE']}?transport=tcp&rtt={rtt}ms"
        try:
            found = step.run("on", MYCELYA_MACHINE=machine)
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
failed += steps()
sys.exit(failed > 0)
