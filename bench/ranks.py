# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Training with DDP on several local workers: against Gloo on the CPU, and far away.

Each rank trains a model on the CPU with Gloo and one on its worker, in turns. A ratio
is that of the medians over the rounds. Then the workers are behind a network with a
round trip of 100 ms, and the steps per second are compared with those at 0 ms; a round
takes four times as long. A round ends with a wait for its last step.

    python bench/ranks.py [--ranks N] [--rounds N] [--seconds S] [--only TEXT]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent))
MODELS = ("digits CNN", "MLP", "chargpt")


def measure(name: str, ways: list[str], rounds: int, seconds: float) -> None:
    """Runs in each rank; rank 0 prints the milliseconds of a step for each way."""
    import models
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("mycelya")  # CPU tensors go through Gloo
    steps = {}
    for way in ways:
        torch.manual_seed(0)
        steps[way] = models.MODELS[name](way, DistributedDataParallel)

    def run(way: str, count: int) -> float:
        dist.barrier()
        begun = time.perf_counter()
        for _ in range(count):
            steps[way]()
        if way != "cpu":
            torch.mycelya.synchronize()
        return (time.perf_counter() - begun) / count

    times: dict[str, list[float]] = {way: [] for way in ways}
    for way in ways:
        run(way, 30)
    for _ in range(rounds):
        for way in ways:
            count = torch.tensor(max(1, round(seconds / run(way, 5))))
            dist.broadcast(count, 0)
            times[way].append(run(way, int(count)))
    if dist.get_rank() == 0:
        print(*(f"{1000 * statistics.median(times[way]):.4f}" for way in ways))
    dist.destroy_process_group()


def of_ranks(args: argparse.Namespace, name: str, rtt: int, *ways: str) -> list[float]:
    """Milliseconds of a step for each way, measured by ranks of their own."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={args.ranks}", __file__, "--measure", name]
    command += ["--rounds", str(args.rounds), "--seconds", str(args.seconds)]
    machine = "local:cpu" + (f"?rtt={rtt}ms" if rtt else "")
    done = subprocess.run(
        [*command, "--ways", *ways],
        env={**os.environ, "MYCELYA_MACHINE": machine, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return list(map(float, done.stdout.splitlines()[-1].split()))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2, help="of a round")
    parser.add_argument("--only", default="", help="models with this text")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--ways", nargs="*", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        return measure(args.measure, args.ways, args.rounds, args.seconds)
    print("| DDP | Gloo, ms a step | workers | ratio | rate at 100 ms of 0 ms |")
    print("|---|---|---|---|---|")
    for name in (name for name in MODELS if args.only in name):
        cpu, near = of_ranks(args, name, 0, "cpu", "mycelya")
        args.seconds *= 4
        (alone,) = of_ranks(args, name, 0, "mycelya")
        (far,) = of_ranks(args, name, 100, "mycelya")
        args.seconds /= 4
        row = f"{cpu:.2f} | {near:.2f} | {near / cpu:.2f} | {alone / far:.2f}"
        print(f"| {name} | {row} |", flush=True)


if __name__ == "__main__":
    main()
