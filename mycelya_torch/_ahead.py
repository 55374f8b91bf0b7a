# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Patches of libraries that wait for a value of the device in each step.

Such a wait costs a round trip. A patch makes the library go on, and read the value when
it has come; the results are the same. It is for minor releases of its library that the
tests have run with, and for functions with the parameters of these. Otherwise the
library stays as it is, and `reasons` says why; `mycelya doctor --run` shows it.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import time
from types import ModuleType

import torch

from mycelya_torch import _device, _tested

# What is patched: (library, its module, our module).
PATCHES = {
    "generate()": ("transformers", "transformers.generation.utils", "_generate"),
    "Trainer": ("transformers", "transformers.trainer", "_trainer"),
    "masks": ("transformers", "transformers.masking_utils", "_masks"),
    "Lightning": (
        "lightning",
        "lightning.pytorch.trainer.connectors.logger_connector.result",
        "_lightning",
    ),
}

# Of each patch whose module is imported: why it is not applied, "" if it is.
reasons: dict[str, str] = {}


def on() -> bool:
    """Whether MYCELYA_AHEAD allows it; Go refuses values other than "on" and "off"."""
    return os.environ.get("MYCELYA_AHEAD") != "off"


def generation(module: ModuleType) -> None:
    """Called when transformers.generation.utils has been imported."""
    _apply("generate()", module)


def trainer(module: ModuleType) -> None:
    """Called when transformers.trainer has been imported."""
    _apply("Trainer", module)


def masks(module: ModuleType) -> None:
    """Called when transformers.masking_utils has been imported."""
    _apply("masks", module)


def progress_bar(module: ModuleType) -> None:
    """Called when Lightning's module of results has been imported."""
    _apply("Lightning", module)


def _apply(what: str, module: ModuleType) -> None:
    library, _, ours = PATCHES[what]
    try:
        why = _tested.reason(
            _tested.AHEAD, library, importlib.metadata.version(library)
        )
        if not why:
            why = importlib.import_module(f"mycelya_torch.{ours}").apply(module)
    except Exception as error:  # an import of the library must not fail
        why = f"{type(error).__name__}: {error}"
    reasons[what] = why


def awaited(download: _device.Download) -> torch.Tensor:
    """Waits for a read, and counts the wait if the values are not there yet."""
    if download.done():
        return download.wait()
    begun = time.perf_counter()
    try:
        return download.wait()
    finally:
        _device.count_blocking_read(time.perf_counter() - begun)


def import_all() -> dict[str, str]:
    """Imports what is patched; returns `reasons` without libraries that are absent."""
    for _, module, _ in PATCHES.values():
        try:
            importlib.import_module(module)
        except ImportError:
            continue
    return reasons
