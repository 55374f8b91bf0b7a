# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Small models with random weights, which the tests, the corpus and bench/ share.

Nothing is downloaded. Importing the libraries takes seconds, so it happens at the first
use of a model. `examples/` has its own models, because each example is one file.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

# ---- Plain PyTorch ----


class Block(nn.Module):
    """A causal transformer block, pre-norm: [n, t, width] -> same."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, t, c = x.shape
        heads = self.qkv(self.norm1(x)).split(c, 2)
        q, k, v = (z.view(n, t, self.heads, -1).transpose(1, 2) for z in heads)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(n, t, c))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class CharGPT(nn.Module):
    """Logits of the next symbol: [n, t] -> [n, t, symbols]."""

    def __init__(self, symbols: int = 65, width: int = 128, context: int = 64) -> None:
        super().__init__()
        self.token = nn.Embedding(symbols, width)
        self.place = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, 4) for _ in range(4)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, symbols)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.token(tokens) + self.place(places)
        return self.head(self.norm(self.blocks(x)))


class Encoder(nn.Module):
    """PyTorch's encoder layer between embedding and logits: [n, t] -> [n * t, 96]."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(96, 64)
        self.layer = nn.TransformerEncoderLayer(
            64, 4, 256, dropout=0.0, activation="gelu", batch_first=True
        )
        self.head = nn.Linear(64, 96)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.layer(self.embed(x) * 8.0)
        return self.head(torch.tanh(h) + h).flatten(0, 1)


class Tagger(nn.Module):
    """Two LSTM layers: [n, t] of 100 words -> [n, t, 10]."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(100, 32)
        self.lstm = nn.LSTM(32, 32, num_layers=2, batch_first=True)
        self.out = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.lstm(self.words(x))[0])


def mlp(inputs: int, width: int) -> nn.Module:
    """[n, inputs] -> [n, 10], with dropout, GELU and a layer norm."""
    return nn.Sequential(
        *(nn.Linear(inputs, width), nn.ReLU(), nn.Dropout(0.1)),
        *(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width)),
        nn.Linear(width, 10),
    )


def smooth_mlp() -> nn.Module:
    """[n, 100] -> [n, 10], with three kinds of activation."""
    return nn.Sequential(
        *(nn.Linear(100, 200), nn.Tanh(), nn.Linear(200, 200), nn.GELU()),
        *(nn.Linear(200, 200), nn.SiLU(), nn.Linear(200, 10)),
    )


def dropout_mlp(inputs: int, width: int, classes: int) -> nn.Module:
    """[n, inputs] -> [n, classes], with dropout after each of two layers."""
    return nn.Sequential(
        *(nn.Linear(inputs, width), nn.ReLU(), nn.Dropout(0.1)),
        *(nn.Linear(width, width), nn.ReLU(), nn.Dropout(0.1)),
        nn.Linear(width, classes),
    )


def digits() -> nn.Module:
    """The network of examples/digits.py: [n, 1, 8, 8] -> [n, 10]."""
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10)),
    )


def normed_digits() -> nn.Module:
    """A wider network with batch norms and dropout: [n, 1, 8, 8] -> [n, 10]."""
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()),
        *(nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.25), nn.Linear(1024, 10)),
    )


def gan() -> tuple[nn.Module, nn.Module]:
    """A generator [n, 16, 1, 1] -> [n, 1, 8, 8], a critic [n, 1, 8, 8] -> [n, 1]."""
    generator = nn.Sequential(
        *(nn.ConvTranspose2d(16, 16, 4), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.ConvTranspose2d(16, 1, 4, 2, 1), nn.Tanh()),
    )
    critic = nn.Sequential(
        *(nn.Conv2d(1, 16, 4, 2, 1), nn.LeakyReLU(0.2)),
        *(nn.Conv2d(16, 1, 4), nn.Flatten()),
    )
    return generator, critic


# ---- Models of libraries ----


def of_torchvision(name: str, **options: Any) -> nn.Module:
    import torchvision

    return torchvision.models.get_model(name, weights=None, num_classes=10, **options)


def of_timm(name: str, **options: Any) -> nn.Module:
    import timm

    return timm.create_model(name, num_classes=10, **options)


def vit(
    image: int, patch: int, layers: int, heads: int, width: int, inner: int, **options
) -> nn.Module:
    """[n, 3, image, image] -> [n, 10], with dropout."""
    from torchvision.models import VisionTransformer

    return VisionTransformer(
        image_size=image,
        patch_size=patch,
        num_layers=layers,
        num_heads=heads,
        hidden_dim=width,
        mlp_dim=inner,
        dropout=0.1,
        num_classes=10,
        **options,
    )


def bert(
    words: int, width: int, layers: int, heads: int, inner: int, context: int
) -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(
        BertConfig(
            vocab_size=words,
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=inner,
            max_position_embeddings=context,
        )
    )


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=2, n_positions=64)
    config.bos_token_id = config.eos_token_id = 1
    return GPT2LMHeadModel(config)


def llama(
    words: int,
    width: int,
    layers: int,
    heads: tuple[int, int],
    inner: int,
    context: int,
    **options: Any,
) -> nn.Module:
    """`heads` is (heads of queries, heads of keys and values)."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=words,
            hidden_size=width,
            intermediate_size=inner,
            num_hidden_layers=layers,
            num_attention_heads=heads[0],
            num_key_value_heads=heads[1],
            max_position_embeddings=context,
            **options,
        )
    )


def t5(**options: Any) -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    return T5ForConditionalGeneration(
        T5Config(
            vocab_size=50,
            d_model=32,
            d_kv=16,
            d_ff=64,
            num_layers=2,
            num_heads=2,
            decoder_start_token_id=0,
            **options,
        )
    )


def whisper() -> nn.Module:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    return WhisperForConditionalGeneration(
        WhisperConfig(
            vocab_size=50,
            num_mel_bins=8,
            d_model=32,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=64,
            decoder_ffn_dim=64,
            max_source_positions=16,
            max_target_positions=32,
            dropout=0.1,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=1,
            decoder_start_token_id=2,
            suppress_tokens=[],
            begin_suppress_tokens=[],
        )
    )
