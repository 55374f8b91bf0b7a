# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Captures the graphs of the corpus: one step of each model, as capture hands it on.

    python tests/replay/capture.py [NAME ...]

Each model runs in a process of its own for some steps; kept is the largest graph that
was compiled last, which is the one that a longer run repeats. File names in it lose
their folders. The corpus changes only when this is run: what passes make of it is
compared with what they made before (replay_test.go), so that a change shows.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

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
    net = nn.Sequential(
        *(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.1)),
        *(nn.Linear(128, 128), nn.GELU(), nn.LayerNorm(128)),
        nn.Linear(128, 10),
    )
    train(
        net,
        lambda: (torch.randn(32, 64), torch.randint(0, 10, (32,))),
        lambda m, x, y: F.cross_entropy(m(x), y),
    )


def images() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(4, 3, 64, 64), torch.randint(0, 10, (4,))


def resnet18() -> None:
    import torchvision

    model = torchvision.models.resnet18(num_classes=10)
    train(model, images, lambda m, x, y: F.cross_entropy(m(x), y))


def vit() -> None:
    from torchvision.models.vision_transformer import VisionTransformer

    model = VisionTransformer(
        image_size=64,
        patch_size=16,
        num_layers=3,
        num_heads=4,
        hidden_dim=64,
        mlp_dim=128,
        num_classes=10,
        dropout=0.1,
    )
    train(model, images, lambda m, x, y: F.cross_entropy(m(x), y))


def bert() -> None:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=100,
        hidden_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=64,
    )
    train(
        BertForMaskedLM(config),
        lambda: (torch.randint(0, 100, (4, 16)), torch.randint(0, 100, (4, 16))),
        lambda m, x, y: m(input_ids=x, labels=y).loss,
    )


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=100,
        hidden_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=128,
        max_position_embeddings=64,
    )
    return LlamaForCausalLM(config).eval().to(DEVICE)


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


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(100, 32)
        self.lstm = nn.LSTM(32, 32, num_layers=2, batch_first=True)
        self.out = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.lstm(self.words(x))[0])


def lstm() -> None:
    train(
        Tagger(),
        lambda: (torch.randint(0, 100, (4, 12)), torch.randint(0, 10, (4, 12))),
        lambda m, x, y: F.cross_entropy(m(x).flatten(0, 1), y.flatten()),
    )


def gan() -> None:
    """A step of each player on the other's work."""
    generator = nn.Sequential(
        *(nn.ConvTranspose2d(16, 16, 4), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.ConvTranspose2d(16, 1, 4, 2, 1), nn.Tanh()),
    ).to(DEVICE)
    critic = nn.Sequential(
        *(nn.Conv2d(1, 16, 4, 2, 1), nn.LeakyReLU(0.2)),
        *(nn.Conv2d(16, 1, 4), nn.Flatten()),
    ).to(DEVICE)
    players = [
        torch.optim.Adam(net.parameters(), 2e-4, betas=(0.5, 0.999))
        for net in (generator, critic)
    ]
    one, zero = (torch.full((8, 1), v, device=DEVICE) for v in (1.0, 0.0))
    for _ in range(STEPS):
        real = torch.randn(8, 1, 8, 8).to(DEVICE)
        fake = generator(torch.randn(8, 16, 1, 1, device=DEVICE))
        players[1].zero_grad()
        judged = F.binary_cross_entropy_with_logits(critic(real), one)
        judged = judged + F.binary_cross_entropy_with_logits(
            critic(fake.detach()), zero
        )
        judged.backward()
        players[1].step()
        players[0].zero_grad()
        F.binary_cross_entropy_with_logits(critic(fake), one).backward()
        players[0].step()
    torch.mycelya.synchronize()


def example(name: str, *arguments: str) -> Callable[[], None]:
    def run() -> None:
        command = [sys.executable, str(HERE.parents[1] / "examples" / name)]
        subprocess.run([*command, "--device", DEVICE, *arguments], check=True)

    return run


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


def largest(folder: Path) -> str:
    """The last of the largest graphs that were compiled."""
    best = ""
    for path in sorted(folder.glob("*/00-capture.ir")):
        text = path.read_text()
        if text.count("\n") >= best.count("\n"):
            best = text
    return best


def capture(name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "MYCELYA_DUMP": folder}
        command = [sys.executable, __file__, "--run", name]
        subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL)
        text = largest(Path(folder))
    text = re.sub(r"(# |^graph )\S*/", r"\1", text, flags=re.MULTILINE)
    (HERE / "corpus" / f"{name}.ir").write_text(text)
    print(name, text.count("\n"), "lines")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        torch.manual_seed(1)
        MODELS[sys.argv[2]]()
    else:
        for model in sys.argv[1:] or MODELS:
            capture(model)
