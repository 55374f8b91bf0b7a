# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Downloads in the background."""

from __future__ import annotations

import threading
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
    try:
        return _pool(tensor.device.index).submit(download.wait)
    except RuntimeError:  # the interpreter ends, and pools take no more work
        late: Future[torch.Tensor] = Future()
        try:
            late.set_result(download.wait())
        except BaseException as error:
            late.set_exception(error)
        return late


def _pool(device: int) -> ThreadPoolExecutor:
    """One thread per device, because answers arrive in the order of the requests."""
    with _LOCK:
        if device not in _pools:
            _pools[device] = ThreadPoolExecutor(1, thread_name_prefix="mycelya-cpu")
        return _pools[device]
