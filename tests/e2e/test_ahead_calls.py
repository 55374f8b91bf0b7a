# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Which calls of generate() run ahead, how far, and how often they wait."""

import functools
import json
import types

import pytest
import torch
import zoo
from ahead import (
    NEW,
    WORDS,
    Tokens,
    both,
    count_undone,
    generated,
    model_of,
    window,
)
from helpers import DEVICE, ROOT, needs_tested, run
from model_cases import ids
from test_models_generate import with_large_weights

from mycelya_torch import _ahead, _generate, _tested

transformers = pytest.importorskip("transformers", reason="pip install -e .[test]")
needs_tested("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")
BUDGET = 6  # blocking reads of a call


@pytest.fixture
def undone(monkeypatch):
    """The numbers of steps that calls have undone; with windows of five steps."""
    return count_undone(monkeypatch)


def test_the_installed_release_is_patched():
    import transformers.generation.utils
    import transformers.trainer  # noqa: F401

    assert _ahead.reasons["generate()"] == _ahead.reasons["Trainer"] == ""
    for releases in (_tested.AHEAD, _tested.CHOOSE):
        reason = functools.partial(_tested.reason, releases, "transformers")
        assert reason(transformers.__version__) == ""
        assert "is not the tested release" in reason("5.230.1")


def test_another_release_is_left_alone(monkeypatch):
    """Another version, and functions with other parameters."""
    utils = transformers.generation.utils
    monkeypatch.setattr(_ahead, "reasons", {})
    monkeypatch.setitem(_tested.AHEAD, "transformers", ("4.57",))
    patched = utils.GenerationMixin._sample
    _ahead.generation(utils)
    assert "is not the tested release 4.57" in _ahead.reasons["generate()"]
    assert utils.GenerationMixin._sample is patched

    monkeypatch.undo()
    other = types.SimpleNamespace(**vars(utils))
    other.StopCheck = type("StopCheck", (), {"__call__": lambda self, flags: True})
    assert "StopCheck.__call__ has the parameters" in _generate.apply(other)
    assert other.DeferredStopCheck is utils.DeferredStopCheck
    monkeypatch.setattr(_ahead, "reasons", dict(_ahead.reasons))
    _ahead.trainer(types.SimpleNamespace())  # without a Trainer
    assert "AttributeError" in _ahead.reasons["Trainer"]


# ---- Calls that the library must not run ahead ----


class Criterion(transformers.StoppingCriteria):
    """Ends at a length; counts its calls."""

    def __init__(self, length):
        self.length, self.calls = length, 0

    def __call__(self, input_ids, scores, **kwargs):
        self.calls += 1
        done = input_ids.shape[1] >= self.length
        return torch.full((input_ids.shape[0],), done, device=input_ids.device)


class Processor(transformers.LogitsProcessor):
    def __init__(self):
        self.calls = 0

    def __call__(self, input_ids, scores):
        self.calls += 1
        return scores


def counted(model, monkeypatch, prompt, **options):
    """Generates in both ways, with an object that counts its calls."""
    counts = []

    def call():
        counter = options["of"]()
        counts.append(counter)
        return generated(model, prompt, do_sample=True, **{options["name"]: [counter]})

    both(monkeypatch, call)
    assert counts[0].calls == counts[1].calls > 0


def test_objects_of_the_caller_are_called_as_often(monkeypatch, undone):
    model, prompt = model_of("llama"), ids(1, 5).to(DEVICE)
    for name, of in (
        ("stopping_criteria", lambda: Criterion(11)),
        ("logits_processor", Processor),
    ):
        counted(model, monkeypatch, prompt, name=name, of=of)
    assert undone == []


