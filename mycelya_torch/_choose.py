# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Libraries that choose a device choose "mycelya".

accelerate, transformers and Lightning choose the first device that they find in a list
of names. Without a patch they choose the CPU, and do not say so. They should choose
what `torch.accelerator` names. On a host with a CUDA GPU that is CUDA, unless the
program asks for this package; then no other device can train in the process.

A patch is for some minor releases of its library; see _tested. Another one stays as it
is, and one warning says so when the library has chosen the CPU.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import os
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from mycelya_torch import _device, _tested

# Of each module of a library that is imported: why it is not patched, "" if it is.
reasons: dict[str, str] = {}

_warned = False


def on() -> bool:
    """Whether MYCELYA_CHOOSE allows it; Go refuses values other than "on" and "off"."""
    return os.environ.get("MYCELYA_CHOOSE") != "off"


def wanted() -> bool:
    """Whether a library that is free to choose a device should choose "mycelya"."""
    if not on():
        return False
    chosen = torch.accelerator.current_accelerator()
    return chosen is not None and chosen.type == "mycelya"


def patch(module: ModuleType) -> None:
    """Called when a module of _tested.CHOICES has been imported."""
    name = module.__name__
    library, ours, function = _tested.CHOICES[name]
    try:
        why = _tested.reason(_tested.CHOOSE, library, version_of(library, name))
        owner = importlib.import_module(f"mycelya_torch.{ours}")
        if why:
            other = getattr(owner, f"other_{function}", None)
            if other is not None:
                other(module, why)
        else:
            why = getattr(owner, function)(module)
    except Exception as error:  # an import of the library must not fail
        why = f"{type(error).__name__}: {error}"
    reasons[name] = why


def version_of(library: str, module: str) -> str:
    """The version of the distribution that has a module."""
    top = module.partition(".")[0]
    names = {
        "pytorch_lightning": ("pytorch-lightning",),
        "lightning_fabric": ("lightning-fabric", "pytorch-lightning", "lightning"),
    }.get(top, (library,))
    for name in names[:-1]:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return importlib.metadata.version(names[-1])


def differs(function: Any, parameters: str) -> str:
    """Why a function is not the expected one, by its parameters; "" if it is."""
    found = " ".join(inspect.signature(function).parameters)
    if found == parameters:
        return ""
    return f"{function.__qualname__} has the parameters ({found}), not ({parameters})"


def with_constant(function: Any, old: Any, new: Any) -> str:
    """Replaces a constant in a function's code; returns why it does not, or ""."""
    code = function.__code__
    if code.co_consts.count(old) != 1:
        return f"{function.__qualname__} has no constant {old!r}"
    constants = tuple(new if c == old else c for c in code.co_consts)
    function.__code__ = code.replace(co_consts=constants)
    return ""


def warn(library: str, argument: str, why: str = "") -> None:
    """Warns, once in a process, that a library has chosen the CPU.

    Args:
        library: its name
        argument: how to choose the device, as '`device="mycelya"`'
        why: why the package did not choose
    """
    global _warned
    if _warned or not wanted():
        return
    _warned = True
    because = f" ({why})" if why else ""
    warnings.warn(
        f"{library} has chosen the CPU, although there is a mycelya device{because}. "
        f"To use the device: {argument}. MYCELYA_CHOOSE=off turns this warning off.",
        UserWarning,
        stacklevel=3,
    )


def import_all() -> dict[str, str]:
    """Imports what is patched; returns `reasons` without libraries that are absent."""
    for module in _tested.CHOICES:
        try:
            importlib.import_module(module)
        except ImportError:
            continue
    return reasons


# ---- The states of generators in the checkpoints of a library ----


def _states_file(folder: str | os.PathLike[str], process: int) -> Path:
    return Path(folder) / f"mycelya_rng_state_{process}.pth"


def states() -> dict[int, torch.Tensor]:
    """The states of the running devices' generators, on the devices."""
    return {
        index: _device.get_rng_state(index)
        for index in range(_device.device_count())
        if _device.state(index) == "running"
    }


def set_states(states: dict[int, torch.Tensor]) -> str:
    """Sets the states of generators; returns why it does not set one, or ""."""
    for index, state in states.items():
        try:
            _device.set_rng_state(state, index)
        except (RuntimeError, ValueError, TypeError) as error:
            return f"mycelya:{index} does not take a state: {error}"
    return ""


def save_states(folder: str | os.PathLike[str], process: int) -> None:
    """Writes the states of the running devices' generators to a checkpoint's folder.

    Args:
        folder: the checkpoint, which exists
        process: the rank of this process
    """
    found = {index: state.cpu() for index, state in states().items()}
    if found:
        torch.save(found, _states_file(folder, process))


def load_states(folder: str | os.PathLike[str], process: int) -> str:
    """Sets the states of generators that a checkpoint has.

    Returns:
        Why random numbers go on in another way than without the interruption, or "".
    """
    file = _states_file(folder, process)
    if not file.is_file():
        return f"The checkpoint has no states of mycelya's generators: no file {file}"
    why = set_states(torch.load(file, weights_only=True))
    return f"{file}: {why}" if why else ""
