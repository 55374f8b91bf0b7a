# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Trains a small CNN on scikit-learn's handwritten digits (1,797 scans of 8 x 8)."""

import argparse
import time

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split
from tqdm import tqdm

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--device", default="mycelya", help="cpu or mycelya")
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--print-losses", type=int, default=0, metavar="N")
args = parser.parse_args()
if args.device.startswith("mycelya"):
    import mycelya_torch  # noqa: F401 (registers the device)
device = torch.device(args.device)

torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16  # [n,1,8,8]
data = TensorDataset(images, torch.tensor(digits.target))
train, held_out = random_split(data, [1437, 360])
loader = DataLoader(
    *(train, args.batch),
    shuffle=True,
    num_workers=2,
    multiprocessing_context="fork",
    persistent_workers=True,
)

model = nn.Sequential(
    *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU()),
    *(nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
    *(nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10)),
).to(device)
optimizer = torch.optim.AdamW(model.parameters())
steps = args.epochs * len(loader)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=steps)
loss_of = nn.CrossEntropyLoss(label_smoothing=0.1)

first_losses = []
bar = tqdm(total=steps, unit="step")
start = time.perf_counter()
for _ in range(args.epochs):
    for image, label in loader:
        image, label = image.to(device), label.to(device)
        loss = loss_of(model(image), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if len(first_losses) < args.print_losses:
            first_losses.append(loss.item())
        if bar.n % 20 == 0:
            bar.set_postfix(loss=f"{loss.item():.4f}")
        bar.update()
loss.item()  # waits for the last step
steps_per_s = bar.n / (time.perf_counter() - start)
bar.close()

for value in first_losses:
    print(f"loss={value!r}")
with torch.no_grad():
    x, y = (t.to(device) for t in next(iter(DataLoader(held_out, len(held_out)))))
    accuracy = (model(x).argmax(1) == y).float().mean().item()
print(f"accuracy={accuracy:.3f} device={x.device} steps_per_s={steps_per_s:.0f}")
