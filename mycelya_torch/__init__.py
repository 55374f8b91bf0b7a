# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""The PyTorch device "mycelya", which computes in a worker process.

Importing this package registers the device. If the package is installed, `import torch`
imports it. Ops on the device are recorded, compiled to programs, and run by a worker
that starts on first use.
"""

from __future__ import annotations

import atexit
import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

import torch

from mycelya_torch import _env, _load
from mycelya_torch._version import __version__

if TYPE_CHECKING:
    from mycelya_torch import errors
    from mycelya_torch._execution import (
        disable_remote_execution,
        enable_remote_execution,
        is_remote_execution_enabled,
    )
    from mycelya_torch._weights import load_huggingface_state_dicts
    from mycelya_torch.machine import (
        BackendProvider,
        DeviceRegistry,
        GPUType,
        RemoteMachine,
        create_modal_machine,
        get_all_machines,
        get_device_registry,
    )

_default_machine = _env.default_machine()
_load.check_name_is_free()
_load.load()

from mycelya_torch import _device  # noqa: E402 (loaded from lib/ by the line above)

_device.init(
    str(_load.CLIENT),
    str(_load.WORKER),
    str(_load.EXEC),
    str(_load.torch_lib()),
    *_default_machine,
)
_device.set_ranks(*_env.ranks())
# An op's origin is the innermost Python frame outside these. Code objects name files by
# the path of their import, which may go through symbolic links.
_device.skip_files([f"{os.path.dirname(file)}/" for file in (torch.__file__, __file__)])
_device.set_standard_library(f"{os.path.dirname(os.__file__)}/")
if "IPython" in sys.modules:
    importlib.import_module("mycelya_torch._notebook").install()
torch.utils.rename_privateuse1_backend("mycelya")

from mycelya_torch import _accelerator, _distributed, _patch, device, log  # noqa: E402
from mycelya_torch.log import (  # noqa: E402
    disable_logging,
    enable_debug_logging,
    enable_info_logging,
    get_logging_level,
    reset_logging,
    set_logging_level,
)

torch._register_device_module("mycelya", sys.modules["mycelya_torch.device"])
torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
_patch.install()
_distributed.register()
_accelerator.explain()
log.reset_logging()
if _env.eager():
    importlib.import_module("mycelya_torch._eager").always()


def _end() -> None:
    """Ends the workers. An error that nothing has raised is printed: exit code 1.

    Work that nothing has waited for may still fail, so the process waits for it, unless
    an exception has ended the program.
    """
    text = ""
    try:
        text = _device.last_error(getattr(sys, "last_value", None) is None)
    finally:
        _device.shutdown()
    if text:
        print(
            "An operation on a mycelya device failed, and nothing has read its result "
            f"since:\n{text}",
            file=sys.stderr,
        )
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


atexit.register(_end)

# These are imported on first use, because this file runs within every `import torch`.
_MODULES = {"errors", "machine"}
_LATER = {
    "BackendProvider": "machine",
    "DeviceRegistry": "machine",
    "GPUType": "machine",
    "RemoteMachine": "machine",
    "create_modal_machine": "machine",
    "disable_remote_execution": "_execution",
    "enable_remote_execution": "_execution",
    "get_all_machines": "machine",
    "get_device_registry": "machine",
    "is_remote_execution_enabled": "_execution",
    "load_huggingface_state_dicts": "_weights",
}


if not TYPE_CHECKING:  # with it, every misspelt name would be right

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return importlib.import_module(f"mycelya_torch.{name}")
        if name not in _LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"mycelya_torch.{_LATER[name]}"), name)


def __dir__() -> list[str]:
    special = [name for name in globals() if name.startswith("__")]
    return sorted({*__all__, *special})


def get_storage_id(tensor: torch.Tensor) -> int:
    """The id of a tensor's storage on its worker: 1, 2, … in order of creation.

    Raises:
        TypeError: not a tensor on a mycelya device.
    """
    return _device.storage_id(_ours(tensor))


def get_metadata_hash(tensor: torch.Tensor) -> str:
    """A hash of a tensor's shape, strides, offset, dtype and storage id.

    Raises:
        TypeError: not a tensor on a mycelya device.
    """
    return _device.metadata_hash(_ours(tensor))


def _ours(tensor: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor, torch.Tensor) and tensor.device.type == "mycelya":
        return tensor
    what = f"tensor on {tensor.device}" if isinstance(tensor, torch.Tensor) else tensor
    raise TypeError(f"Expected a tensor on a mycelya device, got {what!r}.")


__all__ = [
    "__version__",
    "BackendProvider",
    "DeviceRegistry",
    "GPUType",
    "RemoteMachine",
    "create_modal_machine",
    "device",
    "disable_logging",
    "disable_remote_execution",
    "enable_debug_logging",
    "enable_info_logging",
    "enable_remote_execution",
    "errors",
    "get_all_machines",
    "get_device_registry",
    "get_logging_level",
    "get_metadata_hash",
    "get_storage_id",
    "is_remote_execution_enabled",
    "load_huggingface_state_dicts",
    "reset_logging",
    "set_logging_level",
]
