# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Machines: a machine runs a worker and has a device index."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import torch

from mycelya_torch import _device, _gpus, _kept, _others, _patch, _providers
from mycelya_torch._gpus import GPUType
from mycelya_torch._provider_table import TABLE, BackendProvider
from mycelya_torch._registry import LOCK as _LOCK
from mycelya_torch._registry import (
    DeviceRegistry,
    get_all_machines,
    get_device_registry,
)
from mycelya_torch.errors import MachineStoppedError

__all__ = [
    "BackendProvider",
    "DeviceRegistry",
    "GPUType",
    "RemoteMachine",
    "create_modal_machine",
    "get_all_machines",
    "get_device_registry",
]

_REGISTRY = get_device_registry()
_TITLES = {"ssh": "SSH"}  # of providers whose name is no word


class RemoteMachine:
    """A machine that runs a worker and has one device index.

    Args:
        provider: "local" (also under the name "mock"), "modal": a GPU sandbox of Modal,
            "ssh", "kubernetes": a pod of the cluster that the kubeconfig names, or
            "exec".
        gpu_type: a `GPUType` or its name; "" is the provider's default. The local
            machine uses what the host has, and takes only "".
        gpu_count: how many GPUs, for providers that let you choose.
        name: its name in messages; by default its `device_id`.
        timeout: seconds after which the worker ends, whatever it does. None is the
            provider's default: 3600 where a worker costs money, no limit otherwise.
        idle_timeout: seconds without a client after which the worker ends. None is the
            provider's default: 600 for workers that can outlive this process.
        packages: Python packages that the worker's host needs, as for pip.
        start: start the worker now; otherwise at `start()`.
        detached: the worker outlives this process, and `attach(name)` of another
            process uses it. It ends at `stop()`, or by one of its timeouts. Needs a
            name that no other machine has.
        device: provider option of "local" and "ssh": "cpu", "cuda:0", … or "" for the
            best.
        options: other options of the provider. "local" has transport: "unix", a socket
            that only this user can reach (the default), or "tcp": TLS 1.3 over the
            loopback interface, with certificates for this worker alone. And state: a
            folder for what `save` and `checkpoint` keep. And rtt: "50ms", and rate:
            "100Mbit", of an emulated network before the worker. "modal" has
            gpu_fallback, region, volume, image, tunnel and start_timeout; see
            `create_modal_machine`.
            "ssh" has host: "user@name", as for ssh; python: the interpreter there that
            has torch; ssh: the program here, with its options; folder and state:
            folders there. "exec" has command: a command whose stdin and stdout are
            those of `mycelya-worker --stdio`. "kubernetes" has context, namespace,
            image, pull_secret, gpu_label, gpu_product, volume, cpu, memory, user,
            direct and wait (runtime/provider/kubernetes/README.md).

    Attributes:
        device_id: a name that no other machine has: "modal-a10040gb-1f3c9a2e".

    Raises:
        ValueError: unknown provider, GPU type, device or option; the message lists
            valid ones.
    """

    def __init__(
        self,
        provider: str | BackendProvider = _providers.DEFAULT,
        gpu_type: str | GPUType = "",
        *,
        gpu_count: int = 1,
        name: str | None = None,
        timeout: float | None = None,
        idle_timeout: float | None = None,
        packages: Sequence[str] | None = None,
        start: bool = True,
        detached: bool = False,
        device: str = "",
        _attach: bool = False,
        **options: str,
    ) -> None:
        self.provider = _providers.find(provider)
        self.gpu_type = _gpus.find(gpu_type)
        self.gpu_count = gpu_count
        self.packages = tuple(packages or ())
        if detached and not name:
            raise ValueError("detached=True needs a name=, by which attach() finds it.")
        self._device = _providers.device_option(self.provider, device)
        request = _providers.Request(
            gpu=self.gpu_type,
            gpus=gpu_count,
            lease=timeout,
            idle=idle_timeout,
            packages=self.packages,
            detached=detached,
            attach=_attach,
        )
        self._request, self._own_options = request, options
        self._options = request.options(self.provider, options)
        gpu = self.gpu_type.value if self.gpu_type else self._device or "best"
        label = re.sub(r"[^a-z0-9]", "", gpu.lower())
        self.device_id = f"{self.provider.value}-{label}-{uuid.uuid4().hex[:8]}"
        self.name = name or self.device_id
        self._index: int | None = None
        self._ran = False  # it has been started
        self._starting: int | None = None  # the index while another thread starts it
        self._outlives = request.detached or request.attach
        self._others = _others.Others(self)
        if start:
            self.start()

    @classmethod
    def attach(
        cls,
        name: str,
        provider: str | BackendProvider = _providers.DEFAULT,
        *,
        device: str = "",
        **options: str,
    ) -> RemoteMachine:
        """A machine that another process has started with detached=True.

        A machine has one client at a time. What the last client has sent is still
        done; then its session ends, and its tensors with it. `load` returns what it has
        saved.

        Args:
            name: the machine's name.
            provider: its provider.
            options: the provider's, as those of `RemoteMachine`, where it needs them to
                find the machine: the host of "ssh".

        Raises:
            RuntimeError: no such machine runs; the message lists those that do.
        """
        own: dict[str, Any] = dict(options)
        return cls(provider, name=name, device=device, _attach=True, **own)

    @property
    def machine_id(self) -> str:
        """The same as `device_id`."""
        return self.device_id

    @property
    def device_name(self) -> str:
        """The provider and the GPU or device, for people: "Modal A100-40GB".

        If neither was named, a machine that runs says what it has chosen.
        """
        title = _TITLES.get(self.provider.value, self.provider.value.capitalize())
        count = f"{self.gpu_count} x " if self.gpu_count > 1 else ""
        if self.gpu_type is not None:
            return f"{title} {count}{self.gpu_type.value}"
        device = self._device.upper()
        if not device and self.state == "running":
            found = json.loads(_device.device_info(self.device().index))
            device = "CPU" if found["device"] == "cpu" else found["name"]
        return f"{title} {count}{device or 'machine'}"

    @property
    def modal_gpu_spec(self) -> str:
        """The GPU type in Modal's words, with the count if there are several: "H100:2".

        "" is the default type.

        Raises:
            ValueError: not a machine of "modal".
        """
        if self.provider is not BackendProvider.MODAL:
            raise ValueError(
                f"Machine {self.name} is a {self.provider.value} machine; only modal "
                "machines have a modal_gpu_spec."
            )
        gpu = self.gpu_type.value if self.gpu_type else ""
        return f"{gpu}:{self.gpu_count}" if gpu and self.gpu_count > 1 else gpu

    @property
    def remote_index(self) -> int | None:
        """The device index while the machine is started, else None."""
        if self._index is None or _REGISTRY._started.get(self._index) is not self:
            return None
        return self._index

    @property
    def state(self) -> str:
        """One of "new", "running", "paused", "stopped", and "lost": the worker ended.

        Only `start()`, `resume()` and `restart()` start a worker.
        """
        index = self.remote_index
        if index is None:
            return "stopped" if self._ran else "new"
        return _device.state(index)

    def start(self) -> RemoteMachine:
        """Starts the worker and gives it a device index; does nothing if it runs.

        A paused machine is resumed.

        The index is the one that the machine had before, if no other machine has it.
        Tensors of an earlier worker stay lost. The machine's other devices start again,
        too, if they do not run.
        """
        with _LOCK:
            running = self.remote_index
            if running is not None and _device.state(running) != "lost":
                return self.resume()
            self._others.stop()
            if running is not None:
                del _REGISTRY._started[running]
                _device.close(running)
            fresh = _REGISTRY.get_device_index(self) is None
            index = _REGISTRY.register_device(self)
            self._starting = index
            try:
                _device.open(
                    index, self.provider.value, self._device, self.name, self._options
                )
                _device.device_info(index)  # starts the worker, so errors come here
            except BaseException:
                _device.close(index)
                if fresh:
                    _REGISTRY._release(self)
                raise
            finally:
                self._starting = None
            _REGISTRY._started[index] = self
            self._ran = True
            self._others.start(index)
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
            if self._outlives and _device.state(index) != "lost":
                _kept.end(index)
            self._others.stop()
            del _REGISTRY._started[index]
            _device.close(index)

    def force_stop(self) -> None:
        """Ends the worker at once, whatever it does, and then does what `stop` does.

        A start of this machine in another thread is given up; it raises an error there.
        """
        while (starting := self._starting) is not None:
            # The other thread may be about to open the device, so once is not enough.
            _device.close(starting)
            time.sleep(0.01)
        with _LOCK:
            index = self.remote_index
            if index is None:
                return
            if self._outlives and _device.state(index) != "lost":
                _kept.end(index)
            try:
                _kept.kill(index)
            finally:
                self._others.stop()
                del _REGISTRY._started[index]
                _device.close(index)

    def pause(self) -> None:
        """Keeps the state of all tensors and generators, and ends the worker.

        While it is paused, the machine has no worker, so one that is paid by the hour
        costs nothing. Tensors stay valid, but a use raises `MachineStoppedError` until
        `resume()`. Does nothing if the machine is paused.

        Raises:
            MachineStoppedError: the machine is not started.
            NotImplementedError: what a worker of the provider keeps ends with it.
            RuntimeError: the state could not be written, or another device of the
                machine has tensors, which would be lost; the worker goes on.
        """
        index = self._running()
        with _LOCK:
            self._others.check_empty()
            _device.pause(index)
            self._others.stop()

    def resume(self) -> RemoteMachine:
        """Starts another worker with the state of a paused one, and waits for it.

        Does nothing if the machine runs. `start()` resumes a paused machine, too.

        Raises:
            MachineStoppedError: the machine is not started.
            RuntimeError: no worker could be started, or it cannot read the state.
        """
        index = self._running()
        with _LOCK:
            _device.resume(index)
            self._others.start(index)
        return self

    def logs(self) -> str:
        """The log of the machine's worker, or its end: 64 KiB of a local one.

        It can also be read while the machine is paused or lost.

        Raises:
            MachineStoppedError: the machine is not started.
            NotImplementedError: the provider keeps no log.
        """
        return _kept.logs(self._running())

    def pip_install(self, packages: str | Sequence[str]) -> str:
        """Installs Python packages on the worker's host; returns what pip has printed.

        Packages of a machine that is not started are installed when it starts.

        Args:
            packages: one or more, in pip's words: "numpy", "pillow==11.0".

        Raises:
            NotImplementedError: the provider cannot install packages.
            RuntimeError: the installation has failed; the message has its output.
        """
        names = (packages,) if isinstance(packages, str) else tuple(packages)
        if not TABLE[self.provider].packages:
            raise NotImplementedError(_providers.no_packages(self.provider, names))
        index = self.remote_index
        if index is None:
            wanted = (*self.packages, *names)
            self._options = self._request._replace(packages=wanted).options(
                self.provider, self._own_options
            )
            self.packages = wanted
            return ""
        output = _kept.install(index, names)
        self.packages = (*self.packages, *names)
        return output

    def restart(self) -> RemoteMachine:
        """Replaces the worker by a new one, with the same index; starts a stopped one.

        All tensors of the machine are lost; using one raises `DeviceLostError`.
        """
        self.stop()
        return self.start()

    def _restart(self, index: int) -> None:
        """Restarts one device: the machine, if it is the first one or does not run."""
        first = self.remote_index
        if index == self._index or first is None or _device.state(first) == "lost":
            self.restart()
            return
        with _LOCK:
            self._others.restart(first, index)

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
        return self._first()

    def __enter__(self) -> RemoteMachine:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def device(
        self, type: str | torch.device | None = None, index: int | None = None
    ) -> torch.device:
        """A device of this machine: "mycelya:<index>".

        Without arguments it is the machine's first device, on which the worker was
        started. The others have indices of their own, and start when they are asked for
        first: the memory of the machine's host, to park what its GPU has no room for,
        and other GPUs. The worker copies between devices of one machine, so
        `tensor.to(machine.device("cpu"))` sends no element to this process.

        Args:
            type: "cpu", "cuda", "cuda:<index>", or None for the first device. "cuda" is
                the first device if that is a GPU, else "cuda:0".
            index: of the GPU.

        Raises:
            MachineStoppedError: the machine is not started.
            ValueError: not a type, or not an index of it.
            RuntimeError: the worker does not have the device.
        """
        name = _others.wanted(type, index)
        first = self._first()
        if not name:
            return torch.device("mycelya", first)
        with _LOCK:
            return torch.device("mycelya", self._others.get(first, name))

    def _first(self) -> int:
        index = self.remote_index
        if index is None:
            raise MachineStoppedError(
                f"Machine {self.name} is not running. Call its start() first; tensors "
                "it held before a stop() are gone."
            )
        return index

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


def create_modal_machine(gpu: str | GPUType, **options: Any) -> RemoteMachine:
    """A machine in a GPU sandbox of Modal, started: `RemoteMachine("modal", gpu, …)`.

    It costs money until it is stopped, until `idle_timeout` (600 s) has passed without
    a client, or until `timeout` (3600 s) has passed. The token of Modal comes from
    MODAL_TOKEN_ID and MODAL_TOKEN_SECRET, or from `modal token set`.

    Args:
        gpu: a `GPUType` or its name, as "A100-80GB".
        options: those of `RemoteMachine`, and as strings those of Modal. gpu_fallback:
            types to try if there is no capacity, as "A100-80GB,H100". region: as
            "us-east". volume: the name of a Modal volume, on which what `save` and
            `checkpoint` keep outlives the sandbox. image: an image of a registry.
            tunnel: "tcp" or "tls". start_timeout: seconds that the sandbox may wait for
            a GPU.

    Raises:
        ValueError: unknown GPU type or option; the message lists valid ones.
        RuntimeError: the machine did not start; the message says why and what to do.
    """
    return RemoteMachine(BackendProvider.MODAL, gpu, **options)


_patch.accept(RemoteMachine)
