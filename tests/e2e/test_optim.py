# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Every optimizer computes the CPU's weights and runs one program per step."""

import copy
import gc

import pytest
import torch
from helpers import DEVICE, same
from torch import nn

OPTIMIZERS = {
    "SGD": {"lr": 0.05},
    "SGD momentum": {"lr": 0.05, "momentum": 0.9, "nesterov": True},
    "Adam": {"lr": 0.01},
    "Adam amsgrad": {"lr": 0.01, "amsgrad": True, "weight_decay": 0.1},
    "AdamW": {"lr": 0.01},
    "AdamW loop": {"lr": 0.01, "foreach": False},
    "AdamW fused": {"lr": 0.01, "fused": True},
    "SGD fused": {"lr": 0.05, "momentum": 0.9, "fused": True},
    "NAdam": {"lr": 0.01},
    "RAdam": {"lr": 0.01},
    "Adamax": {"lr": 0.01},
    "Adagrad": {"lr": 0.05},
    "Adadelta": {"lr": 1.0},
    "RMSprop": {"lr": 0.01, "momentum": 0.5, "centered": True},
    "Rprop": {"lr": 0.01},
    "ASGD": {"lr": 0.05},
    "Adafactor": {"lr": 0.05},
    "Muon": {"lr": 0.02},
}


def network(name):
    """A small network. Muon accepts only matrices, so it gets no biases."""
    bias = not name.startswith("Muon")
    layers = nn.Linear(4, 8, bias=bias), nn.Tanh(), nn.Linear(8, 3, bias=bias)
    return nn.Sequential(*layers)


def train(model, optimizer, steps, schedule=None):
    generator = torch.Generator().manual_seed(5)
    device = next(model.parameters()).device
    for _ in range(steps):
        x = torch.randn(6, 4, generator=generator).to(device)
        loss = model(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_weights_agree_with_the_cpu(name):
    here = network(name)
    there = copy.deepcopy(here).to(DEVICE)
    kind = getattr(torch.optim, name.split()[0])
    for model in (here, there):
        train(model, kind(model.parameters(), **OPTIMIZERS[name]), 5)
    rtol = 2e-2 if name == "Muon" else 1e-4  # Muon orthogonalises in bfloat16
    same(list(there.parameters()), list(here.parameters()), rtol, 1e-5)


def test_closure_of_lbfgs():
    models = [network("LBFGS")]
    models.append(copy.deepcopy(models[0]).to(DEVICE))
    for model in models:
        x = torch.ones(6, 4).to(next(model.parameters()).device)
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)

        def closure(model=model, x=x, optimizer=optimizer):
            optimizer.zero_grad()
            loss = (model(x) - 1).pow(2).mean()
            loss.backward()
            return loss

        optimizer.step(closure)
    same(list(models[1].parameters()), list(models[0].parameters()), 1e-3, 1e-4)


def test_a_schedule_compiles_nothing_new(counters):
    model = network("AdamW").to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=60)
    train(model, optimizer, 10, schedule)
    gc.collect()
    torch.mycelya.synchronize()
    warm = counters()["program_misses"]
    gc.disable()  # freeing results in cycles would change the set of outputs
    train(model, optimizer, 50, schedule)
    gc.enable()
    torch.mycelya.synchronize()
    after = counters()
    assert after["program_misses"] == warm
    assert after["program_hits"] >= 49


def test_a_step_that_reads_nothing_waits_for_nothing(counters):
    model = network("SGD").to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer, 5)
    torch.mycelya.synchronize()
    before = counters()["round_trips"]
    train(model, optimizer, 20)
    assert counters()["round_trips"] == before


def test_state_moves_through_state_dict():
    model = network("Adam").to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer, 2)
    other = copy.deepcopy(model)
    restored = torch.optim.Adam(other.parameters())
    restored.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(model, optimizer, 2)
    train(other, restored, 2)
    same(list(other.parameters()), [p.cpu() for p in model.parameters()])
