# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""The time of fused groups: kernels, single operators, eager PyTorch, torch.compile.

A repeat is one call and a wait for its result. For a small case it is several calls,
each with its own arguments, and one wait, because a wait is a round trip to the worker.
The row "waited for" is one call and one wait. Eager PyTorch and torch.compile run in
this process. Two child processes run the local worker, with kernels and without. All
use the same number of threads and take turns, five times for each case. Each keeps its
last results, so that the next call reuses memory. A time is the minimum over the
repeats, for one call. A ratio is the median over the turns, because the machine's speed
changes from minute to minute. "of add's" divides the bandwidth by the bandwidth of
adding two tensors of 64 MiB, which is measured right after each large case.

    python bench/kernels.py [--repeats N] [--only TEXT] [--compile] [--markdown]
                            [--device cuda:0]

--compile adds torch.compile's time, which takes a C++ compiler and minutes. --markdown
writes the table between the marks in bench/RESULTS.md, and the plot bench/kernels.png,
which needs matplotlib. With --device cuda:0 all four use that GPU, and each
waits for its work at the end of a repeat. Kernels are compiled before a case is timed.
"""

import argparse
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from child import Child, serve
from torch.nn import functional as F

MI = 1 << 20
Case = tuple[Callable[[str], list], Callable[..., object], float]


def six(x):
    return ((x * 1.5).sigmoid() + (x * 0.5).tanh()).relu() + 1.0


def arithmetic(x):
    return ((x * 1.5 + 2.0) * x - 0.5) * x + 1.0


def rms(x, w):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w


@torch.enable_grad()
def loss_step(x, target):
    x = x.detach().requires_grad_()
    F.cross_entropy(x, target).backward()
    return x.grad


def chain(length: int) -> Callable[..., object]:
    def f(x):
        for i in range(length):
            x = x * 0.5 + 1 if i % 4 < 3 else x.sigmoid()
        return x

    return f


def rows(*more: int) -> Callable[[str], list]:
    """Makes a matrix of 4096 by 1024, and vectors of these lengths."""
    return lambda d: [
        torch.randn(4096, 1024).to(d),
        *(torch.randn(n).to(d) for n in more),
    ]


def scores(d: str) -> list:
    return [
        torch.randn(4096, 1024).to(d),
        torch.randint(0, 1024, (4096,)).to(d),
    ]


def points(n: int, dtype: torch.dtype = torch.float32) -> Callable[[str], list]:
    return lambda d: [torch.randn(n).to(dtype).to(d)]


def adam(d: str) -> list:
    """An AdamW of 200 tensors of different sizes, as those of a model."""
    sizes = [1024 * (1 + i % 32) for i in range(200)]
    params = [torch.randn(n).to(d).requires_grad_() for n in sizes]
    for p in params:
        p.grad = torch.randn(p.numel()).to(d)
    return [torch.optim.AdamW(params, foreach=True)]


TURNS = 5
# Seconds until the kernels of a case must be compiled.
COMPILE_LIMIT = 120
WAITED = "six ops, 1 Ki, waited for"
# By name: the function that makes the arguments, the function to time, and the bytes
# that it must at least read and write.
CASES: dict[str, Case] = {
    "add": (
        lambda d: [torch.randn(16 * MI).to(d), torch.randn(16 * MI).to(d)],
        torch.add,
        12 * 16 * MI,
    ),
    **{
        f"six ops, {n >> 10} Ki": (points(n), six, 8 * n)
        for n in (1 << 10, 1 << 16, MI, 16 * MI, 64 * MI)
    },
    WAITED: (points(1 << 10), six, 8 << 10),
    "arithmetic, 16 Mi": (points(16 * MI), arithmetic, 8 * 16 * MI),
    "arithmetic, bf16, 16 Mi": (
        points(16 * MI, torch.bfloat16),
        arithmetic,
        4 * 16 * MI,
    ),
    "two ops, 16 Mi": (points(16 * MI), chain(1), 8 * 16 * MI),
    "twenty ops, 16 Mi": (points(16 * MI), chain(13), 8 * 16 * MI),
    "broadcast": (rows(1024), lambda x, w: (x + w).relu() * w, 8 * 4 * MI),
    "transposed": (
        lambda d: [torch.randn(2048, 2048).to(d)],
        lambda x: (x + x.t()) * 2,
        12 * 4 * MI,
    ),
    "softmax": (rows(), lambda x: torch.softmax(x * 0.5, -1), 8 * 4 * MI),
    "layer norm": (
        rows(1024, 1024),
        lambda x, w, b: F.layer_norm(x + 1, (1024,), w, b),
        8 * 4 * MI,
    ),
    "RMS norm": (rows(1024), rms, 8 * 4 * MI),
    "GELU": (rows(), lambda x: F.gelu(x + 1), 8 * 4 * MI),
    "dropout": (
        rows(),
        lambda x: F.dropout(x + 1, 0.1) * 2,
        8 * 4 * MI,
    ),
    "cross-entropy": (scores, F.cross_entropy, 4 * 4 * MI),
    "cross-entropy and gradient": (scores, loss_step, 8 * 4 * MI),
    "normalised columns": (
        rows(),
        lambda x: (x - x.mean(0)) * (x.var(0) + 1e-5).rsqrt(),
        8 * 4 * MI,
    ),
    "embedding, RMS norm": (
        lambda d: [*rows(1024)(d), torch.randint(0, 4096, (4096,)).to(d)],
        lambda table, w, i: rms(F.embedding(i, table), w),
        8 * 4 * MI,
    ),
    "sum of columns": (rows(), lambda x: (x * x).sum(0), 4 * 4 * MI),
    "mean of all": (rows(), lambda x: (x * x).mean(), 4 * 4 * MI),
    "AdamW, 200 tensors": (
        adam,
        lambda o: o.step(),
        28 * sum(1024 * (1 + i % 32) for i in range(200)),
    ),
}


def waits(device: str) -> Callable[[], None]:
    """The function that waits for all work on a device."""
    if device.startswith("cuda"):
        return torch.cuda.synchronize
    return torch.mycelya.synchronize if device == "mycelya" else lambda: None


def compile_all(call: Callable[[], object]) -> None:
    """Calls until no kernel of the call waits for its compiler. A CPU needs none."""
    end = time.monotonic() + COMPILE_LIMIT
    while True:
        torch.mycelya.reset_metrics()
        call()
        torch.mycelya.synchronize()
        metrics = torch.mycelya.metrics()
        if metrics["groups_waiting"] + metrics["groups_tried"] == 0:
            return
        if time.monotonic() > end:
            raise TimeoutError(f"no kernels within {COMPILE_LIMIT} s")
        time.sleep(0.01)


def calls_of(case: str, size: float, on_gpu: bool) -> int:
    """How many calls one wait has, so that the wait takes little of the time."""
    if case == WAITED:
        return 1
    if not on_gpu:
        return min(max(16 * MI // size, 1), 64)
    return 4 if "AdamW" in case else int(min(max(4096 * MI // size, 4), 128))


def seconds(case: str, device: str, repeats: int, wrap=None, on_gpu=False) -> float:
    make, f, size = CASES[case]
    torch.manual_seed(0)
    calls = calls_of(case, size, on_gpu)
    with torch.device(device if on_gpu else "cpu"):  # where the arguments are made
        args = [make(device) for _ in range(calls)]
    f = wrap(f) if wrap else f
    wait = waits(device)
    if device == "mycelya":
        compile_all(lambda: [f(*a) for a in args])
    best, kept = math.inf, None
    for i in range(repeats + 3):  # the first three warm up
        wait()
        start = time.perf_counter()
        kept = [f(*a) for a in args]  # noqa: F841 (the next repeat reuses its memory)
        wait()
        if i >= 3:
            best = min(best, (time.perf_counter() - start) / calls)
    return best


def plot(measured: dict[str, dict[str, float]], path: Path) -> None:
    """Bandwidth by case and configuration; the line is the highest bandwidth of add."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    cases = [case for case in measured if case != "add"]
    ways = list(measured[cases[0]])
    figure, axes = pyplot.subplots(figsize=(9, 0.32 * len(cases) * len(ways) / 2 + 1))
    height = 0.8 / len(ways)
    for i, way in enumerate(ways):
        places = [-j - i * height for j in range(len(cases))]
        rates = [CASES[case][2] / measured[case][way] / 1e9 for case in cases]
        axes.barh(places, rates, height, label=way)
    limit = max(CASES["add"][2] / t / 1e9 for t in measured["add"].values())
    axes.axvline(limit, color="gray", linewidth=1, linestyle="--", label="add")
    axes.set_yticks([-j - 0.4 + height / 2 for j in range(len(cases))], cases)
    axes.set_xlabel("GB/s, of the bytes that must be read and written")
    axes.legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def table(args: argparse.Namespace) -> str:
    where = {"MYCELYA_MACHINE": f"local:{args.device}"}
    device = ("--device", args.device)
    on, off = (Child(*device, MYCELYA_KERNELS=k, **where) for k in ("on", "off"))
    on_gpu = args.device != "cpu"
    head = ["case", "kernels, ms", "GB/s", "of add's", "of operators", "of eager"]
    lines = []
    ratios, large = [], []  # large: the cases of a million elements and more
    measured: dict[str, dict[str, float]] = {}
    for case, (_, _, size) in CASES.items():
        if args.only not in case:
            continue
        is_large = size >= 8 * MI
        of_add = []
        turns: list[dict[str, float]] = []
        with torch.no_grad():
            for _ in range(TURNS):
                turn = {"kernels": on.ask(case, args.repeats)}
                if is_large:
                    rate = size / turn["kernels"]
                    limit = CASES["add"][2] / on.ask("add", args.repeats)
                    of_add.append(rate / limit)
                turn["operators"] = off.ask(case, args.repeats)
                turn["eager"] = seconds(case, args.device, args.repeats, None, on_gpu)
                if args.compile:
                    compiled = seconds(
                        case, args.device, args.repeats, torch.compile, on_gpu
                    )
                    turn["torch.compile"] = compiled
                turns.append(turn)
        best = {way: min(turn[way] for turn in turns) for way in turns[0]}
        measured[case] = best
        ours = best["kernels"]
        row = [f"{ours * 1e3:.2f}", f"{size / ours / 1e9:.1f}"]
        row.append(f"{median(of_add):.2f}" if is_large else "")
        of = {way: median(t["kernels"] / t[way] for t in turns) for way in best}
        row += [f"{of[way]:.2f}" for way in list(best)[1:]]
        if case not in ("add", WAITED):
            ratios.append(of["eager"])
            if is_large:
                large.append(of["eager"])
        lines.append([case, *row])
        print(*lines[-1], sep=" | ", file=sys.stderr)
    if args.compile:
        head.append("of torch.compile")
    text = [f"| {' | '.join(head)} |", f"|---|{'---:|' * (len(head) - 1)}"]
    text += [f"| {' | '.join(row)} |" for row in lines]
    text += [
        "",
        "Geometric mean of the ratios to eager, without `add` and the case that is "
        f"waited for: {mean(ratios):.2f}; "
        f"of the cases of at least a million elements: {mean(large):.2f}.",
    ]
    if args.markdown and not args.only:
        plot(measured, Path(__file__).with_suffix(".png"))
    return "\n".join(text)


def mean(ratios: list[float]) -> float:
    return math.exp(sum(math.log(r) for r in ratios) / max(1, len(ratios)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--only", default="")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--device", default="cpu", help="cpu or cuda:<index>")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        import mycelya_torch  # noqa: F401

        on_gpu = args.device != "cpu"
        return serve(lambda c, n: seconds(c, "mycelya", n, on_gpu=on_gpu))
    text = table(args)
    print(text)
    if args.markdown:
        import results

        import mycelya_torch  # noqa: F401

        threads = torch.get_num_threads()
        results.write(
            "kernels.py", f"{threads} threads, {TURNS} turns of {args.repeats}", text
        )


if __name__ == "__main__":
    main()
