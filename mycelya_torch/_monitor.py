# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""What a worker's device does now: utilization, temperature, power, processes.

The worker answers on a connection of its own, as for `mycelya top`, so a question waits
for no op. The driver of a GPU is asked on the worker's host.
"""

from __future__ import annotations

import json
import re
import threading
import time
from typing import NamedTuple

from mycelya_torch import _device
from mycelya_torch._kept import _ask_session

# The shortest time over which the use of a CPU is measured: the system counts
# processor time in steps of 10 ms.
_SHORTEST = 0.2  # seconds

_LINE = re.compile(r"mycelya_(\w+?)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class _Sample(NamedTuple):
    """The processor time that a session's process had used at a time of its worker."""

    pid: int
    uptime: float  # seconds
    cpu: float  # seconds


class _Report:
    """The metrics that a worker reports, and the device that they are asked for."""

    def __init__(self, index: int) -> None:
        self.index = index
        info = json.loads(_device.device_info(index))
        self.device: str = info["device"]
        self.name: str = info["name"]
        self.pid: int = info["pid"]
        self._values = _parse(_ask_session(index, "report")["log"])

    def get(self, name: str, **labels: str) -> float | None:
        """The value of a metric; None if the worker does not report it."""
        return self._values.get((name, frozenset(labels.items())))

    def by_process(self, name: str, **labels: str) -> dict[int, float]:
        """The values of a metric that has one for each process."""
        wanted = set(labels.items())
        return {
            int(dict(found)["pid"]): value
            for (metric, found), value in self._values.items()
            if metric == name and wanted <= found and "pid" in dict(found)
        }

    def gpu(self, metric: str, what: str) -> int:
        """A number that the driver reports of the worker's GPU.

        Raises:
            NotImplementedError: the worker computes on a CPU, or the driver does not
                report the number.
        """
        if not self.device.startswith("cuda"):
            raise NotImplementedError(
                f"The {what} of mycelya:{self.index} is not known: its worker computes "
                f"on a CPU ({self.name}), and only the drivers of GPUs report it."
            )
        value = self.get(f"gpu_{metric}", device=self.device)
        if value is None:
            raise NotImplementedError(
                f"The {what} of mycelya:{self.index} is not known: the driver of its "
                f"GPU ({self.name}) does not report it. That needs NVML "
                "(libnvidia-ml.so.1) on the worker's host, and a GPU that is not "
                "divided by MIG."
            )
        return round(value)


def _parse(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """The metrics of Mycelya in a text of Prometheus's format."""
    out = {}
    for line in text.splitlines():
        found = _LINE.fullmatch(line)
        if found is not None:
            name, labels, value = found.groups()
            out[name, frozenset(_LABEL.findall(labels or ""))] = float(value)
    return out


_last: dict[int, _Sample] = {}  # by device index
_lock = threading.Lock()


def _sample(report: _Report) -> _Sample:
    uptime = report.get("uptime_seconds")
    cpu = report.get("process_cpu_seconds", pid=str(report.pid))
    if uptime is None or cpu is None:
        raise NotImplementedError(
            f"The utilization of mycelya:{report.index} is not known: the system of "
            "its worker does not tell the processor time of processes."
        )
    return _Sample(report.pid, uptime, cpu)


def utilization(index: int) -> int:
    """Implements torch.mycelya.utilization."""
    report = _Report(index)
    if report.device.startswith("cuda"):
        return report.gpu("utilization_percent", "utilization")
    now = _sample(report)
    with _lock:
        last = _last.get(index, now)
    if last.pid != now.pid or last.uptime > now.uptime:
        last = now  # that of a former worker
    missing = last.uptime + _SHORTEST - now.uptime
    if missing > 0:
        time.sleep(missing)
        report = _Report(index)
        now = _sample(report)
    with _lock:
        _last[index] = now
    if now.pid != last.pid or now.uptime <= last.uptime:
        return 0  # the worker has just been replaced
    threads = report.get("threads") or 1.0
    used = (now.cpu - last.cpu) / (now.uptime - last.uptime) / threads
    return round(100 * min(1.0, max(0.0, used)))


def gpu(index: int, metric: str, what: str) -> int:
    """A number that the driver reports of a device's GPU; see `_Report.gpu`."""
    return _Report(index).gpu(metric, what)


def processes(index: int) -> str:
    """Implements torch.mycelya.list_gpu_processes."""
    report = _Report(index)
    if report.device.startswith("cuda"):
        used = report.by_process("gpu_process_memory_bytes", device=report.device)
        what = "GPU memory"
    else:
        used = report.by_process("process_memory_bytes")
        what = "memory"
    lines = [f"mycelya:{index} ({report.device} of its worker, {report.name})"]
    if not used:
        lines.append("no processes are running")
    for pid, size in sorted(used.items()):
        lines.append(f"process {pid:>10d} uses {size / 2**20:>12.3f} MB {what}")
    return "\n".join(lines)
