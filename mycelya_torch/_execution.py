# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Whether a bare "mycelya" may be a machine elsewhere."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from mycelya_torch import _device, _env, _registry
from mycelya_torch._provider_table import BackendProvider
from mycelya_torch._registry import LOCK, get_device_registry

if TYPE_CHECKING:
    from mycelya_torch.machine import RemoteMachine

_enabled = True
_here: RemoteMachine | None = None  # the local worker beside a configured machine


def enable_remote_execution() -> None:
    """Lets a bare "mycelya" be the configured machine again.

    That is the machine that was started first, else that of MYCELYA_MACHINE, else a
    local worker.
    """
    global _enabled
    with LOCK:
        _enabled = True
        get_device_registry()._may_be_default = _registry._anybody
        _device.set_home(_registry.OWN)


def disable_remote_execution() -> None:
    """Makes a bare "mycelya" a local worker, whatever machine is configured.

    It starts that worker if the configured machine is not local itself. Tensors stay
    where they are, a `RemoteMachine` computes as before, and so does a device that
    `torch.mycelya.set_device` or `torch.mycelya.device` has made the current one. A
    machine with transport="tcp" is reached over a network, so it does not count as
    local.
    """
    global _enabled, _here
    with LOCK:
        _enabled = False
        get_device_registry()._may_be_default = _may_be_default
        if _default_is_local():
            _device.set_home(_registry.OWN)
            return
        if _here is None:
            from mycelya_torch.machine import RemoteMachine

            _here = RemoteMachine(BackendProvider.LOCAL, start=False)
        # The index OWN is the configured machine's.
        _device.set_home(_here.start().device().index)


def is_remote_execution_enabled() -> bool:
    """Whether a bare "mycelya" may be a machine elsewhere; True after the import."""
    return _enabled


def _may_be_default(machine: RemoteMachine) -> bool:
    """Whether a machine may have the index OWN while remote execution is disabled."""
    return machine is not _here and is_local(machine.provider, machine._options)


def is_local(provider: BackendProvider, options: str) -> bool:
    """Whether the worker is a process of this host that no network reaches."""
    given = json.loads(options or "{}")
    return provider is BackendProvider.LOCAL and given.get("transport") != "tcp"


def _default_is_local() -> bool:
    """Whether the index OWN is, or will be, a local worker."""
    machine = get_device_registry().get_device_by_index(_registry.OWN)
    if machine is not None:
        return is_local(machine.provider, machine._options)
    provider, _, options = _env.default_machine()
    return is_local(BackendProvider(provider), options)
