# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""The results of nn.TransformerEncoder at padded positions.

In evaluation, and if the padding comes last, PyTorch packs the other positions into a
nested tensor. It unpacks the result with zeros at the padded positions. This device has
no nested tensors. The other positions have the same values without them, and this
module sets the padded positions to the values that PyTorch returns.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def _packs(encoder: nn.TransformerEncoder, source: Tensor, mask: Any) -> bool:
    """Whether PyTorch would pack, apart from the condition on the padding's place."""
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
    """`result` [b, t, d] with zeros, after encoder.norm, where `padding` [b, t] is set.

    `result` is unchanged if PyTorch would not pack, or if the padding of a row is not
    at its end. The device computes the latter condition, so this does not wait.
    """
    if padding is None or not _packs(encoder, source, mask):
        return result
    kept = ~(padding.isneginf() if padding.is_floating_point() else padding)
    last = (kept.long().cumprod(1) == kept).all()
    empty = torch.zeros_like(result)
    if encoder.norm is not None:
        empty = encoder.norm(empty)
    return torch.where((~kept & last).unsqueeze(-1), empty, result)
