# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""The backend "mycelya" of torch.distributed: workers compute among themselves."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from mycelya_torch import _device

NAME = "mycelya"


def register() -> None:
    """Makes the backend known, also as that of a bare `init_process_group()`."""
    if dist.is_available() and NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(
            NAME, _create, extended_api=True, devices=["cpu", NAME]
        )


def _create(options: Any, _: Any) -> Any:
    """Makes the backend of a group; one of Gloo computes with tensors on the CPU."""
    from torch.distributed.distributed_c10d import PrefixStore  # torch may lack it

    store, rank, size = options.store, options.group_rank, options.group_size
    cpu = dist.ProcessGroupGloo(PrefixStore("cpu", store), rank, size, options.timeout)
    store = PrefixStore("workers", store)
    return _device.backend(store, rank, size, options.timeout, cpu)
