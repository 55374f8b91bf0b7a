# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Captures the graphs of the corpus: one step of each model, as capture returns it.

    python tests/replay/capture.py [NAME ...]

Each model runs in its own process for some steps. The program keeps the last compiled
graph that has at least half the lines of the largest; a longer run repeats that graph.
File names in it lose their folders. Only this program changes the corpus.
replay_test.go compares the compiled corpus with summary.txt. The graphs of BUDGETS are
pieces of user programs, each with a maximum number of kernels.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

sys.path.append(str(Path(__file__).resolve().parents[1] / "e2e"))
import zoo  # noqa: E402

HERE = Path(__file__).resolve().parent
DEVICE = "mycelya"
STEPS = 4


def train(
    model: nn.Module,
    batch: Callable[[], tuple[torch.Tensor, ...]],
    loss: Callable[..., torch.Tensor],
    **options: float,
) -> None:
    model.to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), **options)
    for _ in range(STEPS):
        tensors = [t.to(DEVICE) for t in batch()]
        optimizer.zero_grad()
        loss(model, *tensors).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    torch.mycelya.synchronize()


def mlp() -> None:
    train(
        zoo.mlp(64, 128),
        lambda: (torch.randn(32, 64), torch.randint(0, 10, (32,))),
        lambda m, x, y: F.cross_entropy(m(x), y),
    )


def images() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(4, 3, 64, 64), torch.randint(0, 10, (4,))


def resnet18() -> None:
    model = zoo.of_torchvision("resnet18")
    train(model, images, lambda m, x, y: F.cross_entropy(m(x), y))


def vit() -> None:
    model = zoo.vit(64, 16, 3, 4, 64, 128)
    train(model, images, lambda m, x, y: F.cross_entropy(m(x), y))


def bert() -> None:
    train(
        zoo.bert(100, 64, 3, 4, 128, 64),
        lambda: (torch.randint(0, 100, (4, 16)), torch.randint(0, 100, (4, 16))),
        lambda m, x, y: m(input_ids=x, labels=y).loss,
    )


def llama() -> nn.Module:
    return zoo.llama(100, 64, 3, (4, 2), 128, 64).eval().to(DEVICE)


@torch.no_grad()
def llama_prefill() -> None:
    model = llama()
    for _ in range(STEPS):
        model(torch.randint(0, 100, (2, 16)).to(DEVICE), use_cache=True)
        torch.mycelya.synchronize()


@torch.no_grad()
def llama_decode() -> None:
    model = llama()
    tokens = torch.randint(0, 100, (2, 16)).to(DEVICE)
    model.generate(tokens, max_new_tokens=8, do_sample=False, pad_token_id=0)


def lstm() -> None:
    train(
        zoo.Tagger(),
        lambda: (torch.randint(0, 100, (4, 12)), torch.randint(0, 10, (4, 12))),
        lambda m, x, y: F.cross_entropy(m(x).flatten(0, 1), y.flatten()),
    )


def gan() -> None:
    """A training step of the discriminator and one of the generator."""
    generator, critic = (net.to(DEVICE) for net in zoo.gan())
    optimizers = [
        torch.optim.Adam(net.parameters(), 2e-4, betas=(0.5, 0.999))
        for net in (generator, critic)
    ]
    one, zero = (torch.full((8, 1), v, device=DEVICE) for v in (1.0, 0.0))
    for _ in range(STEPS):
        real = torch.randn(8, 1, 8, 8).to(DEVICE)
        fake = generator(torch.randn(8, 16, 1, 1, device=DEVICE))
        optimizers[1].zero_grad()
        judged = F.binary_cross_entropy_with_logits(critic(real), one)
        judged = judged + F.binary_cross_entropy_with_logits(
            critic(fake.detach()), zero
        )
        judged.backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        F.binary_cross_entropy_with_logits(critic(fake), one).backward()
        optimizers[0].step()
    torch.mycelya.synchronize()


def example(name: str, *arguments: str) -> Callable[[], None]:
    def run() -> None:
        command = [sys.executable, str(HERE.parents[1] / "examples" / name)]
        subprocess.run([*command, "--device", DEVICE, *arguments], check=True)

    return run


