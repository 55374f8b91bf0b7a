# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""The module `torch.mycelya`: what torch.cuda is for "cuda", for "mycelya"."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

import torch
from torch.types import Device

from mycelya_torch import _device


def _index(device: Device = None) -> int:
    """The index of a device given as None, an index, a string or a torch.device."""
    if device is None:
        return _device.current_device()
    if isinstance(device, int):
        return device
    device = torch.device(device)
    if device.type != "mycelya":
        raise ValueError(f"Expected a mycelya device, got {str(device)!r}.")
    return _device.current_device() if device.index is None else device.index


# ---- What there is ----


def is_available() -> bool:
    """True: the local worker runs wherever the package does."""
    return True


def device_count() -> int:
    """Number of device indices; at least 1, the machine behind a bare "mycelya"."""
    return _device.device_count()


def is_initialized() -> bool:
    """Whether the device was used in this process."""
    return _device.is_initialized()


def init() -> None:
    """Starts the current device's worker now instead of at its first op."""
    _device.device_info(_device.current_device())


def _lazy_init() -> None:
    """PyTorch calls this before it touches the device; the device starts by itself."""
    if _device.is_in_bad_fork():
        raise RuntimeError(
            "Cannot use the mycelya device in a forked child of a process that has "
            "used it. Use the start method 'spawn', or the device in the parent only."
        )


def _is_in_bad_fork() -> bool:
    return _device.is_in_bad_fork()


@dataclasses.dataclass(frozen=True)
class DeviceProperties:
    """What the worker says of itself: its device's name, and its torch's version."""

    name: str
    device: str
    torch: str


def get_device_properties(device: Device = None) -> DeviceProperties:
    """Starts the worker if it isn't running, and asks it."""
    info = json.loads(_device.device_info(_index(device)))
    return DeviceProperties(info["name"], info["device"], info["torch"])


def get_device_name(device: Device = None) -> str:
    """The worker's own name of the device, as "NVIDIA H200" or a CPU's model."""
    return get_device_properties(device).name


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.float16, torch.bfloat16]


def is_bf16_supported() -> bool:
    return True


# ---- Which one is current ----


def current_device() -> int:
    return _device.current_device()


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
    """Context manager: a tensor's device is current inside, if it is a mycelya one."""

    def __init__(self, obj: Any) -> None:
        super().__init__(obj.device if obj.device.type == "mycelya" else None)


# ---- Waiting ----


def synchronize(device: Device = None) -> None:
    """Waits until the worker has done everything asked of it so far."""
    _device.synchronize(_index(device))


def flush(device: Device = None) -> None:
    """Sends what is recorded and does not wait for it."""
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
    """Seeds the current device with a fresh random number, which it returns."""
    return _device.seed(_device.current_device())


def seed_all() -> None:
    """Seeds every device with one fresh random number."""
    fresh = _device.seed(0)
    for index in range(1, _device.device_count()):
        _device.manual_seed(fresh, index)


def initial_seed() -> int:
    """The seed of the current device."""
    return _device.initial_seed(_device.current_device())


class _Generators(Sequence[torch.Generator]):
    """The default generator of each device, made when asked for."""

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


# ---- Counters ----


def metrics() -> dict[str, Any]:
    """Counters of all devices since the start or the last reset; names in README."""
    return json.loads(_device.metrics())


def reset_metrics() -> None:
    """Sets every counter to zero."""
    _device.reset_metrics()
