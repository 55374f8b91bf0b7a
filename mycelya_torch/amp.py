# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""torch.mycelya.amp: torch.amp for this device, as torch.cuda.amp is for CUDA."""

from __future__ import annotations

import functools
from typing import Any

import torch

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd"]


class autocast(torch.amp.autocast):  # noqa: N801 (PyTorch's name)
    """`torch.autocast("mycelya", …)`: ops run in `dtype` if that is safe."""

    def __init__(
        self,
        enabled: bool = True,
        dtype: torch.dtype = torch.float16,
        cache_enabled: bool = True,
    ) -> None:
        super().__init__(
            "mycelya", dtype=dtype, enabled=enabled, cache_enabled=cache_enabled
        )


class GradScaler(torch.amp.GradScaler):
    """`torch.amp.GradScaler("mycelya", …)`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__("mycelya", *args, **kwargs)


custom_fwd = functools.partial(torch.amp.custom_fwd, device_type="mycelya")
custom_bwd = functools.partial(torch.amp.custom_bwd, device_type="mycelya")
