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
import threading
from collections import Counter, deque
from dataclasses import dataclass
from itertools import compress, zip_longest
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.amp.grad_scaler import GradScaler, _refresh_per_optimizer_state
from torch.optim import Optimizer

from mycelya_torch import _device

# A client is at most a few thousand programs ahead of its worker.
_AHEAD = 4096


@dataclass(slots=True)
class _Step:
    """What is known of an optimizer's step."""

    start: int  # the id of the next storage at its start
    parameters: tuple[int, ...]  # the ids of the parameters with a gradient
    numbers: list[tuple[Any, str, Any]]  # at its start: parameter, name, number
    # For each parameter of the state: a number that grows with each of its steps, as an
    # error may be raised within a step. None: the step has ended.
    counts: list[Any] | None


# The last steps of each optimizer.
_steps: WeakKeyDictionary[Optimizer, deque[_Step]] = WeakKeyDictionary()
_lock = threading.Lock()


def before_step(optimizer: Optimizer) -> None:
    """Notes the start of a step."""
    parameters = _device.parameters_with_gradient(optimizer.param_groups)
    with _lock:
        steps = _steps.get(optimizer)
        if steps is None:
            steps = _steps[optimizer] = deque(maxlen=_AHEAD)
        if steps and steps[-1].parameters == parameters:
            parameters = steps[-1].parameters  # one tuple for all steps
        numbers = _device.other_numbers(optimizer.state)
        counts = _device.step_counts(optimizer.state)
        start = _device.next_storage_id()
        steps.append(_Step(start, parameters, numbers, counts))


def after_step(optimizer: Optimizer) -> None:
    """Notes that all parameters have taken part in the step."""
    with _lock:
        if steps := _steps.get(optimizer):
            steps[-1].counts = None


class _Failure:
    """The storages that were not made because of a failure."""

    def __init__(self, device: int, first: int, end: int) -> None:
        self.device, self.first, self.end = device, first, end

    def lost(self, value: Any) -> bool:
        """Whether a value is a tensor, or holds one, that was not computed."""
        if isinstance(value, torch.Tensor):
            return (
                value.device.type == "mycelya"
                and value.device.index == self.device
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
        everything = gc.get_objects()
        for item in everything:
            if issubclass(type(item), Optimizer):
                _undo_steps(item, failure)
            elif issubclass(type(item), GradScaler):
                _undo_scaler(item, failure)
        with torch._C.DisableTorchFunctionSubclass():
            for item in everything:
                if issubclass(type(item), torch.Tensor):
                    _undo_gradient(item, failure)


def _undo_gradient(tensor: torch.Tensor, failure: _Failure) -> None:
    # Tensors of transformations and of tracing have no storage, and raise.
    with contextlib.suppress(RuntimeError, TypeError, NotImplementedError):
        if tensor.is_leaf and tensor.grad is not None and failure.lost(tensor.grad):
            tensor.grad = None


def _undo_steps(optimizer: Optimizer, failure: _Failure) -> None:
    with _lock:
        steps = _steps.get(optimizer, deque())
        undone = Counter[int]()  # steps by parameter
        before: list[tuple[Any, str, Any]] = []
        while steps and steps[-1].start >= failure.first:
            step = steps.pop()
            before, took_part = step.numbers, step.parameters
            if step.counts is not None:
                # Parameters that have their first step are at the end.
                now = _device.step_counts(optimizer.state)
                changed = [a != b for a, b in zip_longest(now, step.counts)]
                stepped = compress(map(id, optimizer.state), changed)
                took_part = tuple({*took_part} & {*stepped})
            undone.update(took_part)
    for parameter, state in list(optimizer.state.items()):
        if undone[id(parameter)] > 0:
            _take_steps_back(state, undone[id(parameter)])
        if any(failure.lost(value) for value in state.values()):
            for name in [n for n, value in state.items() if failure.lost(value)]:
                del state[name]
            if not any(isinstance(v, torch.Tensor) and v.dim() for v in state.values()):
                del optimizer.state[parameter]
    for parameter, name, number in before:
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
