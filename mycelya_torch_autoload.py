# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""The entry point by which `import torch` alone registers the device "mycelya".

PyTorch loads it at the end of its own import (group "torch.backends"), unless
TORCH_DEVICE_BACKEND_AUTOLOAD=0. It lies outside the package, and imports nothing by
itself, so that nothing of the package runs unguarded within `import torch`.
"""

from __future__ import annotations

import sys


def autoload() -> None:
    """Imports mycelya_torch. A failure is one warning, never an exception."""
    if "mycelya_torch" in sys.modules:
        return  # it is being imported, and has just come to its own `import torch`
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
