# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Reads of values that the client knows, with MYCELYA_LOCAL off and on.

    .venv/bin/python bench/known.py

The first table has the reads that one call waits for; the second has times of single
calls in µs, the best of seven rounds.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable

import torch


def calls() -> dict[str, Callable[[], object]]:
    """By name, functions of small models that test what they were given."""
    from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM

    sizes = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "vocab_size": 500,
    }
    torch.manual_seed(0)
    bert = BertModel(BertConfig(**sizes)).to("mycelya").eval()
    llama = LlamaForCausalLM(LlamaConfig(**sizes)).to("mycelya").eval()
    ids = torch.randint(1, 500, (4, 16))
    mask = torch.ones_like(ids)
    mask[1, :6] = 0
    labels = ids.masked_fill(mask == 0, -100)

    def batch():
        return {
            "input_ids": ids.to("mycelya"),
            "attention_mask": mask.to("mycelya"),
        }

    def rows():
        chosen = labels.to("mycelya") != -100
        return bert(ids.to("mycelya")).last_hidden_state[chosen].sum()

    length = {"max_new_tokens": 16, "do_sample": False, "pad_token_id": 0}
    return {
        "BERT with an attention mask": lambda: bert(**batch()),
        "Llama with an attention mask": lambda: llama(**batch()),
        "rows of BERT's output by labels": rows,
        "generate() of 16 tokens": lambda: llama.generate(**batch(), **length),
    }


def waits(call: Callable[[], object]) -> int:
    """The reads that a call waits for when its programs are known."""
    for _ in range(2):
        call()
    torch.mycelya.synchronize()
    torch.mycelya.reset_metrics()
    call()
    return torch.mycelya.metrics()["blocking_reads"]


def microseconds(call: Callable[[], object], times: int) -> float:
    best = float("inf")
    for _ in range(7):
        torch.mycelya.synchronize()
        begun = time.perf_counter()
        for _ in range(times):
            call()
        best = min(best, (time.perf_counter() - begun) / times)
    return best * 1e6


def child() -> None:
    large = torch.zeros(64, 64, dtype=torch.long)
    small = torch.zeros(32, dtype=torch.long)
    x = torch.zeros(8, 8, dtype=torch.long).to("mycelya")
    single = {
        "upload of 256 B": (lambda: small.to("mycelya"), 300),
        "upload of 32 KiB": (lambda: large.to("mycelya"), 300),
        "record x + 1, 64 integers": (lambda: x + 1, 2000),
        "record x == 1": (lambda: x == 1, 2000),
        "record torch.ones(8, 8)": (lambda: torch.ones(8, 8, device="mycelya"), 2000),
        "(x == 1).any().item()": (lambda: (x == 1).any().item(), 300),
    }
    with torch.no_grad():
        counts = {name: waits(call) for name, call in calls().items()}
    times = {name: microseconds(*row) for name, row in single.items()}
    print(json.dumps([counts, times]))


def main() -> None:
    results = {}
    for way in ("off", "on"):
        done = subprocess.run(
            [sys.executable, __file__, "--child"],
            env={**os.environ, "MYCELYA_LOCAL": way},
            stdout=subprocess.PIPE,
            check=True,
        )
        results[way] = json.loads(done.stdout.splitlines()[-1])
    for k, (what, form) in enumerate((("waits", "d"), ("µs", ".1f"))):
        print(f"\n| {what} | off | on |\n| --- | ---: | ---: |")
        for name in results["on"][k]:
            off, on = (results[way][k][name] for way in ("off", "on"))
            print(f"| {name} | {off:{form}} | {on:{form}} |")


if __name__ == "__main__":
    child() if "--child" in sys.argv else main()
