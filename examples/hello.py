# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""The smallest use: a matrix product and its gradient on the device."""

import torch

import mycelya_torch  # noqa: F401 (registers the device)

x = torch.randn(3, 4, device="mycelya")
w = torch.randn(4, 2, device="mycelya", requires_grad=True)
(x @ w).relu().sum().backward()
print(x)
print("grad of w:", w.grad)
