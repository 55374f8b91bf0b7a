# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Reads MYCELYA_MACHINE, MYCELYA_EAGER and MYCELYA_LOG. Go reads most others."""

from __future__ import annotations

import logging
import os
import warnings

# The words of MYCELYA_LOG; Go reads it too, with the same words
# (runtime/settings/settings.go).
_LEVELS = {
    "debug": logging.DEBUG,
    "verbose": logging.DEBUG,
    "trace": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.ERROR,
}


def default_machine() -> tuple[str, str, str]:
    """The provider, the device and the options of this process's machine.

    MYCELYA_MACHINE has it; of a list, the one of this rank. The device "" is the best
    one of a host.

    Raises:
        ValueError: see _machine_variable.of.
    """
    value = os.environ.get("MYCELYA_MACHINE")
    if not value:  # most programs: this runs within every `import torch`
        return "local", "", ""
    from mycelya_torch import _machine_variable

    return _machine_variable.of(value)


def ranks() -> tuple[int, int]:
    """Which device this process starts on first use, and how many devices there are.

    A process of torchrun has the device of its LOCAL_RANK, and others have the others.
    Without torchrun a list of machines counts: `torchrun --nproc-per-node=mycelya`
    starts as many processes.
    """
    rank, count = (os.environ.get(f"LOCAL_{name}") for name in ("RANK", "WORLD_SIZE"))
    if rank is not None and count is not None:
        return int(rank), int(count)
    value = os.environ.get("MYCELYA_MACHINE")
    if not value or "," not in value:  # most programs
        return 0, 1
    from mycelya_torch import _machine_variable

    return 0, len(_machine_variable.machines(value))


def eager() -> bool:
    """Whether MYCELYA_EAGER is "on" or "1". Go refuses values that it does not know."""
    return os.environ.get("MYCELYA_EAGER") in ("on", "1")


def log_level() -> int | None:
    """The level of MYCELYA_LOG, None if it is not set.

    An unknown word is a warning: what is only about messages must not stop a program.
    """
    value = os.environ.get("MYCELYA_LOG", "").strip()
    if not value:
        return None
    level = _LEVELS.get(value.lower())
    if level is None:
        warnings.warn(
            f"MYCELYA_LOG={value!r} is not a level and has no effect; the levels are "
            "debug (or verbose), info, warn and error.",
            RuntimeWarning,
            stacklevel=2,
        )
    return level
