# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""What a check of doctor has found."""

from __future__ import annotations

from typing import NamedTuple


class Finding(NamedTuple):
    """What one check has found."""

    check: str
    state: str  # "ok", "note": something optional is absent, or "fail"
    text: str
    remedy: str = ""


def ok(check: str, text: str) -> Finding:
    return Finding(check, "ok", text)
