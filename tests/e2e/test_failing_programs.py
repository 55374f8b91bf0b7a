# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Random programs whose ops fail at random, against eager PyTorch under try/except.

A program is a row of blocks. In each block some ops write tensors, whole or through
views, and some may fail. Eager PyTorch stops at the failing op; the device goes on
recording and raises the error at the end of the block. Afterwards all tensors have the
same values.
"""

import random

import pytest
import torch
from helpers import DEVICE, SOAK, on_cuda, same
from torch.nn import functional as F

SIZE = 6


class Tensors:
    """The tensors of a program on one device."""

    def __init__(self, device):
        self.device = device
        self.pool = [
            torch.arange(SIZE * 2.0, device=device).reshape(SIZE, 2) + i
            for i in range(4)
        ]

    def index(self, *values):
        return torch.tensor(values, device=self.device)


def add(t, a, b, n):
    t.pool[a].add_(t.pool[b], alpha=n)


def scale(t, a, b, n):
    t.pool[a].mul_(0.5).sub_(n)


def window(t, a, b, n):
    t.pool[a][n : n + 2].add_(t.pool[b][:2])


def transposed(t, a, b, n):
    t.pool[a].t()[1].copy_(t.pool[b].t()[0])


def clear(t, a, b, n):
    t.pool[a].zero_()


def replace(t, a, b, n):
    t.pool[a].copy_(t.pool[b])


def rows(t, a, b, n):
    t.pool[a].index_add_(0, t.index(n, 0), t.pool[b][:2])


def new(t, a, b, n):
    t.pool.append(t.pool[a] * 2 + t.pool[b])


def picked(t, a, b, n):
    t.pool.append(F.embedding(t.index(*range(SIZE)), t.pool[a]) + 1)


def softmax(t, a, b, n):
    t.pool[a].copy_(torch.softmax(t.pool[b], 1))


def lists(t, a, b, n):
    torch._foreach_add_([t.pool[a], t.pool[b]], float(n))


def fails_gather(t, a, b, n):
    t.pool[a].gather(0, t.index(SIZE + n)[None])


def fails_embedding(t, a, b, n):
    t.pool[a].add_(F.embedding(t.index(*[SIZE + 1] * SIZE), t.pool[b]))


def fails_label(t, a, b, n):
    F.nll_loss(t.pool[a], t.index(*[5] * SIZE))


def fails_put(t, a, b, n):
    t.pool[a][t.index(SIZE + n)] = 3


def fails_select(t, a, b, n):
    t.pool.append(t.pool[a].index_select(0, t.index(SIZE + 2)))


def fails_division(t, a, b, n):
    torch.div(t.index(4, n), t.index(2, 0), rounding_mode="floor")


GOOD = [add, scale, window, transposed, clear, replace, rows, new, picked, softmax]
GOOD += [lists]
FAILING = [fails_gather, fails_embedding, fails_label, fails_put, fails_select]
FAILING += [fails_division]


def draw(rng):
    """A program: blocks of (op, tensor, tensor, number)."""
    blocks = []
    for _ in range(rng.randint(2, 4)):
        block = []
        for _ in range(rng.randint(3, 14)):
            ops = FAILING if rng.random() < 0.12 else GOOD
            a, b = rng.sample(range(4), 2)
            block.append((rng.choice(ops), a, b, rng.randint(1, 3)))
        blocks.append(block)
    return blocks


def execute(blocks, device, wait):
    t = Tensors(device)
    failed = []
    for block in blocks:
        old = len(t.pool)
        try:
            for op, a, b, n in block:
                op(t, a, b, n)
            wait()
        except RuntimeError as error:
            failed.append(str(error).splitlines()[0])
        except IndexError as error:
            failed.append(str(error).splitlines()[0])
        else:
            failed.append("")
        made = t.pool[old:]
        if failed[-1]:
            del t.pool[old:]
        yield t.pool, made, failed


def check(number):
    blocks = draw(random.Random(number))
    ours = execute(blocks, DEVICE, torch.mycelya.synchronize)
    cpus = execute(blocks, torch.device("cpu"), lambda: None)
    for (pool, made, errors), (want, made_there, failed) in zip(
        ours, cpus, strict=True
    ):
        if on_cuda():  # its guards have other words for the same errors
            errors, failed = [list(map(bool, texts)) for texts in (errors, failed)]
        assert errors == failed, blocks
        same(pool, want, rtol=0, atol=1e-6)
        # Those that were made before the failing op are there; the others raise.
        same(made[: len(made_there)], made_there, rtol=0, atol=1e-6)
        for lost in made[len(made_there) :]:
            with pytest.raises((RuntimeError, IndexError)):
                lost.cpu()


@pytest.mark.parametrize("part", range(3 * SOAK))
def test_programs_that_fail(part):
    for number in range(40 * part, 40 * part + 40):
        check(number)


if __name__ == "__main__":
    import sys

    for number in range(int(sys.argv[1]), int(sys.argv[2])):
        check(number)
