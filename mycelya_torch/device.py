# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""The module `torch.mycelya`, the counterpart of torch.cuda for "mycelya"."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import OutOfMemoryError as OutOfMemoryError
from torch.types import Device

from mycelya_torch import _device

if TYPE_CHECKING:
    from mycelya_torch._explain import NetworkBill


def _index(device: Device = None) -> int:
    """The index of a device given as None, an index, a string or a torch.device."""
    if device is None:
        return current_device()
    if isinstance(device, int):
        return device
    device = torch.device(device)
    if device.type != "mycelya":
        raise ValueError(f"Expected a mycelya device, got {str(device)!r}.")
    return current_device() if device.index is None else device.index


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
    _device.register_fallbacks()


def _is_in_bad_fork() -> bool:
    return _device.is_in_bad_fork()


def restart(device: Device = None) -> None:
    """Starts a device again with a new worker, after a stop or a loss or at any time.

    All tensors of the device are lost; using one raises `errors.DeviceLostError`.
    """
    from mycelya_torch import machine

    machine.restart_index(_index(device))


class DeviceProperties(NamedTuple):
    """The name of the worker's device, and the version of its torch."""

    name: str
    device: str
    torch: str


def get_device_properties(device: Device = None) -> DeviceProperties:
    """Asks the worker; starts it if it is not running."""
    info = json.loads(_device.device_info(_index(device)))
    return DeviceProperties(info["name"], info["device"], info["torch"])


def get_device_name(device: Device = None) -> str:
    """The name of the worker's device, as "NVIDIA H200" or the model of a CPU."""
    return get_device_properties(device).name


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
    return [torch.float16, torch.bfloat16]


def is_bf16_supported() -> bool:
    return True


# ---- The current device ----


def current_device() -> int:
    """The index that a bare "mycelya" stands for in this thread."""
    return torch.accelerator.current_device_index()  # torch.compile can trace this


def set_device(device: Device) -> None:
    """Makes a device this thread's current one. An index < 0 changes nothing."""
    index = _index(device)
    if index >= 0:
        _device.set_device(index)


class device:  # noqa: N801 (PyTorch's name)
    """Context manager: the given device is current inside. None changes nothing."""

    def __init__(self, device: Device) -> None:
        self.idx = -1 if device is None else _index(device)
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


# ---- Random numbers ----


def manual_seed(seed: int) -> None:
    """Seeds the current device."""
    _device.manual_seed(int(seed), _device.current_device())


def manual_seed_all(seed: int) -> None:
    """Seeds every device; torch.manual_seed calls this."""
    for index in range(_device.device_count()):
        _device.manual_seed(int(seed), index)


def seed() -> int:
    """Seeds the current device with a new random number and returns the number."""
    return _device.seed(_device.current_device())


def seed_all() -> None:
    """Seeds every device with the same new random number."""
    fresh = _device.seed(0)
    for index in range(1, _device.device_count()):
        _device.manual_seed(fresh, index)


def initial_seed() -> int:
    """The seed of the current device."""
    return _device.initial_seed(_device.current_device())


def get_rng_state(device: Device = None) -> torch.Tensor:
    """The state of a device's generator, a uint8 tensor of one dimension.

    The tensor is on the device and holds the state at this point of the recorded ops.
    So the call does not wait, which matters to gradient checkpointing: it reads the
    state in every layer. `Generator.get_state()` returns a CPU tensor, as on CUDA.
    """
    return _device.get_rng_state(_index(device))


def set_rng_state(new_state: torch.Tensor, device: Device = None) -> None:
    """Sets the state of a device's generator; new_state is on it or on the CPU.

    Raises:
        TypeError: new_state is not a uint8 tensor of one dimension.
        RuntimeError: new_state has not the size of a state of this device.
    """
    _device.set_rng_state(new_state, _index(device))