# Pieces with a maximum number of kernels. Each is called on the device, without grad.


def rotated(x: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


def attention_weights(scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    scores = (scores * 0.125).masked_fill(mask == 0, float("-inf"))
    return F.dropout(torch.softmax(scores, -1), 0.1)


def ten_ops(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x = ((x + y) * 2.0 - y).tanh().sigmoid()
    return ((x * x).exp() / 3.0 + 1.0).clamp(0, 2).relu()


def shuffled(x: torch.Tensor) -> torch.Tensor:
    n, t, c = x.shape
    y = (x.transpose(1, 2).reshape(n, -1) * 2).relu().view(n, c, t)
    return (y.transpose(1, 2) + 1).reshape(n * t, c).sigmoid()


@torch.enable_grad()
def bias(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> object:
    w, b = w.detach().requires_grad_(), b.detach().requires_grad_()
    return torch.autograd.grad(F.gelu(F.linear(x, w, b)).square().sum(), (w, b))


@torch.enable_grad()
def batch_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> object:
    x, w, b = (t.detach().requires_grad_() for t in (x, w, b))
    y = F.batch_norm(x, None, None, w, b, training=True).relu()
    return y, torch.autograd.grad(y, (x, w, b), y.detach())


@torch.enable_grad()
def transposed_bias(
    x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, scale: torch.Tensor
) -> object:
    """A linear layer on [t, n, c] between values of [n, t, c], as in attention."""
    w, b, scale = (t.detach().requires_grad_() for t in (w, b, scale))
    y = F.linear(x.transpose(0, 1), w, b).transpose(0, 1)
    z = F.layer_norm(F.dropout(y, 0.1) + x, (16,), scale)
    return torch.autograd.grad(z, (w, b, scale), x)


def attention_scores(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    q, k = (t.transpose(1, 2) * 0.5 for t in (q, k))
    return q.contiguous() @ k.contiguous().transpose(-1, -2)


def divided(x: torch.Tensor) -> torch.Tensor:
    return (x.exp() / 4.0).mm((x * 1.0).t())


def unused(x: torch.Tensor) -> torch.Tensor:
    torch.softmax(x.exp(), -1).sum()
    return x


def piece(f: Callable[..., object], *inputs: torch.Tensor) -> Callable[[], None]:
    @torch.no_grad()
    def run() -> None:
        module = f.to(DEVICE) if isinstance(f, nn.Module) else f
        on_device = [x.to(DEVICE) for x in inputs]
        torch.mycelya.synchronize()
        kept = module(*on_device)
        torch.mycelya.synchronize()
        del kept

    return run


def loss_step(f: Callable[..., torch.Tensor]) -> Callable[[], None]:
    """A loss of classes and the gradient of the scores."""

    def run() -> None:
        x = torch.randn(32, 10, device=DEVICE, requires_grad=True)
        target = torch.randint(0, 10, (32,)).to(DEVICE)
        torch.mycelya.synchronize()
        f(x, target).backward()
        torch.mycelya.synchronize()

    return run


def optimizer(
    kind: type[torch.optim.Optimizer], tensors: int, **options: bool
) -> Callable[[], None]:
    """Optimizer steps on tensors of many sizes, without forward and backward."""

    def run() -> None:
        sizes = [
            (8 + i % 7, 3 + i % 5) if i % 3 else (5 + i % 11,) for i in range(tensors)
        ]
        parameters = [nn.Parameter(torch.randn(s, device=DEVICE)) for s in sizes]
        for p in parameters:
            p.grad = torch.randn_like(p)
        step = kind(parameters, lr=1e-3, **options)
        for _ in range(STEPS):
            step.step()
            torch.mycelya.synchronize()

    return run


X = torch.randn(4, 8, 16)
ROW = torch.randn(16)
BUDGETS: dict[str, Callable[[], None]] = {
    "adam": optimizer(torch.optim.Adam, 100),
    "adamw": optimizer(torch.optim.AdamW, 100),
    "adamw_one_by_one": optimizer(torch.optim.AdamW, 40, foreach=False),
    "batch_norm": piece(
        batch_norm, torch.randn(4, 16, 5, 6), torch.rand(16), torch.rand(16)
    ),
    "best": piece(lambda x: x.exp().max(-1)[0] * 2, X),
    "bias": piece(bias, torch.randn(4, 6, 16), torch.randn(16, 16), ROW),
    "block": piece(zoo.Block(), torch.randn(2, 8, 32)),
    "chain": piece(ten_ops, X, X + 1),
    "chosen": piece(
        lambda x, i: -F.log_softmax(x, -1).gather(-1, i),
        torch.randn(32, 10),
        torch.randint(0, 10, (32, 1)),
    ),
    "column_norm": piece(
        lambda x: (x - x.mean(0)) * (x.var(0) + 1e-5).rsqrt(), torch.randn(32, 10)
    ),
    "cross_entropy": piece(
        F.cross_entropy, torch.randn(32, 10), torch.randint(0, 10, (32,))
    ),
    "cross_entropy_step": loss_step(F.cross_entropy),
    "divided": piece(divided, torch.randn(7, 16)),
    "greedy": piece(lambda x: (x / 0.7).softmax(-1).argmax(-1), X),
    "images": piece(
        lambda x: (x - x.mean((2, 3), True)) / x.std((2, 3), keepdim=True),
        torch.randn(2, 3, 8, 8),
    ),
    "layer_norm": piece(
        lambda x, y, w, b: F.gelu(F.layer_norm(x + y, (16,), w, b)), X, X + 1, ROW, ROW
    ),
    "logsumexp": piece(lambda x: x - x.logsumexp(-1, keepdim=True), X),
    "lower": piece(lambda x: (x * 2).tril(1).relu(), X),
    "masked_softmax": piece(
        attention_weights, torch.randn(2, 3, 8, 8), torch.ones(8, 8).tril()
    ),
    "rms_norm": piece(rms_norm, X, ROW),
    "rotary": piece(
        lambda x, c, s: x * c + rotated(x) * s,
        torch.randn(2, 3, 8, 16),
        torch.randn(8, 16),
        torch.randn(8, 16),
    ),
    "shuffled": piece(shuffled, X),
    "smooth_step": loss_step(partial(F.cross_entropy, label_smoothing=0.1)),
    "standard": piece(lambda x: (x - x.mean()) / x.std(), X),
    "scores": piece(attention_scores, torch.randn(2, 5, 3, 4), torch.randn(2, 6, 3, 4)),
    "swiglu": piece(lambda x, y: F.silu(x) * y, X, X + 1),
    "transposed_bias": piece(
        transposed_bias, torch.randn(4, 6, 16), torch.randn(16, 16), ROW, ROW + 1
    ),
    "unused": piece(unused, X),
}
MODELS: dict[str, Callable[[], None]] = {
    "bert": bert,
    "chargpt": example("chargpt.py", "--steps", "4", "--sample", "2"),
    "digits": example("digits.py", "--epochs", "1"),
    "gan": gan,
    "llama_decode": llama_decode,
    "llama_prefill": llama_prefill,
    "lstm": lstm,
    "mlp": mlp,
    "resnet18": resnet18,
    "vit": vit,
}


def steady(folder: Path) -> str:
    """The last compiled graph with at least half the lines of the largest."""
    graphs = [path.read_text() for path in sorted(folder.glob("*/00-capture.ir"))]
    most = max(text.count("\n") for text in graphs)
    return [text for text in graphs if text.count("\n") >= most / 2][-1]


def capture(name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "MYCELYA_DUMP": folder}
        command = [sys.executable, __file__, "--run", name]
        subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL)
        text = steady(Path(folder))
    text = re.sub(r"(# |^graph )\S*/", r"\1", text, flags=re.MULTILINE)
    kind = "corpus" if name in MODELS else "budgets"
    (HERE / kind / f"{name}.ir").write_text(text)
    print(name, text.count("\n"), "lines")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        torch.manual_seed(1)
        {**MODELS, **BUDGETS}[sys.argv[2]]()
    else:
        for model in sys.argv[1:] or [*MODELS, *BUDGETS]:
            capture(model)
