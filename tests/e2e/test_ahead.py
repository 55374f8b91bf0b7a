# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""generate() that runs ahead of its stop test gives what it gives without."""

import pytest
import torch
from ahead import OUTPUTS, Tokens, both, count_undone, ends_of, generated, model_of
from helpers import DEVICE, named, needs_tested
from model_cases import ids

pytest.importorskip("transformers", reason="pip install -e .[test]")
needs_tested("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def undone(monkeypatch):
    return count_undone(monkeypatch)


FORMS = {"ids": {}, "outputs": OUTPUTS, "static": {"cache_implementation": "static"}}
CASES = [
    *(("llama", form) for form in FORMS),
    *(("sliding", "outputs"), ("sliding", "static"), ("hybrid", "outputs")),
    *(("gpt2", "outputs"), ("encoder and decoder", "outputs"), ("linear", "ids")),
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("name", "form"), CASES)
def test_ahead_gives_the_same(name, form, monkeypatch, undone):
    """Ids, scores, states, cache, streamed tokens and the generator."""
    model = model_of(name)
    for rows in (1, 3):
        prompt = ids(rows, 5, seed=rows).to(DEVICE)
        for sample in (False, True):
            options = {**FORMS[form], "do_sample": sample}
            never, one, each = ends_of(model, prompt, options)
            for end in [each] if rows > 1 else [one, never] if sample else [one]:
                with named((rows, sample, end)):
                    check(model, prompt, end, options, monkeypatch)
    assert sum(undone) > 5 and max(undone) == 5


def check(model, prompt, end, options, monkeypatch):
    """One case; a call that returns its cache is continued from it."""
    streamers = []

    def call():
        # The library streams one row only.
        streamers.append(Tokens() if prompt.shape[0] == 1 else None)
        return generated(
            model, prompt, eos_token_id=end, streamer=streamers[-1], **options
        )

    out = both(monkeypatch, call)
    if prompt.shape[0] == 1:
        assert streamers[0].got == streamers[1].got
        assert streamers[0].ended and streamers[1].ended
    cache = None if isinstance(out, torch.Tensor) else out.cache
    if model.config.is_encoder_decoder or cache is None or end is None:
        return

    def goes_on():
        first = call()[0]
        return generated(
            model,
            first.sequences,
            cache=first.cache,
            max_new_tokens=3,
            do_sample=False,
        )

    both(monkeypatch, goes_on)
