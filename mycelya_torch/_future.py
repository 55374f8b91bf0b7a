# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Downloads in the background."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from mycelya_torch import _device

_LOCK = threading.Lock()
_pools: dict[int, ThreadPoolExecutor] = {}  # by device


def cpu_future(tensor: torch.Tensor) -> Future[torch.Tensor]:
    """Implements Tensor.cpu_future; its docstring is in _patch."""
    if tensor.device.type != "mycelya":
        done: Future[torch.Tensor] = Future()
        done.set_result(tensor.detach().cpu())
        return done
    # The read is posted before this returns, so later writes do not change its values.
    read = _Read(_device.Download(tensor.detach()))
    try:
        _pool(tensor.device.index).submit(_finish, read)
    except RuntimeError:  # the interpreter ends, and pools take no more work
        _finish(read)
    return read


class _FailedError(Exception):
    """A read failed. Who asks for its result raises the error of the device."""


class _Read(Future[torch.Tensor]):
    """A read. Metrics count the waits for its result as waits of the program.

    From a failure on, records have no effect until its error is raised. So the thread
    of the program raises it: otherwise the time of the answer decides about records.
    """

    def __init__(self, download: _device.Download) -> None:
        super().__init__()
        self.download = download

    def result(self, timeout: float | None = None) -> torch.Tensor:
        begun = None if self.done() else time.perf_counter()
        try:
            return super().result(timeout)
        except _FailedError:
            return self.download.wait()
        finally:
            if begun is not None:
                _device.count_blocking_read(time.perf_counter() - begun)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        error = super().exception(timeout)
        if isinstance(error, _FailedError):
            try:
                self.download.wait()
            except BaseException as raised:
                return raised
        return error


def _finish(read: _Read) -> None:
    """Gives a future its result, unless it was cancelled."""
    if not read.set_running_or_notify_cancel():
        return
    if read.download.succeeds():
        read.set_result(read.download.wait())
    else:
        read.set_exception(_FailedError())


def _pool(device: int) -> ThreadPoolExecutor:
    """One thread per device, because answers arrive in the order of the requests."""
    with _LOCK:
        if device not in _pools:
            _pools[device] = ThreadPoolExecutor(1, thread_name_prefix="mycelya-cpu")
        return _pools[device]
