# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""A training step of nanoGPT, 6 layers of width 384, in bfloat16 autocast.

    python bench/card/step.py [way ...]        eager, compile, off, on; default: all

Eager CUDA, torch.compile, and the device with kernels off and on, each in a process of
its own, one after the other. A step uploads its batch; ten steps, then one wait.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from statistics import median

import torch
from card import DRY, EAGER, row
from torch.nn import functional as F

LAYERS, WIDTH, HEADS, CONTEXT, BATCH = (
    (2, 32, 2, 16, 2) if DRY else (6, 384, 6, 256, 64)
)
SYMBOLS = 65
STEPS = 10  # between two waits
ROUNDS = 3 if DRY else 7


def model() -> torch.nn.Module:
    import zoo

    torch.manual_seed(0)
    net = zoo.CharGPT(SYMBOLS, WIDTH, CONTEXT)
    net.blocks = torch.nn.Sequential(*(zoo.Block(WIDTH, HEADS) for _ in range(LAYERS)))
    return net


def trainer(device: str, wrap: Callable) -> Callable[[], torch.Tensor]:
    """A function that trains one step and returns its loss."""
    net = model().to(device)
    run = wrap(net)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)

    def batches() -> Iterator[torch.Tensor]:
        generator = torch.Generator().manual_seed(1)
        while True:
            shape = (BATCH, CONTEXT + 1)
            yield torch.randint(SYMBOLS, shape, generator=generator)

    source = batches()

    def step() -> torch.Tensor:
        tokens = next(source)
        x = tokens[:, :-1].contiguous().to(device)
        y = tokens[:, 1:].contiguous().to(device)
        with torch.autocast(torch.device(device).type, torch.bfloat16):
            loss = F.cross_entropy(run(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def measure(way: str) -> dict[str, object]:
    """Figures of one way, in the process of its own."""
    device = EAGER if way in ("eager", "compile") else "mycelya"
    if device == "mycelya":
        import mycelya_torch  # noqa: F401
    from card import compile_all, wait

    step = trainer(device, torch.compile if way == "compile" else lambda net: net)
    losses = [loss.item() for loss in [step() for _ in range(10)]]
    if device == "mycelya":
        counted = compile_all(lambda: [step() for _ in range(2)])
        torch.mycelya.reset_peak_memory_stats()
    elif device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    times, host = [], []
    for _ in range(ROUNDS):
        wait(device)
        begin = time.perf_counter()
        kept = [step() for _ in range(STEPS)]
        host.append((time.perf_counter() - begin) / STEPS * 1e3)
        wait(device)
        times.append((time.perf_counter() - begin) / STEPS * 1e3)
    del kept
    found = {"ms": round(median(times), 3), "host_ms": round(median(host), 3)}
    if device == "cuda":
        found["peak_MiB"] = torch.cuda.max_memory_allocated() >> 20
    elif device == "mycelya":
        found["peak_MiB"] = torch.mycelya.max_memory_allocated() >> 20
        names = ("groups_fused", "groups_unfused", "groups_wrong", "index_waits")
        found |= {name: counted[name] for name in names}
    return {**found, "losses": losses}


def run(way: str, **environment: str) -> dict[str, object]:
    """Measures one way in a process."""
    settings = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "MYCELYA_KERNELS": "on"}
    if way == "off":
        settings["MYCELYA_KERNELS"] = "off"
    done = subprocess.run(
        [sys.executable, __file__, "--child", way],
        env={**os.environ, **settings, **environment},
        stdout=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"{way} ended with {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    ways = sys.argv[1:] or ["eager", "off", "on", "compile"]
    if ways[0] == "--child":
        print(json.dumps(measure(ways[1])))
        return
    eager: dict[str, object] = {}
    failed = 0
    for way in ways:
        try:
            found = run(way)
        except RuntimeError as error:
            failed += 1
            row(way, ok=False, found=str(error))
            continue
        if way == "eager":
            eager = found
        if eager:
            found["of_eager"] = round(found["ms"] / eager["ms"], 3)
            pairs = zip(found["losses"], eager["losses"], strict=True)
            found["loss_error"] = max(abs(a / b - 1) for a, b in pairs)
        row(way, ok=True, **{k: v for k, v in found.items() if k != "losses"})
        row(f"losses {way}", losses=[round(x, 5) for x in found["losses"]])
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
