# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""The module `torch.mycelya`, the counterpart of torch.cuda for "mycelya"."""

from __future__ import annotations

import importlib
import json
import os
import sys
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch

from mycelya_torch import _device, _distributed, memory, random, streams
from mycelya_torch._current import Device, current_device
from mycelya_torch._current import index_of as _index
from mycelya_torch.memory import (
    OutOfMemoryError,
    caching_allocator_enable,
    device_memory_used,
    empty_cache,
    get_allocator_backend,
    get_per_process_memory_fraction,
    list_gpu_processes,
    max_memory_allocated,
    max_memory_cached,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_cached,
    memory_reserved,
    memory_snapshot,
    memory_stats,
    memory_stats_as_nested_dict,
    memory_summary,
    reset_accumulated_memory_stats,
    reset_max_memory_allocated,
    reset_max_memory_cached,
    reset_peak_memory_stats,
    set_per_process_memory_fraction,
)
from mycelya_torch.random import (
    default_generators,
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from mycelya_torch.streams import (
    Event,
    Stream,
    StreamContext,
    current_stream,
    default_stream,
    set_stream,
    stream,
)
from mycelya_torch.usage import (
    clock_rate,
    memory_usage,
    power_draw,
    temperature,
    utilization,
)

__all__ = [
    "AcceleratorError",
    "DeviceProperties",
    "Event",
    "OutOfMemoryError",
    "Stream",
    "StreamContext",
    "amp",
    "caching_allocator_enable",
    "can_device_access_peer",
    "clock_rate",
    "current_device",
    "current_stream",
    "default_generators",
    "default_stream",
    "device",
    "device_count",
    "device_memory_used",
    "device_of",
    "eager",
    "empty_cache",
    "explain",
    "flush",
    "get_allocator_backend",
    "get_amp_supported_dtype",
    "get_arch_list",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_gencode_flags",
    "get_per_process_memory_fraction",
    "get_rng_state",
    "get_rng_state_all",
    "get_sync_debug_mode",
    "has_half",
    "has_magma",
    "init",
    "initial_seed",
    "ipc_collect",
    "is_available",
    "is_bf16_supported",
    "is_current_stream_capturing",
    "is_initialized",
    "is_tf32_supported",
    "list_gpu_processes",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_cached",
    "max_memory_reserved",
    "mem_get_info",
    "memory",
    "memory_allocated",
    "memory_cached",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "memory_usage",
    "metrics",
    "network_bill",
    "nvtx",
    "op_times",
    "power_draw",
    "random",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_metrics",
    "reset_peak_memory_stats",
    "restart",
    "seed",
    "seed_all",
    "set_device",
    "set_per_process_memory_fraction",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "set_sync_debug_mode",
    "stream",
    "streams",
    "synchronize",
    "temperature",
    "trace",
    "utilization",
]

if TYPE_CHECKING:
    from mycelya_torch import amp, nvtx
    from mycelya_torch._eager import OpTimes
    from mycelya_torch._explain import NetworkBill

_EAGER = "mycelya_torch._eager"

AcceleratorError = torch.AcceleratorError
has_half = True  # all workers compute with float16
has_magma = torch.cuda.has_magma  # as a worker's PyTorch, which is of the same version


# ---- Devices ----


def is_available() -> bool:
    """True, because the local worker runs on every host of this package."""
    return True


def device_count() -> int:
    """Number of device indices; at least 1, for the machine of a bare "mycelya"."""
    return _device.device_count()


def is_initialized() -> bool:
    """Whether the device was used in this process."""
    return _device.is_initialized()


# Gradient checkpointing reads this before it saves the states of the generators. Those
# need no initialisation.
_initialized = True


def init() -> None:
    """Starts the current device's worker now instead of at its first op."""
    _device.device_info(_device.current_device())


def _lazy_init() -> None:
    """PyTorch calls this before it uses the device, which starts on first use."""
    if _device.is_in_bad_fork():
        raise RuntimeError(
            "Cannot use the mycelya device in a forked child of a process that has "
            "used it. Use the start method 'spawn', or the device in the parent only."
        )
    _device.register_operators()
    _distributed.used()


def _is_in_bad_fork() -> bool:
    return _device.is_in_bad_fork()


def restart(device: Device = None) -> None:
    """Starts a device again with a new worker, after a stop or a loss or at any time.

    All tensors of the device are lost; using one raises `errors.DeviceLostError`.
    """
    from mycelya_torch import _registry

    _registry.restart_index(_index(device))


class DeviceProperties(NamedTuple):
    """What a worker's device is. The last four have the names of torch.cuda's."""

    name: str
    device: str  # "cpu", "cuda:0"
    torch: str  # the version of the worker's PyTorch
    total_memory: int  # bytes
    major: int  # of the compute capability; 0 on a CPU
    minor: int
    multi_processor_count: int  # 0 on a CPU


def get_device_properties(device: Device = None) -> DeviceProperties:
    """Asks the worker; starts it if it is not running."""
    index = _index(device)
    info = json.loads(_device.device_info(index))
    on_cuda = info["device"].startswith("cuda")
    major, minor = _device.capability(index) if on_cuda else (0, 0)
    return DeviceProperties(
        name=info["name"],
        device=info["device"],
        torch=info["torch"],
        total_memory=info["memory_bytes"],
        major=major,
        minor=minor,
        multi_processor_count=info["processors"],
    )


def get_device_name(device: Device = None) -> str:
    """The name of the worker's device, as "NVIDIA H200" or the model of a CPU."""
    name: str = json.loads(_device.device_info(_index(device)))["name"]
    return name


def get_device_capability(device: Device = None) -> tuple[int, int]:
    """The compute capability of the worker's GPU, as (9, 0); asks the worker.

    Raises:
        RuntimeError: the worker computes on a CPU, which has no compute capability.
    """
    index = _index(device)
    info = json.loads(_device.device_info(index))
    if not info["device"].startswith("cuda"):
        raise RuntimeError(
            f"mycelya:{index} has no compute capability: its worker computes "
            f"on {info['device']} ({info['name']})."
        )
    return _device.capability(index)


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes that torch.autocast("mycelya", dtype=…) accepts."""
    return [torch.float16, torch.bfloat16]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether the worker's device computes with bfloat16.

    Args:
        including_emulation: False asks whether its hardware does, which is so on GPUs
            of compute capability 8.0 and newer; asks the worker.
    """
    return including_emulation or is_tf32_supported()


def is_tf32_supported() -> bool:
    """Whether the current device is a GPU with TensorFloat-32; asks the worker.

    That is so from compute capability 8.0 on. A CPU has none.
    """
    return get_device_properties().major >= 8


def get_arch_list() -> list[str]:
    """[]: this package has no compiled CUDA code.

    A worker compiles kernels for the GPU that it has; see `get_device_capability`.
    """
    return []


def get_gencode_flags() -> str:
    """ "": there is no compiled CUDA code; see `get_arch_list`."""
    return ""


def can_device_access_peer(device: Device, peer_device: Device) -> bool:
    """Whether two devices are of one machine, whose worker copies between them.

    A copy between other devices goes through this process. As on CUDA, no device is a
    peer of itself.

    Raises:
        AssertionError: an index without a device, as on CUDA.
    """
    for index in (device, peer_device):
        if isinstance(index, int) and not 0 <= index < device_count():
            raise AssertionError(f"There is no device mycelya:{index}.")
    first, second = _index(device), _index(peer_device)
    if first == second:
        return False
    from mycelya_torch._registry import get_device_registry

    machines = get_device_registry()
    machine = machines.get_device_by_index(first)
    return machine is not None and machine is machines.get_device_by_index(second)


def ipc_collect() -> None:
    """Does nothing: processes share no memory of a device."""


# ---- The current device ----


def set_device(device: Device) -> None:
    """Makes a device this thread's current one. An index < 0 changes nothing."""
    index = _index(device, negative=True)
    if index >= 0:
        _device.set_device(index)


class device:  # noqa: N801 (PyTorch's name)
    """Context manager: the given device is current inside. None changes nothing."""

    def __init__(self, device: Device) -> None:
        self.idx = -1 if device is None else _index(device, negative=True)
        self.prev_idx = -1

    def __enter__(self) -> None:
        if self.idx >= 0:
            self.prev_idx = _device.exchange_device(self.idx)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.idx >= 0:
            _device.set_device(self.prev_idx)


class device_of(device):  # noqa: N801 (PyTorch's name)
    """Context manager: the device of a mycelya tensor is current inside."""

    def __init__(self, obj: Any) -> None:
        super().__init__(obj.device if obj.device.type == "mycelya" else None)


# ---- Waiting ----


def synchronize(device: Device = None) -> None:
    """Waits until the worker has done all work recorded so far."""
    _device.synchronize(_index(device))


def flush(device: Device = None) -> None:
    """Sends the recorded ops to the worker and does not wait for them."""
    _device.flush(_index(device))


def eager() -> AbstractContextManager[OpTimes]:
    """Context manager: each op is sent, and awaited, at its line.

    For debugging, as with CUDA_LAUNCH_BLOCKING=1: an error is raised at the line of its
    op, a debugger shows the values of tensors, and `as times` gives the time of each
    op: `print(times)`. Ops are computed one by one with PyTorch's operators, so the
    results have the bits of MYCELYA_KERNELS=off. It covers the ops of this thread, and
    their backward ops. Each op costs a round trip.
    """
    from mycelya_torch import _eager

    return _eager.eager()


def trace(path: str | os.PathLike[str]) -> AbstractContextManager[None]:
    """Context manager: writes a timeline of its body to a file.

    The file has what Python records and where it waits, the programs that are found or
    compiled, what is sent and received, and each op and kernel that the workers
    compute, with Python lines, on one clock. https://ui.perfetto.dev and
    chrome://tracing open it. A name that ends with ".gz" makes a compressed file. CUDA,
    which runs ahead of the worker's process otherwise, is awaited after each op.
    torch.profiler shows the same ops beside PyTorch's own.

    Raises:
        RuntimeError: if another trace, or torch.profiler, profiles the device already
    """
    from mycelya_torch import _trace

    return _trace.trace(path)


def op_times() -> OpTimes:
    """The times of all ops that `eager()` or MYCELYA_EAGER has awaited so far.

    They are counted since the start or the last `reset_metrics()`.

    Returns:
        A list of `OpTime`: op, file, line, calls, seconds; the longest first. `print()`
        shows it as a table.
    """
    from mycelya_torch import _eager

    return _eager.op_times()


def is_current_stream_capturing() -> bool:
    """False: the device captures no graphs. It replays a program by itself."""
    return False


_SYNC_MODES = ("default", "warn", "error")


def set_sync_debug_mode(debug_mode: Literal["default", "warn", "error"] | int) -> None:
    """Reports the lines that wait for values of a device.

    A wait is a read of values: item(), cpu(), tolist(), print, a condition, an op
    whose result's shape depends on values. As on CUDA, `synchronize()` is none.

    Args:
        debug_mode: "warn" or 1: a UserWarning, once for each line. "error" or 2: a
            RuntimeError, and nothing is read. "default" or 0: nothing.

    Raises:
        ValueError: another mode.
    """
    number = _SYNC_MODES.index(debug_mode) if debug_mode in _SYNC_MODES else debug_mode
    if number not in (0, 1, 2):
        raise ValueError(
            f"{debug_mode!r} is not a sync debug mode; the modes are 'default' (0), "
            "'warn' (1) and 'error' (2)."
        )
    _device.set_sync_debug_mode(int(number))


def get_sync_debug_mode() -> int:
    """The mode of `set_sync_debug_mode`: 0, 1 or 2, as on CUDA."""
    return _device.get_sync_debug_mode()


# ---- Counters ----


def metrics() -> dict[str, Any]:
    """Counters of all devices since the start or the last reset; README lists them."""
    out: dict[str, Any] = json.loads(_device.metrics())
    out["blocking_seconds"] = out.pop("blocking_nanoseconds") / 1e9
    return out


def reset_metrics() -> None:
    """Sets every counter to zero, including those of `network_bill` and `op_times`."""
    _device.reset_metrics()
    if _EAGER in sys.modules:
        sys.modules[_EAGER].reset()


def explain(tensor: torch.Tensor | None = None) -> str:
    """The pending graph of a tensor; without a tensor, the compiled programs.

    With a tensor: the optimised graph of the ops that compute its storage and are not
    sent yet, in the IR's text form. The call sends nothing.

    Without: the last 32 programs that each device has compiled. For each program: the
    line and reason of the cut, the number of ops and of calls, and the reason why no
    earlier program fits. That is the first record that differs from the most similar
    program, with its line. Also the peak of planned memory in the last call, and its
    place.

    Raises:
        TypeError: not a dense tensor on a mycelya device.
    """
    text: str = _explain().explain(tensor)
    return text


def network_bill() -> NetworkBill:
    """The cost of each Python line since the start or the last `reset_metrics()`.

    Returns:
        A list of `BillLine`: file, line, cuts by reason, programs compiled, round
        trips, bytes sent, uploaded and received, stalls and their seconds; the longest
        stalls first. `worker_seconds` is the worker's time for the line's ops, in the
        calls that a profile, `trace()` or MYCELYA_DUMP with `times` has timed. For a
        line of a library, `callers` has the program's lines that led to it, with the
        seconds of their stalls. `print()` shows a table with its legend.
    """
    bill: NetworkBill = _explain().network_bill()
    return bill


def _explain() -> Any:
    from mycelya_torch import _explain as module  # imported on first use

    return module


# ---- Attributes that are created on first access ----

_LATER = ("amp", "nvtx")

if TYPE_CHECKING:
    # Type checkers see no __getattr__: with it, every misspelt name would be right.
    FloatTensor: type[torch.Tensor]
    DoubleTensor: type[torch.Tensor]
    HalfTensor: type[torch.Tensor]
    BFloat16Tensor: type[torch.Tensor]
    LongTensor: type[torch.Tensor]
    IntTensor: type[torch.Tensor]
    ShortTensor: type[torch.Tensor]
    CharTensor: type[torch.Tensor]
    ByteTensor: type[torch.Tensor]
    BoolTensor: type[torch.Tensor]
else:

    def __getattr__(name: str) -> Any:
        """amp, nvtx, the legacy types FloatTensor, FloatStorage, …, and refusals."""
        if name in _LATER:
            value: Any = importlib.import_module(f"mycelya_torch.{name}")
        elif name.endswith(("Tensor", "Storage")):
            from mycelya_torch import _legacy

            value = _legacy.legacy_type(name)
        else:
            value = None
            if not name.startswith("_"):
                from mycelya_torch import _refused

                value = _refused.named(name)
            if value is None:
                raise AttributeError(
                    f"module 'torch.mycelya' has no attribute {name!r}"
                )
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """The public names; those of torch.cuda that are only refused are left out."""
    from mycelya_torch import _legacy

    special = [name for name in globals() if name.startswith("__")]
    return sorted({*__all__, *_legacy.NAMES, *special})
