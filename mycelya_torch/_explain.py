# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Explains the device: the pending graph, the programs, the cost of each line."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from html import escape
from typing import NamedTuple

import torch

from mycelya_torch import _device, _notebook


class BillLine(NamedTuple):
    """The cost of one Python line.

    A line pays for the trace that it cuts, including the answer, and for its own waits
    for the worker. The worker's time is that of the line's own ops, in calls that a
    profile, `torch.mycelya.trace()` or MYCELYA_DUMP with `times` has timed.
    """

    file: str  # "" if unknown
    line: int
    cuts: dict[str, int]  # by reason
    programs_compiled: int
    round_trips: int  # requests with an answer
    trips_made: dict[str, int]  # the same by reason: see the text of the bill
    trips_saved: dict[str, int]  # reads that no one waited for, by what has saved it
    bytes_sent: int  # all messages, uploads included
    upload_bytes: int  # of tensors, shared memory included
    bytes_received: int
    stalls: int  # waits that did not end at once
    stall_seconds: float
    worker_seconds: float  # of the steps that the line recorded, where calls were timed
    callers: dict[str, float]  # of a library's line: the lines that led to it; stalls

    @property
    def place(self) -> str:
        """File and line, or a sign that they are not known."""
        return f"{self.file}:{self.line}" if self.file else "(unknown)"


class NetworkBill(list[BillLine]):
    """Python lines by cost: the longest stalls first, then by bytes.

    str() returns a table, with the meaning of its columns below it.
    """

    def __str__(self) -> str:
        columns = self._columns()
        rows = [list(columns)]
        rows += [[place, *map(str, cells)] for place, _, cells in self._rows(columns)]
        width = max(map(len, columns))
        legend = [f"{name.ljust(width)}  {_MEANING[name]}" for name in columns]
        texts = ("line", "cuts", "for", "saved", "called from")
        left = [i for i, name in enumerate(columns) if name in texts]
        return "\n".join([table(rows, left), "", *legend])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        columns = self._columns()
        rows = []
        for place, code, cells in self._rows(columns):
            shown = [_notebook.with_sources(c) if type(c) is str else c for c in cells]
            source = f"<code>{escape(code)}</code>"
            rows.append([_notebook.with_sources(place), source, *shown])
        legend = [f"<b>{name}</b>: {escape(_MEANING[name])}" for name in columns]
        titles = [columns[0], "source", *columns[1:]]
        return _notebook.table(titles, rows) + f"<p>{'<br>'.join(legend)}</p>"

    def _columns(self) -> list[str]:
        """The titles of the columns that have something to show."""
        absent = set()
        if not any(x.trips_saved for x in self):
            absent.add("saved")
        if not any(x.worker_seconds for x in self):
            absent.add("worker")
        if not any(x.callers for x in self):
            absent.add("called from")
        return [name for name in _MEANING if name not in absent]

    def _rows(self, columns: list[str]) -> Iterator[tuple[str, str, list[str | int]]]:
        """Place, source and cells of each line, without the first column."""
        for x in self:
            by_stall = sorted(x.callers, key=lambda place: (-x.callers[place], place))
            cells: dict[str, str | int] = {
                "cuts": _counts(x.cuts),
                "programs": x.programs_compiled,
                "trips": x.round_trips,
                "for": _counts(x.trips_made),
                "saved": _counts(x.trips_saved),
                "sent": _bytes(x.bytes_sent),
                "received": _bytes(x.bytes_received),
                "stalled": f"{x.stall_seconds:.3f} s",
                "worker": f"{1e3 * x.worker_seconds:.3f} ms",
                "called from": ", ".join(by_stall),
            }
            source = _notebook.source(x.file, x.line)
            yield x.place, source, [cells[name] for name in columns[1:]]


# The columns of the bill, in their order.
_MEANING = {
    "line": "the Python line that ended a trace, sent, waited or computed",
    "cuts": "traces that ended at the line, by reason: each is one program's call",
    "programs": "programs that had to be compiled for these traces",
    "trips": "requests of the line that the worker has answered",
    "for": "their reasons. new: the first read after a program was sent. unforeseen: "
    "another one, which was not read after the last calls of the program. large: "
    "another one, above 4 KiB. wait: synchronize(), state",
    "saved": "reads that made no trip, or were not waited for. known: this process "
    "knows the values. foreseen: they came along with a new read. ahead: of a state "
    "dict, read with others. later: cpu_future(), copies to pinned memory",
    "sent": "bytes of the line's messages, uploads included",
    "received": "bytes of the answers to them",
    "stalled": "time in which the line waited for the worker",
    "worker": "the worker's time for the line's ops and their backward, in the calls "
    "that were timed; a kernel of several lines counts for the last of them",
    "called from": "the lines outside of libraries that led to the library's line",
}


def table(rows: list[list[str]], left: Collection[int] = (0, 1)) -> str:
    """Rows as lines of text. Columns are aligned on the right, but for some."""
    columns = []
    for number, cells in enumerate(zip(*rows, strict=True)):
        width = max(map(len, cells))
        align = str.ljust if number in left else str.rjust
        columns.append([align(cell, width) for cell in cells])
    return "\n".join("  ".join(row).rstrip() for row in zip(*columns, strict=True))


def _counts(numbers: dict[str, int]) -> str:
    return ", ".join(f"{n} {reason}" for reason, n in sorted(numbers.items()))


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
