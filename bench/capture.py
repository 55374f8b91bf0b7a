# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""What an op costs the client: time per op from Python, on the device and on the CPU.

On the device an op is recorded, not run, so this is the price of capture. Both columns
come from one process with one thread, in turns, as the minimum over the repeats. Each
repeat ends with a wait outside the clock, so that neither the worker's work nor a full
queue is measured.

    python bench/capture.py [--repeats N] [--markdown]

--markdown writes the table between the marks in bench/RESULTS.md.
"""

import argparse
import gc
import math
import time
from collections.abc import Callable

import results
import torch
from torch.nn import functional as F  # noqa: N812 (everybody's name for it)

import mycelya_torch  # noqa: F401 (registers the device)


def cases(device: str) -> dict[str, tuple[Callable[[], object], int]]:
    """Name -> (function, calls per repeat). The tensors are tiny: 4 x 4."""
    torch.manual_seed(0)
    a, b = (torch.randn(4, 4).to(device) for _ in range(2))
    weight, bias = torch.ones(4).to(device), torch.zeros(4).to(device)
    many = [torch.randn(4, 4).to(device) for _ in range(50)]
    small, batch, target = training(device)

    def step() -> None:
        loss = F.mse_loss(small[0](batch), target)
        small[1].zero_grad()
        loss.backward()
        small[1].step()

    return {
        "a + b": (lambda: a + b, 1000),
        "a * 1.001": (lambda: a * 1.001, 1000),
        "a @ b": (lambda: a @ b, 1000),
        "a.view(16)": (lambda: a.view(16), 1000),
        "a.t()": (lambda: a.t(), 1000),
        "a.add_(b)": (lambda: a.add_(b), 1000),
        "_foreach_add_, 50 tensors": (lambda: torch._foreach_add_(many, 0.001), 20),
        "softmax": (lambda: a.softmax(-1), 1000),
        "layer_norm": (lambda: F.layer_norm(a, (4,), weight, bias), 1000),
        "sum": (lambda: a.sum(), 1000),
        "cat": (lambda: torch.cat((a, b)), 1000),
        "clone": (lambda: a.clone(), 1000),
        "training step": (step, 10),
    }


def training(device: str):
    """6 x (Linear 32 + ReLU) with AdamW, a batch and its target: [16,32] each."""
    layers: list[torch.nn.Module] = []
    for _ in range(6):
        layers += [torch.nn.Linear(32, 32), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers).to(device)
    batch, target = (torch.randn(16, 32).to(device) for _ in range(2))
    return (model, torch.optim.AdamW(model.parameters())), batch, target


def time_of(call: Callable[[], object], n: int) -> float:
    """Seconds per call over n calls."""
    start = time.perf_counter()
    for _ in range(n):
        call()
    return (time.perf_counter() - start) / n


def measure(repeats: int) -> list[tuple[str, float, float]]:
    """Rows (name, µs on the device, µs on the CPU)."""
    ours, cpu = cases("mycelya"), cases("cpu")
    rows = []
    for name, (call, n) in ours.items():
        best = {"ours": math.inf, "cpu": math.inf}
        for repeat in range(repeats + 2):  # the first two warm up
            seconds = {"ours": time_of(call, n)}
            torch.mycelya.synchronize()
            seconds["cpu"] = time_of(cpu[name][0], n)
            if repeat >= 2:
                best = {key: min(best[key], seconds[key]) for key in best}
        rows.append((name, best["ours"] * 1e6, best["cpu"] * 1e6))
    return rows


def table(rows: list[tuple[str, float, float]]) -> str:
    """The rows and their geometric mean as markdown."""
    lines = ["| op | mycelya µs | cpu µs | ratio |", "|---|---:|---:|---:|"]
    for name, ours, cpu in rows:
        lines.append(f"| {name} | {ours:.2f} | {cpu:.2f} | {ours / cpu:.2f} |")
    mean = math.exp(sum(math.log(ours / cpu) for _, ours, cpu in rows) / len(rows))
    lines.append(f"| **geometric mean** | | | **{mean:.2f}** |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--markdown", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    gc.disable()  # a collection would land in one repeat of one device
    text = table(measure(args.repeats))
    print(text)
    if args.markdown:
        results.write("capture.py", f"minimum of {args.repeats} repeats", text)


if __name__ == "__main__":
    main()