def test_hooks_and_modes_see_each_step_once(monkeypatch, undone):
    from torch.utils.flop_counter import FlopCounterMode

    model, prompt = model_of("llama"), ids(1, 5).to(DEVICE)
    free = generated(model, prompt)[0]
    end = free[0, 5 + 6].item()
    undone.clear()
    calls = []
    handle = model.lm_head.register_forward_hook(lambda *_: calls.append(1))
    try:
        both(monkeypatch, lambda: generated(model, prompt, eos_token_id=end))
    finally:
        handle.remove()
    assert len(calls) % 2 == 0 and calls
    flops = []

    def measured():
        with FlopCounterMode(display=False) as mode:
            out = generated(model, prompt, eos_token_id=end)
        flops.append(mode.get_total_flops())
        return out

    both(monkeypatch, measured)
    assert flops[0] == flops[1] > 0
    assert undone == []


REFUSED = {
    "beams": {"num_beams": 3},
    "time": {"max_time": 1e6},
    "lookup": {"prompt_lookup_num_tokens": 2},
    "no embedding": {"pad_token_id": WORDS},
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_calls_that_wait_in_each_step(name, monkeypatch, undone):
    model, prompt = model_of("llama"), ids(1, 5).to(DEVICE)
    end = generated(model, prompt)[0][0, 5 + 6].item()
    undone.clear()
    options = {"do_sample": False, "eos_token_id": end, **REFUSED[name]}
    both(monkeypatch, lambda: generated(model, prompt, **options))
    assert undone == []


def test_a_model_in_training_waits(monkeypatch, undone):
    torch.manual_seed(0)
    model = zoo.llama(WORDS, 32, 1, (4, 2), 48, 128, attention_dropout=0.3).to(DEVICE)
    model.train()
    prompt = ids(1, 5).to(DEVICE)
    both(monkeypatch, lambda: generated(model, prompt, do_sample=True))
    assert undone == []


def test_an_assistant(monkeypatch):
    model, prompt = model_of("llama"), ids(1, 5).to(DEVICE)
    assistant = with_large_weights(zoo.llama(WORDS, 16, 1, (2, 1), 24, 128))
    options = {"assistant_model": assistant.to(DEVICE), "do_sample": False}
    both(monkeypatch, lambda: generated(model, prompt, **options))


def test_stop_strings(monkeypatch, undone):
    """A string that ends the text, of a tokenizer with one token for each letter."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = {chr(ord("A") + i): i for i in range(WORDS)}
    raw = Tokenizer(models.WordLevel(letters, unk_token="A"))
    raw.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    raw.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw)
    model, prompt = model_of("llama"), ids(1, 5).to(DEVICE)
    free = generated(model, prompt)[0][0, 5:].tolist()
    text = "".join(chr(ord("A") + i) for i in free[6:8])
    options = {"stop_strings": [text], "tokenizer": tokenizer}
    out = both(monkeypatch, lambda: generated(model, prompt, **options))
    assert out.shape[1] < 5 + NEW and sum(undone) > 0


def test_no_step_goes_past_the_positions(monkeypatch, undone):
    """The text ends before the model's last position, and the window is larger."""
    window(monkeypatch, 200)
    config = transformers.GPT2Config(
        vocab_size=WORDS, n_positions=16, n_embd=32, n_layer=2, n_head=2
    )
    config.bos_token_id = config.eos_token_id = None
    torch.manual_seed(0)
    model = with_large_weights(transformers.GPT2LMHeadModel(config)).to(DEVICE)
    prompt = ids(1, 5).to(DEVICE)
    end = generated(model, prompt, max_new_tokens=11)[0][0, 5 + 7].item()
    options = {"eos_token_id": end, "max_new_tokens": 60}
    out = both(monkeypatch, lambda: generated(model, prompt, **options))
    assert out.shape[1] <= 5 + 8 and 0 < max(undone) <= 16


def test_a_streamer_that_raises(monkeypatch, undone):
    """The generator and the cache are those of the step whose token was refused."""
    from transformers import DynamicCache

    model, prompt = model_of("llama"), ids(1, 5).to(DEVICE)

    def call():
        streamer, cache = Tokens(refused=6), DynamicCache()
        with pytest.raises(RuntimeError, match="no more"):
            generated(
                model,
                prompt,
                do_sample=True,
                eos_token_id=WORDS - 1,
                streamer=streamer,
                cache=cache,
            )
        keys = torch.stack([layer.keys for layer in cache.layers])
        assert len(streamer.got) == 6 and not streamer.ended
        return keys, torch.mycelya.get_rng_state().cpu()

    both(monkeypatch, call)
    assert sum(undone) > 0


# ---- How often it waits ----


@pytest.mark.parametrize("sample", [False, True])
def test_blocking_reads_of_a_call(sample, counters):
    """With an end token that may come in each step, and without one."""
    model, prompt = model_of("llama"), ids(1, 5).to(DEVICE)
    options = {"do_sample": sample, "max_new_tokens": 60}
    for end in (None, WORDS - 1):
        generated(model, prompt, eos_token_id=end, **options)
        torch.mycelya.reset_metrics()
        torch.manual_seed(7)
        with torch.no_grad():
            out = model.generate(prompt, pad_token_id=0, eos_token_id=end, **options)
        m = counters()
        assert m["blocking_reads"] <= BUDGET, torch.mycelya.network_bill()
        flags = m["asynchronous_reads"]
        assert flags == 0 if end is None else out.shape[1] - 5 <= flags <= 60


def test_the_switch(monkeypatch, counters):
    monkeypatch.setenv("MYCELYA_AHEAD", "off")
    model, prompt = model_of("llama"), ids(1, 5).to(DEVICE)
    generated(model, prompt, eos_token_id=WORDS - 1)
    m = counters()
    assert m["blocking_reads"] >= NEW // 2 and m["asynchronous_reads"] == 0


def test_the_window():
    """It allows a quarter of a second of steps, or what the round trip needs."""
    w = _generate.Window()
    now = 0.0

    def answers(n, seconds, took):
        nonlocal now
        for _ in range(n):
            now += seconds
            w.came(1, now, took)

    answers(8, 1.0, 2.0)  # programs are compiled
    assert w.size == w.FIRST
    answers(100, 0.01, 0.02)
    assert w.size == 25
    w.begin()
    answers(100, 0.0001, 0.001)
    assert w.size == w.MOST
    w.begin()
    answers(100, 1.0, 3.0)
    assert w.size == 4  # 1.5 times 3 s
    w.begin()
    answers(100, 0.02, 1.0)  # a round trip of a second
    assert w.size == 75


SLOW = """
import json, sys
import torch, mycelya_torch
import ahead as t
from model_cases import ids
model, prompt = t.model_of("sliding"), ids(1, 5).to("mycelya")
import os
results = []
for end in t.ends_of(model, prompt, {}):
    for way in ("off", "on"):
        os.environ["MYCELYA_AHEAD"] = way
        options = {"eos_token_id": end, "do_sample": True, **t.OUTPUTS}
        t.generated(model, prompt, **options)
        torch.mycelya.reset_metrics()
        found = t.generated(model, prompt, **options)
        reads = torch.mycelya.metrics()["blocking_reads"]
        results.append((found, reads))
    t.equal(results[-1][0], results[-2][0])
print(json.dumps([reads for _, reads in results]))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_behind_a_slow_network(tmp_path):
    """Answers come when they come: the results are equal, without a wait per token."""
    code = f"import sys; sys.path.insert(0, {str(ROOT / 'tests' / 'e2e')!r})\n" + SLOW
    far = {"MYCELYA_MACHINE": "local?rtt=20ms"}
    status, out, err = run(code, tmp_path, timeout=280, fresh=True, **far)
    assert status == 0, err
    reads = json.loads(out.splitlines()[-1])
    # One read more than a call makes: that of the generator's state.
    assert max(reads[1::2]) <= BUDGET + 1 and reads[0] > NEW, reads
