# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Helpers of the tests that use tensors, storages and modules as Python objects."""

import torch
from helpers import DEVICE


def ramp(*shape, dtype=torch.float32):
    return torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)


def to_device(tensor):
    return tensor.to(DEVICE)


def raw(tensor):
    """A tensor's bytes, for dtypes that have no ==."""
    return tensor.cpu().contiguous().view(torch.uint8)


def same_storage(a, b):
    return a.untyped_storage()._cdata == b.untyped_storage()._cdata


def on_device(tensor):
    return tensor.device == torch.device("mycelya", 0)


def copy_to_cpu(nest):
    return torch.utils._pytree.tree_map(
        lambda t: t.cpu() if isinstance(t, torch.Tensor) else t, nest
    )


class Sub(torch.Tensor):
    pass
