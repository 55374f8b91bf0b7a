# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""torch.mycelya.trace(): a timeline of this process and its workers, for Perfetto."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import runpy
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from mycelya_torch import _device


class Event(NamedTuple):
    """A line of a profile: see runtime/profile.go. Times are ns since 1970."""

    track: str
    device: int
    begin: int
    end: int
    call: int
    program: int
    name: str
    place: str


def parse(text: str) -> tuple[list[Event], int]:
    """Returns the events of a profile, and how many were left out."""
    events, dropped = [], 0
    for line in text.splitlines():
        fields = line.split("\t")
        if fields[0] == "dropped":
            dropped += int(fields[1])
            continue
        track, device, begin, end, _, call, program, name, place = fields
        when = int(device), int(begin), int(end)
        events.append(Event(track, *when, int(call), int(program), name, place))
    return events, dropped


# The rows of a timeline from top to bottom, with what they show.
_ROWS = {
    "record": "Python records ops",
    "wait": "Python waits",
    "compile": "find or compile programs",
    "send": "send",
    "receive": "receive",
    "worker": "programs",
    "op": "ops",
}
_WORKER = ("worker", "op")


def chrome(events: list[Event], pid: int) -> list[dict[str, Any]]:
    """Returns events in the Trace Event Format, which Perfetto and Chrome show.

    The client is a process with a row for each of its tasks and devices, and each
    worker's device is a process. An arrow goes from the recording of a program to its
    run. Times are µs since the first event.
    """
    start = min((e.begin for e in events), default=0)
    out: list[dict[str, Any]] = []
    rows: dict[tuple[int, str, int, int], int] = {}  # to the row's number
    ends: dict[tuple[str, int], list[int]] = {}  # of the last events of parallel rows

    def row(e: Event) -> tuple[int, int]:
        lanes = ends.setdefault((e.track, e.device), [])
        free = (i for i, end in enumerate(lanes) if end <= e.begin)
        i = next(free, len(lanes))
        lanes[i : i + 1] = [e.end]
        process = pid + 1 + e.device if e.track in _WORKER else pid
        key = (process, e.track, e.device, i)
        if key not in rows:
            rows[key] = len(rows) + 1
            name = _ROWS[e.track]
            if process == pid and e.device >= 0:
                name += f" of mycelya:{e.device}"
            named = {"name": name if i == 0 else f"{name} ({i + 1})"}
            order = {"sort_index": 1000 * list(_ROWS).index(e.track) + i}
            common = {"ph": "M", "pid": process, "tid": rows[key]}
            out.append(common | {"name": "thread_name", "args": named})
            out.append(common | {"name": "thread_sort_index", "args": order})
        return process, rows[key]

    for e in sorted(events, key=lambda e: (e.begin, -e.end)):
        process, thread = row(e)
        at = {"pid": process, "tid": thread, "ts": (e.begin - start) / 1e3}
        told = {"line": e.place, "call": e.call, "program": e.program}
        args = {k: v for k, v in told.items() if v}
        span = {"ph": "X", "dur": (e.end - e.begin) / 1e3, "name": e.name}
        out.append(at | span | {"cat": e.track, "args": args})
        if e.track in ("record", "worker"):
            flow = {"ph": "s"} if e.track == "record" else {"ph": "f", "bp": "e"}
            about = {"name": "program", "cat": "flow", "id": f"{e.device}.{e.call}"}
            out.append(at | flow | about)
    processes = {pid: "client"}
    for e in events:
        if e.track in _WORKER:
            processes[pid + 1 + e.device] = f"worker of mycelya:{e.device}"
    for process, name in processes.items():
        row0 = {"ph": "M", "pid": process, "tid": 0}
        out.append(row0 | {"name": "process_name", "args": {"name": name}})
        index = {"sort_index": process - pid}
        out.append(row0 | {"name": "process_sort_index", "args": index})
    return out


def write(text: str, path: str) -> None:
    """Writes a profile as a file for Perfetto; compressed if its name ends with .gz."""
    events, dropped = parse(text)
    trace = {"traceEvents": chrome(events, os.getpid()), "displayTimeUnit": "ms"}
    opener = gzip.open if path.endswith(".gz") else open
    with opener(path, "wt", encoding="utf-8") as file:
        json.dump(trace, file, ensure_ascii=False, separators=(",", ":"))
    if dropped:
        print(
            f"mycelya: {dropped} events of the trace {path} were left out, because it "
            "has a million. Trace fewer steps.",
            file=sys.stderr,
        )


@contextlib.contextmanager
def trace(path: str | os.PathLike[str]) -> Iterator[None]:
    """See torch.mycelya.trace."""
    path = os.fspath(path)
    # An error in the name should not come after an hour.
    with open(path, "wb"):
        pass
    _device.begin_profile()
    try:
        yield
        for index in range(_device.device_count()):
            if _device.state(index) == "running":
                _device.synchronize(index)
    finally:
        write(_device.end_profile(), path)


def main(argv: list[str]) -> None:
    """Runs a script.

    Args:
        argv: the file for the trace, the script's path, and its arguments
    """
    path = argv[0]
    with trace(path):  # it waits for what the script has sent
        status = run_script(argv[1:])
    print(
        f"mycelya: the trace is in {path}. Open it at https://ui.perfetto.dev.",
        file=sys.stderr,
    )
    if status is not None:
        raise status


def run_script(argv: list[str]) -> SystemExit | None:
    """Runs a script with its arguments. Returns the exit that it has raised."""
    sys.argv = argv
    sys.path.insert(0, os.path.dirname(os.path.abspath(argv[0])))
    try:
        runpy.run_path(argv[0], run_name="__main__")
    except SystemExit as e:
        return e
    return None
