# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Fine-tunes a small vision transformer.

The model learns scikit-learn's handwritten digits 0 to 4 first. Then it gets a new
head and learns the digits 5 to 9, while its embeddings stay as they are.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from transformers import ViTConfig, ViTForImageClassification

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--device", default="mycelya", help="cpu or mycelya")
parser.add_argument("--steps", type=int, default=100, help="steps of each training")
parser.add_argument("--batch", type=int, default=32)
parser.add_argument("--print-losses", type=int, default=0, metavar="N")
args = parser.parse_args()
if args.device.startswith("mycelya"):
    import mycelya_torch  # noqa: F401 (registers the device)
device = torch.device(args.device)

torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16  # [n,1,8,8]
labels = torch.tensor(digits.target)
first, later = labels < 5, labels >= 5
batches = torch.Generator().manual_seed(1)  # on the CPU, so the same for every device


def train(model, x, y, rate):
    """Trains on images x [n,1,8,8] with labels y [n], which are on the device."""
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=rate)
    losses = []
    for _ in range(args.steps):
        index = torch.randint(len(x), (args.batch,), generator=batches).to(device)
        loss = model(pixel_values=x[index], labels=y[index]).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())  # stays on the device: no wait
    return losses


def accuracy(model, x, y):
    """The share of images whose label the model finds."""
    with torch.no_grad():
        return (model(pixel_values=x).logits.argmax(1) == y).float().mean().item()


model = ViTForImageClassification(
    ViTConfig(
        image_size=8,
        patch_size=2,
        num_channels=1,
        num_labels=5,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        initializer_range=0.1,
    )
).to(device)
x, y = images[first].to(device), labels[first].to(device)
train(model, x, y, rate=5e-3)
print(f"digits 0 to 4: accuracy={accuracy(model, x, y):.3f}")

model.classifier = nn.Linear(32, 5).to(device)
for parameter in model.vit.embeddings.parameters():
    parameter.requires_grad_(False)
x, y = images[later], labels[later] - 5
train_x, train_y = x[:700].to(device), y[:700].to(device)
losses = train(model, train_x, train_y, rate=2e-3)
for value in losses[: args.print_losses]:
    print(f"loss={value.item()!r}")
held_out = accuracy(model, x[700:].to(device), y[700:].to(device))
print(f"digits 5 to 9: accuracy={held_out:.3f} device={train_x.device}")
