# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Loops of libraries that wait in each step by themselves, for rtt.py.

    generate  a small Llama of transformers writes 64 tokens, and the ids are read
    trainer   transformers' Trainer trains a small BERT and logs each tenth step

The package keeps both from waiting, unless MYCELYA_AHEAD is "off".
"""

from __future__ import annotations

import os
import queue
import sys
import tempfile
import threading
from collections.abc import Iterator
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


def trainer() -> Iterator[int]:
    """Yields 1 after each step. Trainer's loop runs in a thread, in turns with this."""
    turns: queue.Queue[Any] = queue.Queue()
    go = threading.Semaphore(0)

    def train() -> None:
        try:
            _train(turns, go)
        except BaseException as error:
            turns.put(error)

    threading.Thread(target=train, daemon=True).start()
    while True:
        go.release()
        turn = turns.get()
        if isinstance(turn, BaseException):
            raise turn
        yield 1


def _train(turns: queue.Queue[Any], go: threading.Semaphore) -> None:
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
            go.acquire()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            turns.put(None)

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
