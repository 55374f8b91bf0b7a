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
    download = _device.Download(tensor.detach())
    read = _Read()
    try:
        _pool(tensor.device.index).submit(_finish, read, download)
    except RuntimeError:  # the interpreter ends, and pools take no more work
        _finish(read, download)
    return read


class _Read(Future[torch.Tensor]):
    """A read. Metrics count the waits for its result as waits of the program."""

    def result(self, timeout: float | None = None) -> torch.Tensor:
        if self.done():
            return super().result(timeout)
        begun = time.perf_counter()
        try:
            return super().result(timeout)
        finally:
            _device.count_blocking_read(time.perf_counter() - begun)


def _finish(read: _Read, download: _device.Download) -> None:
    """Gives a future its result, unless it was cancelled."""
    if not read.set_running_or_notify_cancel():
        return
    try:
        read.set_result(download.wait())
    except BaseException as error:
        read.set_exception(error)


def _pool(device: int) -> ThreadPoolExecutor:
    """One thread per device, because answers arrive in the order of the requests."""
    with _LOCK:
        if device not in _pools:
            _pools[device] = ThreadPoolExecutor(1, thread_name_prefix="mycelya-cpu")
        return _pools[device]
