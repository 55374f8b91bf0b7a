# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""torch.mycelya.memory: memory of the tensors, and of the workers' allocators."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import torch
from typing_extensions import deprecated

from mycelya_torch import _device
from mycelya_torch._current import Device, index_of

__all__ = [
    "OutOfMemoryError",
    "caching_allocator_enable",
    "device_memory_used",
    "empty_cache",
    "get_allocator_backend",
    "get_per_process_memory_fraction",
    "list_gpu_processes",
    "max_memory_allocated",
    "max_memory_cached",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_cached",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
]

OutOfMemoryError = torch.OutOfMemoryError


def memory_allocated(device: Device = None) -> int:
    """Bytes of the live tensors on a device, as counted in this process.

    The worker allocates and frees them later, when it runs the program. So the amount
    on the worker may differ for a moment.
    """
    return _device.memory_allocated(index_of(device))


def max_memory_allocated(device: Device = None) -> int:
    """The maximum of `memory_allocated` since the start or the last reset."""
    return _device.max_memory_allocated(index_of(device))


def reset_peak_memory_stats(device: Device = None) -> None:
    """Resets every peak to the current value.

    This process resets `max_memory_allocated` now. The worker resets its own peaks when
    it reaches this point of the recorded ops.
    """
    _device.reset_peak_memory_stats(index_of(device))


@deprecated(
    "torch.mycelya.reset_max_memory_allocated resets all peaks, as on CUDA; "
    "torch.mycelya.reset_peak_memory_stats says so.",
    category=FutureWarning,
)
def reset_max_memory_allocated(device: Device = None) -> None:
    """The same as `reset_peak_memory_stats`, with a FutureWarning, as on CUDA."""
    reset_peak_memory_stats(device)


@deprecated(
    "torch.mycelya.reset_max_memory_cached resets all peaks, as on CUDA; "
    "torch.mycelya.reset_peak_memory_stats says so.",
    category=FutureWarning,
)
def reset_max_memory_cached(device: Device = None) -> None:
    """The same as `reset_peak_memory_stats`, with a FutureWarning, as on CUDA."""
    reset_peak_memory_stats(device)


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """Free and total bytes of the worker's device; waits for the answer."""
    return _device.memory_info(index_of(device))


def device_memory_used(device: Device = None) -> int:
    """Bytes of the worker's device that all its processes use; waits for the answer."""
    free, total = mem_get_info(device)
    return total - free


def memory_stats(device: Device = None) -> dict[str, int]:
    """Counters with the names and meanings of `torch.cuda.memory_stats`.

    "allocated_bytes" and "requested_bytes" count the tensors of this process. All other
    counters are those of the worker's allocator, on CUDA or on a CPU; the call waits
    for them. The worker keeps "reserved_bytes" less "active_bytes" for reuse. On a CPU
    the small pool is memory from malloc. In the large pool all allocations except
    "num_device_alloc" have reused memory.
    """
    return torch.accelerator.memory_stats(index_of(device))


def memory_stats_as_nested_dict(device: Device = None) -> dict[str, Any]:
    """`memory_stats` as nested dicts: stats["active"]["all"]["peak"]."""
    out: dict[str, Any] = {}
    for name, value in memory_stats(device).items():
        *path, last = name.split(".")
        at = out
        for part in path:
            at = at.setdefault(part, {})
        at[last] = value
    return out


def memory_reserved(device: Device = None) -> int:
    """Bytes that the worker's allocator holds, in use or for reuse; waits for it."""
    return torch.accelerator.memory_reserved(index_of(device))


def max_memory_reserved(device: Device = None) -> int:
    """The maximum of `memory_reserved`; waits for the answer."""
    return torch.accelerator.max_memory_reserved(index_of(device))


@deprecated(
    "torch.mycelya.memory_cached is the old name of torch.mycelya.memory_reserved",
    category=FutureWarning,
)
def memory_cached(device: Device = None) -> int:
    """The same as `memory_reserved`, with a FutureWarning, as on CUDA."""
    return memory_reserved(device)


@deprecated(
    "torch.mycelya.max_memory_cached is the old name of "
    "torch.mycelya.max_memory_reserved",
    category=FutureWarning,
)
def max_memory_cached(device: Device = None) -> int:
    """The same as `max_memory_reserved`, with a FutureWarning, as on CUDA."""
    return max_memory_reserved(device)


def reset_accumulated_memory_stats(device: Device = None) -> None:
    """Resets the totals of `memory_stats` ("allocated", "freed", "num_…") to 0."""
    torch.accelerator.reset_accumulated_memory_stats(index_of(device))


def empty_cache() -> None:
    """Makes the worker free the memory that it keeps for reuse.

    A CPU worker also frees it after ten seconds without work.
    """
    torch.accelerator.empty_cache()


