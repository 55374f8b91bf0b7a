# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""The entry point by which `import torch` alone registers the device "mycelya".

PyTorch loads it at the end of its own import (group "torch.backends"), unless
TORCH_DEVICE_BACKEND_AUTOLOAD=0. It lies outside the package, and imports nothing by
itself, so that nothing of the package runs unguarded within `import torch`.
"""

from __future__ import annotations

import os
import sys

# Files of the drivers of NVIDIA, of NVIDIA in Windows' Linux, and of AMD.
_CUDA, _ROCM = ("/dev/nvidiactl", "/dev/dxg"), ("/dev/kfd",)


def beside_gpu() -> bool:
    """Whether PyTorch may have a GPU of this host. It asks no driver: that is slow."""
    import torch

    if os.environ.get("CUDA_VISIBLE_DEVICES", "0") in ("", "-1"):
        return False
    files = (_CUDA if torch.version.cuda else ()) + (_ROCM if torch.version.hip else ())
    return any(map(os.path.exists, files))


def autoload() -> None:
    """Imports mycelya_torch, unless PyTorch may have a GPU of this host.

    PyTorch has one accelerator in a process. With the device "mycelya" CUDA is no
    accelerator any more, and its backward fails (mycelya_torch/_accelerator.py). A
    program that wants the device on such a host imports mycelya_torch, or has
    MYCELYA_MACHINE in its environment.

    A failure is one warning, never an exception.
    """
    if "mycelya_torch" in sys.modules:
        return  # it is being imported, and has just come to its own `import torch`
    if beside_gpu() and not os.environ.get("MYCELYA_MACHINE"):
        return
    try:
        import mycelya_torch  # noqa: F401
    except (Exception, SystemExit) as error:
        _warn(
            f'The device "mycelya" is not available: {error} '
            "(TORCH_DEVICE_BACKEND_AUTOLOAD=0 turns its loading by `import torch` off.)"
        )


def _warn(message: str) -> None:
    import warnings

    try:
        warnings.warn(message, RuntimeWarning, stacklevel=2)
    except Warning:  # warnings are errors here, but `import torch` must go on
        if sys.stderr is not None:
            print(f"RuntimeWarning: {message}", file=sys.stderr)
