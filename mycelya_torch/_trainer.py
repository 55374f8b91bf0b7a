# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""transformers' Trainer without waits in each step.

Trainer adds up the losses of steps on the device. With `logging_nan_inf_filter`, which
is the default, it asks the device in each step whether the loss is NaN or infinite, and
if it is, adds the average of the losses before it instead. Here the device chooses: the
sum has the same bits. To log, Trainer reads the sum and then the norm of the gradients;
here both come with one round trip.
"""

from __future__ import annotations

import functools
import inspect
from types import ModuleType
from typing import Any

import torch

from mycelya_torch import _ahead, _device

# The functions that we replace, with their parameters.
_PARAMETERS = {
    "_run_epoch": (
        "self model epoch train_dataloader steps_in_epoch num_update_steps_per_epoch "
        "trial ignore_keys_for_eval start_time resume_from_checkpoint epochs_trained "
        "steps_trained_in_current_epoch"
    ),
    "_maybe_log_save_evaluate": (
        "self tr_loss grad_norm model trial epoch ignore_keys_for_eval start_time "
        "learning_rate"
    ),
}

# All that _run_epoch does with the loss of a step.
_USES = (
    "tr_loss_step = self.training_step(model, inputs, num_items_in_batch)",
    "and (torch.isnan(tr_loss_step) or torch.isinf(tr_loss_step))",
    "self._tr_loss += self._tr_loss / "
    "(1 + self.state.global_step - self._globalstep_last_logged)",
    "if self._tr_loss.device != tr_loss_step.device:",
    "but device in use is {tr_loss_step.device}",
    "self._tr_loss += tr_loss_step",
)


def apply(module: ModuleType) -> str:
    """Patches transformers.trainer; returns why it does not, or ""."""
    owner: Any = module.Trainer
    for name, expected in _PARAMETERS.items():
        found = " ".join(inspect.signature(getattr(owner, name)).parameters)
        if found != expected:
            return f"Trainer.{name} has the parameters ({found}), not ({expected})"
    source = inspect.getsource(owner._run_epoch)
    names = sum(use.count("tr_loss_step") for use in _USES)
    if source.count("tr_loss_step") != names or not all(u in source for u in _USES):
        return "Trainer._run_epoch uses the loss of a step in another way"
    _wrap_epoch(owner)
    _wrap_log(owner)
    return ""


# ---- The filter ----


def _wrap_epoch(owner: Any) -> None:
    """Makes the loss of a step one that the device filters, within an epoch."""
    original = owner._run_epoch

    @functools.wraps(original)
    def _run_epoch(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self._tr_loss.device.type != "mycelya" or not _ahead.on():
            return original(self, *args, **kwargs)
        own = vars(self).get("training_step")
        step = self.training_step

        @functools.wraps(step)
        def training_step(*args: Any, **kwargs: Any) -> Any:
            return _filtered(self, step(*args, **kwargs))

        # Only _run_epoch sees what it returns: other code calls the class's method
        # through super(), or has been called by it.
        self.training_step = training_step
        try:
            return original(self, *args, **kwargs)
        finally:
            if own is None:
                del self.training_step
            else:
                self.training_step = own

    owner._run_epoch = _run_epoch


def _filtered(trainer: Any, loss: Any) -> Any:
    """What to add to the sum of losses; the loss itself if Trainer must look at it."""
    total = trainer._tr_loss
    if (
        not trainer.args.logging_nan_inf_filter
        or type(loss) is not torch.Tensor
        or loss.device != total.device
        or loss.dim() != 0
        or loss.is_complex()
    ):
        return loss
    state = trainer.state
    steps = 1 + state.global_step - trainer._globalstep_last_logged
    return _Filtered(torch.where(loss.isfinite(), loss, total / steps))


class _Filtered:
    """A tensor that is known to be neither NaN nor infinite.

    It is no tensor, because then each result of it would have its type. PyTorch's
    functions call `__torch_function__` of any argument.
    """

    def __init__(self, value: torch.Tensor) -> None:
        self._value = value
        self.device = value.device

    @classmethod
    def __torch_function__(
        cls,
        function: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if function in (torch.isnan, torch.isinf):
            return False
        plain = [x._value if isinstance(x, cls) else x for x in args]
        return function(*plain, **kwargs or {})


# ---- The log ----


def _wrap_log(owner: Any) -> None:
    """Makes the norm of the gradients come together with the sum of losses."""
    original = owner._maybe_log_save_evaluate

    @functools.wraps(original)
    def _maybe_log_save_evaluate(
        self: Any, tr_loss: Any, grad_norm: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if (
            type(grad_norm) is torch.Tensor
            and grad_norm.device.type == "mycelya"
            and grad_norm.dim() == 0
            and self.control.should_log
            and self.state.global_step > self._globalstep_last_logged
            and _ahead.on()
        ):
            grad_norm = _Reading.of(grad_norm)
        return original(self, tr_loss, grad_norm, *args, **kwargs)

    owner._maybe_log_save_evaluate = _maybe_log_save_evaluate


class _Reading(torch.Tensor):
    """A number that is being read. Trainer asks for `item()` only."""

    _download: _device.Download

    @classmethod
    def of(cls, number: torch.Tensor) -> _Reading:
        made = number.detach().as_subclass(cls)
        made._download = _device.Download(number)
        return made

    def item(self) -> Any:
        return self._download.wait().item()
