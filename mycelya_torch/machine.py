# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Machines: a machine runs a worker and has a device index."""

from __future__ import annotations

import enum
import threading
import uuid
import weakref
from types import TracebackType
from typing import Any

import torch

from mycelya_torch import _device, _kept, _patch, _providers
from mycelya_torch._provider_table import TABLE, BackendProvider
from mycelya_torch.errors import MachineStoppedError


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
# The machine that had an index last. It keeps the index while its object exists.
_OWNERS: dict[int, weakref.ref[RemoteMachine]] = {}
_MOST = 64  # kMaxDevices in csrc/device/client/State.h


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
        detached: the worker outlives this process, and `attach(name)` of another
            process uses it. It ends at `stop()`, or `idle_timeout` seconds after its
            last client. Needs a name that no machine on this host has.
        idle_timeout: seconds, for a detached worker.
        device: provider option of "local": "cpu", "cuda:0", … or "" for the best.
        options: other options of the provider. "local" has transport: "unix", a socket
            that only this user can reach (the default), or "tcp": TLS 1.3 over the
            loopback interface, with certificates for this worker alone. And state: a
            folder for what `save` and `checkpoint` keep.

    Raises:
        ValueError: unknown provider, GPU type, device or option; the message lists
            valid ones.
        NotImplementedError: a provider that this version does not serve.
    """

    def __init__(
        self,
        provider: str | BackendProvider = _providers.DEFAULT,
        gpu_type: str | GPUType = "",
        *,
        name: str | None = None,
        start: bool = True,
        detached: bool = False,
        idle_timeout: float = 600,
        device: str = "",
        **options: str,
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
        if detached:
            options["detached"] = _seconds(name, idle_timeout)
        self._device = _providers.device_option(self.provider, device)
        self._options = _providers.other_options(self.provider, options)
        label = self._device.replace(":", "") or "best"
        self.device_id = f"{self.provider.value}-{label}-{uuid.uuid4().hex[:8]}"
        self.name = name or self.device_id
        self._index: int | None = None
        self._outlives = "detached" in options or "attach" in options
        if start:
            self.start()

    @classmethod
    def attach(
        cls, name: str, provider: str | BackendProvider = _providers.DEFAULT
    ) -> RemoteMachine:
        """A machine that another process has started with detached=True.

        A machine has one client at a time. What the last client has sent is still
        done; then its session ends, and its tensors with it. `load` returns what it has
        saved.

        Raises:
            RuntimeError: no such machine runs; the message lists those that do.
        """
        return cls(provider, name=name, attach="yes")

    @property
    def machine_id(self) -> str:
        """The same as `device_id`."""
        return self.device_id

    @property
    def remote_index(self) -> int | None:
        """The device index while the machine is started, else None."""
        if self._index is None or _MACHINES.get(self._index) is not self:
            return None
        return self._index

    @property
    def state(self) -> str:
        """One of "new", "running", "stopped", and "lost": its worker has ended.

        Only `start()` and `restart()` start a worker.
        """
        index = self.remote_index
        if index is None:
            return "new" if self._index is None else "stopped"
        return _device.state(index)

    def start(self) -> RemoteMachine:
        """Starts the worker and gives it a device index; does nothing if it runs.

        The index is the one that the machine had before, if no other machine has it.
        Tensors of an earlier worker stay lost.
        """
        with _LOCK:
            running = self.remote_index
            if running is not None and _device.state(running) != "lost":
                return self
            if running is not None:
                del _MACHINES[running]
                _device.close(running)
            if self._index is None or _owner(self._index) is not self:
                self._index = None
            index = _free_index() if self._index is None else self._index
            _device.open(
                index, self.provider.value, self._device, self.name, self._options
            )
            try:
                _device.device_info(index)  # starts the worker, so errors come here
            except BaseException:
                _device.close(index)
                raise
            _OWNERS[index] = weakref.ref(self)
            _MACHINES[index] = self
            self._index = index
        return self

    def stop(self) -> None:
        """Ends the worker. Its tensors are lost, and using one raises an error.

        The machine keeps its index for the next start. When its object and all of its
        tensors are gone, another machine may get the index.
        """
        with _LOCK:
            index = self.remote_index
            if index is None:
                return
            if self._outlives and _device.state(index) == "running":
                _kept.end(index)
            del _MACHINES[index]
            _device.close(index)

    def restart(self) -> RemoteMachine:
        """Replaces the worker by a new one, with the same index; starts a stopped one.

        All tensors of the machine are lost; using one raises `DeviceLostError`.
        """
        self.stop()
        return self.start()

    def save(self, name: str, tensors: Any) -> None:
        """Keeps tensors on the machine's disk under a name.

        The elements do not pass through this process. A name that exists is replaced,
        at once and as a whole. `RemoteMachine(state=folder)` says where a local machine
        keeps tensors; by default they end with the machine.

        Args:
            name: 1 to 100 characters.
            tensors: a tensor, or dicts, lists and tuples of tensors, numbers, strings
                and None, as a state_dict(). Tensors on other devices are copied to the
                machine. `load` returns those on the CPU on the CPU again.

        Raises:
            TypeError: something that cannot be kept; the message says where it is.
            ValueError: not a name.
            RuntimeError: the machine's disk is full, or cannot be written.
        """
        _kept.save(self.device(), name, tensors)

    def load(self, name: str) -> Any:
        """What `save` has kept under a name, with new contiguous tensors.

        Raises:
            ValueError: nothing has the name; the message lists the names.
        """
        return _kept.load(self.device(), name)

    def saved(self) -> list[str]:
        """The names that `save` has given, in order."""
        return _kept.names(self._running())

    def drop(self, name: str) -> None:
        """Ends what `save` has kept under a name.

        Raises:
            ValueError: nothing has the name; the message lists the names.
        """
        _kept.drop(self._running(), name)

    def checkpoint(self, every: float | None = None) -> None:
        """Keeps the state of all tensors and generators; waits until it is written.

        From the first checkpoint on, a worker that is lost is replaced: another one
        goes on from the last checkpoint, and repeats what this process has done since.
        Tensors stay valid. Uploads since the checkpoint are kept in this process; at
        1 GiB, another checkpoint is made at once.

        Args:
            every: seconds to the next checkpoint, again and again. None: none follows.

        Raises:
            RuntimeError: the checkpoint could not be written.
        """
        _kept.checkpoint(self._running(), every)

    def _running(self) -> int:
        index: int = self.device().index
        return index

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
            MachineStoppedError: the machine is not started.
        """
        index = self.remote_index
        if index is None:
            raise MachineStoppedError(
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
        state = self.state
        if index is not None:
            state = f"mycelya:{index}" if state == "running" else f"{state}, :{index}"
        return f"RemoteMachine({self.provider.value!r}, name={self.name!r}, {state})"


def _seconds(name: str | None, idle_timeout: float) -> str:
    if not name:
        raise ValueError("detached=True needs a name=, by which attach() finds it.")
    if not 1 <= idle_timeout < 1e9:
        raise ValueError(f"idle_timeout={idle_timeout!r} is not a number of seconds.")
    return str(int(idle_timeout))


def _owner(index: int) -> RemoteMachine | None:
    reference = _OWNERS.get(index)
    return None if reference is None else reference()


def _free_index() -> int:
    """The lowest index without a machine, a bare "mycelya", or a tensor.

    If there is none, the index of a stopped machine without tensors; that machine gets
    another one when it starts again.

    Raises:
        RuntimeError: all indices are in use.
    """
    free = []
    for index in range(_MOST):
        if index in _MACHINES or _device.memory_allocated(index) != 0:
            continue
        if index == 0 and 0 not in _OWNERS and _device.state(0) != "new":
            continue  # the machine that started on first use
        if _owner(index) is None:
            return index
        free.append(index)
    if free:
        return free[0]
    raise RuntimeError(
        f"A process can use {_MOST} mycelya machines at a time, and all indices are in "
        "use by running machines or by tensors of stopped ones. Stop a machine, and "
        "delete its tensors."
    )


def restart_index(index: int) -> None:
    """Restarts the machine of a device index, or that of a bare "mycelya".

    Raises:
        RuntimeError: no machine has the index.
    """
    machine = _owner(index)
    if machine is not None:
        machine.restart()
        return
    if index != 0 or index in _OWNERS:
        raise RuntimeError(
            f"mycelya:{index} has no machine any more; make a RemoteMachine."
        )
    with _LOCK:
        _device.close(index)
        _device.open(index, "", "", "", "")
        _device.device_info(index)


def get_all_machines() -> list[RemoteMachine]:
    """The started machines, by device index."""
    with _LOCK:
        return [_MACHINES[index] for index in sorted(_MACHINES)]


_patch.accept(RemoteMachine)
