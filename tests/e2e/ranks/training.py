# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""DDP on the device has the bits of DDP on the CPU with Gloo, at the same layout."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("mycelya")
RANK, SIZE = dist.get_rank(), dist.get_world_size()
STEPS = 6


class Net(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, width), nn.Linear(width, width)
        self.c = nn.Linear(width, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c(torch.relu(self.b(torch.relu(self.a(x)))))


def trained(
    device: str, width: int = 64
) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    net = DistributedDataParallel(Net(width).to(device), bucket_cap_mb=0.01)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    losses = []
    for step in range(STEPS):
        batches = torch.Generator().manual_seed(100 * step + RANK)
        x = torch.randn(8, 16, generator=batches).to(device)
        y = torch.randint(4, (8,), generator=batches).to(device)
        loss = nn.functional.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        if device == "mycelya" and step == 2:
            torch.mycelya.synchronize()
            torch.mycelya.reset_metrics()
    if device == "mycelya":
        m = torch.mycelya.metrics()
        assert m["round_trips"] == 0, m
        # If this process does not run for a moment, its part of the step is sent.
        cuts = sum(n for why, n in m["cuts"].items() if why != "comm")
        assert cuts <= STEPS - 3, m["cuts"]
        gradients = sum(4 * p.numel() for p in net.parameters())
        assert m["peer_bytes"] == (STEPS - 3) * gradients, (m["peer_bytes"], gradients)
        torch.mycelya.synchronize()
        exchanged.append(m["peer_bytes"])
        sent.append(torch.mycelya.metrics()["bytes_sent"])
    return [x.cpu() for x in losses], {k: v.cpu() for k, v in net.state_dict().items()}


sent = []  # bytes of the process to its worker
exchanged = []  # bytes among workers
want_losses, want = trained("cpu")
losses, got = trained("mycelya")
assert all(map(torch.equal, losses, want_losses)), (losses, want_losses)
assert all(torch.equal(got[k], want[k]) for k in want)
trained("mycelya", width=256)  # 13 times the gradients
more = exchanged[1] - exchanged[0]
assert 0 < sent[0] and sent[1] - sent[0] < more / 20, (sent, exchanged)
dist.destroy_process_group()
print("done")
