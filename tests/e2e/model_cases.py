# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Text models, their batches, and helpers that train and compare models.

The models have random weights and small configurations. Nothing is downloaded.
"""

import copy
from functools import partial

import torch
import zoo
from helpers import DEVICE, named, on_cuda
from torch import nn


def ids(*shape, vocabulary=50, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, vocabulary, shape, generator=generator)


def text_batch(seed):
    """Token ids, the second row padded on the left, and their mask."""
    tokens, mask = ids(2, 9, seed=seed), torch.ones(2, 9, dtype=torch.long)
    tokens[1, :3], mask[1, :3] = 0, 0
    return {"input_ids": tokens, "attention_mask": mask}


def llama(**options):
    return zoo.llama(50, 32, 2, (4, 2), 64, 64, attention_dropout=0.1, **options)


def language_batch(seed):
    batch = text_batch(seed)
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    return {**batch, "labels": labels}


def t5_batch(seed):
    return {**text_batch(seed), "labels": ids(2, 6, seed=seed + 100)}


def sound(seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, 8, 32, generator=generator)


def whisper_batch(seed):
    return {"input_features": sound(seed), "labels": ids(2, 6, seed=seed + 100)}


TEXT = {
    "bert": (partial(zoo.bert, 50, 32, 2, 2, 64, 32), language_batch),
    "gpt2": (zoo.gpt2, language_batch),
    "llama": (partial(llama, tie_word_embeddings=True), language_batch),
    "llama untied": (partial(llama, tie_word_embeddings=False), language_batch),
    "t5": (zoo.t5, t5_batch),
    "whisper": (zoo.whisper, whisper_batch),
}


def both(make):
    """A model on the CPU, and a copy on the device."""
    torch.manual_seed(0)
    here = make()
    return here, copy.deepcopy(here).to(DEVICE)


def both_and_nudged(make):
    """A model on the CPU, a copy on the device, and a slightly changed copy on the CPU.

    Each weight of the changed copy differs by one epsilon. The distance between both
    CPU models after training measures the effect of rounding. The effect can be large:
    an input of ReLU changes sign, AdamW makes a full step from a gradient that is 0 but
    for rounding, or a norm over few elements amplifies an error.
    """
    here, ours = both(make)
    nudged = copy.deepcopy(here)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in nudged.parameters():
            signs = torch.randint(0, 2, p.shape, generator=generator) * 2 - 1
            p.mul_(1 + signs * torch.finfo(p.dtype).eps)
    return here, ours, nudged


def to_device(batch):
    return {name: t.to(DEVICE) for name, t in batch.items()}


def agree(ours, cpu, tolerance=1e-3, nudged=None):
    """Asserts that no element differs by more than a bound.

    The bound is `tolerance` of the tensor's largest element. If it is larger, eight
    times the largest difference between `nudged` and `cpu` is the bound; on CUDA, whose
    kernels sum in another order and so round in each operator, 64 times.
    """
    ours, cpu = ours.detach().cpu(), cpu.detach()
    assert ours.dtype == cpu.dtype and ours.shape == cpu.shape
    if not cpu.is_floating_point():
        assert torch.equal(ours, cpu)
        return
    assert bool(cpu.isfinite().all())
    off = (ours - cpu).abs().max().item()
    bound = tolerance * max(cpu.abs().max().item(), 1e-6)
    if nudged is not None:
        times = 64 if on_cuda() else 8
        bound = max(bound, times * (nudged.detach() - cpu).abs().max().item())
    assert off <= bound, f"a difference of {off}, allowed is {bound}"


def same_models(ours, cpu, nudged=None):
    mine, theirs = ours.state_dict(), cpu.state_dict()
    others = {} if nudged is None else nudged.state_dict()
    assert list(mine) == list(theirs)
    for name in theirs:
        with named(name):
            assert mine[name].device == torch.device("mycelya", 0)
            agree(mine[name], theirs[name], nudged=others.get(name))


def same_losses(losses):
    for mine, theirs, nudged in zip(losses[1], losses[0], losses[2], strict=True):
        agree(mine, theirs, nudged=nudged)


def train(model, optimizer, loss_of, batches):
    """Trains one step per batch. The seed makes dropout equal on both devices."""
    torch.manual_seed(11)
    model.train()
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def without_draws(model, always=False):
    """Disables dropout and drop paths on CUDA, which draws other random numbers."""
    if on_cuda() or always:
        for module in model.modules():
            rates = ("p", "drop_prob", "dropout", "attention_dropout", "dropout_prob")
            for name in rates:
                if isinstance(getattr(module, name, None), float):
                    setattr(module, name, 0.0)
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
    return model


def text_loss(model, batch):
    return model(**batch).loss


def ties(model):
    """Groups of names that share a parameter."""
    groups = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        groups.setdefault(id(parameter), []).append(name)
    return sorted(names for names in groups.values() if len(names) > 1)
