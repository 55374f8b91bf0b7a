# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Programs whose results are compared bit by bit; see test_eager.py.

Run as a program, it prints a hash of the bytes of each result as JSON. The argument
"eager" computes everything inside of torch.mycelya.eager().
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import nn

DEVICE = "mycelya"


def digest(tensor: torch.Tensor) -> str:
    here = tensor.detach().cpu().contiguous().flatten()
    text = f"{tensor.dtype} {tuple(tensor.shape)}".encode()
    return hashlib.sha256(text + here.view(torch.uint8).numpy().tobytes()).hexdigest()


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Numbers that are made on the CPU, so that all runs have the same ones."""
    return torch.randn(shape, dtype=dtype).to(DEVICE)


# ---- Functions of one tensor, forward and backward ----

FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "chain": lambda x: ((x * 1.7 + 0.3).sigmoid() / (x.abs() + 0.1)).tanh(),
    "gelu": F.gelu,
    "silu": F.silu,
    "mish": F.mish,
    "softplus": F.softplus,
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(0),
    "logsumexp": lambda x: x.logsumexp(-1),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "rms_norm": lambda x: F.rms_norm(x, x.shape[-1:]),
    "group_norm": lambda x: F.group_norm(x[:, :, None], 4),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "instance_norm": lambda x: F.instance_norm(x.reshape(8, 6, -1)),
    "normalize": lambda x: F.normalize(x, dim=-1),
    "mean": lambda x: x.mean(-1),
    "var": lambda x: x.var(0),
    "std_of_all": lambda x: x.std(),
    "norm": lambda x: torch.linalg.vector_norm(x, 3, dim=-1),
    "prod": lambda x: x.prod(-1),
    "cumsum": lambda x: x.cumsum(-1),
    "amax": lambda x: x.amax(-1),
    "pow": lambda x: (x.abs() + 0.5) ** 1.7,
    "erf": lambda x: (x.erf() * x.exp() - x.sin()).log1p().nan_to_num(),
    "cosine": lambda x: F.cosine_similarity(x, x.roll(1, 0)),
    "matmul": lambda x: (x @ x.T * 0.2).relu() @ x,
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x * 0.5).sum(0),
    "conv": lambda x: F.conv1d(x[None], x[:8, None, :5].repeat(1, 48, 1)).relu(),
    "pool": lambda x: F.avg_pool1d(x[None], 3),
    "attention": lambda x: F.scaled_dot_product_attention(*3 * [x.view(1, 6, 8, -1)]),
    "cross_entropy": lambda x: F.cross_entropy(x, torch.arange(48, device=DEVICE) % 9),
    "smooth_l1": lambda x: F.smooth_l1_loss(x, x.flip(0) * 0.9),
    "huber": lambda x: F.huber_loss(x, x * x),
    "bce": lambda x: F.binary_cross_entropy_with_logits(x, x.sigmoid().detach()),
    "dropout": lambda x: F.dropout(x, 0.4) * 3,
    "half": lambda x: (x.half() * 1.3 + 0.7).tanh().float(),
    "bfloat16": lambda x: (x.bfloat16().exp() - x.bfloat16()).softmax(-1).float(),
    "integers": lambda x: ((x * 40).long() % 7).float() * x,
    "where": lambda x: torch.where(x > 0.1, x.sqrt().nan_to_num(), x * x),
}


def functions() -> Iterator[tuple[str, torch.Tensor]]:
    for name, function in FUNCTIONS.items():
        torch.manual_seed(len(name))
        x = random(48, 96).requires_grad_()
        y = function(x)
        yield name, y
        (y * random(*y.shape)).sum().backward()
        assert x.grad is not None
        yield f"{name} backward", x.grad


# ---- Trainings ----


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(30, 24)
        self.norm = nn.LayerNorm(24)
        self.attend = nn.MultiheadAttention(24, 4, dropout=0.1, batch_first=True)
        self.layers = nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 30))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.embed(tokens))
        x = x + self.attend(x, x, x, need_weights=False)[0]
        return self.layers(x)


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, 0.01),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01, amsgrad=True),
    "adamw one by one": lambda p: torch.optim.AdamW(p, 0.01, foreach=False),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.01, centered=True, momentum=0.5),
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.05),
    "adamax": lambda p: torch.optim.Adamax(p, 0.01),
    "nadam": lambda p: torch.optim.NAdam(p, 0.01),
    "radam": lambda p: torch.optim.RAdam(p, 0.01),
    "lion-like": lambda p: torch.optim.Rprop(p, 0.01),
}


def trainings() -> Iterator[tuple[str, torch.Tensor]]:
    for name, make in OPTIMIZERS.items():
        torch.manual_seed(7)
        model = Network().to(DEVICE)
        optimizer = make(model.parameters())
        for _ in range(3):
            tokens = torch.randint(0, 30, (5, 12)).to(DEVICE)
            loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        yield f"{name} loss", loss
        for key, value in model.state_dict().items():
            yield f"{name} {key}", value


def results() -> dict[str, str]:
    out = {}
    for part in (functions, trainings):
        for name, value in part():
            out[name] = digest(value)
    return out


if __name__ == "__main__":
    inside = "eager" in sys.argv
    with torch.mycelya.eager() if inside else contextlib.nullcontext():
        found = results()
    metrics = torch.mycelya.metrics()
    kernels = metrics["kernels_launched"] + metrics["fused_ops"]
    print(json.dumps({"results": found, "kernels": kernels}))
