# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""The GPUs that providers offer."""

from __future__ import annotations

import enum


class GPUType(enum.Enum):
    """GPUs that providers offer, by their names there."""

    T4 = "T4"
    L4 = "L4"
    A10G = "A10G"
    A100 = "A100"
    A100_40GB = "A100-40GB"
    A100_80GB = "A100-80GB"
    L40S = "L40S"
    H100 = "H100"
    H200 = "H200"
    B200 = "B200"
    RTX_PRO_6000 = "RTX-PRO-6000"


def find(value: str | GPUType) -> GPUType | None:
    """The GPU type with this name; None for "".

    Raises:
        ValueError: unknown name; the message lists the valid names.
    """
    if value == "":
        return None
    try:
        return value if isinstance(value, GPUType) else GPUType(value)
    except ValueError:
        valid = ", ".join(repr(g.value) for g in GPUType)
        raise ValueError(f"{value!r} is not a GPU type; use one of {valid}.") from None
