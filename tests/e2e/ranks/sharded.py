# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""FSDP2 and tensor parallelism have the bits that they have on the CPU with Gloo."""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn import functional as F

dist.init_process_group("mycelya")
RANK, SIZE = dist.get_rank(), dist.get_world_size()
STEPS = 4


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.rise, self.fall = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.fall(F.gelu(self.rise(self.norm(x))))


def shard(model: nn.Module, mesh) -> None:
    for block in model[:2]:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def split(model: nn.Module, mesh) -> None:
    plan = {"rise": ColwiseParallel(), "fall": RowwiseParallel()}
    for block in model[:2]:
        parallelize_module(block, mesh, plan)


def train(device: str, wrap, names: tuple, sizes: tuple, clip: bool) -> list:
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block(), nn.Linear(16, 4))
    model = copy.deepcopy(model).to(device)
    mesh = init_device_mesh(device, sizes, mesh_dim_names=names)
    for name, one in zip(names, wrap, strict=True):
        one(model, mesh[name])
    # PyTorch refuses foreach if some parameters are split, and others are not.
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=0.01, foreach="parts" not in names
    )
    part = mesh["data"].get_local_rank() if "data" in names else 0
    numbers = torch.Generator().manual_seed(part)
    losses = []
    for step in range(STEPS):
        x = torch.randn(8, 16, generator=numbers).to(device)
        y = torch.randint(4, (8,), generator=numbers).to(device)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
        if device == "mycelya" and step == 1:
            torch.mycelya.synchronize()
            torch.mycelya.reset_metrics()
    if device == "mycelya":
        few_cuts(STEPS - 2)
    mine = [p.to_local() if isinstance(p, DTensor) else p for p in model.parameters()]
    return [t.detach().cpu() for t in (*losses, *mine)]


def few_cuts(steps: int) -> None:
    """A step is one program without a round trip.

    If this process does not run for a moment, its part of the step is sent, with a
    question for the end of the last event.
    """
    m = torch.mycelya.metrics()
    moments = m["cuts"].pop("comm", 0)
    assert m["round_trips"] <= moments and m["blocking_reads"] == 0, m
    assert sum(m["cuts"].values()) <= steps, m["cuts"]


def same(*case) -> None:
    here, there = train("cpu", *case), train("mycelya", *case)
    for want, got in zip(here, there, strict=True):
        assert torch.equal(want, got), (RANK, want, got)


def random_numbers() -> None:
    """Of split tensors: each rank draws its own."""

    def drawn(device: str) -> list[torch.Tensor]:
        torch.manual_seed(RANK)
        with torch.device("meta"):
            model = nn.Sequential(Block(), Block(), nn.Linear(16, 4))
        shard(model, init_device_mesh(device, (SIZE,)))
        model.to_empty(device=device)
        for p in model.parameters():
            nn.init.normal_(p)
        kept = F.dropout(model[2].weight, 0.5)
        return [t.to_local().detach().cpu() for t in (*model.parameters(), kept)]

    assert all(map(torch.equal, drawn("mycelya"), drawn("cpu")))


def attention() -> None:
    """Split by heads, as tensor parallelism does, with a mask and without."""

    def computed(device: str, mask: torch.Tensor | None) -> list[torch.Tensor]:
        mesh = init_device_mesh(device, (SIZE,))
        numbers = torch.Generator().manual_seed(0)
        q, k, v = (
            distribute_tensor(
                torch.randn(2, 4, 5, 8, generator=numbers).to(device), mesh, [Shard(1)]
            ).requires_grad_()
            for _ in range(3)
        )
        if mask is not None:
            way = Shard(1) if mask.ndim == 4 else Replicate()
            mask = distribute_tensor(mask.to(device), mesh, [way])
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None
        )
        assert out.placements == (Shard(1),)
        out.sum().backward()
        found = (out, q.grad, k.grad, v.grad)
        return [t.to_local().detach().cpu() for t in found]

    for mask in (None, torch.randn(5, 5), torch.randn(2, 4, 5, 5)):
        if mask is not None:
            dist.broadcast(mask, 0)
        here, there = computed("cpu", mask), computed("mycelya", mask)
        assert all(map(torch.equal, here, there))


if __name__ == "__main__":
    random_numbers()
    attention()
    same([shard], ("data",), (SIZE,), True)
    same([split], ("parts",), (SIZE,), False)
    if SIZE == 4:
        same([split, shard], ("parts", "data"), (2, 2), False)
    dist.destroy_process_group()
    print("done")
