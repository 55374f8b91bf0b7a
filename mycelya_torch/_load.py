# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Finds the native artefacts in this package and loads the device extension.

The libraries are those for the minor version of the installed torch (_libraries).

The extension loads the Go library and starts the worker on first use, so an import
starts neither a Go runtime nor a process.
"""

from __future__ import annotations

import importlib.util
import sys
import warnings
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import ModuleType

import torch

from mycelya_torch import _libraries

PACKAGE = Path(__file__).resolve().parent
LIBRARIES = _libraries.folder(torch.__version__)
DEVICE = LIBRARIES / "libmycelya_device.so"
EXEC = LIBRARIES / "libmycelya_exec.so"
CLIENT = PACKAGE / "lib" / "libmycelya_go.so"
WORKER = PACKAGE / "bin" / "mycelya-worker"


def torch_lib() -> Path:
    """The folder that holds libtorch_cpu of the running PyTorch."""
    return Path(torch.__file__).resolve().parent / "lib"


def check_name_is_free() -> None:
    """Checks that no other package has registered a device; PyTorch allows only one.

    Raises:
        RuntimeError: another backend has registered.
    """
    name = torch._C._get_privateuse1_backend_name()
    if name not in ("privateuseone", "mycelya"):
        raise RuntimeError(
            f"PyTorch allows one device from another package, and {name!r} has "
            "registered already. Use one of the two in a process: uninstall the other, "
            "or start with TORCH_DEVICE_BACKEND_AUTOLOAD=0 and import only this one."
        )


def load() -> ModuleType:
    """Loads libmycelya_device.so as mycelya_torch._device and returns it.

    All its symbols are bound here (-z now), so a library that does not fit torch fails
    in this call, and not in the first operator that needs a missing function.

    Raises:
        ImportError: the library is missing, or does not fit torch or Python.
    """
    name = "mycelya_torch._device"
    if name in sys.modules:
        return sys.modules[name]
    if not DEVICE.exists():
        raise ImportError(
            f"{DEVICE} is missing: the package was not built. In a checkout run "
            "'make build'; otherwise reinstall mycelya-torch."
        )
    if LIBRARIES.name != _libraries.folder_name(torch.__version__):
        warnings.warn(
            f"mycelya-torch has no libraries for torch {torch.__version__} and uses "
            f"those for {LIBRARIES.name}, which nobody has tested with it. Install a "
            "mycelya-torch for this torch, or run 'make build' in a checkout.",
            RuntimeWarning,
            stacklevel=2,
        )
    loader = ExtensionFileLoader(name, str(DEVICE))
    spec = importlib.util.spec_from_file_location(name, DEVICE, loader=loader)
    assert spec is not None
    try:
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except ImportError as error:
        raise ImportError(
            f"{DEVICE} does not load into torch {torch.__version__} on Python "
            f"{sys.version.split()[0]}: {error}. It was built for another version of "
            "either; run 'make build' in a checkout, or reinstall mycelya-torch."
        ) from error
    sys.modules[name] = module
    return module
