# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Patches safetensors, which knows no "mycelya" but accepts an accelerator's index."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch


def patch(module: ModuleType) -> None:
    """Makes module.safe_open take "mycelya", "mycelya:1" and a torch.device."""
    original: Any = module.safe_open
    if isinstance(original, _Meta):
        return  # the module imported it from safetensors, which is patched

    def new(
        cls: type, filename: Any, framework: str, device: Any = "cpu", **options: Any
    ) -> Any:
        return original(filename, framework, device=_index(device), **options)

    names = {"__new__": new, "__doc__": original.__doc__, "original": original}
    module.safe_open = _Meta("safe_open", (), names)  # type: ignore[attr-defined]


class _Meta(type):
    original: Any

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.original)


def _index(device: Any) -> Any:
    """The index of a mycelya device; anything else is returned as it is."""
    if isinstance(device, str) and device.partition(":")[0] == "mycelya":
        device = torch.device(device)
    if isinstance(device, torch.device) and device.type == "mycelya":
        current = torch.mycelya.current_device()  # type: ignore[attr-defined]
        return current if device.index is None else device.index
    return device
