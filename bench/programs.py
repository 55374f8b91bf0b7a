# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""The memory of client and worker as a process runs many distinct programs.

    python bench/programs.py [--programs 42000] [--ops 20]

Each program has its own sequence of operators, so none is found in a cache. The caches
are bounded by 256 MiB of measured memory each; the client's heap may be twice that.
Prints the growth of the resident memory of both processes, in MiB, as they run.
"""

import argparse
import json
from pathlib import Path

import torch

from mycelya_torch import _device

OPS = ("exp", "neg", "sin", "tanh", "abs", "cos", "sigmoid", "relu")


def resident(process: str) -> float:
    """The resident memory of a process, in MiB."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(x.split()[1]) for x in lines if x.startswith("VmRSS")) / 1024


def worker() -> str:
    """The process of this one's session."""
    return str(json.loads(_device.device_info(0))["pid"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=42_000)
    parser.add_argument("--ops", type=int, default=20)
    args = parser.parse_args()
    x = torch.ones(8, device="mycelya")
    torch.mycelya.synchronize()
    processes = ("self", worker())
    before = [resident(p) for p in processes]
    print("programs, client MiB, worker MiB")
    for i in range(1, args.programs + 1):
        y, digits = x, i
        for _ in range(args.ops):
            y = getattr(torch, OPS[digits % len(OPS)])(y)
            digits //= len(OPS)
        torch.mycelya.synchronize()
        if i % 1000 == 0 or i == args.programs:
            now = [resident(p) for p in processes]
            grown = [f"{b - a:.0f}" for a, b in zip(before, now, strict=True)]
            print(i, *grown, sep=", ", flush=True)


if __name__ == "__main__":
    main()
