# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Models that generate() runs with and without waits, and the comparison of both.

How many steps are under way depends on time. So most tests let no answer come before
the window is full: then each call records as many steps too many as the window allows.
"""

import torch
import zoo
from helpers import DEVICE
from test_models_generate import with_large_weights
from torch.utils import _pytree as pytree

from mycelya_torch import _device, _generate

WORDS, NEW = 50, 14


class Late(_device.Download):
    """An answer that has not come until someone waits for it."""

    def done(self):
        return False


def count_undone(monkeypatch, size=5):
    """A list that gets how many steps each call undoes; with windows of that size."""
    window(monkeypatch, size)
    counts = []
    finish = _generate.StopCheck.finish

    def counting(self):
        counts.append(finish(self))
        return counts[-1]

    monkeypatch.setattr(_generate.StopCheck, "finish", counting)
    return counts


def window(monkeypatch, size):
    """Makes each call run so many steps ahead."""
    monkeypatch.setattr(_device, "Download", Late)
    monkeypatch.setattr(_generate, "_windows", {})
    for name in ("LEAST", "FIRST", "MOST"):
        monkeypatch.setattr(_generate.Window, name, size)


def of_config(kind, **more):
    """A causal model of a configuration in transformers, by the name of its family."""
    import transformers

    sizes = {"vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2}
    sizes |= {"intermediate_size": 48, "max_position_embeddings": 128}
    sizes |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
    config = getattr(transformers, f"{kind}Config")(**sizes | more)
    return getattr(transformers, f"{kind}ForCausalLM")(config)


MODELS = {
    "llama": lambda: zoo.llama(WORDS, 32, 2, (4, 2), 48, 128),
    "sliding": lambda: of_config("Mistral", sliding_window=8, head_dim=8),
    "hybrid": lambda: of_config("Gemma2", sliding_window=8, head_dim=8),
    "gpt2": zoo.gpt2,
    "encoder and decoder": lambda: zoo.t5(tie_word_embeddings=False),
    "linear": lambda: of_config("Mamba", state_size=4, intermediate_size=64),
}
MADE = {}


def model_of(name):
    if name not in MADE:
        torch.manual_seed(0)
        MADE[name] = with_large_weights(MODELS[name]()).to(DEVICE)
    return MADE[name]


class Tokens:
    """A streamer that keeps what it gets; raises at the token with this number."""

    def __init__(self, refused=None):
        self.got, self.ended, self.refused = [], False, refused

    def put(self, tokens):
        assert tokens.device.type == "cpu" and tokens.dtype == torch.long
        self.got.append(tokens.tolist())
        if len(self.got) == self.refused:
            raise RuntimeError("no more")

    def end(self):
        self.ended = True


def generated(model, prompt, **options):
    """What a call returns, and the generator's state after it."""
    torch.manual_seed(7)
    options = {"max_new_tokens": NEW, "pad_token_id": 0, **options}
    with torch.no_grad():
        out = model.generate(prompt, attention_mask=torch.ones_like(prompt), **options)
    return out, torch.mycelya.get_rng_state().cpu()


def tensors(out):
    """All tensors of a result, with those of its cache."""
    if isinstance(out, torch.Tensor):
        return [out]
    found = []
    for name, value in out.items():
        if name == "cache":
            caches = [getattr(value, "self_attention_cache", value)]
            caches += [getattr(value, "cross_attention_cache", caches[0])]
            layers = [layer for cache in caches for layer in cache.layers]
            value = [(layer.keys, layer.values) for layer in layers]
        found += pytree.tree_leaves(value)
    return found


def equal(mine, theirs):
    """Asserts that two results have the same tensors, and ids of the same layout."""
    (out, state), (expected, expected_state) = mine, theirs
    assert type(out) is type(expected)
    pairs = list(zip(tensors(out), tensors(expected), strict=True))
    for a, b in pairs:
        assert a.shape == b.shape and a.dtype == b.dtype
        assert torch.equal(a.cpu(), b.cpu())
    assert pairs[0][0].stride() == pairs[0][1].stride()
    assert torch.equal(state, expected_state)


def both(monkeypatch, call):
    """Results of call() without and with running ahead; they must be equal."""
    monkeypatch.setenv("MYCELYA_AHEAD", "off")
    expected = call()
    monkeypatch.setenv("MYCELYA_AHEAD", "on")
    found = call()
    equal(found, expected)
    return found[0]


def ends_of(model, prompt, options):
    """Sets of tokens that end calls: no token; one; one of each row, at other steps."""
    free = generated(model, prompt, **options)[0]
    free = getattr(free, "sequences", free)[:, -NEW:].cpu()
    rows = [row[(5 + 4 * i) % NEW].item() for i, row in enumerate(free)]
    return [None, rows[0], rows]


OUTPUTS = {
    "return_dict_in_generate": True,
    "output_scores": True,
    "output_logits": True,
    "output_hidden_states": True,
}
