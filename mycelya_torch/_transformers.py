# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""transformers on the device: TrainingArguments(), pipeline(), Trainer's checkpoints.

`from_pretrained(device_map="auto")` asks accelerate; see _accelerate.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from mycelya_torch import _choose

_ARGUMENT = "set ACCELERATE_TORCH_DEVICE=mycelya"


# ---- transformers.training_args ----


def arguments(module: Any) -> str:
    """Makes TrainingArguments choose the device; returns why it does not, or ""."""
    owner: Any = module.TrainingArguments
    choose: Any = owner._setup_devices  # a cached_property
    bf16: Any = module.is_torch_bf16_gpu_available
    why = _choose.differs(choose.func, "self") or _choose.differs(bf16, "")
    if why:
        return why
    choose.func = _choosing(choose.func, "")

    @functools.wraps(bf16)
    def is_torch_bf16_gpu_available() -> Any:
        return bf16() or _choose.wanted()

    module.is_torch_bf16_gpu_available = is_torch_bf16_gpu_available
    return ""


def other_arguments(module: Any, why: str) -> None:
    """Warns when a release that is not tested chooses the CPU."""
    choose: Any = module.TrainingArguments._setup_devices
    choose.func = _choosing(choose.func, why)


def _choosing(original: Any, why: str) -> Any:
    @functools.wraps(original)
    def _setup_devices(self: Any) -> torch.device:
        device: torch.device = original(self)
        state = self.distributed_state
        # `cpu` of the state says that the user has asked for it.
        asked = self.use_cpu or state is None or state._cpu
        if device.type not in ("cpu", "cuda") or asked:
            return device
        if why:
            if device.type == "cpu":
                _choose.warn("transformers", _ARGUMENT, why)
            return device
        if state.device.type != "mycelya":
            return device
        self._n_gpu = 1
        chosen: torch.device = state.device
        return chosen

    return _setup_devices


# ---- transformers.pipelines.base ----


def pipelines(module: Any) -> str:
    """Makes device=0, and no device, the device; returns why it does not, or ""."""
    owner: Any = module.Pipeline
    why = _choose.differs(
        owner.__init__,
        "self model tokenizer feature_extractor image_processor video_processor "
        "processor task device binary_output kwargs",
    )
    if not why:
        owner.__init__ = _with_device(owner.__init__, "")
    return why


def other_pipelines(module: Any, why: str) -> None:
    """Warns when a release that is not tested chooses the CPU."""
    module.Pipeline.__init__ = _with_device(module.Pipeline.__init__, why)


def _with_device(original: Any, why: str) -> Any:
    @functools.wraps(original)
    def __init__(self: Any, model: Any, *args: Any, **kwargs: Any) -> None:
        device = kwargs.get("device")
        free = device is None and getattr(model, "hf_device_map", None) is None
        ordinal = isinstance(device, int) and device >= 0
        if (free or ordinal) and not why and _choose.wanted():
            kwargs["device"] = torch.device("mycelya", device or 0)
        original(self, model, *args, **kwargs)
        if (free or ordinal) and self.device.type == "cpu":
            _choose.warn("transformers", '`pipeline(device="mycelya")`', why)

    return __init__


# ---- transformers.trainer ----


def checkpoints(module: Any) -> str:
    """Saves the states of generators too; returns why it does not, or ""."""
    owner: Any = module.Trainer
    save, load = owner._save_rng_state, owner._load_rng_state
    why = _choose.differs(save, "self output_dir")
    why = why or _choose.differs(load, "self checkpoint")
    if why:
        return why

    @functools.wraps(save)
    def _save_rng_state(self: Any, output_dir: str) -> None:
        save(self, output_dir)
        if self.args.device.type == "mycelya":
            _choose.save_states(output_dir, self.args.process_index)

    @functools.wraps(load)
    def _load_rng_state(self: Any, checkpoint: str | None) -> None:
        load(self, checkpoint)
        if checkpoint is not None and self.args.device.type == "mycelya":
            why = _choose.load_states(checkpoint, self.args.process_index)
            if why:
                module.logger.warning(why)

    owner._save_rng_state, owner._load_rng_state = _save_rng_state, _load_rng_state
    return ""
