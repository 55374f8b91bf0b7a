# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Masks of transformers' models without a wait in each training step.

Without a mask and a cache, a model asks whether the positions of its tokens are those
of several texts in one row. Often the model itself has just made the positions, as 0,
1, 2 and so on. Then the answer is known: there is one text.
"""

from __future__ import annotations

import functools
import inspect
import sys
from types import CodeType, FrameType, ModuleType
from typing import Any

import torch

from mycelya_torch import _ahead

# How a model makes positions, if it is called without them. The cache is called
# past_key_values before release 5.24.
_CACHES = "cache", "past_key_values"
_MAKES = """\
        if position_ids is None:
            past_seen_tokens = cache.get_seq_length() if cache is not None else 0
            position_ids = torch.arange(inputs_embeds.shape[1], device=inputs_embeds.device) + past_seen_tokens
            position_ids = position_ids.unsqueeze(0)
"""  # noqa: E501


def apply(module: ModuleType) -> str:
    """Patches transformers.masking_utils; returns why it does not, or ""."""
    original: Any = module.find_packed_sequence_indices
    found = " ".join(inspect.signature(original).parameters)
    if found != "position_ids":
        return f"find_packed_sequence_indices has the parameters ({found})"

    @functools.wraps(original)
    def find_packed_sequence_indices(position_ids: Any) -> Any:
        if (
            isinstance(position_ids, torch.Tensor)
            and position_ids.device.type == "mycelya"
            and _ahead.on()
            and _made_here(sys._getframe(1))
        ):
            return None
        return original(position_ids)

    name = "find_packed_sequence_indices"
    setattr(module, name, find_packed_sequence_indices)
    return ""


def _made_here(frame: FrameType | None) -> bool:
    """Whether a model among the callers has made the positions as in _MAKES."""
    while frame is not None and frame.f_code.co_name != "forward":
        if not _passes_on(frame):
            return False
        frame = frame.f_back
    if frame is None or not _makes(frame.f_code):
        return False
    model = frame.f_locals.get("self")
    while frame is not None:
        # Module.__call__ has what the model was called with.
        if frame.f_code is torch.nn.Module._call_impl.__code__:
            called = frame.f_locals
            return (
                called.get("self") is model
                and len(called["args"]) <= 1
                and called["kwargs"].get("position_ids") is None
                and all(called["kwargs"].get(name) is None for name in _CACHES)
            )
        frame = frame.f_back
    return False


def _passes_on(frame: FrameType) -> bool:
    """Whether a function between the model and the question is the library's."""
    module = str(frame.f_globals.get("__name__", ""))
    return module in ("transformers.masking_utils", "transformers.utils.deprecation")


@functools.cache
def _makes(code: CodeType) -> bool:
    """Whether a model's function makes positions, and changes them nowhere else."""
    try:
        source = inspect.getsource(code)
    except OSError:
        return False
    rest = source
    for name in _CACHES:
        rest = rest.replace(_MAKES.replace("cache", name), "")
    return rest != source and "position_ids =" not in rest
