# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Training steps without a profile, with torch.mycelya.trace(), with torch.profiler.

    .venv/bin/python bench/profiler.py

The kinds of steps alternate in one process. The table has the median time of a step,
and its ratio to a step without a profile. torch.profiler also profiles the CPU's
operators, as it does by default.
"""

import contextlib
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

STEPS, ROUNDS = 50, 12


def mlp(width: int, batch: int) -> Callable[[], torch.Tensor]:
    torch.manual_seed(0)
    layers = [nn.Linear(64, width), nn.GELU(), nn.Linear(width, width), nn.GELU()]
    model = nn.Sequential(*layers, nn.Linear(width, 10)).to("mycelya")
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = torch.randn(batch, 64), torch.randint(10, (batch,))

    def step():
        loss = F.cross_entropy(model(x.to("mycelya")), y.to("mycelya"))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def seconds(step: Callable[[], torch.Tensor]) -> float:
    """The time of a step, once everything has run."""
    torch.mycelya.synchronize()
    began = time.perf_counter()
    for _ in range(STEPS):
        step()
    torch.mycelya.synchronize()
    return (time.perf_counter() - began) / STEPS


KINDS = {
    "no profile": contextlib.nullcontext,
    "trace()": lambda: torch.mycelya.trace("/dev/null"),
    "torch.profiler": lambda: profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]
    ),
}


def main() -> None:
    print("| step | " + " | ".join(KINDS) + " |")
    print("|---|" + "---:|" * len(KINDS))
    for width, batch in ((64, 16), (512, 128)):
        step = mlp(width, batch)
        for _ in range(20):
            step()
        times: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for _ in range(ROUNDS):
            for kind, context in KINDS.items():
                with context():
                    times[kind].append(seconds(step))
        medians = {kind: statistics.median(found) for kind, found in times.items()}
        plain = medians["no profile"]
        cells = [f"{1e3 * t:.3f} ms ({t / plain:.2f})" for t in medians.values()]
        print(f"| MLP of width {width}, batch {batch} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
