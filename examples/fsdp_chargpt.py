# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Trains the character transformer of chargpt.py with its weights split over workers.

torchrun --nproc-per-node=2 examples/fsdp_chargpt.py
"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F  # noqa: N812 (the usual name)

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--device", default="mycelya", help="cpu or mycelya")
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--batch", type=int, default=8, help="of each worker")
parser.add_argument("--print-losses", type=int, default=0, metavar="N")
args = parser.parse_args()
CONTEXT, WIDTH, HEADS, LAYERS = 64, 96, 4, 2


class Block(nn.Module):
    """Causal attention and a feed-forward layer: x [b,t,WIDTH] -> same."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        b, t, _ = x.shape
        qkv = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, WIDTH // HEADS)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # each [b,HEADS,t,WIDTH/HEADS]
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, WIDTH))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class CharGPT(nn.Module):
    """Logits of the next character: ids [b,t] -> [b,t,characters]."""

    def __init__(self, characters):
        super().__init__()
        self.token = nn.Embedding(characters, WIDTH)
        self.position = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, characters)

    def forward(self, ids):
        positions = torch.arange(ids.shape[1], device=ids.device)
        x = self.token(ids) + self.position(positions)
        return self.head(self.norm(self.blocks(x)))


dist.init_process_group(dist.get_default_backend_for_device(args.device))
rank, size = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh(args.device, (size,))

torch.manual_seed(0)
text = (Path(__file__).resolve().parent.parent / "LICENSE").read_text()
alphabet = sorted(set(text))
ids = torch.tensor([alphabet.index(c) for c in text])
model = CharGPT(len(alphabet)).to(args.device)
for block in model.blocks:  # a worker holds its part of each block, and the rest while
    fully_shard(block, mesh=mesh)  # the block computes
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
batches = torch.Generator().manual_seed(1 + rank)

losses = []
for step in range(args.steps):
    begin = torch.randint(len(ids) - CONTEXT - 1, (args.batch, 1), generator=batches)
    window = ids[begin + torch.arange(CONTEXT + 1)].to(args.device)  # [b,CONTEXT+1]
    loss = F.cross_entropy(model(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    losses.append(loss.detach())
    if rank == 0 and step % 50 == 0 and not args.print_losses:
        print(f"step {step}: loss {loss.item():.3f}", flush=True)

mean = torch.stack(losses[: args.print_losses] or losses[-1:])
dist.all_reduce(mean)
held = sum(p.to_local().numel() for p in model.parameters())
whole = sum(p.numel() for p in model.parameters())
if rank == 0:
    for value in (mean / size).tolist():
        print(f"loss={value!r}")
    print(f"device={args.device} workers={size} weights={held} of {whole}")
dist.destroy_process_group()
