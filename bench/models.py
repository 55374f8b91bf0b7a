# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Steps per second of whole models: the local worker, eager PyTorch, torch.compile.

Training steps (forward, backward, AdamW) that read nothing back, and tokens of a Llama
that generate() decodes greedily. Each configuration has its own process, with the same
number of threads. The processes take turns, and the fastest round of each counts. A
round ends with a wait for its last step. Rounds are short and many, because the speed
of a shared machine changes from second to second. CPU time is the sum over all threads,
per step.

    python bench/models.py [--rounds N] [--seconds S] [--only TEXT] [--compile]
                           [--markdown]

--compile adds torch.compile of the model on the CPU, which takes a C++ compiler and
minutes. --markdown writes the table between the marks in bench/RESULTS.md.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from child import Child, serve
from torch import nn
from torch.nn import functional as F

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "e2e"))
import zoo  # noqa: E402

Step = Callable[[], object]


def classify(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x), y)


def train(
    model: nn.Module,
    device: str,
    wrap: Callable[[nn.Module], nn.Module],
    batch: tuple[torch.Tensor, ...],
    loss: Callable[..., torch.Tensor] = classify,
) -> Step:
    """A training step that uploads its batch from the host."""
    model.to(device)
    run = wrap(model)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

    def step() -> None:
        tensors = [t.to(device) for t in batch]
        optimizer.zero_grad()
        loss(run, *tensors).backward()
        optimizer.step()

    return step


def labelled(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch of this shape with labels of ten classes."""
    return torch.randn(shape), torch.randint(0, 10, shape[:1])


def digits(device: str, wrap: Callable) -> Step:
    return train(zoo.normed_digits(), device, wrap, labelled(64, 1, 8, 8))


def mlp(device: str, wrap: Callable) -> Step:
    return train(zoo.mlp(784, 512), device, wrap, labelled(128, 784))


def chargpt(device: str, wrap: Callable) -> Step:
    text = torch.randint(0, 65, (16, 65))
    return train(
        zoo.CharGPT(),
        device,
        wrap,
        (text[:, :-1].contiguous(), text[:, 1:].contiguous()),
        lambda m, x, y: F.cross_entropy(m(x).flatten(0, 1), y.flatten()),
    )


def resnet18(device: str, wrap: Callable) -> Step:
    batch = labelled(8, 3, 64, 64)
    return train(zoo.of_torchvision("resnet18"), device, wrap, batch)


def vit(device: str, wrap: Callable) -> Step:
    model = zoo.vit(64, 8, 6, 3, 192, 768)
    return train(model, device, wrap, labelled(8, 3, 64, 64))


def bert(device: str, wrap: Callable) -> Step:
    batch = torch.randint(0, 1000, (8, 64)), torch.randint(0, 1000, (8, 64))
    return train(
        zoo.bert(1000, 256, 4, 4, 1024, 64),
        device,
        wrap,
        batch,
        lambda m, x, y: m(input_ids=x, labels=y).loss,
    )


TOKENS = 32


def llama(device: str, wrap: Callable) -> Step:
    """One step is TOKENS tokens."""
    model = zoo.llama(1000, 256, 4, (8, 4), 768, 128).eval().to(device)
    model.forward = wrap(model.forward)
    prompt = torch.randint(1, 1000, (1, 16)).to(device)

    @torch.no_grad()
    def step() -> None:
        model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            min_new_tokens=TOKENS,
            max_new_tokens=TOKENS,
            do_sample=False,
            pad_token_id=0,
        )

    return step


MODELS: dict[str, Callable[[str, Callable], Step]] = {
    "digits CNN": digits,
    "MLP": mlp,
    "chargpt": chargpt,
    "ResNet-18": resnet18,
    "ViT": vit,
    "BERT": bert,
    f"Llama, {TOKENS} tokens": llama,
}


def worker_cpu() -> float:
    """CPU seconds of the session's process."""
    from mycelya_torch import _device

    if _device.state(0) != "running":
        return 0.0
    pid = json.loads(_device.device_info(0))["pid"]
    values = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(values[11]) + int(values[12])) / os.sysconf("SC_CLK_TCK")


def answer(way: str) -> Callable[[str, float], list[float]]:
    """The function that a child serves.

    It measures a model's step: seconds, CPU seconds of the client, and of the worker.
    """
    device = "cpu"
    if way in ("on", "off"):
        import mycelya_torch  # noqa: F401

        device = "mycelya"
    wrap = torch.compile if way == "compile" else lambda f: f
    wait = torch.mycelya.synchronize if device == "mycelya" else lambda: None
    steps: dict[str, Step] = {}

    def measure(name: str, seconds: float) -> list[float]:
        nonlocal steps
        if name not in steps:
            torch.manual_seed(0)
            steps = {name: MODELS[name](device, wrap)}
            for _ in range(8):  # until all is compiled
                steps[name]()
        wait()
        done, client, worker = 0, time.process_time(), worker_cpu()
        start = time.perf_counter()
        while time.perf_counter() - start < seconds:
            steps[name]()
            done += 1
        wait()
        took = time.perf_counter() - start
        cpu = time.process_time() - client, worker_cpu() - worker
        return [x / done for x in (took, *cpu)]

    return measure


def table(args: argparse.Namespace) -> str:
    names = ["eager", "on", "off", *(["compile"] if args.compile else [])]
    ways = {
        name: Child(name, MYCELYA_KERNELS="on" if name == "on" else "off")
        for name in names
    }
    head = ["model", "eager, ms", "kernels, ms", "of eager", "operators of eager"]
    head += ["torch.compile of eager"] if args.compile else []
    head += ["CPU: eager, ms", "client, ms", "worker, ms"]
    lines, ratios = [], []
    for name in MODELS:
        if args.only not in name:
            continue
        best = {way: [math.inf] * 3 for way in ways}
        for _ in range(args.rounds):
            for way, process in ways.items():
                best[way] = min(best[way], process.ask(name, args.seconds))
        eager, ours = best["eager"], best["on"]
        ratios.append(ours[0] / eager[0])
        row = [f"{eager[0] * 1e3:.2f}", f"{ours[0] * 1e3:.2f}", f"{ratios[-1]:.2f}"]
        row += [f"{best[way][0] / eager[0]:.2f}" for way in names[2:]]
        row += [f"{x * 1e3:.2f}" for x in (eager[1], ours[1], ours[2])]
        lines.append([name, *row])
        print(*lines[-1], sep=" | ", file=sys.stderr)
    text = [f"| {' | '.join(head)} |", f"|---|{'---:|' * (len(head) - 1)}"]
    text += [f"| {' | '.join(row)} |" for row in lines]
    mean = math.exp(sum(math.log(r) for r in ratios) / max(1, len(ratios)))
    return "\n".join([*text, "", f"Geometric mean of the ratios to eager: {mean:.2f}."])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--only", default="")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return serve(answer(args.child))
    text = table(args)
    print(text)
    if args.markdown:
        import results

        import mycelya_torch  # noqa: F401

        how = f"{torch.get_num_threads()} threads, fastest of {args.rounds} rounds"
        results.write("models.py", f"{how} of {args.seconds:g} s", text)


if __name__ == "__main__":
    main()
