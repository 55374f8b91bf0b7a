# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""The machines of this process by device index."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from mycelya_torch import _device, _env

if TYPE_CHECKING:
    from mycelya_torch.machine import RemoteMachine

MOST = 64  # kMaxDevices in csrc/device/client/State.h

# The index of the machine of a bare "mycelya", and how many indices ranks have.
OWN, RANKS = _env.ranks()

# The indices in use by further devices of machines; see _others.
OTHERS: set[int] = set()

# Held while a machine gets an index, is started or is stopped.
LOCK = threading.RLock()


def _anybody(machine: RemoteMachine) -> bool:
    """Lets each machine have the index OWN."""
    return True


def _nobody() -> None:
    """Stands for the owner of an index that has no machine any more."""


class DeviceRegistry:
    """The machines of this process, each with a device index.

    A machine is registered when it starts, and stays so while its object exists. There
    is one registry in a process: `get_device_registry()`.
    """

    _only: DeviceRegistry | None = None
    _started: dict[int, RemoteMachine]
    # The machine that had an index last. It keeps the index while its object exists.
    _owners: dict[int, Callable[[], RemoteMachine | None]]
    # Whether a machine may have the index OWN, which a bare "mycelya" stands for; see
    # _execution.
    _may_be_default: Callable[[RemoteMachine], bool]

    def __new__(cls) -> DeviceRegistry:
        with LOCK:
            if DeviceRegistry._only is None:
                only = super().__new__(cls)
                only._started, only._owners = {}, {}
                only._may_be_default = _anybody
                DeviceRegistry._only = only
            return DeviceRegistry._only

    def register_device(self, device: RemoteMachine) -> int:
        """Gives a machine its index, and returns it; starts nothing.

        Raises:
            RuntimeError: all indices are in use.
        """
        with LOCK:
            index = self.get_device_index(device)
            if index is None:
                index = self._free_index(device)
                self._owners[index] = weakref.ref(device)
                device._index = index
            return index

    def get_device_by_index(self, index: int) -> RemoteMachine | None:
        """The machine with this index; None if there is none."""
        reference = self._owners.get(index)
        return None if reference is None else reference()

    def get_device_index(self, device: RemoteMachine) -> int | None:
        """The index of a machine; None if it is not registered."""
        index = device._index
        if index is None or self.get_device_by_index(index) is not device:
            return None
        return index

    def devices_compatible(
        self, device1: RemoteMachine, device2: RemoteMachine
    ) -> bool:
        """Whether one op may use tensors of both: whether they are one machine."""
        return device1.device_id == device2.device_id

    def clear(self) -> None:
        """Stops all machines, and takes their indices away. Their tensors are lost."""
        with LOCK:
            for machine in self.started():
                machine.stop()
            for index in list(self._owners):
                owner = self.get_device_by_index(index)
                if owner is not None:
                    owner._index = None
                    owner._others.indices.clear()
                    self._owners[index] = _nobody

    def __len__(self) -> int:
        return len(self._devices)

    @property
    def _devices(self) -> dict[int, RemoteMachine]:
        """The registered machines by index; torch-remote's examples read it."""
        with LOCK:
            found = {i: self.get_device_by_index(i) for i in sorted(self._owners)}
        return {i: m for i, m in found.items() if m is not None and m._index == i}

    def started(self) -> list[RemoteMachine]:
        """The started machines, by index."""
        with LOCK:
            return [self._started[index] for index in sorted(self._started)]

    def _release(self, machine: RemoteMachine) -> None:
        """Takes the index of a machine away that has not started."""
        index = self.get_device_index(machine)
        if index is not None:
            self._owners[index] = _nobody
            if _device.state(index) == "new":
                del self._owners[index]
        machine._index = None

    def _free_index(self, machine: RemoteMachine, first: bool = True) -> int:
        """The lowest index without a machine, a bare "mycelya", or a tensor.

        first: for the machine's first device; another one never gets the index OWN.

        If there is none, the index of a stopped machine without tensors; that machine
        gets another one when it starts again.

        Raises:
            RuntimeError: all indices are in use.
        """
        free = []
        for index in range(MOST):
            own = index == OWN
            if index in self._started or index in OTHERS or (index < RANKS and not own):
                continue
            if _device.memory_allocated(index) != 0 or (own and not first):
                continue
            if own and OWN not in self._owners and _device.state(OWN) != "new":
                continue  # the machine that started on first use
            if own and not self._may_be_default(machine):
                continue
            if self.get_device_by_index(index) is None:
                return index
            free.append(index)
        if free:
            return free[0]
        raise RuntimeError(
            f"A process can use {MOST} mycelya machines at a time, and all indices are "
            "in use by running machines or by tensors of stopped ones. Stop a machine, "
            "and delete its tensors."
        )


def get_device_registry() -> DeviceRegistry:
    """The registry of this process."""
    return DeviceRegistry()


def get_all_machines() -> list[RemoteMachine]:
    """The started machines, by device index."""
    return get_device_registry().started()


def restart_index(index: int) -> None:
    """Restarts the machine of a device index, or that of a bare "mycelya".

    Raises:
        RuntimeError: no machine has the index.
    """
    registry = get_device_registry()
    machine = registry.get_device_by_index(index)
    if machine is not None:
        machine._restart(index)
        return
    if index != OWN or index in registry._owners:
        raise RuntimeError(
            f"mycelya:{index} has no machine any more; make a RemoteMachine."
        )
    with LOCK:
        _device.close(index)
        _device.open(index, "", "", "", "")
        _device.device_info(index)
