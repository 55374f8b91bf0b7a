# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Bars for uploads and downloads that take longer than two seconds, on a terminal."""

from __future__ import annotations

import importlib
from typing import Any

_bars: dict[str, Any] = {}


def show(what: str, done: int, total: int) -> None:
    """Shows how many bytes of what is under way are done; total 0: nothing is.

    The device calls it while a thread waits, about five times a second. `what` is
    "upload" or "download".
    """
    if total == 0:
        if what in _bars:
            _bars.pop(what).close()
        return
    if what not in _bars:
        try:
            bars = importlib.import_module("tqdm.auto")
        except ImportError:
            return
        _bars[what] = bars.tqdm(desc=what, unit="B", unit_scale=True, leave=False)
    _bars[what].total, _bars[what].n = total, done
    _bars[what].refresh()
