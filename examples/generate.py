# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Generates text with a Llama of Hugging Face transformers.

Without a model's name it is a small Llama with random weights, whose tokens are bytes.
It needs no download, and its text means nothing.
"""

import argparse
import time

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
)

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--device", default="mycelya", help="cpu or mycelya")
parser.add_argument("--model", help="a name at Hugging Face, or a folder")
parser.add_argument(
    "--smollm2",
    dest="model",
    action="store_const",
    const="HuggingFaceTB/SmolLM2-135M",
    help="the same as --model HuggingFaceTB/SmolLM2-135M; downloads 270 MB",
)
parser.add_argument("--prompt", default="A device is a place where tensors live.")
parser.add_argument("--tokens", type=int, default=48, help="tokens to generate")
args = parser.parse_args()
if args.device.startswith("mycelya"):
    import mycelya_torch  # noqa: F401 (registers the device)
device = torch.device(args.device)

torch.manual_seed(0)
if args.model:
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model)
    prompt = tokenizer(args.prompt, return_tensors="pt").input_ids
else:
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        # Large weights make each token depend on those before it.
        initializer_range=0.5,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config)
    prompt = torch.tensor([list(args.prompt.encode())])
model = model.eval().to(device)
prompt = prompt.to(device)  # [1,t]


def generate():
    """The prompt and the tokens after it: [1,t+tokens]."""
    return model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=args.tokens,
        do_sample=False,
        pad_token_id=0,
    )


generate()  # compiles the programs of a token
start = time.perf_counter()
ids = generate()[0].tolist()
seconds = time.perf_counter() - start

new = ids[prompt.shape[1] :]
if args.model:
    print(tokenizer.decode(ids, skip_special_tokens=True))
print("tokens:", *new)
if device.type == "mycelya":
    counters = torch.mycelya.metrics()
    calls = counters["program_hits"] + counters["program_misses"]
    print(f"{counters['program_misses']} programs were compiled for {calls} calls")
print(f"device={prompt.device} tokens_per_s={len(new) / seconds:.0f}")
