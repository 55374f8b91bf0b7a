# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""A loop of tiny steps: an MLP 64-64-8 with SGD, a new batch of 16 in each, no read.

Such a step has some 20 operators of a microsecond each, so what counts is everything
around them. The machine on a unix socket, the one over TCP and eager PyTorch take
turns, each for some steps and then a wait; a figure is the least time of a turn, and
the median. All have PyTorch's default number of threads. Processor time is that of both
processes. The upload of a batch is the time that the caller spends in .to(device).

    python bench/small.py [--rounds N] [--steps N] [--markdown]

--markdown writes the table between the marks in bench/RESULTS.md.
"""

import argparse
import gc
import statistics
import time
from collections.abc import Callable

import results
import rtt
import torch
from torch.nn import functional as F

from mycelya_torch import RemoteMachine

WARM_UP = 200


class Loop:
    """The loop on one device."""

    def __init__(self, device: torch.device) -> None:
        torch.manual_seed(0)
        self.device = device
        self.net = torch.nn.Sequential(
            torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)
        ).to(device)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01)
        self.batches = [torch.randn(16, 64) for _ in range(64)]
        self.targets = [torch.randint(8, (16,)) for _ in range(64)]
        self.samples: list[float] = []
        self.uploads: list[float] = []
        self.cpu = self.messages = 0.0
        self.run(WARM_UP)

    def run(self, steps: int) -> None:
        for i in range(steps):
            x = self.batches[i % 64].to(self.device)
            y = self.targets[i % 64].to(self.device)
            loss = F.cross_entropy(self.net(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        self.wait()

    def wait(self) -> None:
        if self.device.type == "mycelya":
            torch.mycelya.synchronize(self.device)

    def processor_time(self) -> float:
        """Seconds of this process and the device's worker."""
        total = time.process_time()
        if self.device.type == "mycelya":
            total += rtt.worker_time(self.device.index)
        return total

    def turn(self, steps: int) -> None:
        """Adds one sample of each figure."""
        torch.mycelya.reset_metrics()
        cpu, begun = self.processor_time(), time.perf_counter()
        self.run(steps)
        self.samples.append((time.perf_counter() - begun) / steps)
        self.cpu += (self.processor_time() - cpu) / steps
        self.messages = torch.mycelya.metrics()["messages_sent"] / steps
        self.uploads.append(least(lambda: self.batches[0].to(self.device)))
        self.wait()


def least(call: Callable[[], object]) -> float:
    """The least seconds of a call."""
    best = float("inf")
    for _ in range(64):
        begun = time.perf_counter()
        kept = call()
        best = min(best, time.perf_counter() - begun)
        del kept
    return best


def table(rounds: int, steps: int) -> str:
    machines = {
        "unix socket": RemoteMachine("local", device="cpu"),
        "TCP": RemoteMachine("local", device="cpu", transport="tcp"),
    }
    loops = {"eager, CPU": Loop(torch.device("cpu"))}
    loops |= {name: Loop(m.device()) for name, m in machines.items()}
    for _ in range(rounds):
        for loop in loops.values():
            loop.turn(steps)
    lines = [
        "| device | a step, µs | median | of eager | processor time, µs "
        "| messages a step | upload of a batch, µs |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    eager = min(loops["eager, CPU"].samples)
    for name, loop in loops.items():
        best, middle = min(loop.samples), statistics.median(loop.samples)
        lines.append(
            f"| {name} | {best * 1e6:.0f} | {middle * 1e6:.0f} | {best / eager:.2f} "
            f"| {loop.cpu / rounds * 1e6:.0f} | {loop.messages:.2f} "
            f"| {min(loop.uploads) * 1e6:.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--markdown", action="store_true")
    args = parser.parse_args()
    gc.disable()  # a collection would disturb a single turn
    text = table(args.rounds, args.steps)
    print(text)
    if args.markdown:
        results.write("small.py", f"{args.rounds} turns of {args.steps} steps", text)


if __name__ == "__main__":
    main()
