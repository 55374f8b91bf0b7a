# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Tied weights, and saved weights, of models of Hugging Face transformers."""

import copy

import pytest
import torch
from helpers import DEVICE
from model_cases import TEXT, agree, both, text_loss, ties, to_device, train
from torch import nn

pytestmark = pytest.mark.filterwarnings("ignore")


# ---- Tied weights ----


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5", "whisper"])
def test_tied_weights_stay_tied(name):
    make, batch_of = TEXT[name]
    here, ours = both(make)
    assert ties(here)
    assert ties(ours) == ties(here)

    def one(model):
        first = model.get_input_embeddings().weight
        last = model.get_output_embeddings().weight
        return first is last and first.data_ptr() == last.data_ptr()

    assert one(ours)
    optimizer = torch.optim.AdamW(ours.parameters(), lr=1e-3)
    before = ours.get_input_embeddings().weight.detach().clone()
    train(ours, optimizer, text_loss, [to_device(batch_of(0))])
    assert one(ours) and ties(ours) == ties(here)
    assert not torch.equal(before.cpu(), ours.get_output_embeddings().weight.cpu())
    assert ties(copy.deepcopy(ours)) == ties(here)
    returned = ours.to("cpu")
    assert one(returned) and ties(returned) == ties(here)
    returned.to(DEVICE, torch.bfloat16)
    assert one(returned) and ties(returned) == ties(here)


def test_ties_of_plain_modules():
    """Shared modules, parameters and buffers move to the device together."""
    shared = nn.Linear(4, 4)
    model = nn.Sequential(shared, nn.Tanh(), shared, nn.Linear(4, 4))
    model[3].weight = shared.weight
    model.register_buffer("a", torch.ones(3))
    model.register_buffer("b", model.a)
    model.to(DEVICE)
    assert model[0] is model[2]
    assert model[3].weight is model[0].weight
    assert model.a.device.type == "mycelya" and model.b.device.type == "mycelya"
    model(torch.ones(2, 4, device=DEVICE)).sum().backward()
    twice = copy.deepcopy(model)
    assert twice[3].weight is twice[0].weight is not model[0].weight
    assert len(list(model.parameters())) == 3


# ---- Saving ----


@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_save_and_load_a_pretrained_model(name, tmp_path):
    """save_pretrained from the device (safetensors), from_pretrained to both."""
    make, batch_of = TEXT[name]
    here, ours = both(lambda: make().eval())
    ours.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").exists()
    kind, batch = type(here), batch_of(0)
    loaded = [
        kind.from_pretrained(tmp_path),
        kind.from_pretrained(tmp_path).to(DEVICE),
        kind.from_pretrained(tmp_path, device_map={"": "mycelya"}),
    ]
    assert [next(m.parameters()).device.type for m in loaded] == [
        "cpu",
        "mycelya",
        "mycelya",
    ]
    expected = here(**batch).logits
    for model in loaded:
        assert ties(model) == ties(here)
        given = batch if model is loaded[0] else to_device(batch)
        agree(model.eval()(**given).logits, expected, 1e-5)


def test_safetensors(tmp_path):
    from safetensors.torch import load_file, load_model, save_file, save_model

    path = str(tmp_path / "x.safetensors")
    tensors = {
        "a": torch.randn(3, 4),
        "b": torch.arange(5),
        "c": torch.tensor(2.5, dtype=torch.bfloat16),
        "d": torch.tensor([True, False]),
    }
    save_file(to_device(tensors), path)
    for device in ("cpu", "mycelya"):
        loaded = load_file(path, device=device)
        assert set(loaded) == set(tensors)
        for name, t in tensors.items():
            assert loaded[name].device.type == device
            assert loaded[name].dtype == t.dtype
            assert torch.equal(loaded[name].cpu(), t)
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    model.to(DEVICE)
    save_model(model, path)
    other = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)).to(DEVICE)
    other[1].weight = other[0].weight
    load_model(other, path, device="mycelya")
    assert other[1].weight is other[0].weight
    for a, b in zip(other.parameters(), model.parameters(), strict=True):
        assert torch.equal(a.detach().cpu(), b.detach().cpu())
