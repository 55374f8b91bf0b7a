# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Several workers have the losses that one process has with the rows of all."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from sharded import RANK, SIZE, Block, shard, split
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

STEPS = 6


def rows(part: int) -> tuple[torch.Tensor, torch.Tensor]:
    numbers = torch.Generator().manual_seed(part)
    x = torch.randn(8, 16, generator=numbers)
    return x, torch.randint(4, (8,), generator=numbers)


def trained(
    device: str, parts: range, wrap: Callable[[nn.Module], nn.Module | None]
) -> torch.Tensor:
    """The losses of the steps with the rows of some parts."""
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block(), nn.Linear(16, 4)).to(device)
    model = wrap(model) or model
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, foreach=False)
    batches = zip(*map(rows, parts), strict=True)
    x, y = (torch.cat(batch).to(device) for batch in batches)
    losses = []
    for _ in range(STEPS):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return torch.stack(losses).cpu()


def same(name: str, data: int, wrap: Callable[[nn.Module], nn.Module | None]) -> None:
    """Compares; the rows are those of so many parts, of which each rank has one."""
    part = RANK % data
    mine = trained("mycelya", range(part, part + 1), wrap)
    dist.all_reduce(mine)
    mine /= SIZE
    want = trained("cpu", range(data), lambda model: None)
    worst = (mine - want).abs().max().item()
    assert worst <= 1e-6, (name, worst)
    assert want[-1] < want[0], want


def mesh(*names: str) -> DeviceMesh:
    shape = (SIZE,) if len(names) == 1 else (2, SIZE // 2)
    return init_device_mesh("mycelya", shape, mesh_dim_names=names)


def both(model: nn.Module) -> None:
    grid = mesh("parts", "data")
    split(model, grid["parts"])
    shard(model, grid["data"])


same("DDP", SIZE, DistributedDataParallel)
same("FSDP2", SIZE, lambda model: shard(model, mesh("data")))
same("TP", 1, lambda model: split(model, mesh("parts")))
if SIZE == 4:
    same("FSDP2 x TP", 2, both)
dist.destroy_process_group()
print("done")
