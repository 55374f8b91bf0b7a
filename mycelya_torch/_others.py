# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""The devices of a machine beside its first one: `RemoteMachine.device(type, index)`.

Each has a session of its own with the machine's worker, and a device index of its own.
The worker copies between them.
"""

from __future__ import annotations

import json
import re
import weakref
from typing import TYPE_CHECKING

import torch

from mycelya_torch import _device
from mycelya_torch._registry import OTHERS, get_device_registry

if TYPE_CHECKING:
    from mycelya_torch.machine import RemoteMachine

_MOST_GPUS = 16  # of a machine


def wanted(type: str | torch.device | None, index: int | None) -> str:
    """The worker's name of a device: "cpu", "cuda:0", …; "cuda" is any GPU, "" the
    machine's first device.

    Raises:
        ValueError: there is no such type or index; the message lists the valid ones.
    """
    valid = 'use "cpu", "cuda", "cuda:<index>" or None.'
    if type is None and index is None:
        return ""
    match = re.fullmatch(r"(cpu|cuda)(?::(\d+))?", str(type))
    if match is None:
        raise ValueError(f"type={type!r} is not a device of a machine; {valid}")
    name = match[1]
    if match[2] is not None:
        if index is not None and index != int(match[2]):
            raise ValueError(f"type={type!r} and index={index!r} are two devices.")
        index = int(match[2])
    most = 1 if name == "cpu" else _MOST_GPUS
    whole = isinstance(index, int) and not isinstance(index, bool)
    if index is not None and not (whole and index in range(most)):
        raise ValueError(
            f"index={index!r} is not a {name} device of a machine, which has at most "
            f"{most}; {valid}"
        )
    return name if index is None or name == "cpu" else f"{name}:{index}"


class Others:
    """The devices of one machine beside its first one. Its callers hold the LOCK of
    _registry."""

    def __init__(self, machine: RemoteMachine) -> None:
        self._machine = weakref.ref(machine)
        self.indices: dict[str, int] = {}  # by the worker's name of the device

    @property
    def _of(self) -> RemoteMachine:
        machine = self._machine()
        assert machine is not None  # it owns this object
        return machine

    def _forget(self) -> None:
        """Forgets the indices that another machine has got."""
        registry = get_device_registry()
        for name, index in list(self.indices.items()):
            if registry.get_device_by_index(index) is not self._of:
                del self.indices[name]

    def get(self, first: int, name: str) -> int:
        """The index of a device, which starts if it was not used before.

        Raises:
            RuntimeError: the worker does not have the device.
        """
        if name == "":
            return first
        mine: str = json.loads(_device.device_info(first))["device"]
        if mine != "cpu" and (name == mine or name == mine.partition(":")[0]):
            return first
        if name == "cuda":
            name = "cuda:0"
        self._forget()
        known = self.indices.get(name)
        if known is not None and known in OTHERS:
            return known
        registry = get_device_registry()
        index = registry._free_index(self._of, False) if known is None else known
        self._open(first, index, name)
        try:
            _device.device_info(index)  # starts the session, so errors come here
        except BaseException:
            self._close(index)
            raise
        registry._owners[index] = self._machine
        self.indices[name] = index
        return index

    def _open(self, first: int, index: int, name: str) -> None:
        label = f"{self._of.name} ({name})"
        _device.open_beside(index, first, self._of.provider.value, name, label)
        OTHERS.add(index)

    def _close(self, index: int) -> None:
        OTHERS.discard(index)
        _device.close(index)

    def start(self, first: int) -> None:
        """Opens the devices that were used before and are stopped or lost.

        Their sessions start on first use.
        """
        self._forget()
        for name, index in self.indices.items():
            if index in OTHERS and _device.state(index) == "lost":
                self._close(index)
            if index not in OTHERS:
                self._open(first, index, name)

    def restart(self, first: int, index: int) -> None:
        """Replaces the session of one device by a new one."""
        name = next(name for name, at in self.indices.items() if at == index)
        self._close(index)
        self._open(first, index, name)

    def check_empty(self) -> None:
        """Checks that none of them has tensors.

        Raises:
            RuntimeError: one has.
        """
        for index in self.indices.values():
            if index in OTHERS and _device.memory_allocated(index) != 0:
                raise RuntimeError(
                    f"Machine {self._of.name} cannot pause: its device mycelya:{index} "
                    "has tensors, and a pause keeps only those of the first device. "
                    "Copy them there, or delete them."
                )

    def stop(self) -> None:
        """Ends their sessions. The devices keep their indices."""
        for index in self.indices.values():
            if index in OTHERS:
                self._close(index)
