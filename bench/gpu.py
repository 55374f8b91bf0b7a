# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""The time of fused groups on a GPU: kernels, operators, eager CUDA, torch.compile.

The cases are those of kernels.py. A repeat is ten calls and one wait, so that the GPU
never idles between calls; the figure is the time of the fastest repeat divided by ten.
Eager CUDA and torch.compile run in this process. Two child processes run the local
worker, with kernels and without. All use the same GPU, in turns for each case. Kernels
are compiled before a case is timed.

    python bench/gpu.py [--repeats N] [--only TEXT] [--compile]

--compile adds torch.compile's time.
"""

import argparse
import math
import sys
import time

import torch
from child import Child, serve
from kernels import CASES, mean

CALLS = 10
WARM = 3
# Seconds until the kernels of a case must be compiled.
COMPILE_LIMIT = 300


def wait_for_kernels(f, args: list) -> None:
    end = time.monotonic() + COMPILE_LIMIT
    while True:
        torch.mycelya.reset_metrics()
        f(*args)
        torch.mycelya.synchronize()
        if torch.mycelya.metrics()["groups_waiting"] == 0:
            return
        if time.monotonic() > end:
            sys.exit(f"The kernels were not compiled within {COMPILE_LIMIT} s.")
        time.sleep(0.01)


def seconds(case: str, device: str, repeats: int, wrap=None) -> float:
    make, f, _ = CASES[case]
    torch.manual_seed(0)
    args = make(device)
    f = wrap(f) if wrap else f
    wait = torch.cuda.synchronize
    if device == "mycelya":
        wait = torch.mycelya.synchronize
        wait_for_kernels(f, args)
    best, kept = math.inf, None
    for i in range(repeats + WARM):
        wait()
        start = time.perf_counter()
        for _ in range(CALLS):
            kept = f(*args)  # noqa: F841 (the next call reuses its memory)
        wait()
        if i >= WARM:
            best = min(best, (time.perf_counter() - start) / CALLS)
    return best


def table(args: argparse.Namespace) -> str:
    where = {"MYCELYA_MACHINE": "local:cuda:0"}
    on, off = (Child(MYCELYA_KERNELS=kernels, **where) for kernels in ("on", "off"))
    head = ["case", "kernels, µs", "GB/s", "of operators", "of eager"]
    if args.compile:
        head.append("of torch.compile")
    text = [f"| {' | '.join(head)} |", f"|---|{'---:|' * (len(head) - 1)}"]
    ratios = []
    for case, (_, _, size) in CASES.items():
        if args.only not in case:
            continue
        with torch.no_grad():
            eager = seconds(case, "cuda:0", args.repeats)
            ours, plain = (c.ask(case, args.repeats) for c in (on, off))
            row = [f"{ours * 1e6:.1f}", f"{size / ours / 1e9:.0f}"]
            row += [f"{ours / plain:.2f}", f"{ours / eager:.2f}"]
            if args.compile:
                other = seconds(case, "cuda:0", args.repeats, torch.compile)
                row.append(f"{ours / other:.2f}")
        ratios.append(ours / eager)
        text.append(f"| {' | '.join([case, *row])} |")
    text += ["", f"Geometric mean of the ratios to eager: {mean(ratios):.2f}."]
    return "\n".join(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--only", default="")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        import mycelya_torch  # noqa: F401

        with torch.no_grad():
            return serve(lambda case, repeats: seconds(case, "mycelya", repeats))
    if not torch.cuda.is_available():
        sys.exit("bench/gpu.py needs a GPU that torch can use.")
    print(f"{torch.cuda.get_device_name(0)}, PyTorch {torch.__version__}\n")
    print(table(args))


if __name__ == "__main__":
    main()
