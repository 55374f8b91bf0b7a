# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Trains a character transformer on the text of LICENSE, then samples from it."""

import argparse
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (the usual name)

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--device", default="mycelya", help="cpu or mycelya")
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--sample", type=int, default=200, help="characters to sample")
parser.add_argument("--print-losses", type=int, default=0, metavar="N")
args = parser.parse_args()
if args.device.startswith("mycelya"):
    import mycelya_torch  # noqa: F401 (registers the device)
device = torch.device(args.device)
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


torch.manual_seed(0)
text = (Path(__file__).resolve().parent.parent / "LICENSE").read_text()
alphabet = sorted(set(text))
ids = torch.tensor([alphabet.index(c) for c in text])
model = CharGPT(len(alphabet)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
batches = torch.Generator().manual_seed(1)  # on the CPU, so the same for every device

start = time.perf_counter()
for step in range(args.steps):
    begin = torch.randint(len(ids) - CONTEXT - 1, (args.batch, 1), generator=batches)
    window = ids[begin + torch.arange(CONTEXT + 1)].to(device)  # [b,CONTEXT+1]
    loss = F.cross_entropy(model(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step < args.print_losses:
        print(f"loss={loss.item()!r}")
    elif step % 50 == 0:
        print(f"step {step}: loss {loss.item():.3f}", flush=True)
last = loss.item()
steps_per_s = args.steps / (time.perf_counter() - start)

context = torch.tensor([[alphabet.index("T")]], device=device)
with torch.no_grad():
    for _ in range(args.sample):
        probabilities = model(context[:, -CONTEXT:])[0, -1].softmax(-1)
        context = torch.cat([context, torch.multinomial(probabilities, 1)[None]], 1)
print("".join(alphabet[i] for i in context[0].tolist()))
print(f"loss={last:.3f} device={context.device} steps_per_s={steps_per_s:.0f}")
