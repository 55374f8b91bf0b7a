# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""The cost of a repeated step: programs compiled, bytes, messages, waits, memory.

Each loop runs for some steps to warm up, then its steps are counted. Bytes leave out
uploads and programs. The last, partial trace of an unmarked loop is a program of its
own. generate() is that of the transformers library, with a Llama of random weights; its
warm-up is its first three tokens.

The time to close a step is the time of the call that ends a trace of 500 ops, against
the time of eager PyTorch for these ops on the CPU; both are medians. After a wait the
client's other threads sleep, and waking one takes most of the time. The time to compile
is that of a training step that no program fits, from the recorded words to the encoded
program; it is a median too. For comparison, the next row is the time that torch.compile
adds to the first forward and backward of the same net on the CPU, without its caches.
Memory is the growth of this process, including the client in it, while it records ops
in a loop.

    python bench/replay.py [--steps N] [--ops N] [--markdown]

--markdown writes the tables between the marks in bench/RESULTS.md.
"""

import argparse
import gc
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import results
import torch
import torch._inductor.config
from torch import nn
from torch.nn import functional as F

import mycelya_torch  # noqa: F401 (registers the device)

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "e2e"))
import zoo  # noqa: E402

DEVICE = "mycelya"
WARM_UP = 64


def training() -> Callable[[int], None]:
    """A small network and AdamW on one batch."""
    layers = [m for _ in range(6) for m in (nn.Linear(32, 32), nn.ReLU())]
    net = nn.Sequential(*layers).to(DEVICE)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    x = torch.randn(16, 32, device=DEVICE)

    def step(i: int) -> None:
        net(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def recipe() -> Callable[[int], None]:
    """Dropout, mixed precision with a scaler, clipping, accumulation, a schedule, and
    a short last batch."""
    net = zoo.dropout_mlp(64, 128, 10).to(DEVICE)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)
    scaler = torch.amp.GradScaler(DEVICE)
    xs, ys = torch.randn(1000, 64), torch.randint(0, 10, (1000,))

    def step(i: int) -> None:
        batch = slice(i % 32 * 32, i % 32 * 32 + 32)  # the last has 8 rows
        x, y = xs[batch].to(DEVICE), ys[batch].to(DEVICE)
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            loss = F.cross_entropy(net(x), y) / 4
        scaler.scale(loss).backward()
        if i % 4 == 3:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            schedule.step()

    return step


def inference() -> Callable[[int], None]:
    """A network on its own result; no read or optimizer marks the end of a step."""
    net = nn.Sequential(*(nn.Linear(32, 32) for _ in range(20))).to(DEVICE)
    state = [torch.randn(4, 32, device=DEVICE)]

    def step(i: int) -> None:
        with torch.no_grad():
            state[0] = net(state[0]).tanh()

    return step


def generation() -> Callable[[int], None]:
    """A token of a language model, sampled and read, with a cache that grows."""
    width, heads, words = 64, 4, 100
    embed = nn.Embedding(words, width).to(DEVICE)
    project = nn.Linear(width, 3 * width).to(DEVICE)
    head = nn.Linear(width, words).to(DEVICE)
    cache: list[torch.Tensor] = []
    token = [1]

    def step(i: int) -> None:
        with torch.no_grad():
            x = embed(torch.tensor([[token[0]]], device=DEVICE))
            parts = project(x).chunk(3, -1)
            q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in parts)
            if cache:
                k, v = torch.cat((cache[0], k), 2), torch.cat((cache[1], v), 2)
            cache[:] = k, v
            out = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
            p = head(out[:, -1]).softmax(-1)
            token[0] = int(torch.multinomial(p, 1).item())

    return step


def generate(steps: int) -> dict[str, float]:
    """Counters per token, and the programs compiled in the first three and after."""
    net = zoo.llama(1000, 64, 4, (4, 2), 128, 1024).eval().to(DEVICE)
    prompt = torch.arange(8)[None].to(DEVICE)
    seen: list[dict[str, Any]] = []

    def before_a_token(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        seen.append(torch.mycelya.metrics())
        return scores

    torch.mycelya.synchronize()
    torch.mycelya.reset_metrics()
    net.generate(
        prompt,
        max_new_tokens=steps,
        min_new_tokens=steps,
        do_sample=True,
        top_k=50,
        top_p=0.95,
        logits_processor=[before_a_token],
    )
    third, end = seen[3], torch.mycelya.metrics()
    own = [m["bytes_sent"] - m["upload_bytes"] - m["program_bytes_sent"] for m in seen]
    tokens = len(seen) - 4
    return {
        "before": third["program_misses"],
        "while": end["program_misses"] - third["program_misses"],
        "bytes": (own[-1] - own[3]) / tokens,
        "messages": (seen[-1]["messages_sent"] - third["messages_sent"]) / tokens,
        "trips": (seen[-1]["round_trips"] - third["round_trips"]) / tokens,
    }


LOOPS = {
    "training step": training,
    "training with all of a recipe": recipe,
    "inference, unmarked": inference,
    "generation, growing cache": generation,
}


def count(make: Callable[[], Callable[[int], None]], steps: int) -> dict[str, float]:
    """Counters per step, and the programs compiled in the warm-up and after it."""
    torch.manual_seed(0)
    torch.mycelya.synchronize()
    torch.mycelya.reset_metrics()
    step = make()
    for i in range(WARM_UP):
        step(i)
    torch.mycelya.synchronize()
    before = torch.mycelya.metrics()["program_misses"]
    torch.mycelya.reset_metrics()
    for i in range(WARM_UP, WARM_UP + steps):
        step(i)
    torch.mycelya.synchronize()
    m: dict[str, Any] = torch.mycelya.metrics()
    own = m["bytes_sent"] - m["upload_bytes"] - m["program_bytes_sent"]
    return {
        "before": before,
        "while": m["program_misses"],
        "bytes": own / steps,
        "messages": m["messages_sent"] / steps,
        "trips": (m["round_trips"] - 1) / steps,  # without the last synchronize()
    }


def close_of_a_step(repeats: int, alone: bool) -> float:
    """Seconds to close a trace of 500 ops.

    alone: wait for the device after each step, so that steps do not overlap.
    """
    start, w = torch.ones(16, device=DEVICE), list(torch.randn(500, 16, device=DEVICE))
    seconds = []
    for i in range(repeats):
        x = start
        for t in w:
            x = x + t
        begun = time.perf_counter()
        torch.mycelya.flush()
        seconds.append(time.perf_counter() - begun)
        if alone or i % 16 == 15:
            torch.mycelya.synchronize()
    return statistics.median(seconds)


def eager_step(repeats: int) -> float:
    """Seconds of eager PyTorch for the same ops on the CPU."""
    start, w = torch.ones(16), list(torch.randn(500, 16))
    seconds = []
    for _ in range(repeats):
        begun = time.perf_counter()
        x = start
        for t in w:
            x = x + t
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds)


def deep_net() -> nn.Module:
    """32 narrow transformer layers: about 2,000 operators in a training step."""
    layer = {"nhead": 2, "dim_feedforward": 32, "batch_first": True, "dropout": 0.1}
    return nn.Sequential(*(nn.TransformerEncoderLayer(16, **layer) for _ in range(32)))


def torch_compiling() -> float:
    """Seconds that torch.compile adds to the first forward and backward on the CPU."""
    torch._inductor.config.force_disable_caches = True
    net, x = torch.compile(deep_net()), torch.randn(2, 4, 16)
    seconds = []
    for _ in range(3):
        begun = time.perf_counter()
        net(x).square().mean().backward()
        seconds.append(time.perf_counter() - begun)
    return seconds[0] - min(seconds[1:])


def compiling(repeats: int) -> tuple[float, float]:
    """Seconds to compile a training step that is new each time, and its ops."""
    net = deep_net().to(DEVICE)
    optimizer = torch.optim.AdamW(net.parameters(), foreach=False)
    x = torch.randn(2, 4, 16, device=DEVICE)
    seconds, ops = [], []
    for i in range(repeats):
        torch.mycelya.synchronize()
        torch.mycelya.reset_metrics()
        y = net(x)
        for _ in range(i):  # makes each step's trace different
            y = y.neg()
        y.square().mean().backward()
        if i == 0:
            optimizer.step()  # creates the optimizer's state
        optimizer.zero_grad()
        torch.mycelya.synchronize()
        m = torch.mycelya.metrics()
        seconds.append(m["compile_seconds"] / max(1, m["program_misses"]))
        ops.append(m["ops_recorded"] / max(1, m["program_misses"]))
    return statistics.median(seconds[1:]), statistics.median(ops[1:])


def resident() -> float:
    """The resident set size of this process, MiB."""
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20


def growth(ops: int) -> tuple[float, int]:
    """MiB by which this process grows while it records ops, and the number of ops.

    The first tenth, in which queues and caches fill, does not count.
    """
    x, w = torch.ones(16, device=DEVICE), torch.full((16,), 0.5, device=DEVICE)
    torch.mycelya.synchronize()
    torch.mycelya.reset_metrics()
    before = 0.0
    for i in range(ops // 4000):
        if i == ops // 40000:
            torch.mycelya.synchronize()
            before = resident()
        for _ in range(1000):
            x = (x * w + w).neg_().tanh()
    torch.mycelya.synchronize()
    return resident() - before, torch.mycelya.metrics()["ops_recorded"]


def tables(steps: int, ops: int) -> str:
    """All tables as markdown."""
    grown, recorded = growth(ops)  # first, while no other memory is freed or reused
    lines = [
        "| loop | compiled in warm-up | compiled after | bytes a step "
        "| messages a step | round trips a step |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    counts = {name: count(make, steps) for name, make in LOOPS.items()}
    counts["generate() of a Llama, 200 tokens"] = generate(200)
    for name, n in counts.items():
        lines.append(
            f"| {name} | {n['before']:.0f} | {n['while']:.0f} | {n['bytes']:.0f} "
            f"| {n['messages']:.2f} | {n['trips']:.2f} |"
        )
    eager = eager_step(200)
    lines += ["", "| close of a step of 500 ops | µs | of eager's 500 ops |"]
    lines.append("|---|---:|---:|")
    for alone, name in (False, "steps in a row"), (True, "a wait after each step"):
        closing = close_of_a_step(200, alone)
        lines.append(f"| {name} | {closing * 1e6:.1f} | {closing / eager:.3f} |")
    seconds, size = compiling(40)
    inductor = torch_compiling()
    lines += [
        "",
        "| compiling a step that no program fits | ms | µs an op |",
        "|---|---:|---:|",
        f"| {size:.0f} ops | {seconds * 1e3:.1f} | {seconds / size * 1e6:.1f} |",
        f"| torch.compile of the same net | {inductor * 1e3:.0f} "
        f"| {inductor / size * 1e6:.0f} |",
        "",
        "| recording in a loop | growth of the process, MiB |",
        "|---|---:|",
        f"| {recorded / 1e6:.1f} million ops | {grown:.1f} |",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--ops", type=int, default=10_000_000)
    parser.add_argument("--markdown", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    gc.disable()  # a collection would disturb a single step
    text = tables(args.steps, args.ops)
    print(text)
    if args.markdown:
        results.write("replay.py", f"{args.steps} steps after {WARM_UP}", text)


if __name__ == "__main__":
    main()
