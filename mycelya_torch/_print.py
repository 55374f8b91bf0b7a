# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""The text of tensors: one download of the shown elements, and none for a debugger.

PyTorch's formatter reads a tensor element by element. This module gathers the shown
elements on the worker and downloads them at once. PyTorch formats them on the CPU, so
the text is PyTorch's own.
"""

from __future__ import annotations

import math
import sys
import threading
from types import FrameType
from typing import Any

import torch
from torch._tensor_str import PRINT_OPTS

# ---- What is shown ----

# Elements are copied as integers of the same size, because not every kernel supports
# every dtype.
_PLAIN = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """A CPU tensor that PyTorch formats to the same text as `tensor`.

    Up to `threshold` elements it is a copy. Beyond that, the formatter shows
    `edgeitems` elements at each end of a dimension, and only these are downloaded.
    Copies of shown elements replace the hidden ones between them, so many that the
    number of elements stays above the threshold. This takes one program and one
    download.
    """
    threshold, edge = PRINT_OPTS.threshold, PRINT_OPTS.edgeitems
    if tensor.numel() <= threshold or tensor.dim() == 0:
        return tensor.cpu()
    if edge <= 0:
        # The formatter shows only the ellipsis, so any elements will do.
        sizes = _stand_in(tensor.shape, [min(size, 1) for size in tensor.shape])
        return torch.zeros(sizes, dtype=tensor.dtype, device="cpu")
    shown = _corners(tensor.detach(), edge).cpu()
    sizes = _stand_in(tensor.shape, shown.shape)
    for dim, size in enumerate(sizes):
        if size > shown.shape[dim]:
            middle = torch.full((size - 2 * edge,), edge, device="cpu")
            head = torch.arange(edge, device="cpu")
            index = torch.cat([head, middle, head + edge])
            shown = _plain(shown).index_select(dim, index).view(shown.dtype)
    return shown


def _corners(tensor: torch.Tensor, edge: int) -> torch.Tensor:
    """The first and last `edge` elements of every longer dimension."""
    dtype = tensor.dtype
    for dim, size in enumerate(tensor.shape):
        if size > 2 * edge:
            ends = tensor.narrow(dim, 0, edge), tensor.narrow(dim, size - edge, edge)
            # cat accepts conjugate and negative views; view(dtype) refuses them.
            lazy = tensor.is_conj() or tensor.is_neg()
            tensor = torch.cat(ends if lazy else [_plain(end) for end in ends], dim)
    return tensor if tensor.dtype == dtype else tensor.view(dtype)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    dtype = _PLAIN.get(tensor.itemsize)
    return tensor if dtype is None else tensor.view(dtype)


def _stand_in(full: torch.Size, shown: Any) -> list[int]:
    """Sizes between `shown` and `full` that the formatter also shortens.

    Their product is above the threshold. A dimension that is longer than twice the edge
    stays longer than that.
    """
    sizes = [min(low + 1, high) for low, high in zip(shown, full, strict=True)]
    for dim, size in enumerate(full):
        missing = PRINT_OPTS.threshold + 1 - math.prod(sizes)
        if missing > 0 and size > sizes[dim]:
            others = math.prod(sizes) // sizes[dim]
            sizes[dim] = min(size, sizes[dim] + math.ceil(missing / others))
    return sizes


# ---- Debuggers ----

_state = threading.local()  # .in_str: this thread is in str() of a tensor

# Modules of trace functions that only observe, and so are not debuggers.
_WATCHERS = {"coverage", "hypothesis", "line_profiler", "scalene", "slipcover", "trace"}


# Functions of pdb that show what the user types at its prompt: p, pp, expressions.
_TYPED = {"do_p", "do_pp", "default", "displayhook", "do_args", "do_retval"}


def debugger_asks() -> bool:
    """Whether a debugger calls repr, as it does for every variable at each stop.

    It is False in `str`, `print` and `format`, which the program itself calls, unless
    pydevd calls them directly. It is False where the user asks at the prompt of pdb,
    with `p x` or with an expression, and in `eager()`, where nothing is pending. In
    other calls of `repr` it is True if

    - a trace function is set (`sys.gettrace()`: pdb, pydevd, IDEs), unless it belongs
      to a tool that measures coverage or time; or
    - the debugger's tool id of `sys.monitoring` is in use (Python 3.12 and newer); or
    - pydevd (VS Code, PyCharm) or the prompt of pdb (post mortem, without a trace
      function) is among the callers. A loaded pydevd is not enough, because every
      Jupyter kernel loads it.
    """
    if getattr(_state, "in_str", False) or _typed_in_pdb() or _in_eager():
        return False
    tracer = sys.gettrace()
    if tracer is not None and _module_of(tracer) not in _WATCHERS:
        return True
    monitoring = getattr(sys, "monitoring", None)
    if monitoring is not None and monitoring.get_tool(monitoring.DEBUGGER_ID):
        return True
    return _called_by_debugger()


def _in_eager() -> bool:
    eager: Any = sys.modules.get("mycelya_torch._eager")
    return eager is not None and bool(eager.active())


def _typed_in_pdb() -> bool:
    frame: FrameType | None = sys._getframe() if "pdb" in sys.modules else None
    while frame is not None:
        if frame.f_code.co_name in _TYPED and _module(frame) == "pdb":
            return True
        frame = frame.f_back
    return False


def _module_of(tracer: Any) -> str:
    """The top-level module of a trace function, or of the object it is a method of."""
    owner = getattr(tracer, "__self__", None)
    named = tracer if owner is None else type(owner)
    module = getattr(named, "__module__", None) or type(tracer).__module__
    return str(module).partition(".")[0]


def _called_by_debugger() -> bool:
    if "_pydevd_bundle" not in sys.modules and "pdb" not in sys.modules:
        return False
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        at_prompt = frame.f_code.co_name == "interaction" and _module(frame) == "pdb"
        if at_prompt or _is_pydevd(frame):
            return True
        frame = frame.f_back
    return False


def _module(frame: FrameType) -> str:
    return frame.f_globals.get("__name__") or ""


def _is_pydevd(frame: FrameType) -> bool:
    return _module(frame).startswith(("pydevd", "_pydevd"))


def pending(tensor: torch.Tensor) -> str:
    """The text for a debugger, which needs no answer of the worker.

    "pending" stands for the elements. `p tensor` in pdb, `print(tensor)` or
    `str(tensor)` fetches them.
    """
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    name = "tensor" if plain else type(tensor).__name__
    grad = ", requires_grad=True" if tensor.requires_grad else ""
    return (
        f"{name}(..., device='{tensor.device}', size={tuple(tensor.shape)}, "
        f"dtype={tensor.dtype}{grad}, pending)"
    )


def as_str(tensor: torch.Tensor, caller: FrameType | None) -> str:
    """str(tensor); a call by the program, unless the direct caller is pydevd."""
    if caller is not None and _is_pydevd(caller):
        return object.__str__(tensor)
    before = getattr(_state, "in_str", False)
    _state.in_str = True
    try:
        return object.__str__(tensor)
    finally:
        _state.in_str = before
