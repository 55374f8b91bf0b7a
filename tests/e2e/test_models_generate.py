# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Text generation of transformers models: the same tokens as on the CPU."""

import pytest
import torch
import zoo
from model_cases import TEXT, both, sound, text_batch, to_device

pytestmark = pytest.mark.filterwarnings("ignore")


GENERATING = [name for name in TEXT if name != "bert"]


def prompt_of(name):
    if name == "whisper":
        return {"input_features": sound(3)}
    return text_batch(3)


GREEDY = {"do_sample": False, "num_beams": 1}
STRATEGIES = {
    "greedy": GREEDY,
    "without a cache": {**GREEDY, "use_cache": False},
    "penalties": {**GREEDY, "repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
    "beams": {"do_sample": False, "num_beams": 3},
    "sample": {"do_sample": True, "temperature": 1.5, "top_k": 20, "top_p": 0.95},
}


def tokens_of(model, prompt, **kwargs):
    """Generates 12 tokens. The seed makes random strategies equal on both devices."""
    torch.manual_seed(13)
    with torch.no_grad():
        found = model.generate(**prompt, max_new_tokens=12, pad_token_id=0, **kwargs)
    return found


def generate_cases():
    for name in GENERATING:
        for strategy in STRATEGIES:
            tier = pytest.mark.fast if strategy == "greedy" else pytest.mark.slow
            marks = [tier]
            if strategy == "sample":
                marks.append(pytest.mark.cpu_worker)  # CUDA draws other numbers
            yield pytest.param(name, strategy, marks=marks)


def with_large_weights(model):
    """Large weights make the next token depend on the previous tokens."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.6)
    return model.eval()


def untied_t5():
    """A T5 with tied weights would repeat one token again and again."""
    return zoo.t5(tie_word_embeddings=False)


def generating(name):
    make = untied_t5 if name == "t5" else TEXT[name][0]
    return both(lambda: with_large_weights(make()))


@pytest.mark.parametrize(("name", "strategy"), list(generate_cases()))
def test_generate_gives_the_cpus_tokens(name, strategy):
    here, ours = generating(name)
    prompt = prompt_of(name)
    expected = tokens_of(here, prompt, **STRATEGIES[strategy])
    got = tokens_of(ours, to_device(prompt), **STRATEGIES[strategy])
    assert got.device.type == "mycelya"
    assert torch.equal(got.cpu(), expected)
    assert len(expected[:, -12:].unique()) > 3


@pytest.mark.slow
def test_generate_with_a_static_cache():
    here, ours = generating("llama")
    prompt = prompt_of("llama")
    kwargs = {**GREEDY, "cache_implementation": "static", "disable_compile": True}
    expected = tokens_of(here, prompt, **kwargs)
    assert torch.equal(tokens_of(ours, to_device(prompt), **kwargs).cpu(), expected)


def test_generate_stops_at_its_end_token():
    here, ours = generating("gpt2")
    prompt = prompt_of("gpt2")
    free = tokens_of(here, prompt, **GREEDY, eos_token_id=None)
    stop = free[0, 9 + 3].item()  # the fourth new token of the first row
    expected = tokens_of(here, prompt, **GREEDY, eos_token_id=stop)
    got = tokens_of(ours, to_device(prompt), **GREEDY, eos_token_id=stop)
    assert torch.equal(got.cpu(), expected)
    assert (expected[0, 9:] == stop).any()
