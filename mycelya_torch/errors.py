# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Exceptions of the device. All are subclasses of RuntimeError.

`OutOfMemoryError` is PyTorch's. Its text has the bytes wanted, free and in all, and the
lines whose live tensors are the largest.
"""

from torch import OutOfMemoryError

__all__ = ["DeviceLostError", "MachineStoppedError", "OutOfMemoryError"]


class DeviceLostError(RuntimeError):
    """The worker of a device, or the process of its session, has ended.

    The text has what was observed: the signal or the exit code, and the call, the
    step, the op and the Python line that ran then. All tensors of the device are lost.
    `RemoteMachine.restart()` and `torch.mycelya.restart()` make it usable again.
    """


class MachineStoppedError(RuntimeError):
    """The machine of a device is stopped. Its `start()` or `restart()` starts it."""
