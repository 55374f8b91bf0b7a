# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""torch.mycelya.nvtx: the functions of torch.cuda.nvtx, as ranges of torch.profiler.

A range shows what this process records in it, not when the worker runs that.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator
from typing import Any

from torch.profiler import record_function

__all__ = ["mark", "range", "range_end", "range_pop", "range_push", "range_start"]


class _Open(threading.local):
    """The ranges that a thread has pushed."""

    def __init__(self) -> None:
        self.stack: list[record_function] = []


_OPEN = _Open()
_STARTED: dict[int, record_function] = {}  # by the number that range_start returned
_NUMBERS = itertools.count(1)


def _enter(message: str) -> record_function:
    opened = record_function(message)
    opened.__enter__()
    return opened


def range_push(msg: str) -> int:
    """Opens a range; returns its depth, 0 for the outermost one."""
    _OPEN.stack.append(_enter(msg))
    return len(_OPEN.stack) - 1


def range_pop() -> int:
    """Closes the range that this thread has pushed last; returns its depth.

    Returns -1 if there is none, as NVTX does.
    """
    if not _OPEN.stack:
        return -1
    _OPEN.stack.pop().__exit__(None, None, None)
    return len(_OPEN.stack)


def range_start(msg: str) -> int:
    """Opens a range that `range_end` closes; returns its number."""
    number = next(_NUMBERS)
    _STARTED[number] = _enter(msg)
    return number


def range_end(range_id: int) -> None:
    """Closes a range of `range_start`; an unknown number is ignored, as by NVTX."""
    opened = _STARTED.pop(range_id, None)
    if opened is not None:
        opened.__exit__(None, None, None)


def mark(msg: str) -> None:
    """Marks a moment: an empty range."""
    _enter(msg).__exit__(None, None, None)


@contextlib.contextmanager
def range(msg: str, *args: Any, **kwargs: Any) -> Iterator[None]:  # noqa: A001
    """Context manager and decorator: a range, whose name is `msg.format(…)`."""
    with record_function(msg.format(*args, **kwargs)):
        yield
