# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""The few places where PyTorch has no hook for a device that is far away."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._tensor_str import PRINT_OPTS
from torch.optim.optimizer import register_optimizer_step_post_hook

from mycelya_torch import _device
from mycelya_torch.machine import RemoteMachine


def install() -> None:
    """Installs all patches; called once, at import."""
    _patch_printing()
    _patch_to(torch.Tensor)
    _patch_to(torch.nn.Module)
    register_optimizer_step_post_hook(lambda *_: _device.mark_step())


def _head_and_tail(tensor: torch.Tensor) -> torch.Tensor:
    """What the formatter prints of a tensor, plus one element per shortened dimension.

    The extra one keeps a shortened dimension longer than twice the edge, which is how
    the formatter knows that it has to print an ellipsis there.
    """
    edge = PRINT_OPTS.edgeitems
    for dim, size in enumerate(tensor.shape):
        if size > 2 * edge + 1:
            head = tensor.narrow(dim, 0, edge)
            tail = tensor.narrow(dim, size - edge - 1, edge + 1)
            tensor = torch.cat([head, tail], dim)
    return tensor


def _patch_printing() -> None:
    """Printing reads element by element; here it reads once, and only what is shown."""
    import torch._tensor_str as module

    original = module._tensor_str

    @functools.wraps(original)
    def tensor_str(self: torch.Tensor, indent: int) -> str:
        if self.device.type != "mycelya":
            return original(self, indent)
        if self.numel() <= PRINT_OPTS.threshold:
            return original(self.cpu(), indent)
        short = _head_and_tail(self).cpu()
        with torch._tensor_str.printoptions(threshold=0):
            return original(short, indent)

    module._tensor_str = tensor_str


def _patch_to(owner: Any) -> None:
    """Makes owner.to accept a RemoteMachine where it accepts a device."""
    original = owner.to

    @functools.wraps(original)
    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], RemoteMachine):
            args = (args[0].device(), *args[1:])
        elif isinstance(kwargs.get("device"), RemoteMachine):
            kwargs["device"] = kwargs["device"].device()
        return original(self, *args, **kwargs)

    owner.to = to
