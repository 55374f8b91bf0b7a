# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""torch.mycelya.random: seeds and states of the devices' generators."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from mycelya_torch import _device
from mycelya_torch._current import Device, index_of

__all__ = [
    "default_generators",
    "get_rng_state",
    "get_rng_state_all",
    "initial_seed",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "set_rng_state",
    "set_rng_state_all",
]


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
    return _device.get_rng_state(index_of(device))


def set_rng_state(new_state: torch.Tensor, device: Device = None) -> None:
    """Sets the state of a device's generator; new_state is on it or on the CPU.

    Raises:
        TypeError: new_state is not a uint8 tensor of one dimension.
        RuntimeError: new_state has not the size of a state of this device.
    """
    _device.set_rng_state(new_state, index_of(device))


def get_rng_state_all() -> list[torch.Tensor]:
    """The states of all devices, by index; an empty one for a stopped or lost one."""
    return [
        torch.empty(0, dtype=torch.uint8)
        if _device.state(index) in ("stopped", "lost")
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
