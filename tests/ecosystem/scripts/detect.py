# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Trains a detector of torchvision on images with rectangles, and detects them.

python detect.py --out FILE [--epochs N]
"""

import argparse
import json

import torch
from torch.utils.data import DataLoader, Dataset
from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_320_fpn


class Rectangles(Dataset):
    """Dark images, each with one or two bright rectangles of two classes."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        generator = torch.Generator().manual_seed(i)
        image, boxes, labels = torch.rand(3, 96, 128, generator=generator) / 4, [], []
        for k in range(1 + i % 2):
            x, y, width, height = (
                torch.randint(0, n, (), generator=generator).item()
                for n in (64, 48, 32, 24)
            )
            box = [x, y, x + width + 24, y + height + 24]
            image[k, box[1] : box[3], box[0] : box[2]] += 0.7
            boxes.append(box)
            labels.append(1 + k)
        boxes, labels = torch.tensor(boxes, dtype=torch.float32), torch.tensor(labels)
        return image, {"boxes": boxes, "labels": labels}


def collate(batch):
    return tuple(zip(*batch, strict=True))


def train_one_epoch(model, optimizer, loader, device, epoch):
    model.train()
    schedule = None
    if epoch == 0:
        schedule = torch.optim.lr_scheduler.LinearLR(
            optimizer, start_factor=0.1, total_iters=len(loader) - 1
        )
    kept = []
    for images, targets in loader:
        images = [image.to(device) for image in images]
        targets = [{k: v.to(device) for k, v in t.items()} for t in targets]
        losses = model(images, targets)
        loss = sum(losses.values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()
        kept.append({name: value.item() for name, value in losses.items()})
        print(kept[-1], flush=True)
    return kept


@torch.inference_mode()
def detect(model, loader, device):
    model.eval()
    found = []
    for images, _ in loader:
        for out in model([image.to(device) for image in images]):
            out = {k: v.to("cpu") for k, v in out.items()}
            found.append({k: v[:5].tolist() for k, v in out.items()})
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()
    if torch.accelerator.is_available():
        device = torch.accelerator.current_accelerator()
    else:
        device = torch.device("cpu")
    torch.manual_seed(0)
    model = fasterrcnn_mobilenet_v3_large_320_fpn(
        weights=None,
        weights_backbone=None,
        num_classes=3,
        trainable_backbone_layers=6,
        rpn_batch_size_per_image=10_000,  # all: a sample is random
        box_batch_size_per_image=10_000,
    )
    model.to(device)
    order = torch.Generator().manual_seed(0)
    loader = DataLoader(
        Rectangles(12), 2, shuffle=True, collate_fn=collate, generator=order
    )
    tests = DataLoader(Rectangles(4), 2, collate_fn=collate, generator=order)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=0.005, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    losses = []
    for epoch in range(options.epochs):
        losses += train_one_epoch(model, optimizer, loader, device, epoch)
        schedule.step()
    with open(options.out, "w") as file:
        json.dump({"losses": losses, "found": detect(model, tests, device)}, file)


if __name__ == "__main__":
    main()
