# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Runs a script and writes what it has cost, for `mycelya run --rtt`."""

from __future__ import annotations

import json
import time

import torch

from mycelya_torch import _device, _explain, device
from mycelya_torch._trace import run_script


def main(argv: list[str]) -> None:
    """Runs a script.

    Args:
        argv: the file for the summary, the script's path, and its arguments
    """
    torch.ones(1, device="mycelya").cpu()  # the machine's start is no cost of a line
    device.reset_metrics()
    began = time.perf_counter()
    status = None
    try:
        status = run_script(argv[1:])
        device.synchronize()
    finally:
        seconds = time.perf_counter() - began
        metrics = json.loads(_device.metrics())
        names = ["round_trips", "blocking_reads", "stall_seconds"]
        names += ["bytes_sent", "bytes_received"]
        lines = [
            [line.place, line.round_trips, line.stall_seconds]
            for line in _explain.network_bill()
        ]
        found = {"seconds": seconds, "lines": lines}
        with open(argv[0], "w") as file:
            json.dump(found | {name: metrics[name] for name in names}, file)
    if status is not None:
        raise status
