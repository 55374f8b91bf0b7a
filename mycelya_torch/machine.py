# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Machines: a machine runs a worker and has a device index."""

from __future__ import annotations

import enum
import threading
import uuid
from types import TracebackType

import torch

from mycelya_torch import _device, _patch, _providers
from mycelya_torch._provider_table import TABLE, BackendProvider


class GPUType(enum.Enum):
    """GPUs that providers offer, by their names there."""

    T4 = "T4"
    L4 = "L4"
    A10G = "A10G"
    A100 = "A100"
    A100_40GB = "A100-40GB"
    A100_80GB = "A100-80GB"
    L40S = "L40S"
    H100 = "H100"
    H200 = "H200"
    B200 = "B200"
    RTX_PRO_6000 = "RTX-PRO-6000"


_LOCK = threading.Lock()
_MACHINES: dict[int, RemoteMachine] = {}  # started machines by device index
_USED: set[int] = set()  # indices that no further machine gets


def _gpu(value: str | GPUType) -> GPUType | None:
    if value == "":
        return None
    try:
        return value if isinstance(value, GPUType) else GPUType(value)
    except ValueError:
        valid = ", ".join(repr(g.value) for g in GPUType)
        raise ValueError(f"{value!r} is not a GPU type; use one of {valid}.") from None


class RemoteMachine:
    """A machine that runs a worker and has one device index.

    Args:
        provider: "local" (also under the name "mock"). "modal", "ssh" and
            "kubernetes" are known names that this version does not serve.
        gpu_type: a `GPUType` or its name. The local machine uses what the host has,
            and takes only "".
        name: its name in messages; by default its `device_id`.
        start: start the worker now; otherwise at `start()`.
        device: provider option of "local": "cpu", "cuda:0", … or "" for the best.

    Raises:
        ValueError: unknown provider, GPU type or device; the message lists valid ones.
        NotImplementedError: a provider that this version does not serve.
    """

    def __init__(
        self,
        provider: str | BackendProvider = _providers.DEFAULT,
        gpu_type: str | GPUType = "",
        *,
        name: str | None = None,
        start: bool = True,
        device: str = "",
    ) -> None:
        self.provider = _providers.find(provider)
        self.gpu_type = _gpu(gpu_type)
        _providers.served(self.provider)
        if self.gpu_type is not None and not TABLE[self.provider].chooses_gpu:
            raise ValueError(
                f"The {self.provider.value} machine uses the GPU that the host has; "
                f"gpu_type={self.gpu_type.value!r} cannot be chosen. Leave it out, or "
                "give device='cuda:<index>'."
            )
        self._device = _providers.device_option(self.provider, device)
        label = self._device.replace(":", "") or "best"
        self.device_id = f"{self.provider.value}-{label}-{uuid.uuid4().hex[:8]}"
        self.name = name or self.device_id
        self._index: int | None = None
        if start:
            self.start()

    @property
    def machine_id(self) -> str:
        """The same as `device_id`."""
        return self.device_id

    @property
    def remote_index(self) -> int | None:
        """The device index while the machine is started, else None."""
        return self._index if self._index in _MACHINES else None

    def start(self) -> RemoteMachine:
        """Starts the worker and gives it a device index; does nothing if it runs."""
        with _LOCK:
            if self._index in _MACHINES:
                return self
            index = _free_index() if self._index is None else self._index
            _device.open(index, self.provider.value, self._device)
            try:
                _device.device_info(index)  # starts the worker, so errors come here
            except BaseException:
                _device.close(index)
                raise
            _USED.add(index)
            _MACHINES[index] = self
            self._index = index
        return self

    def stop(self) -> None:
        """Ends the worker. Its tensors are lost; no other machine gets its index."""
        with _LOCK:
            if self._index is not None and self._index in _MACHINES:
                del _MACHINES[self._index]
                _device.close(self._index)

    def __enter__(self) -> RemoteMachine:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def device(self) -> torch.device:
        """The torch.device of this machine: "mycelya:<index>".

        Raises:
            RuntimeError: the machine is not started.
        """
        index = self.remote_index
        if index is None:
            raise RuntimeError(
                f"Machine {self.name} is not running. Call its start() first; tensors "
                "it held before a stop() are gone."
            )
        return torch.device("mycelya", index)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemoteMachine) and self.device_id == other.device_id

    def __hash__(self) -> int:
        return hash(self.device_id)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        index = self.remote_index
        state = "stopped" if index is None else f"mycelya:{index}"
        return f"RemoteMachine({self.provider.value!r}, name={self.name!r}, {state})"


def _free_index() -> int:
    """The lowest index that no machine had and a bare "mycelya" does not use."""
    if not _USED and _device.is_initialized():
        _USED.add(0)  # the machine that started on first use has tensors there
    index = 0
    while index in _USED:
        index += 1
    return index


def get_all_machines() -> list[RemoteMachine]:
    """The started machines, by device index."""
    with _LOCK:
        return [_MACHINES[index] for index in sorted(_MACHINES)]


_patch.accept(RemoteMachine)
