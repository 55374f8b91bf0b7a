# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Generation with transformers, as people write it for one CUDA GPU."""

import sys
import threading

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

DEVICE = "cuda:0" if torch.cuda.is_available() else "cpu"


def save(folder):
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(vocab_size=50, **sizes, **heads, eos_token_id=None)
    LlamaForCausalLM(config).save_pretrained(folder)


def generate(model, device):
    tokens = torch.tensor([[3, 14, 15, 9]], device=device)
    with torch.inference_mode():
        return model.generate(tokens, max_new_tokens=8, do_sample=False)


def main(folder):
    save(folder)
    major, minor = torch.cuda.get_device_capability()
    dtype = torch.bfloat16 if major >= 8 else torch.float32
    print("dtype:", dtype, minor >= 0)
    model = AutoModelForCausalLM.from_pretrained(
        folder, device_map="cuda", dtype=torch.float32
    )
    print("model:", model.device.type == "cuda", DEVICE)
    out = generate(model, DEVICE)
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    print("same:", torch.equal(out.cpu(), generate(plain, "cpu")))
    auto = AutoModelForCausalLM.from_pretrained(folder, device_map="auto")
    print("auto:", auto.device.type in ("cuda", "xpu"))
    found = []
    thread = threading.Thread(
        target=lambda: found.append(generate(model, "cuda").is_cuda)
    )
    thread.start()
    thread.join()
    print("thread:", found)
    torch.cuda.empty_cache()


if __name__ == "__main__":
    main(sys.argv[1])
