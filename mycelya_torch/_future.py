# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Downloads that nobody waits for yet."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from mycelya_torch import _device

_LOCK = threading.Lock()
_THREADS = 4  # a download waits for the link, so more would only queue there
_pool: ThreadPoolExecutor | None = None


def cpu_future(tensor: torch.Tensor) -> Future[torch.Tensor]:
    """What Tensor.cpu_future does; its docstring is in _patch."""
    if tensor.device.type != "mycelya":
        done: Future[torch.Tensor] = Future()
        done.set_result(tensor.detach().cpu())
        return done
    # Writes that follow must not be seen: the copy is of the values as they are now.
    snapshot = tensor.detach().clone()
    _device.flush(tensor.device.index)  # the worker starts while we go on
    return _threads().submit(snapshot.cpu)


def _threads() -> ThreadPoolExecutor:
    global _pool
    with _LOCK:
        if _pool is None:
            _pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="mycelya-cpu")
        return _pool
