# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Two machines at a time: a teacher on one trains a student on the other."""

import argparse
import copy

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (the usual name)

from mycelya_torch import RemoteMachine

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--provider", default="local", help="of both machines")
parser.add_argument("--steps", type=int, default=100)
args = parser.parse_args()

torch.manual_seed(0)
teacher = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 4))
student = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
batches = torch.randn(args.steps, 64, 16)


def train(left, right):
    """The teacher computes on left, the student on right. Returns the losses."""
    there, here = copy.deepcopy(teacher).to(left), copy.deepcopy(student).to(right)
    optimizer = torch.optim.AdamW(here.parameters(), lr=1e-2)
    losses = []
    for batch in batches:
        with torch.no_grad():
            target = there(batch.to(left))
        # A copy between machines goes through this process.
        loss = F.mse_loss(here(batch.to(right)), target.to(right))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).cpu()


with (
    RemoteMachine(args.provider, name="left") as left,
    RemoteMachine(args.provider, name="right") as right,
):
    print(f"{left} is {left.device()}, {right} is {right.device()}")
    losses = train(left.device(), right.device())

    x, y = torch.ones(2, device=left.device()), torch.ones(2, device=right.device())
    try:
        x + y
    except RuntimeError as error:
        print("an operator over both:", str(error).splitlines()[0])
    print("after a copy:", (x.to(right) + y).tolist())

expected = train("cpu", "cpu")
print(f"loss: {losses[0]:.4f} in the first step, {losses[-1]:.4f} in the last")
print(f"largest difference from the CPU: {(losses - expected).abs().max():.1e}")
