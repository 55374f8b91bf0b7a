# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""bench: what an op, a compilation, a round trip and transfers cost. It needs torch.

Transfers are set against clone() of the same bytes in this process, and against TCP
over this host's loopback interface, both measured in the same run.
"""

from __future__ import annotations

import socket
import statistics
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from mycelya_cli import _machines, _show, _up

if TYPE_CHECKING:
    import torch

_TRIPS = 50
_REPEATS = 5
_OPS = 2000  # recorded in a row


def _record(device: torch.device) -> float:
    """Seconds until Python goes on after an op."""
    import torch

    mycelya: Any = torch.get_device_module("mycelya")
    x = torch.ones(16, device=device)
    out = []
    for _ in range(_REPEATS):
        mycelya.synchronize(device)
        began = time.perf_counter()
        for _ in range(_OPS):
            x + 1
        out.append((time.perf_counter() - began) / _OPS)
    return min(out)


def _compile(device: torch.device) -> float:
    """Seconds that the compilation of a new training step takes."""
    import torch
    from torch import nn

    mycelya: Any = torch.get_device_module("mycelya")
    out: list[float] = []
    for layers in range(2, 2 + _REPEATS):
        block = (layer for _ in range(layers) for layer in (nn.Linear(8, 8), nn.GELU()))
        net = nn.Sequential(*block).to(device)
        optimizer = torch.optim.AdamW(net.parameters())
        x = torch.ones(16, 8, device=device)
        mycelya.synchronize(device)
        before = mycelya.metrics()["compile_seconds"]
        net(x).square().mean().backward()
        optimizer.step()
        mycelya.synchronize(device)
        out.append(mycelya.metrics()["compile_seconds"] - before)
    return statistics.median(out)


def _clone_rate(size: int) -> float:
    """Bytes per second of clone() on the CPU."""
    import torch

    data = torch.ones(size, dtype=torch.uint8)
    out = []
    for _ in range(_REPEATS + 1):
        began = time.perf_counter()
        data.clone()
        out.append(size / (time.perf_counter() - began))
    return statistics.median(out[1:])


def _tcp_rate(size: int) -> float:
    """Bytes per second of a TCP stream over the loopback interface."""
    data, to = bytes(size), bytearray(size)
    out = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = socket.create_connection(server.getsockname())
        there, _ = server.accept()
    with here, there:
        for _ in range(_REPEATS):
            sender = threading.Thread(target=here.sendall, args=(data,))
            began = time.perf_counter()
            sender.start()
            left = memoryview(to)
            while left:
                left = left[there.recv_into(left) :]
            out.append(size / (time.perf_counter() - began))
            sender.join()
    return statistics.median(out)


def _rtt(device: torch.device) -> list[float]:
    """Seconds that reads of one new number take."""
    import torch

    x = torch.empty(1, device=device)
    out = []
    for _ in range(_TRIPS + 5):
        x.uniform_()  # this process does not know it
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
    """Measure what an op, a compilation, a round trip and transfers cost.

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
            record, compiled = _record(device), _compile(device)
            trips = _rtt(device)
            ups, downs = _rates(device, mib << 20)
        except RuntimeError as error:
            raise _up.sentence(error) from None
        clone, tcp = _clone_rate(mib << 20), _tcp_rate(mib << 20)
    result = {
        "device": torch.get_device_module("mycelya").get_device_name(device),
        "record_seconds": record,
        "compile_seconds": compiled,
        "rtt_seconds": statistics.median(trips),
        "rtt_seconds_p95": trips[int(0.95 * len(trips))],
        "upload_bytes_per_second": statistics.median(ups),
        "download_bytes_per_second": statistics.median(downs),
        "clone_bytes_per_second": clone,
        "tcp_bytes_per_second": tcp,
        "bytes": mib << 20,
        "repeats": _REPEATS,
    }
    if as_json:
        _show.print_json(result)
        return
    trip, late = result["rtt_seconds"] * 1e3, result["rtt_seconds_p95"] * 1e3
    rows = [
        ["record", f"{record * 1e6:.2f} µs", "an op of 16 elements", "", ""],
        ["compile", f"{compiled * 1e3:.1f} ms", "a step of training", "", ""],
        ["round trip", f"{trip:.2f} ms", f"95 % within {late:.2f} ms", "", ""],
    ]
    for what, rate in (
        ("upload", result["upload_bytes_per_second"]),
        ("download", result["download_bytes_per_second"]),
        ("clone()", clone),
        ("TCP here", tcp),
    ):
        shares = [f"{rate / clone:.2f}", f"{rate / tcp:.2f}"]
        rows.append([what, f"{rate / 1e6:.0f} MB/s", f"{mib} MiB", *shares])
    head = [result["device"], "MEDIAN", "OF", "PER CLONE()", "PER TCP"]
    _show.print_table(head, rows)
