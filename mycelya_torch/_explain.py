# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Explains the device: the pending graph, the programs, the cost of each line."""

from __future__ import annotations

import json
from html import escape
from typing import NamedTuple

import torch

from mycelya_torch import _device, _notebook


class BillLine(NamedTuple):
    """The cost of one Python line.

    A line pays for the trace that it cuts, including the answer, and for its own waits
    for the worker.
    """

    file: str  # "" if unknown
    line: int
    cuts: dict[str, int]  # by reason
    programs_compiled: int
    round_trips: int  # requests that waited for an answer
    bytes_sent: int  # all messages, uploads included
    upload_bytes: int  # of tensors, shared memory included
    bytes_received: int
    stalls: int  # waits that did not end at once
    stall_seconds: float

    @property
    def place(self) -> str:
        """File and line, or a sign that they are not known."""
        return f"{self.file}:{self.line}" if self.file else "(unknown)"


class NetworkBill(list[BillLine]):
    """Python lines by cost: the longest stalls first, then by bytes.

    str() returns a table.
    """

    def __str__(self) -> str:
        titles = ["line", "cuts", "programs", "trips", "sent", "received", "stalled"]
        rows = [titles]
        for x in self:
            cuts = ", ".join(f"{n} {reason}" for reason, n in sorted(x.cuts.items()))
            rows.append(
                [
                    x.place,
                    cuts,
                    str(x.programs_compiled),
                    str(x.round_trips),
                    _bytes(x.bytes_sent),
                    _bytes(x.bytes_received),
                    f"{x.stall_seconds:.3f} s",
                ]
            )
        return table(rows)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = []
        for x in self:
            place = _notebook.with_sources(x.place)
            code = f"<code>{escape(_notebook.source(x.file, x.line))}</code>"
            cuts = ", ".join(f"{n} {reason}" for reason, n in sorted(x.cuts.items()))
            bytes_ = _bytes(x.bytes_sent), _bytes(x.bytes_received)
            counts = x.programs_compiled, x.round_trips
            wait = f"{x.stall_seconds:.3f} s"
            rows.append([place, code, cuts, *counts, *bytes_, wait])
        titles = ["line", "source", "cuts", "programs", "trips", "sent", "received"]
        return _notebook.table([*titles, "stalled"], rows)


def table(rows: list[list[str]]) -> str:
    """Rows as lines of text. The first two columns are aligned on the left."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        left = [text.ljust(w) for text, w in zip(row[:2], widths[:2], strict=True)]
        right = [text.rjust(w) for text, w in zip(row[2:], widths[2:], strict=True)]
        lines.append("  ".join(left + right).rstrip())
    return "\n".join(lines)


def _bytes(n: int) -> str:
    size, unit = float(n), "B"
    for unit in ("B", "KiB", "MiB", "GiB"):  # noqa: B007 (the last one is used)
        if size < 1000 or unit == "GiB":
            break
        size /= 1024
    return f"{n} B" if unit == "B" else f"{size:.1f} {unit}"


def network_bill() -> NetworkBill:
    """Implements torch.mycelya.network_bill."""
    lines = json.loads(_device.bill())
    return NetworkBill(BillLine(**line) for line in lines if _cost(line))


def _cost(line: dict[str, object]) -> bool:
    return any(value for name, value in line.items() if name not in ("file", "line"))


def explain(tensor: torch.Tensor | None) -> str:
    """Implements torch.mycelya.explain."""
    if tensor is not None:
        return _pending(tensor)
    if not _device.is_initialized():
        return "The mycelya device has not been used yet."
    devices = [
        _device.explain(i)
        for i in range(_device.device_count())
        if _device.state(i) != "stopped"
    ]
    return _notebook.Explanation("\n".join(devices))


def _pending(tensor: torch.Tensor) -> str:
    if not isinstance(tensor, torch.Tensor) or tensor.device.type != "mycelya":
        what = f"a tensor on {tensor.device}" if torch.is_tensor(tensor) else tensor
        raise TypeError(f"Expected a tensor on a mycelya device, got {what!r}.")
    if tensor.layout != torch.strided:
        raise TypeError(
            f"Expected a dense tensor, got one of layout {tensor.layout}: pass its "
            "parts, such as its values()."
        )
    name = f"storage {_device.storage_id(tensor)} of {tensor.device}"
    graph = _device.pending(tensor)
    if not graph:
        return f"Nothing is pending for {name}: all ops that compute it have been sent."
    return _notebook.Report(f"{name} is pending:\n{graph}")
