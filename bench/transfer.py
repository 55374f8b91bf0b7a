# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""The rate of uploads: GB/s from the CPU to the device, against a copy on the CPU.

A repeat is one upload and a wait for the device, so the worker's time counts. The
worker allocates fresh memory for the new tensor, as PyTorch does for clone(); copy_
writes into pages that are already mapped. One process with one thread measures all
rows in turns; a figure is the minimum over the repeats.

    python bench/transfer.py [--repeats N] [--mib N] [--markdown]

--markdown writes the table between the marks in bench/RESULTS.md.
"""

import argparse
import gc
import math
import time
from collections.abc import Callable

import results
import torch

import mycelya_torch  # noqa: F401 (registers the device)

CPU = "torch on the CPU, clone()"


def cases(n: int) -> dict[str, Callable[[], object]]:
    """Name -> function that moves n bytes."""
    x = torch.zeros(n, dtype=torch.uint8).random_()
    pinned, out = x.pin_memory(), torch.ones_like(x)
    return {
        CPU: x.clone,
        "torch on the CPU, copy_()": lambda: out.copy_(x),
        "pageable": lambda: x.to("mycelya"),
        "pinned": lambda: pinned.to("mycelya"),
        "pinned, non_blocking": lambda: pinned.to("mycelya", non_blocking=True),
    }


def measure(n: int, repeats: int) -> dict[str, float]:
    """Seconds by name."""
    calls = cases(n)
    best = dict.fromkeys(calls, math.inf)
    for repeat in range(repeats + 2):  # the first two warm up
        for name, call in calls.items():
            torch.mycelya.synchronize()
            start = time.perf_counter()
            call()
            torch.mycelya.synchronize()
            if repeat >= 2:
                best[name] = min(best[name], time.perf_counter() - start)
    return best


def table(n: int, seconds: dict[str, float]) -> str:
    """The rows as markdown."""
    lines = ["| upload | GB/s | of clone()'s speed |", "|---|---:|---:|"]
    for name, s in seconds.items():
        lines.append(f"| {name} | {n / s / 1e9:.2f} | {seconds[CPU] / s:.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--markdown", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    gc.disable()  # a collection would disturb a single repeat
    text = table(args.mib << 20, measure(args.mib << 20, args.repeats))
    print(text)
    if args.markdown:
        results.write(
            "transfer.py", f"{args.mib} MiB, minimum of {args.repeats} repeats", text
        )


if __name__ == "__main__":
    main()
