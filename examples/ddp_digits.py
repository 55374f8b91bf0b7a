# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Trains the CNN of digits.py on several workers; each computes with its own batches.

torchrun --nproc-per-node=2 examples/ddp_digits.py
"""

import argparse

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, random_split

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--device", default="mycelya", help="cpu or mycelya")
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--batch", type=int, default=32, help="of each worker")
parser.add_argument("--print-losses", type=int, default=0, metavar="N")
args = parser.parse_args()

# "mycelya" computes collectives among the workers; CPU tensors go through Gloo.
dist.init_process_group(dist.get_default_backend_for_device(args.device))
rank, size = dist.get_rank(), dist.get_world_size()

torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16  # [n,1,8,8]
data = TensorDataset(images, torch.tensor(digits.target))
train, held_out = random_split(data, [1437, 360])
sampler = DistributedSampler(train)  # each epoch deals the images out anew
loader = DataLoader(train, args.batch, sampler=sampler)

model = nn.Sequential(
    *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU()),
    *(nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
    *(nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10)),
).to(args.device)
model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters())
steps = args.epochs * len(loader)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=steps)
loss_of = nn.CrossEntropyLoss(label_smoothing=0.1)

losses = []
for epoch in range(args.epochs):
    sampler.set_epoch(epoch)
    for image, label in loader:
        image, label = image.to(args.device), label.to(args.device)
        loss = loss_of(model(image), label)
        optimizer.zero_grad()
        loss.backward()  # adds up the gradients of all workers on the way
        optimizer.step()
        schedule.step()
        losses.append(loss.detach())  # of this worker's images; nothing waits for it

mean = torch.stack(losses[: args.print_losses] or losses[-1:])
dist.all_reduce(mean)
with torch.no_grad():
    x, y = (t.to(args.device) for t in next(iter(DataLoader(held_out, len(held_out)))))
    accuracy = (model(x).argmax(1) == y).float().mean().item()
if rank == 0:
    for value in (mean / size).tolist():
        print(f"loss={value!r}")
    print(f"accuracy={accuracy:.3f} device={x.device.type} workers={size}")
dist.destroy_process_group()
