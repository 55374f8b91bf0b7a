# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""A bar for uploads that take longer than two seconds, on a terminal."""

from __future__ import annotations

import importlib
from typing import Any

_bar: Any = None


def show(sent: int, total: int) -> None:
    """Shows how many bytes of the uploads under way are sent; total 0: there are none.

    The device calls it while a thread waits, about five times a second.
    """
    global _bar
    if _bar is None and total:
        try:
            bars = importlib.import_module("tqdm.auto")
        except ImportError:
            return
        _bar = bars.tqdm(desc="upload", unit="B", unit_scale=True, leave=False)
    if _bar is None:
        return
    if total == 0:
        _bar.close()
        _bar = None
        return
    _bar.total, _bar.n = total, sent
    _bar.refresh()