def memory_summary(device: Device = None, abbreviated: bool = False) -> str:
    """`memory_stats` as a table, in MiB; abbreviated=True leaves totals out."""
    stats = memory_stats(device)
    kinds = ["current", "peak"] if abbreviated else ["current", "peak", "allocated"]
    lines = [f"memory of mycelya:{index_of(device)}, MiB"]
    lines.append("".join(f"{kind:>14}" for kind in ["", *kinds]))
    for name in ("allocated_bytes", "reserved_bytes"):
        values = [stats.get(f"{name}.all.{kind}", 0) / 2**20 for kind in kinds]
        title = name.removesuffix("_bytes")
        lines.append(f"{title:>14}" + "".join(f"{value:14.1f}" for value in values))
    return "\n".join(lines)


# ---- Allocator ----


def get_allocator_backend() -> str:
    """ "native": PyTorch's caching allocator on CUDA, and one of ours on a CPU."""
    return "native"


def caching_allocator_enable(value: bool = True) -> None:
    """Accepts True: the worker's allocator always keeps memory for reuse.

    Raises:
        NotImplementedError: value is False.
    """
    if not value:
        raise NotImplementedError(
            "The allocator of a mycelya worker always keeps memory for reuse. "
            "torch.mycelya.empty_cache() makes it free what it keeps."
        )


def get_per_process_memory_fraction(device: Device = None) -> float:
    """1.0: a worker may use all memory of its device."""
    index_of(device)
    return 1.0


def set_per_process_memory_fraction(fraction: float, device: Device = None) -> None:
    """Accepts 1.0, the only fraction there is.

    Args:
        fraction: of the device's memory, from 0 to 1.

    Raises:
        TypeError: not a float.
        ValueError: not from 0 to 1.
        NotImplementedError: less than 1. `mycelya-worker --memory` limits the sessions
            of a worker that you start yourself.
    """
    index = index_of(device)
    if not isinstance(fraction, float):
        raise TypeError(f"The memory fraction is {fraction!r}; it must be a float.")
    if not 0 <= fraction <= 1:
        raise ValueError(f"The memory fraction is {fraction}; it must be from 0 to 1.")
    if fraction != 1:
        raise NotImplementedError(
            f"The worker of mycelya:{index} cannot be limited to {fraction:.0%} of its "
            "memory from here. Start it with 'mycelya-worker --memory BYTES', or limit "
            "the memory of its container."
        )


# ---- Who uses the memory ----


def list_gpu_processes(device: Device = None) -> str:
    """The processes on a worker's GPU and their memory, as text; asks the worker.

    For a worker that computes on a CPU these are the processes of its sessions.
    """
    from mycelya_torch import _monitor

    return _monitor.processes(index_of(device))


def memory_snapshot(
    mempool_id: tuple[int, int] | None = None, include_traces: bool = True
) -> list[dict[str, Any]]:
    """The live tensors of at least 64 KiB of all devices, by the line that made them.

    It has the form of `torch.cuda.memory_snapshot`, with one segment for each line.
    A segment has one block: the bytes of all tensors of the line. "frames" of the
    block is the line. The addresses only tell the segments apart. The worker's
    allocator is not asked, and the call does not wait.

    Args:
        mempool_id: must be None, because there are no pools to choose.
        include_traces: ignored, because no history is kept.

    Raises:
        NotImplementedError: a pool is given.
    """
    if mempool_id is not None:
        raise NotImplementedError(
            f"There is no memory pool {mempool_id!r}: the worker has one allocator. "
            "Call memory_snapshot() without mempool_id."
        )
    return [
        segment
        for index in range(_device.device_count())
        for segment in _segments(index)
    ]


def _segments(index: int) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    address = 0
    for place, size, count in sorted(_device.live_storages(index), key=_by_size):
        filename, _, line = place.rpartition(":")
        known = filename != "" and line.isdigit()
        frames = (
            [{"filename": filename, "line": int(line), "name": ""}] if known else []
        )
        block = {
            "address": address,
            "size": size,
            "requested_size": size,
            "state": "active_allocated",
            "frames": frames,
        }
        out.append(
            {
                "device": index,
                "address": address,
                "total_size": size,
                "allocated_size": size,
                "active_size": size,
                "requested_size": size,
                "stream": 0,
                "segment_type": "large",
                "segment_pool_id": (0, 0),
                "tensors": count,
                "blocks": [block],
            }
        )
        address += size
    return out


def _by_size(live: tuple[str, int, int]) -> tuple[int, str]:
    place, size, _ = live
    return -size, place


def _snapshot(device: Device = None) -> dict[str, Any]:
    """The counterpart of torch.cuda.memory._snapshot, without traces."""
    traces: list[list[Any]] = [[] for _ in range(_device.device_count())]
    return {"segments": memory_snapshot(), "device_traces": traces}


def _dump_snapshot(filename: str = "dump_snapshot.pickle") -> None:
    """Writes a snapshot that pytorch.org/memory_viz shows."""
    with open(filename, "wb") as file:
        pickle.dump(_snapshot(), file)


def _record_memory_history(*args: Any, **kwargs: Any) -> None:
    """Changes nothing: the line of each tensor is always known, and no more is kept."""


if not TYPE_CHECKING:  # with it, every misspelt name would be right

    def __getattr__(name: str) -> Any:
        """Names of torch.cuda.memory that are refused; see _refused."""
        if not name.startswith("_"):
            from mycelya_torch import _refused

            if name in _refused.MEMORY:
                return _refused.named(name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
