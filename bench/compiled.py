# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""What torch.compile changes on the device: the client's time for tokens and steps.

A training step, and tokens of a small Llama that generate() decodes greedily. The plain
function and the compiled one are in one process, with one local worker, and take turns.
A turn is some steps and a wait. CPU time is that of the main thread, which runs Python
and records. The figures are the median of the turns, and the median of the quotients of
two turns that follow each other. "Python" runs the same graphs as Python code.

    python bench/compiled.py [--turns N] [--only TEXT]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import models
import torch

import mycelya_torch  # noqa: F401
from mycelya_torch import _graphs

WAYS = ("plain", "compiled", "Python")
TOKENS = models.TOKENS


def as_python(graph: torch.fx.GraphModule) -> object:
    raise _graphs._NotInterpreted


def compiled_as(way: str) -> Callable:
    """torch.compile, where the way "Python" never makes programs for C++."""

    def wrap(function: Callable) -> Callable:
        if way == "plain":
            return function
        fast = torch.compile(function)
        if way == "compiled":
            return fast

        def call(*args: object, **kwargs: object) -> object:
            program = _graphs._Program
            _graphs._Program = as_python  # type: ignore[misc,assignment]
            try:
                return fast(*args, **kwargs)
            finally:
                _graphs._Program = program  # type: ignore[misc]

        return call

    return wrap


def static_llama(device: str, wrap: Callable) -> models.Step:
    """As models.llama, with a cache of fixed size."""
    return models.llama(device, wrap, cache_implementation="static")


CASES = {
    "MLP, training step": (models.mlp, 1),
    "digits CNN, training step": (models.digits, 1),
    "chargpt, training step": (models.chargpt, 1),
    "Llama, token, cache that grows": (models.llama, TOKENS),
    "Llama, token, static cache": (static_llama, TOKENS),
}


def turn(step: models.Step, steps: int) -> tuple[float, float]:
    """Seconds and the main thread's CPU seconds of a step."""
    torch.mycelya.synchronize()
    cpu, begun = time.thread_time(), time.perf_counter()
    for _ in range(steps):
        step()
    cpu = time.thread_time() - cpu
    torch.mycelya.synchronize()
    return (time.perf_counter() - begun) / steps, cpu / steps


def measure(name: str, turns: int) -> None:
    build, parts = CASES[name]
    ways = {}
    for way in WAYS:
        torch.manual_seed(0)
        step = build("mycelya", compiled_as(way))
        for _ in range(8 if parts == 1 else 3):
            step()
        ways[way] = step
    samples: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    for _ in range(turns):
        for way, step in ways.items():
            samples[way].append(turn(step, 20 if parts == 1 else 1))
    for way in WAYS:
        row = [f"{name:34}", f"{way:9}"]
        for i, _ in enumerate(("time", "cpu")):
            values = [s[i] for s in samples[way]]
            pairs = [
                ours[i] / plain[i]
                for ours, plain in zip(samples[way], samples["plain"], strict=True)
            ]
            median = statistics.median(values) / parts * 1e3
            row.append(f"{median:8.3f} ms {statistics.median(pairs):5.2f} x")
        print("  ".join(row), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    args = parser.parse_args()
    torch._dynamo.config.recompile_limit = 64
    print(f"{'case':34}  {'way':9}  {'time':19}  CPU time of the main thread")
    for name in CASES:
        if args.only in name:
            torch._dynamo.reset()
            measure(name, args.turns)


if __name__ == "__main__":
    main()
