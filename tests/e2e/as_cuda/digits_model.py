# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""The model of digits_cuda.py."""

import torch.nn as nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Dropout(0.1)
        )
        self.head = nn.Linear(8 * 64, 10)

    def forward(self, x):
        return self.head(self.body(x))


def describe(model):
    device = next(model.parameters()).device
    if device.type == "cuda":
        print("model: on the GPU")
    else:
        print("model: on", device)
