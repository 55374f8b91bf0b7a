# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Lightning's progress bar without waits in each step.

The bar shows what a module logs with `prog_bar=True`. Lightning reads each such value
several times in each step, to show it. Here the bar shows the newest value that has
come. At the end of an epoch it shows the last one, as Lightning does. Loggers and
callbacks get the values that they get without this.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections import deque
from types import ModuleType
from typing import Any

import torch

from mycelya_torch import _ahead, _device

_CONVERT = "convert_tensors_to_scalars"
_USE = f'metrics["pbar"][forked_name] = {_CONVERT}(value)'

_metrics = threading.local()  # .running: this thread is in _ResultCollection.metrics


def apply(module: ModuleType) -> str:
    """Patches Lightning's module of results; returns why it does not, or ""."""
    owner: Any = module._ResultCollection
    found = " ".join(inspect.signature(owner.metrics).parameters)
    if found != "self on_step":
        return f"_ResultCollection.metrics has the parameters ({found})"
    # Imported once, and used here alone.
    if (
        inspect.getsource(owner.metrics).count(_USE) != 1
        or inspect.getsource(module).count(_CONVERT) != 2
    ):
        return f"{module.__name__} uses {_CONVERT} in another way"
    convert: Any = getattr(module, _CONVERT)
    original = owner.metrics

    @functools.wraps(convert)
    def convert_tensors_to_scalars(data: Any) -> Any:
        running = getattr(_metrics, "running", False)
        return data if running and _is_ours(data) else convert(data)

    @functools.wraps(original)
    def metrics(self: Any, on_step: bool) -> Any:
        if not _ahead.on():
            return original(self, on_step)
        _metrics.running = True
        try:
            out = original(self, on_step)
        finally:
            _metrics.running = False
        shown = vars(self).setdefault("_mycelya_shown", _Shown())
        (shown.at_step if on_step else shown.at_end)(out["pbar"])
        return out

    setattr(module, _CONVERT, convert_tensors_to_scalars)
    owner.metrics = metrics
    return ""


def _is_ours(data: Any) -> bool:
    """Whether a value is a number on the device."""
    return (
        isinstance(data, torch.Tensor)
        and data.device.type == "mycelya"
        and data.numel() == 1
    )


class _Shown:
    """The numbers that a progress bar shows, by name."""

    def __init__(self) -> None:
        self.numbers: dict[str, Any] = {}
        self.asked: dict[str, deque[_device.Download]] = {}
        self.newest: dict[str, int] = {}  # the storage of the value asked for last

    def __reduce__(self) -> Any:
        return (_Shown, ())  # a copy begins anew

    def at_step(self, values: dict[str, Any]) -> None:
        """Replaces values of a step by the newest numbers that have come."""
        for name, value in values.items():
            if not _is_ours(value):
                continue
            asked = self.asked.setdefault(name, deque())
            # Lightning asks for the same value several times.
            if self.newest.get(name) != (storage := _device.storage_id(value)):
                self.newest[name] = storage
                asked.append(_device.Download(value))
            while asked and asked[0].done():
                self.numbers[name] = asked.popleft().wait().item()
            if name not in self.numbers:
                self.numbers[name] = _ahead.awaited(asked.popleft()).item()
            values[name] = self.numbers[name]

    def at_end(self, values: dict[str, Any]) -> None:
        """Replaces values of an epoch, and adds the last ones of its steps."""
        for name, value in values.items():
            if _is_ours(value):
                values[name] = value.item()
        for name, asked in self.asked.items():
            if asked:
                self.numbers[name] = _ahead.awaited(asked.pop()).item()
            values.setdefault(name, self.numbers[name])
        self.asked.clear()
