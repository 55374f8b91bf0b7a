# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Levels of the logger tree "mycelya"."""

from __future__ import annotations

import logging

from mycelya_torch import _env

_ROOT = logging.getLogger("mycelya")
_HANDLER = logging.StreamHandler()
_HANDLER.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))


def _level(level: int | str) -> int:
    if isinstance(level, int):
        return level
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        names = ", ".join(logging.getLevelNamesMapping())
        raise ValueError(f"{level!r} is not a logging level; the levels are {names}.")
    return number


def set_logging_level(level: int | str) -> None:
    """Sets the level of the logger "mycelya" and writes its records to stderr."""
    _ROOT.setLevel(_level(level))
    if _HANDLER not in _ROOT.handlers:
        _ROOT.addHandler(_HANDLER)


def get_logging_level() -> int:
    """The effective level of the logger "mycelya"."""
    return _ROOT.getEffectiveLevel()


def enable_debug_logging() -> None:
    """Shows records of every level on stderr."""
    set_logging_level(logging.DEBUG)


def enable_info_logging() -> None:
    """Shows records of the level INFO and above on stderr."""
    set_logging_level(logging.INFO)


def disable_logging() -> None:
    """Drops every record of the tree, of any level."""
    _ROOT.setLevel(logging.CRITICAL + 1)


def reset_logging() -> None:
    """Restores the state after import: MYCELYA_LOG's level, else Python's defaults."""
    _ROOT.removeHandler(_HANDLER)
    _ROOT.setLevel(logging.NOTSET)
    level = _env.log_level()
    if level is not None:
        set_logging_level(level)
