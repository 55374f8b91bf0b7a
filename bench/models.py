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
                           [--markdown] [--device cuda:0]

--compile adds torch.compile of the model, which takes a compiler and minutes.
--markdown writes the table between the marks in bench/RESULTS.md. With --device cuda:0
all use that GPU, and models of the usual sizes are added; float32 matrix products may
use TF32 in all of them.
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
from typing import Any

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
# Seconds until the kernels of a model must be compiled.
COMPILE_LIMIT = 120


def llama(device: str, wrap: Callable, **options: Any) -> Step:
    """One step is TOKENS tokens. The options are those of generate()."""
    model = zoo.llama(1000, 256, 4, (8, 4), 768, 128).eval().to(device)
    return decode(model, device, wrap, **options)


def decode(model: Any, device: str, wrap: Callable, **options: Any) -> Step:
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
            **options,
        )

    return step


# ---- Models for a GPU. Weights are made on the device. ----


def on(device: str, make: Callable[[], nn.Module]) -> nn.Module:
    with torch.device(device):
        return make()


def resnet50(device: str, wrap: Callable) -> Step:
    model = on(device, lambda: zoo.of_torchvision("resnet50"))
    return train(model, device, wrap, labelled(32, 3, 224, 224))


def vit_base(device: str, wrap: Callable) -> Step:
    model = on(device, lambda: zoo.vit(224, 16, 12, 12, 768, 3072))
    return train(model, device, wrap, labelled(32, 3, 224, 224))


def bert_base(device: str, wrap: Callable) -> Step:
    words = 30522
    batch = torch.randint(0, words, (16, 128)), torch.randint(0, words, (16, 128))
    return train(
        on(device, lambda: zoo.bert(words, 768, 12, 12, 3072, 512)),
        device,
        wrap,
        batch,
        lambda m, x, y: m(input_ids=x, labels=y).loss,
    )


def gpt2_small(device: str, wrap: Callable) -> Step:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = on(device, lambda: GPT2LMHeadModel(GPT2Config()))
    text = torch.randint(0, 50257, (8, 256))
    loss = lambda m, x, y: m(input_ids=x, labels=y).loss  # noqa: E731
    return train(model, device, wrap, (text, text), loss)


def llama_1b(device: str, wrap: Callable) -> Step:
    """1.2 billion weights in bfloat16."""
    torch.set_default_dtype(torch.bfloat16)
    try:
        model = on(
            device, lambda: zoo.llama(32000, 2048, 16, (32, 8), 8192, 2048)
        ).eval()
    finally:
        torch.set_default_dtype(torch.float32)
    return decode(model, device, wrap)


LARGE: dict[str, Callable[[str, Callable], Step]] = {
    "ResNet-50, 32 images": resnet50,
    "ViT-B/16, 32 images": vit_base,
    "BERT-base, 16 x 128": bert_base,
    "GPT-2 small, 8 x 256": gpt2_small,
    f"Llama 1B, {TOKENS} tokens": llama_1b,
}

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
    """CPU seconds of the session's process; 0 without one."""
    if "mycelya_torch" not in sys.modules:
        return 0.0
    from mycelya_torch import _device

    if _device.state(0) != "running":
        return 0.0
    pid = json.loads(_device.device_info(0))["pid"]
    values = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(values[11]) + int(values[12])) / os.sysconf("SC_CLK_TCK")


def compile_all(step: Step) -> None:
    """Steps until no kernel waits for its compiler. A CPU needs no compiler."""
    end = time.monotonic() + COMPILE_LIMIT
    while time.monotonic() < end:
        torch.mycelya.reset_metrics()
        step()
        torch.mycelya.synchronize()
        metrics = torch.mycelya.metrics()
        if metrics["groups_waiting"] + metrics["groups_tried"] == 0:
            return
        time.sleep(0.05)
    raise TimeoutError(f"no kernels within {COMPILE_LIMIT} s")


def answer(way: str, device: str) -> Callable[[str, float], list[float]]:
    """The function that a child serves.

    It measures a model's step: seconds, CPU seconds of the client, and of the worker.
    """
    if device != "cpu":
        torch.set_float32_matmul_precision("high")
    synchronize = torch.cuda.synchronize if device != "cpu" else lambda: None
    if way in ("on", "off"):
        import mycelya_torch  # noqa: F401

        device = "mycelya"
    wrap = torch.compile if way == "compile" else lambda f: f
    wait = torch.mycelya.synchronize if device == "mycelya" else synchronize
    steps: dict[str, Step] = {}

    def measure(name: str, seconds: float) -> list[float]:
        nonlocal steps
        if name not in steps:
            torch.manual_seed(0)
            steps = {}
            steps = {name: {**MODELS, **LARGE}[name](device, wrap)}
            for _ in range(8):  # until all is compiled
                steps[name]()
            if device == "mycelya":
                compile_all(steps[name])
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
        name: Child(
            name,
            "--device",
            args.device,
            MYCELYA_KERNELS="on" if name == "on" else "off",
            MYCELYA_MACHINE=f"local:{args.device}",
        )
        for name in names
    }
    models = MODELS if args.device == "cpu" else {**MODELS, **LARGE}
    head = ["model", "eager, ms", "kernels, ms", "of eager", "operators of eager"]
    head += ["torch.compile of eager"] if args.compile else []
    head += ["CPU: eager, ms", "client, ms", "worker, ms"]
    lines, ratios = [], []
    for name in models:
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
    parser.add_argument("--device", default="cpu", help="cpu or cuda:<index>")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return serve(answer(args.child, args.device))
    text = table(args)
    print(text)
    if args.markdown:
        import results

        import mycelya_torch  # noqa: F401

        how = f"{torch.get_num_threads()} threads, fastest of {args.rounds} rounds"
        results.write("models.py", f"{how} of {args.seconds:g} s", text)


if __name__ == "__main__":
    main()
