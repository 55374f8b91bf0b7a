# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Training steps, and the peak memory of such a step in eager PyTorch.

As a script it trains the model with the given name on the device.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator

import torch
import zoo
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(256, 1, 8, 8), torch.randint(10, (256,))


def rows() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(1024, 100), torch.randint(10, (1024,))


def tokens() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(96, (16, 48)), torch.randint(96, (16 * 48,))


# The form of the optimizer is explicit, because PyTorch's default differs by device.
MODELS: dict[str, tuple[Callable, Callable, dict]] = {
    "cnn": (zoo.digits, digits, {"foreach": True}),
    "mlp": (zoo.smooth_mlp, rows, {"foreach": True}),
    "block": (zoo.Encoder, tokens, {"foreach": True}),
    "fused": (zoo.smooth_mlp, rows, {"fused": True}),
}


def steps(name: str, device: str) -> Iterator[Iterable[torch.Tensor]]:
    """Trains. Yields the live tensors before the first step and after each step."""
    make, batch, how = MODELS[name]
    torch.manual_seed(0)
    model = make().to(device)
    x, y = (t.to(device) for t in batch())
    optimizer = torch.optim.AdamW(model.parameters(), **how)
    loss_of = nn.CrossEntropyLoss()
    while True:
        state = [s.values() for s in optimizer.state.values()]
        yield [x, y, *model.parameters(), *(t for s in state for t in s)]
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()


class Live(TorchDispatchMode):
    """Counts the bytes of all live storages after each operator.

    Memory that an operator allocates and frees itself is not counted, as in the plan.
    """

    def __init__(self) -> None:
        super().__init__()
        self.storages: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0

    def see(self, tensors: object) -> None:
        dead = [key for key, (ref, _) in self.storages.items() if ref.expired()]
        for key in dead:
            del self.storages[key]
        for t in pytree.tree_leaves(tensors):
            if isinstance(t, torch.Tensor):
                storage = t.untyped_storage()
                ref = StorageWeakRef(storage)
                self.storages[ref.cdata] = ref, storage.nbytes()
        self.peak = max(self.peak, sum(size for _, size in self.storages.values()))

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.see((args, kwargs, out))
        return out


def eager_peak(name: str) -> int:
    """The peak of the fourth step, when the optimizer already has its state."""
    training = steps(name, "cpu")
    for _ in range(3):
        next(training)
    with Live() as live:
        live.see(next(training))
        live.peak = 0
        next(training)
    return live.peak


def main(name: str) -> None:
    import mycelya_torch  # noqa: F401 (registers the device)

    training = steps(name, "mycelya")
    for _ in range(6):
        next(training)
    torch.mycelya.synchronize()


if __name__ == "__main__":
    main(sys.argv[1])
