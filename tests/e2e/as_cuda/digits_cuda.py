# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""A training with mixed precision, as people write it for one CUDA GPU."""

import argparse
import os
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from digits_model import Net, describe
from torch.cuda.amp import GradScaler, autocast
from torch.utils.data import DataLoader, TensorDataset


def seed_everything(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.cuda.manual_seed(seed)
    torch.cuda.manual_seed_all(seed)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False


def data():
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 10, (256,), generator=generator)
    images = torch.randn(256, 1, 8, 8, generator=generator) * 0.3
    images[torch.arange(256), 0, labels % 8, labels // 2] += 3.0
    return TensorDataset(images, labels)


def train(model, device, loader, optimizer, scaler):
    model.train()
    total = 0.0
    for images, labels in loader:
        images = images.cuda(non_blocking=True)
        labels = labels.to(device, non_blocking=True)
        optimizer.zero_grad(set_to_none=True)
        with autocast():
            output = model(images)
            assert output.dtype == torch.float16, output.dtype
            loss = F.nll_loss(F.log_softmax(output.float(), dim=1), labels)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        total += loss.item()
    return total / len(loader)


@torch.no_grad()
def test(model, device, loader):
    model.eval()
    right = 0
    for images, labels in loader:
        images, labels = images.to("cuda:0"), labels.to("cuda:0")
        with torch.amp.autocast("cuda", dtype=torch.bfloat16):
            right += (model(images).argmax(1) == labels).sum().item()
    return right / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--save", default="digits.pt")
    args = parser.parse_args()

    seed_everything(1)
    use_cuda = torch.cuda.is_available()
    device = torch.device("cuda" if use_cuda else "cpu")
    kwargs = {"num_workers": 1, "pin_memory": True} if use_cuda else {}
    print("device:", "GPU" if use_cuda else "CPU", torch.cuda.device_count())
    print("name:", bool(torch.cuda.get_device_name(0)))
    print("bf16:", torch.cuda.is_bf16_supported())
    loader = DataLoader(data(), batch_size=64, shuffle=True, **kwargs)

    model = Net().cuda()
    assert next(model.parameters()).is_cuda
    describe(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    scaler = GradScaler()
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    start.record()
    losses = []
    for _ in range(args.epochs):
        losses.append(train(model, device, loader, optimizer, scaler))
    end.record()
    torch.cuda.synchronize()
    assert start.elapsed_time(end) > 0
    assert losses[-1] < losses[0] / 2, losses
    print("accuracy:", test(model, device, loader) > 0.9)
    print("memory:", torch.cuda.max_memory_allocated() > 0)
    torch.cuda.empty_cache()

    torch.save({"model": model.state_dict(), "losses": losses}, args.save)
    again = Net()
    state = torch.load(args.save, map_location="cuda:0")
    assert all(value.is_cuda for value in state["model"].values())
    again.load_state_dict(state["model"])
    again.to("cuda")
    print("loaded:", test(again, device, loader) > 0.9)
    print("scaler:", scaler.get_scale() >= 1.0)
    os.remove(args.save)


if __name__ == "__main__":
    main()
