# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""torch.mycelya.eager(): each op is sent and awaited at its line.

A dispatch mode sees each op below autograd, also in backward, and waits for the worker
after it. No line of the recorder knows about this. The session is told, so that it
compiles no kernels: a kernel rounds in other places than PyTorch's operators.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from html import escape
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from mycelya_torch import _device, _explain, _notebook
from mycelya_torch._current import index_of
from mycelya_torch._kept import _ask_session


class OpTime(NamedTuple):
    """The time that the calls of one op at one Python line took.

    A call lasts from its begin in this process until the worker has computed it, so it
    includes the way to the worker and back.
    """

    op: str  # "aten.mm.default"
    file: str  # "" if no Python line has called it, as in a backward pass
    line: int
    calls: int
    seconds: float  # of all calls

    @property
    def place(self) -> str:
        """File and line, or a sign that there are none."""
        return f"{self.file}:{self.line}" if self.file else "(no line)"


class OpTimes(list[OpTime]):
    """Times of ops, the longest first. str() returns a table."""

    def __str__(self) -> str:
        rows = [["op", "line", "calls", "seconds", "each"]]
        for x in self:
            each = f"{1e3 * x.seconds / x.calls:.3f} ms"
            rows.append([x.op, x.place, str(x.calls), f"{x.seconds:.6f}", each])
        return _explain.table(rows)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = []
        for x in self:
            place = _notebook.with_sources(x.place)
            code = f"<code>{escape(_notebook.source(x.file, x.line))}</code>"
            each = f"{1e3 * x.seconds / x.calls:.3f} ms"
            rows.append([x.op, place, code, x.calls, f"{x.seconds:.6f}", each])
        titles = ["op", "line", "source", "calls", "seconds", "each"]
        return _notebook.table(titles, rows)


class _Times:
    """Sums by op and line. Threads add to it at the same time."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str, int], tuple[int, float]] = {}
        self._lock = threading.Lock()

    def add(self, op: str, file: str, line: int, seconds: float) -> None:
        with self._lock:
            calls, before = self._sums.get((op, file, line), (0, 0.0))
            self._sums[op, file, line] = calls + 1, before + seconds

    def reset(self) -> None:
        with self._lock:
            self._sums.clear()

    def sorted(self) -> list[OpTime]:
        with self._lock:
            found = [OpTime(*key, *value) for key, value in self._sums.items()]
        found.sort(key=lambda x: (-x.seconds, x.op, x.file, x.line))
        return found


_ALL = _Times()
_state = threading.local()  # .inside: an op of this thread is being called

# Frames of these packages, and of code that they generate, are not the program's lines.
_INTERNAL = (
    os.path.join(os.path.dirname(torch.__file__), ""),
    os.path.join(os.path.dirname(__file__), ""),
    "<frozen ",
    "<eval_with_key>",
)


def _line() -> tuple[str, int]:
    """The innermost line of the program; ("", 0): no line of it has called the op."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_INTERNAL):
            return _notebook.shown(file), frame.f_lineno
        frame = frame.f_back
    return "", 0


class _Eager(TorchDispatchMode):
    """Waits for the devices of an op's tensors after the op."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.times = _Times()
        self._told: set[int] = set()  # the devices that compile no kernels for us

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        began = time.perf_counter()
        outermost = not getattr(_state, "inside", False)
        self._tell(_indices((args, kwargs)))
        _state.inside = True
        try:
            result = func(*args, **(kwargs or {}))
        finally:
            _state.inside = not outermost
        indices = _indices((args, kwargs, result))
        for index in sorted(indices):
            _device.synchronize(index)
        if indices:
            self._tell(indices)
            took = time.perf_counter() - began
            where = _line()
            self.times.add(str(func), *where, took)
            if outermost:  # an eager() around this one counts the op, too
                _ALL.add(str(func), *where, took)
        return result

    def _tell(self, indices: Iterable[int]) -> None:
        """Tells the sessions of devices to compile no kernels."""
        for index in indices:
            if index not in self._told:
                _device.synchronize(index)  # what was recorded before keeps its kernels
                _ask_session(index, "eager", On=True)
                self._told.add(index)

    def end(self) -> None:
        """Lets the sessions compile kernels again."""
        for index in self._told:
            if _device.state(index) == "running":
                with contextlib.suppress(RuntimeError):  # it has just ended
                    _ask_session(index, "eager", On=False)
        self._told.clear()


_active: list[_Eager] = []  # those that were entered and not left, of all threads


def _indices(tree: Any) -> set[int]:
    """The devices of the tensors, and the devices, in a pytree."""
    out = set()
    for leaf in pytree.tree_leaves(tree):
        device = leaf.device if isinstance(leaf, torch.Tensor) else leaf
        if isinstance(device, torch.device) and device.type == "mycelya":
            out.add(index_of(device))
    return out


@contextlib.contextmanager
def eager() -> Iterator[OpTimes]:
    """Implements torch.mycelya.eager; its docstring is in device."""
    mode: Any = _Eager()
    out = OpTimes()
    _active.append(mode)
    try:
        with mode:
            yield out
    finally:
        _active.remove(mode)
        mode.end()
        out[:] = mode.times.sorted()


def op_times() -> OpTimes:
    """Implements torch.mycelya.op_times."""
    return OpTimes(_ALL.sorted())


def reset() -> None:
    """Forgets the times that `op_times` counts."""
    _ALL.reset()


def always() -> None:
    """Lets this thread work as in `eager` until its end: MYCELYA_EAGER."""
    mode: Any = _Eager()
    _active.append(mode)
    mode.__enter__()


def active() -> bool:
    """Whether a thread of this process is in `eager`, so that values can be shown."""
    return bool(_active)
