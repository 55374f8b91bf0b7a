# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""The values of nn.TransformerEncoder in padded rows.

In evaluation PyTorch packs the rows that are kept into a nested tensor, if the padding
comes last, and unpacks them with zeros around. This device has no nested tensors; the
rows that are kept have the same values without, and the others are made zero here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def _packs(encoder: nn.TransformerEncoder, source: Tensor, mask: Any) -> bool:
    """PyTorch's conditions, except for the position of the padding."""
    first = encoder.layers[0] if len(encoder.layers) else None
    if not isinstance(first, nn.TransformerEncoderLayer) or first.training:
        return False
    if not (torch.backends.mha.get_fastpath_enabled() and encoder.use_nested_tensor):
        return False
    if source.dim() != 3 or mask is not None or torch.is_autocast_enabled("mycelya"):
        return False
    tensors = [source, *first.parameters()]
    return not (torch.is_grad_enabled() and any(t.requires_grad for t in tensors))


def without_padding(
    encoder: nn.TransformerEncoder,
    result: Tensor,
    source: Tensor,
    mask: Any,
    padding: Any,
) -> Tensor:
    """`result` [b, t, d] with zeros, normed, where `padding` [b, t] says padding.

    Unchanged if some row's padding is not at its end, or PyTorch would not pack.
    The device computes whether it is at the end, so this does not wait.
    """
    if padding is None or not _packs(encoder, source, mask):
        return result
    kept = ~(padding.isneginf() if padding.is_floating_point() else padding)
    last = (kept.long().cumprod(1) == kept).all()
    empty = torch.zeros_like(result)
    if encoder.norm is not None:
        empty = encoder.norm(empty)
    return torch.where((~kept & last).unsqueeze(-1), empty, result)
