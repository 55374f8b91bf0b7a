# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""The backend "mycelya" of torch.distributed: workers compute among themselves."""

from __future__ import annotations

import contextlib
import functools
import os
from typing import Any

import torch
import torch.distributed as dist

from mycelya_torch import _device

NAME = "mycelya"


_NCCL = (
    '{} Tensors of mycelya have the backend "mycelya": call init_process_group() '
    "without a backend, or run the script with `mycelya run --as-cuda`."
)


def register() -> None:
    """Makes the backend known, also as that of a bare `init_process_group()`."""
    if dist.is_available() and NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(
            NAME, _create, extended_api=True, devices=["cpu", NAME]
        )
        dist.init_process_group = _explaining(dist.init_process_group)


def _explaining(original: Any) -> Any:
    """Says what to use instead of a backend that has no tensors of the device."""

    @functools.wraps(original)
    def init_process_group(backend: Any = None, *args: Any, **kwargs: Any) -> None:
        try:
            original(backend, *args, **kwargs)
        except (RuntimeError, ValueError) as error:
            if "nccl" in str(backend).lower() and not torch.cuda.is_available():
                raise type(error)(_NCCL.format(error)) from None
            raise
        if _used:
            used()

    return init_process_group


_used = False


def used() -> None:
    """The process uses the device: collectives of a group without it say what to do."""
    global _used
    _used = True
    if not dist.is_available() or not dist.is_initialized():
        return
    world: Any = dist.group.WORLD
    if all(device.type != NAME for device in world._device_types):
        name = dist.get_backend(world)
        world._register_backend(
            torch.device(NAME),
            dist.ProcessGroup.BackendType.CUSTOM,
            _device.backend_elsewhere(world.rank(), world.size(), name),
        )


def _create(options: Any, _: Any) -> Any:
    """Makes the backend of a group; one of Gloo computes with tensors on the CPU."""
    from torch.distributed.distributed_c10d import PrefixStore  # torch may lack it

    # torchrun keeps the store when it starts the processes again.
    store = PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", ""), options.store)
    rank, size = options.group_rank, options.group_size
    cpu = dist.ProcessGroupGloo(PrefixStore("cpu", store), rank, size, options.timeout)
    store = PrefixStore("workers", store)
    return _device.backend(store, rank, size, options.timeout, cpu)


def random_numbers(module: Any) -> None:
    """Random operators of DTensor, whose module is torch.distributed.tensor._random.

    DTensor gives each rank an offset in the numbers of one seed. The generator of a CPU
    worker has no offset, so each rank draws its own numbers, as on the CPU.
    """
    original: Any = module.OffsetBasedRNGTracker

    class Tracker(original):  # type: ignore[misc]
        def __init__(self, device_mesh: Any, run_state_sync: bool = True) -> None:
            ours = device_mesh.device_type == NAME
            counts = not ours or torch.mycelya.get_rng_state().numel() == 16  # type: ignore[attr-defined]
            super().__init__(device_mesh, run_state_sync and counts)
            self.distribute_region_enabled = counts

        def _distribute_region(self, spec: Any, generator: Any = None) -> Any:
            if not self.distribute_region_enabled:
                return contextlib.nullcontext()
            return super()._distribute_region(spec, generator)

    module.OffsetBasedRNGTracker = Tracker


def attention(_: Any) -> None:
    """Lets DTensor split the attention of a CPU worker by batches and heads."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.experimental import register_sharding

    def placements(outputs: int, inputs: int, mask: Any) -> Any:
        """How outputs and inputs, all [b,h,…], may be split, and the mask [b,h,…]."""
        yield [Replicate()] * outputs, [Replicate()] * (inputs + (mask is not None))
        for dim in (0, 1):
            rest: list[Any] = []
            if mask is not None:  # as it is: DTensor does not move it
                own = mask.ndim == 4 and mask.shape[dim] != 1
                if own and not any(p.is_shard(dim) for p in mask.placements):
                    continue
                rest = [Shard(dim) if own else Replicate()]
            yield [Shard(dim)] * outputs, [Shard(dim)] * inputs + rest

    def forward(*_: Any, attn_mask: Any = None, **__: Any) -> Any:
        return list(placements(2, 3, attn_mask))

    def backward(*_: Any, attn_mask: Any = None, **__: Any) -> Any:
        return list(placements(3, 6, attn_mask))

    aten = torch.ops.aten
    op = aten._scaled_dot_product_flash_attention_for_cpu
    register_sharding(op.default)(forward)
    op = aten._scaled_dot_product_flash_attention_for_cpu_backward
    register_sharding(op.default)(backward)
