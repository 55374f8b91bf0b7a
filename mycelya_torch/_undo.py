# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Undoes what a program has kept of work that had no effect because of a failure.

The worker fails at an op while Python has gone on: it has run the backward pass and the
optimizer's step. When the error is raised, none of that has an effect on the device.
Python's own state should be the same as if Python had stopped at the failing line, too:
gradients that were not computed are None, and optimizers and gradient scalers have the
state of before.
"""

from __future__ import annotations

import contextlib
import gc
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler, _refresh_per_optimizer_state
from torch.optim import Optimizer

from mycelya_torch import _device


class _Failure:
    """The storages that were not made because of a failure."""

    def __init__(self, device: int, first: int, end: int) -> None:
        self.device, self.first, self.end = device, first, end

    def is_on_device(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is on the device that has failed."""
        device = tensor.device
        return device.type == "mycelya" and device.index == self.device

    def concerns(self, key: Any) -> bool:
        """Whether steps of the state under a key had no effect. A key is a parameter.

        Some optimizers keep numbers for all parameters under a key that is no tensor.
        """
        return not isinstance(key, torch.Tensor) or self.is_on_device(key)

    def lost(self, value: Any) -> bool:
        """Whether a value is a tensor, or holds one, that was not computed."""
        if isinstance(value, torch.Tensor):
            return (
                self.is_on_device(value)
                and value.layout == torch.strided
                and self.first <= _device.storage_id(value) < self.end
            )
        if isinstance(value, (list, tuple)):
            return any(self.lost(item) for item in value)
        return False


def undo() -> None:
    """Undoes what the failures have left behind whose errors were raised by now."""
    for raised in _device.take_raised():
        failure = _Failure(*raised)
        found = _instances(Optimizer, GradScaler, torch.Tensor)
        for item in found:
            if isinstance(item, Optimizer):
                _undo_steps(item, failure)
            elif isinstance(item, GradScaler):
                _undo_scaler(item, failure)
        with torch._C.DisableTorchFunctionSubclass():
            for item in found:
                if isinstance(item, torch.Tensor):
                    _undo_gradient(item, failure)


def _instances(*kinds: type) -> list[Any]:
    """All objects of these types. Each type is asked once, which is 3 times faster."""
    everything = gc.get_objects()
    types = {kind for kind in set(map(type, everything)) if issubclass(kind, kinds)}
    return [item for item in everything if type(item) in types]


def _undo_gradient(tensor: torch.Tensor, failure: _Failure) -> None:
    # Tensors of transformations and of tracing have no storage, and raise.
    with contextlib.suppress(RuntimeError, TypeError, NotImplementedError):
        if tensor.is_leaf and tensor.grad is not None and failure.lost(tensor.grad):
            tensor.grad = None


def _undo_steps(optimizer: Optimizer, failure: _Failure) -> None:
    undone, before = _device.undo_steps(optimizer, failure.first)
    for parameter, state in list(optimizer.state.items()):
        steps = undone.get(id(parameter), 0)
        if steps and failure.concerns(parameter):
            _take_steps_back(state, steps)
        if any(failure.lost(value) for value in state.values()):
            for name in [n for n, value in state.items() if failure.lost(value)]:
                del state[name]
            if not any(isinstance(v, torch.Tensor) and v.dim() for v in state.values()):
                del optimizer.state[parameter]
    for parameter, name, number in before:
        if not failure.concerns(parameter):
            continue
        state = optimizer.state.get(parameter, {})
        if isinstance(state.get(name), torch.Tensor):
            with torch.no_grad():
                state[name].fill_(number)
        elif name in state:
            state[name] = number


def _take_steps_back(state: dict[str, Any], steps: int) -> None:
    """Sets the count of steps back where it is a number of this process."""
    count = state.get("step")
    if isinstance(count, torch.Tensor):
        if count.device.type == "cpu":
            with torch.no_grad():
                count.sub_(steps)
    elif isinstance(count, int):
        state["step"] = count - steps


def _undo_scaler(scaler: GradScaler, failure: _Failure) -> None:
    if not scaler.is_enabled():
        return
    for key, state in list(scaler._per_optimizer_states.items()):
        if any(failure.lost(v) for v in state["found_inf_per_device"].values()):
            scaler._per_optimizer_states[key] = _refresh_per_optimizer_state()
    if failure.lost(scaler._scale):
        scaler._scale = scaler._growth_tracker = None