def get_rng_state_all() -> list[torch.Tensor]:
    """The states of all devices, by index; an empty one for a stopped machine."""
    return [
        torch.empty(0, dtype=torch.uint8)
        if _device.state(index) == "stopped"
        else get_rng_state(index)
        for index in range(_device.device_count())
    ]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Sets the states of all devices, by index, without those that are empty."""
    for index, state in enumerate(new_states):
        if state.numel() != 0:
            set_rng_state(state, index)


class _Generators(Sequence[torch.Generator]):
    """The default generator of each device, created on first access."""

    def __len__(self) -> int:
        return _device.device_count()

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(self)[index]
        if not 0 <= index < len(self):
            raise IndexError(f"there is no device mycelya:{index}")
        return _device.default_generator(index)

    def __iter__(self) -> Iterator[torch.Generator]:
        return (self[i] for i in range(len(self)))


default_generators = _Generators()


# ---- Streams and events ----
#
# A device has one queue, which runs in order, and all streams share it. Work that a
# stream waits for was submitted before, so a wait between streams needs no code.


class Stream(torch.Stream):
    """A stream of a device; see `torch.Stream`. `with` makes it current."""

    def __new__(cls, device: Device = None, priority: int = 0, **kwargs: Any) -> Stream:
        if "stream_id" not in kwargs:
            kwargs["device"] = torch.device("mycelya", _index(device))
            kwargs["priority"] = priority
        return super().__new__(cls, **kwargs)


class _EventType(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Event) and instance.device.type == "mycelya"


class Event(metaclass=_EventType):
    """A point in a device's work. Making one gives a `torch.Event` of this device.

    Args:
        enable_timing: record the device's time, for `elapsed_time` in milliseconds.
        blocking: ignored; it exists for compatibility with CUDA's signature.
        interprocess: must be False, because an event belongs to one process.
    """

    # Not a subclass, because PyTorch's elapsed_time accepts only its own type.
    def __new__(  # type: ignore[misc]
        cls,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
    ) -> torch.Event:
        if interprocess:
            raise NotImplementedError(
                "mycelya events cannot be shared between processes: each process has "
                "its own connection to the worker. Remove interprocess=True."
            )
        return torch.Event(device="mycelya", enable_timing=enable_timing)


def current_stream(device: Device = None) -> torch.Stream:
    """The stream that this thread records on."""
    return torch.accelerator.current_stream(_index(device))


def default_stream(device: Device = None) -> torch.Stream:
    """The stream that is current until another one is set."""
    kind = current_stream(device).device_type
    return torch.Stream(stream_id=0, device_index=_index(device), device_type=kind)


def set_stream(stream: torch.Stream | None) -> None:
    """Makes a stream, and its device, current in this thread; None changes nothing."""
    if stream is not None:
        torch.accelerator.set_stream(stream)


def stream(stream: torch.Stream | None) -> AbstractContextManager[Any]:
    """Context manager: a stream is current inside. None changes nothing."""
    return contextlib.nullcontext() if stream is None else stream


# ---- Memory ----


def memory_allocated(device: Device = None) -> int:
    """Bytes of the live tensors on a device, as counted in this process.

    The worker allocates and frees them later, when it runs the program. So the amount
    on the worker may differ for a moment.
    """
    return _device.memory_allocated(_index(device))


def max_memory_allocated(device: Device = None) -> int:
    """The maximum of `memory_allocated` since the start or the last reset."""
    return _device.max_memory_allocated(_index(device))


def reset_peak_memory_stats(device: Device = None) -> None:
    """Resets every peak to the current value.

    This process resets `max_memory_allocated` now. The worker resets its own peaks when
    it reaches this point of the recorded ops.
    """
    _device.reset_peak_memory_stats(_index(device))


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """Free and total bytes of the worker's device; waits for the answer."""
    return _device.memory_info(_index(device))


def memory_stats(device: Device = None) -> dict[str, int]:
    """Counters with the names and meanings of `torch.cuda.memory_stats`.

    "allocated_bytes" and "requested_bytes" count the tensors of this process. All other
    counters are those of the worker's allocator, on CUDA or on a CPU; the call waits
    for them. The worker keeps "reserved_bytes" less "active_bytes" for reuse. On a CPU
    the small pool is memory from malloc. In the large pool all allocations except
    "num_device_alloc" have reused memory.
    """
    return torch.accelerator.memory_stats(_index(device))


def memory_reserved(device: Device = None) -> int:
    """Bytes that the worker's allocator holds, in use or for reuse; waits for it."""
    return torch.accelerator.memory_reserved(_index(device))


def max_memory_reserved(device: Device = None) -> int:
    """The maximum of `memory_reserved`; waits for the answer."""
    return torch.accelerator.max_memory_reserved(_index(device))


def reset_accumulated_memory_stats(device: Device = None) -> None:
    """Resets the totals of `memory_stats` ("allocated", "freed", "num_…") to 0."""
    torch.accelerator.reset_accumulated_memory_stats(_index(device))


def empty_cache() -> None:
    """Makes the worker free the memory that it keeps for reuse.

    A CPU worker also frees it after ten seconds without work.
    """
    torch.accelerator.empty_cache()


def memory_summary(device: Device = None, abbreviated: bool = False) -> str:
    """`memory_stats` as a table, in MiB; abbreviated=True leaves totals out."""
    stats = memory_stats(device)
    kinds = ["current", "peak"] if abbreviated else ["current", "peak", "allocated"]
    lines = [f"memory of mycelya:{_index(device)}, MiB"]
    lines.append("".join(f"{kind:>14}" for kind in ["", *kinds]))
    for name in ("allocated_bytes", "reserved_bytes"):
        values = [stats.get(f"{name}.all.{kind}", 0) / 2**20 for kind in kinds]
        title = name.removesuffix("_bytes")
        lines.append(f"{title:>14}" + "".join(f"{value:14.1f}" for value in values))
    return "\n".join(lines)


# ---- Counters ----


def metrics() -> dict[str, Any]:
    """Counters of all devices since the start or the last reset; README lists them."""
    return json.loads(_device.metrics())


def reset_metrics() -> None:
    """Sets every counter to zero, including those of `network_bill`."""
    _device.reset_metrics()


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
    return _explain().explain(tensor)


def network_bill() -> NetworkBill:
    """The cost of each Python line since the start or the last `reset_metrics()`.

    Returns:
        A list of `BillLine`: file, line, cuts by reason, programs compiled, round
        trips, bytes sent, uploaded and received, stalls and their seconds; the longest
        stalls first. `print()` shows it as a table.
    """
    return _explain().network_bill()


def _explain() -> Any:
    from mycelya_torch import _explain as module  # imported on first use

    return module


# ---- Attributes that are created on first access ----


def __getattr__(name: str) -> Any:
    """amp, and the legacy types FloatTensor, FloatStorage, …"""
    value: Any
    if name == "amp":
        from mycelya_torch import amp as value
    elif name.endswith(("Tensor", "Storage")):
        from mycelya_torch import _legacy

        value = _legacy.legacy_type(name)
    else:
        raise AttributeError(f"module 'torch.mycelya' has no attribute {name!r}")
    globals()[name] = value
    return value
