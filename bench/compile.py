# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""The compiled form of captured graphs, and the time to compile them.

The graphs are those of tests/replay/corpus: one step of each of ten models. "ms" is the
minimum over the repeats of the time of all passes and codegen. It is the cost of a miss
to the client's background thread, after the trace has become a graph. "launches" are
the operators if each runs alone, "kernels" the steps that remain with the groups of the
fuse pass; a group is one to three kernels. "MiB apart" and "moved" are the bytes that
the two read and write, with the sizes of the first call.

The second table is AdamW.step() (the default, with foreach) over small parameters, in
a process of its own for each row, in turns with eager PyTorch on one thread. "list µs"
is the time to compile the program of the step, "state µs" that of the programs that
make the optimizer's state: four ordinary ops for a parameter. "client" is the growth of
the process's resident memory by the first two steps, and "eager KiB" that of eager
PyTorch: the state of the optimizer in Python. "step" is the minimum time of a repeated
step with its wait. All are for one parameter.

    python bench/compile.py [--repeats N] [--markdown]

--markdown writes the table between the marks in bench/RESULTS.md. Needs Go.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import results
import torch
from child import Child, serve

ROOT = Path(__file__).resolve().parent.parent


def measure(repeats: int) -> list[dict]:
    command = ["go", "run", "./tests/replay/summary", "-json", f"-repeats={repeats}"]
    done = subprocess.run(
        [*command, "tests/replay/corpus"], cwd=ROOT, check=True, stdout=subprocess.PIPE
    )
    return json.loads(done.stdout)


def table(graphs: list[dict]) -> str:
    """The rows as markdown."""
    lines = [
        "| graph | ops | after | ms | µs/op | launches | kernels | MiB apart | moved |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for g in graphs:
        ms = g["Took"] / 1e6
        mib = [g[k] / 2**20 for k in ("Apart", "Moved")]
        lines.append(
            f"| {g['Name']} | {g['Before']} | {g['After']} | {ms:.1f} "
            f"| {1e3 * ms / g['Before']:.1f} | {g['Calls']} | {g['Kernels']} "
            f"| {mib[0]:.2f} | {mib[1]:.2f} |"
        )
    return "\n".join(lines)


SIZES = (500, 2000, 5000, 20000)
STEPPED = 500_000  # parameters of all repeated steps: a short step needs more repeats


def resident() -> int:
    """The resident memory of this process, in KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(x.split()[1]) for x in lines if x.startswith("VmRSS"))


def answer_lists(device: str, count: int):
    """Makes the optimizer. Returns the function that the parent's questions call."""
    torch.set_num_threads(1)

    def made(i: int) -> torch.Tensor:
        sizes = (4 + i % 7, 3 + i % 5) if i % 3 else (5 + i % 11,)
        return torch.ones(sizes, device=device)

    def wait() -> None:
        if device == "mycelya":
            torch.mycelya.synchronize()

    parameters = [torch.nn.Parameter(made(i)) for i in range(count)]
    for p in parameters:
        p.grad = torch.ones_like(p)
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, foreach=True)
    wait()

    def step() -> float:
        start = time.perf_counter()
        optimizer.step()
        wait()
        return time.perf_counter() - start

    def first() -> dict:
        if device == "mycelya":
            torch.mycelya.reset_metrics()
        memory = resident()
        for _ in range(2):
            step()
        time.sleep(2)  # the client returns garbage after a second
        grown = resident() - memory
        if device != "mycelya":
            return {"kib": grown}
        m = torch.mycelya.metrics()
        # The program of the step is the last one, and the only one of few ops.
        last = re.findall(r"ops, compiled in ([\d.]+) ms", torch.mycelya.explain())[-1]
        listed = float(last) / 1e3
        return {
            "kib": grown,
            "list": listed,
            "state": m["compile_seconds"] - listed,
            "programs": m["program_misses"],
        }

    def answer(question: str) -> float | dict:
        return first() if question == "first" else step()

    return answer


def lists(repeats: int) -> str:
    """The table of optimizer steps, as markdown."""
    lines = [
        "| parameters | programs | list µs | state µs | client KiB | eager KiB "
        "| step µs | eager µs |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for n in SIZES:
        children = [Child(device, str(n)) for device in ("mycelya", "cpu")]
        ours, eager = (child.ask("first") for child in children)
        best = [float("inf")] * 2
        for _ in range(max(repeats, STEPPED // n)):
            for i, child in enumerate(children):
                best[i] = min(best[i], child.ask("step"))
        for child in children:
            child.process.stdin.close()
            child.process.wait()
        lines.append(
            f"| {n} | {ours['programs']} | {1e6 * ours['list'] / n:.1f} "
            f"| {1e6 * ours['state'] / n:.1f} "
            f"| {ours['kib'] / n:.1f} | {eager['kib'] / n:.1f} "
            f"| {1e6 * best[0] / n:.1f} | {1e6 * best[1] / n:.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        return serve(answer_lists(sys.argv[2], int(sys.argv[3])))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--markdown", action="store_true")
    args = parser.parse_args()
    text = table(measure(args.repeats)) + "\n\n" + lists(args.repeats)
    print(text)
    if args.markdown:
        results.write("compile.py", f"minimum of {args.repeats} runs", text)


if __name__ == "__main__":
    main()
