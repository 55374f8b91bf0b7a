# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""bench: the round trip and the rates to a machine. It needs torch."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from mycelya_cli import _machines, _show, _up

if TYPE_CHECKING:
    import torch

_TRIPS = 50
_REPEATS = 5


def _rtt(device: torch.device) -> list[float]:
    """Seconds that reads of one number take."""
    import torch

    x = torch.ones(1, device=device)
    out = []
    for _ in range(_TRIPS + 5):
        began = time.perf_counter()
        x.item()
        out.append(time.perf_counter() - began)
    return sorted(out[5:])  # the first reads find caches cold


def _rates(device: torch.device, size: int) -> tuple[list[float], list[float]]:
    """Bytes per second of uploads and downloads of so many random bytes."""
    import torch

    mycelya: Any = torch.get_device_module("mycelya")
    ups, downs = [], []
    for _ in range(_REPEATS):
        data = torch.randint(
            256, (size,), dtype=torch.uint8
        )  # a worker has not seen it
        mycelya.synchronize(device)
        began = time.perf_counter()
        there = data.to(device)
        mycelya.synchronize(device)
        ups.append(size / (time.perf_counter() - began))
        began = time.perf_counter()
        back = there.cpu()
        downs.append(size / (time.perf_counter() - began))
        if not torch.equal(back, data):
            raise click.ClickException("What came back is not what was sent.")
    return ups, downs


@click.command()
@click.argument("name", required=False, shell_complete=_machines.complete_names)
@click.option(
    "--mib",
    type=click.IntRange(1, 4096),
    default=64,
    show_default=True,
    help="Size of each upload and download.",
)
@_up.force_option
@_machines.provider_options
@_show.json_option
def bench(
    name: str | None, mib: int, force: bool, options: Sequence[str], as_json: bool
) -> None:
    """Measure the round trip and the rates to a machine.

    Without NAME it measures a new machine: that of MYCELYA_MACHINE, else a local one.
    """
    with _show.working("measuring"):
        import torch

        if name is None:
            device = torch.device("mycelya", 0)
        else:
            machine = _up.attached(name, options, force)
            device = machine.device()
        try:
            trips = _rtt(device)
            ups, downs = _rates(device, mib << 20)
        except RuntimeError as error:
            raise _up.sentence(error) from None
    result = {
        "device": torch.get_device_module("mycelya").get_device_name(device),
        "rtt_seconds": statistics.median(trips),
        "rtt_seconds_p95": trips[int(0.95 * len(trips))],
        "upload_bytes_per_second": statistics.median(ups),
        "download_bytes_per_second": statistics.median(downs),
        "bytes": mib << 20,
        "repeats": _REPEATS,
    }
    if as_json:
        _show.print_json(result)
        return
    trip, late = result["rtt_seconds"] * 1e3, result["rtt_seconds_p95"] * 1e3
    rows = [
        ["round trip", f"{trip:.2f} ms", f"95 % of {_TRIPS} within {late:.2f} ms"],
        ["upload", _rate(result["upload_bytes_per_second"]), f"{mib} MiB"],
        ["download", _rate(result["download_bytes_per_second"]), f"{mib} MiB"],
    ]
    _show.print_table([result["device"], "MEDIAN", "OF"], rows)


def _rate(bytes_per_second: float) -> str:
    return f"{bytes_per_second / 1e6:.0f} MB/s"
