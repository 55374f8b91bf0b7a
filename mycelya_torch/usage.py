# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""What a worker's device does now, as torch.cuda's functions that ask NVML tell it.

The worker is asked on a connection of its own, so these functions wait for no op.
"""

from __future__ import annotations

from mycelya_torch._current import Device
from mycelya_torch._current import index_of as _index

__all__ = [
    "clock_rate",
    "memory_usage",
    "power_draw",
    "temperature",
    "utilization",
]


def utilization(device: Device = None) -> int:
    """How much the worker's device is used, in percent, from 0 to 100.

    Of a GPU it is the percentage of time in which a kernel ran, over the last sample
    period of its driver, 1/6 s to 1 s. Of a CPU it is the processor time that the
    worker's process has used since the last call, divided by the time since then and by
    the threads of an op. The first call, and a call less than 0.2 s after another one,
    measures 0.2 s.

    Raises:
        NotImplementedError: the driver of the GPU does not tell.
        RuntimeError: the worker cannot be asked, because it has one stream, as that of
            a machine of "exec".
    """
    from mycelya_torch import _monitor

    return _monitor.utilization(_index(device))


def memory_usage(device: Device = None) -> int:
    """Percentage of time in which the memory of the worker's GPU was read or written.

    Raises:
        NotImplementedError: the worker computes on a CPU, or the driver does not tell.
    """
    return _gpu(device, "memory_utilization_percent", "use of the memory bus")


def temperature(device: Device = None) -> int:
    """The temperature of the worker's GPU, in degrees Celsius.

    Raises:
        NotImplementedError: the worker computes on a CPU, or the driver does not tell.
    """
    return _gpu(device, "temperature_celsius", "temperature")


def power_draw(device: Device = None) -> int:
    """The power that the worker's GPU draws, in milliwatts.

    Raises:
        NotImplementedError: the worker computes on a CPU, or the driver does not tell.
    """
    return _gpu(device, "power_milliwatts", "power draw")


def clock_rate(device: Device = None) -> int:
    """The clock of the multiprocessors of the worker's GPU, in MHz.

    Raises:
        NotImplementedError: the worker computes on a CPU, or the driver does not tell.
    """
    return _gpu(device, "clock_megahertz", "clock rate")


def _gpu(device: Device, metric: str, what: str) -> int:
    from mycelya_torch import _monitor

    return _monitor.gpu(_index(device), metric, what)
