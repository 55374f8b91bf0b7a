# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Loops that wait in each step, or several times, for rtt.py.

    generate   a small Llama of transformers writes 64 tokens, and the ids are read
    trainer    transformers' Trainer trains a small BERT and logs each tenth step
    lightning  Lightning trains an MLP and shows two values of each step in its bar
    five       trains the same MLP, and reads five numbers in each step

The package keeps the libraries from waiting in each step, and lets the last loop wait
once in a step, unless MYCELYA_AHEAD and MYCELYA_GUESS are "off".
"""

from __future__ import annotations

import math
import os
import queue
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "e2e"))

TOKENS = 64


def generate() -> Iterator[int]:
    """Yields the number of new tokens after each call."""
    import torch
    import zoo

    torch.manual_seed(0)
    model = zoo.llama(1000, 128, 4, (4, 2), 384, 256).eval().to("mycelya")
    prompt = torch.arange(3, 11)[None].to("mycelya")
    while True:
        with torch.no_grad():
            ids = model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                do_sample=True,
                max_new_tokens=TOKENS,
                min_new_tokens=TOKENS,
                eos_token_id=2,
                pad_token_id=0,
            )
        assert ids.cpu().shape[1] == 8 + TOKENS
        yield TOKENS


def five() -> Iterator[int]:
    """Yields 1 after each step."""
    import torch

    torch.manual_seed(0)
    model, rows = _mlp().to("mycelya"), torch.randn(64, 128)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    while True:
        x = rows.to("mycelya")
        error = model(x) - x.sum(-1, keepdim=True)
        loss = error.square().mean()
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
        shown = loss.detach(), norm, error.abs().max(), error.mean(), error.std()
        optimizer.step()
        assert all(math.isfinite(value.item()) for value in shown)
        yield 1


def _mlp() -> Any:
    from torch import nn

    layers = [nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(512, 1))


def trainer() -> Iterator[int]:
    """Yields 1 after each step."""
    return _in_turns(_trainer)


def lightning() -> Iterator[int]:
    """Yields 1 after each step."""
    return _in_turns(_lightning)


def _in_turns(
    loop: Callable[[Callable[[], None], Callable[[], None]], None],
) -> Iterator[int]:
    """Runs a loop in a thread, which calls its arguments before and after each step."""
    turns: queue.Queue[BaseException | None] = queue.Queue()
    go = threading.Semaphore(0)

    def before() -> None:
        go.acquire()

    def after() -> None:
        turns.put(None)

    def train() -> None:
        try:
            loop(before, after)
        except BaseException as error:
            turns.put(error)

    threading.Thread(target=train, daemon=True).start()
    while True:
        go.release()
        turn = turns.get()
        if turn is not None:
            raise turn
        yield 1


def _lightning(before: Callable[[], None], after: Callable[[], None]) -> None:
    import torch
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.accelerators import CPUAccelerator
    from lightning.pytorch.callbacks import Callback, TQDMProgressBar
    from lightning.pytorch.strategies import SingleDeviceStrategy

    class Accelerator(CPUAccelerator):
        def setup_device(self, device: torch.device) -> None:
            pass

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = _mlp()

        def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
            error = self.model(batch[0]) - batch[0].sum(-1, keepdim=True)
            loss = error.square().mean()
            self.log("loss", loss, prog_bar=True)
            self.log("worst", error.abs().max(), prog_bar=True)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    class Turns(Callback):
        def on_train_batch_start(self, *_: Any, **__: Any) -> None:
            before()

        def on_train_batch_end(self, *_: Any, **__: Any) -> None:
            after()

    rows = torch.utils.data.TensorDataset(torch.randn(1 << 16, 128))
    Trainer(
        strategy=SingleDeviceStrategy(
            device=torch.device("mycelya", 0), accelerator=Accelerator()
        ),
        max_epochs=-1,
        callbacks=[TQDMProgressBar(), Turns()],
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    ).fit(Module(), torch.utils.data.DataLoader(rows, 64))


def _trainer(before: Callable[[], None], after: Callable[[], None]) -> None:
    os.environ["ACCELERATE_TORCH_DEVICE"] = "mycelya"
    import torch
    import zoo
    from transformers import (
        PrinterCallback,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    class Sentences(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 1 << 20

        def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
            tokens = torch.arange(i, i + 64) * 7919 % 1000
            return {"input_ids": tokens, "labels": tokens}

    class Turns(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            before()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            after()

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=10**6,
            per_device_train_batch_size=8,
            logging_steps=10,
            report_to=[],
            disable_tqdm=True,
            save_strategy="no",
        )
        model = zoo.bert(1000, 128, 4, 4, 512, 64)
        trainer = Trainer(
            model=model,
            args=arguments,
            train_dataset=Sentences(),
            callbacks=[Turns()],
        )
        trainer.remove_callback(PrinterCallback)  # rtt.py reads the output
        trainer.train()
