# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Reads that make no trip have the values, errors and random state of those that do.

A child process runs random programs with reads at random places. It runs them once with
the values that the client knows, foreseen reads and reads ahead, and once without.
"""

import gc
import hashlib
import random
import sys
from pathlib import Path

import pytest
import torch
from helpers import SOAK, run_file
from torch import nn

PROGRAMS = 500
OFF = {"MYCELYA_LOCAL": "off", "MYCELYA_GUESS": "off", "MYCELYA_AHEAD": "off"}


@pytest.mark.timeout(600 * SOAK)
def test_programs_with_reads_anywhere():
    first, count = "0", str(PROGRAMS * SOAK)
    found = {}
    for name, switches in (("with", {}), ("without", OFF)):
        # A cut moves operators between kernels, which may round in another way.
        exact = {"MYCELYA_KERNELS": "off", "MYCELYA_CHECK": "1"}
        out, _ = run_file(
            Path(__file__), first, count, timeout=600 * SOAK, **exact, **switches
        )
        *found[name], counts = out.splitlines()
        used = list(map(int, counts.split()))
        assert all(used) if name == "with" else not any(used), (name, counts)
    assert len(found["with"]) == PROGRAMS * SOAK
    for ours, plain in zip(found["with"], found["without"], strict=True):
        assert ours == plain


class Program:
    """A loop whose body writes, reads, draws and fails, at random."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        torch.manual_seed(seed)
        self.small = [self.fresh() for _ in range(3)]
        self.large = torch.zeros(1500, device="mycelya")  # 6,000 bytes: too many
        self.net = nn.Sequential(nn.BatchNorm1d(3), nn.BatchNorm1d(5)).to("mycelya")
        self.futures = []
        self.log = []
        self.body = [self.statement() for _ in range(self.random.randrange(4, 14))]

    def fresh(self) -> torch.Tensor:
        numbers = [float(self.random.randrange(-4, 5)) for _ in range(6)]
        return torch.tensor(numbers, device="mycelya")

    def statement(self):
        r = self.random
        i, j, n = r.randrange(3), r.randrange(3), r.randrange(1, 7)
        x = self.small

        def upload():
            x[i] = self.fresh()

        def add():
            x[i] = (x[i] + x[j] * n).remainder(100)

        def write():
            x[i][n % 6 :].add_(n)

        def draw():
            x[i] = torch.rand(6, device="mycelya").mul(n)

        def grow():
            self.large.add_(x[i].sum()).mul_(0.5)

        def train():
            self.net[0](self.large[:30].view(10, 3))

        def fail():
            # It is read at once: what runs before an error is raised has no effect, and
            # when that is depends on the time.
            bad = x[i].gather(0, torch.full((6,), 5 + n % 2, device="mycelya"))
            self.read(lambda: bad.tolist())

        def read():
            self.read(lambda: x[i].tolist())

        def item():
            self.read(lambda: x[i][n - 1].item())

        def condition():
            if self.read(lambda: bool((x[i] > n).any())) is True:
                x[j].neg_()

        def chosen():
            self.read(lambda: x[i][x[i] > n].tolist())

        def large():
            self.read(lambda: self.large.sum().item())
            self.read(lambda: self.large[::300].tolist())

        def later():
            self.futures.append(self.read(x[i].cpu_future, noted=False))

        def state():
            for value in self.net.state_dict().values():
                self.read(lambda v=value: v.tolist())

        def generator():
            self.read(lambda: torch.mycelya.get_rng_state().tolist())

        return r.choice(
            [upload, add, add, write, draw, grow, train, fail, read, read, item]
            + [item, condition, chosen, large, later, state, generator]
        )

    def read(self, value, noted=True):
        """Notes a value; the error of another statement may come before it."""
        for _ in range(2):
            try:
                found = value()
            except (IndexError, RuntimeError) as error:
                found = type(error).__name__
            else:
                break
        if noted:
            self.log.append(found)
        return found

    def run(self) -> str:
        for turn in range(6):
            for statement in self.body:
                statement()
            if turn % 2:
                while self.futures:
                    future = self.futures.pop()
                    self.read(getattr(future, "result", lambda f=future: f))
        for x in self.small:
            self.read(x.tolist)
        self.read(self.large.tolist)
        self.read(lambda: torch.mycelya.get_rng_state().tolist())
        return hashlib.sha256(repr(self.log).encode()).hexdigest()


def main(first: int, count: int) -> None:
    gc.freeze()  # each error looks at all objects; libraries have 600,000 of them
    for seed in range(first, first + count):
        print(seed, Program(seed).run())
        try:
            torch.mycelya.synchronize()  # an error that no read has met
        except (IndexError, RuntimeError):
            pass
    m = torch.mycelya.metrics()
    print(m["local_reads"], m["reads_answered"], m["reads_ahead"])


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
