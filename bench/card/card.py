# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""What the parts of scripts/gpu.py share.

CARD_ROWS is the file of results, CARD_PART the part that runs. With CARD_DRY=1 the
parts run on a CPU worker with small sizes, and eager PyTorch on the CPU takes the place
of eager CUDA: that shows that they run at all.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

ROOT = Path(__file__).resolve().parents[2]
DRY = os.environ.get("CARD_DRY") == "1"
EAGER = "cpu" if DRY else "cuda"
# Seconds until the kernels of a case must be compiled.
COMPILE_LIMIT = 60

sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "tests" / "e2e")]


def row(name: str, **values: object) -> None:
    """Prints a result, and appends it to the file of results at once."""
    print(name, *(f"{k}={v}" for k, v in values.items()), flush=True)
    if path := os.environ.get("CARD_ROWS"):
        with open(path, "a") as file:
            line = {"part": os.environ.get("CARD_PART"), "row": name, **values}
            file.write(json.dumps(line, default=str) + "\n")


def wait(device: str) -> None:
    """Waits for all work on a device."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    elif device.startswith("mycelya"):
        torch.mycelya.synchronize()


def compile_all(call: Callable[[], object]) -> dict[str, int]:
    """Calls until all kernels of the call are compiled and have been tried.

    Returns:
        the metrics of the last call
    """
    end = time.monotonic() + COMPILE_LIMIT
    while True:
        torch.mycelya.reset_metrics()
        kept = call()  # noqa: F841 (the compiler removes what no tensor holds)
        torch.mycelya.synchronize()
        metrics = torch.mycelya.metrics()
        if metrics["groups_waiting"] + metrics["groups_tried"] == 0:
            return metrics
        if time.monotonic() > end:
            raise TimeoutError(f"kernels are still pending after {COMPILE_LIMIT} s")
        time.sleep(0.01)


def device_times(device: str, call: Callable[[], object], repeats: int) -> float:
    """The median time of a call on the device, in ms, by events of the device."""
    times = []
    for _ in range(repeats):
        wait(device)
        if device == "cpu":
            begin = time.perf_counter()
            call()
            times.append((time.perf_counter() - begin) * 1e3)
            continue
        first, last = (torch.Event(device, enable_timing=True) for _ in range(2))
        first.record()
        kept = call()  # noqa: F841 (the next call must not reuse its memory)
        last.record()
        wait(device)
        times.append(first.elapsed_time(last))
    return median(times)


def copy_rate() -> float:
    """GB/s, read and written, of eager PyTorch's copy of a large tensor."""
    sources = [torch.ones((1 << 20 if DRY else 1 << 28), device=EAGER) for _ in "ab"]
    targets = [torch.empty_like(s) for s in sources]

    def call() -> None:
        for to, of in zip(targets, sources, strict=True):
            to.copy_(of)

    call()
    ms = device_times(EAGER, call, 7)
    return 2 * sum(s.nbytes for s in sources) / ms / 1e6
