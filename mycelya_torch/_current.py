# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""The current device, and the indices of devices."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

if TYPE_CHECKING:
    from mycelya_torch.device import device as DeviceContext
    from mycelya_torch.machine import RemoteMachine

# What names a device: None is the current one, and a machine its first one.
Device: TypeAlias = "torch.types.Device | RemoteMachine | DeviceContext"


def current_device() -> int:
    """The index that a bare "mycelya" stands for in this thread."""
    return torch.accelerator.current_device_index()  # torch.compile can trace this


_MOST = 64  # kMaxDevices in csrc/device/client/State.h


def index_of(device: Device = None, negative: bool = False) -> int:
    """The index of a device, which need not have a machine.

    Args:
        negative: an index below 0 is returned, too, as `set_device` needs it.
        device: None, an index, a string, a torch.device, a `RemoteMachine` or a
            `torch.mycelya.device(…)`.

    Raises:
        MachineStoppedError: a machine that is not started.
        ValueError: a device of another type, or an index that no device can have.
        TypeError: a value that names no device.
    """
    if device is None:
        return current_device()
    if isinstance(device, int):
        if 0 <= device < _MOST or (negative and device < 0):
            return device
        raise ValueError(
            f"There is no device mycelya:{device}: indices are from 0 to {_MOST - 1}."
        )
    if not isinstance(device, (str, torch.device)):
        return _index_of_object(device)
    device = torch.device(device)
    if device.type != "mycelya":
        raise ValueError(f"Expected a mycelya device, got {str(device)!r}.")
    return current_device() if device.index is None else index_of(device.index)


def _index_of_object(value: Any) -> int:
    # A value can be a machine only if the module of machines has been imported.
    machines: Any = sys.modules.get("mycelya_torch.machine")
    if machines is not None and isinstance(value, machines.RemoteMachine):
        index: int = value.device().index
        return index
    ours: Any = sys.modules["mycelya_torch.device"]
    if isinstance(value, ours.device):
        index = value.idx
        return index
    raise TypeError(
        "Expected a mycelya device as None, an index, a string, a torch.device or a "
        f"RemoteMachine, got {value!r}."
    )
