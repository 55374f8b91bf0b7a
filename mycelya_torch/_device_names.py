# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Libraries with one function that names the device: peft, sentence-transformers, PyG.

diffusers asks `torch.accelerator` by itself. timm and torchmetrics take the device that
they are given.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from mycelya_torch import _choose


def peft(module: Any) -> str:
    """Adapters are loaded to the device; returns why it does not patch, or ""."""
    return _patched(module, "infer_device", "")


def other_peft(module: Any, why: str) -> None:
    """Warns when a release that is not tested chooses the CPU."""
    argument = '`load_adapter(…, torch_device="mycelya")`'
    _warning(module, "infer_device", "peft", argument, why)


def sentence_transformers(module: Any) -> str:
    """SentenceTransformer() chooses the device; returns why it does not, or ""."""
    return _patched(module, "get_device_name", "")


def other_sentence_transformers(module: Any, why: str) -> None:
    """Warns when a release that is not tested chooses the CPU."""
    argument = '`SentenceTransformer(…, device="mycelya")`'
    _warning(module, "get_device_name", "sentence-transformers", argument, why)


def geometric(module: Any) -> str:
    """torch_geometric.device("auto") is the device; returns why it is not, or ""."""
    return _patched(module, "device", "device")


def other_geometric(module: Any, why: str) -> None:
    """Warns when a release that is not tested chooses the CPU."""
    argument = '`torch_geometric.device("mycelya")`'
    _warning(module, "device", "torch-geometric", argument, why)


def _free(args: tuple[Any, ...]) -> bool:
    """Whether a call leaves the choice to the library."""
    return args in ((), ("auto",))


def _patched(module: Any, name: str, parameters: str) -> str:
    original: Any = getattr(module, name)
    why = _choose.differs(original, parameters)
    if why:
        return why

    @functools.wraps(original)
    def choose(*args: Any, **kwargs: Any) -> Any:
        chosen = original(*args, **kwargs)
        given = (*args, *kwargs.values())
        if not _free(given) or torch.device(chosen).type not in ("cpu", "cuda"):
            return chosen
        return _type_of(chosen)("mycelya") if _choose.wanted() else chosen

    setattr(module, name, choose)
    return ""


def _type_of(chosen: Any) -> Any:
    """What makes a device of the kind that the library returns: str or torch.device."""
    return str if isinstance(chosen, str) else torch.device


def _warning(module: Any, name: str, library: str, argument: str, why: str) -> None:
    original: Any = getattr(module, name)

    @functools.wraps(original)
    def choose(*args: Any, **kwargs: Any) -> Any:
        chosen = original(*args, **kwargs)
        if _free((*args, *kwargs.values())) and torch.device(chosen).type == "cpu":
            _choose.warn(library, argument, why)
        return chosen

    setattr(module, name, choose)
