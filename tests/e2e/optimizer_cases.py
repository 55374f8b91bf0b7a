# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""PyTorch's optimizer database, and helpers that run and compare its optimizers.

The reference is the same optimizer on the CPU, as a plain loop over its parameters.
"""

import copy
import functools
import re

import pytest
import torch
from helpers import DEVICE, named, on_cuda, same, seed
from torch import nn
from torch.testing._internal.common_optimizers import optim_db

OPTIMIZERS = {info.name: info for info in optim_db}
DENSE = [n for n, info in OPTIMIZERS.items() if not info.only_supports_sparse_grads]
STEPPED = [n for n in DENSE if not OPTIMIZERS[n].step_requires_closure]


def forms_of(info):
    """The forms of an optimizer on CUDA; "default" leaves the choice to PyTorch."""
    forms = ["default"]
    if "foreach" in info.supported_impls:
        forms += ["forloop", "foreach"]
    # Some releases have fused kernels of an optimizer for the CPU only.
    if "fused" in info.supported_impls and "cuda" in info.supports_fused_on:
        forms.append("fused")
    return forms


def flags(form):
    return {
        "default": {},
        "forloop": {"foreach": False},
        "foreach": {"foreach": True},
        "fused": {"fused": True},
    }[form]


ALL_FORMS = [(n, form) for n in DENSE for form in forms_of(OPTIMIZERS[n])]


def inputs_of(info):
    """The keyword arguments that PyTorch tests on CUDA, including capturable."""
    return [(i.kwargs, i.desc) for i in info.optim_inputs_func(device="cuda")]


def refused(info, kwargs, form):
    """Whether PyTorch refuses the arguments in this form, on the CPU and the device.

    It refuses tensors for lr or betas in some forms. The form "default" becomes foreach
    only where that is allowed, so PyTorch never refuses it.
    """
    try:
        info.optim_cls([nn.Parameter(torch.ones(2, 2))], **kwargs, **flags(form))
    except ValueError as error:
        with pytest.raises(ValueError, match=re.escape(str(error))):
            param = nn.Parameter(torch.ones(2, 2, device=DEVICE))
            info.optim_cls([param], **kwargs, **flags(form))
        return True
    return False


def plain(info, kwargs):
    """The same arguments for a loop on the CPU, which does not allow capturable."""
    kwargs = {k: v for k, v in kwargs.items() if k != "capturable"}
    return {**kwargs, "foreach": False} if "foreach" in info.supported_impls else kwargs


class Network(nn.Module):
    """Has matrices, vectors, a scalar, a channels_last filter, an unused parameter."""

    def __init__(self, matrices_only=False, dense=False):
        super().__init__()
        bias = not matrices_only
        self.first = nn.Linear(4, 8, bias=bias)
        self.second = nn.Linear(8, 3, bias=bias)
        self.unused = nn.Parameter(torch.randn(2, 2))
        if not matrices_only:
            self.scale = nn.Parameter(torch.tensor(1.5))
            self.conv = nn.Conv2d(2, 3, 3)
            if not dense:
                self.conv.to(memory_format=torch.channels_last)

    def forward(self, x):
        y = self.second(self.first(x).tanh())
        if hasattr(self, "conv"):
            image = x.reshape(-1, 2, 3, 4)
            y = y * self.scale + self.conv(image).mean((0, 2, 3))
        return y


def network(name):
    seed(7)
    # LBFGS flattens gradients with view(), which raises for channels_last strides.
    return Network(matrices_only=name == "Muon", dense=name == "LBFGS")


def both(name):
    here = network(name)
    return here, copy.deepcopy(here).to(DEVICE)


def train(model, optimizer, steps, seed=5, schedules=(), set_to_none=True):
    """Trains on random batches of a seed. Returns the losses."""
    generator = torch.Generator().manual_seed(seed)
    parameter = next(model.parameters())
    device, dtype = parameter.device, parameter.dtype
    losses = []

    def closure(x):
        optimizer.zero_grad(set_to_none)
        loss = (model(x) - 0.3).pow(2).mean()
        loss.backward()
        return loss

    for _ in range(steps):
        x = torch.randn(6, 4, generator=generator).to(device, dtype)
        losses.append(optimizer.step(functools.partial(closure, x)))
        for schedule in schedules:
            if isinstance(schedule, torch.optim.lr_scheduler.ReduceLROnPlateau):
                schedule.step(losses[-1])
            else:
                schedule.step()
    return losses


def tolerance(name):
    """rtol, atol: the forms round in another order, and Muon multiplies in bfloat16."""
    if name == "Muon":
        return 2e-2, 1e-4
    if name == "LBFGS" or on_cuda():
        return 1e-3, 1e-4
    return 1e-4, 1e-6


def same_models(there, here, name):
    rtol, atol = tolerance(name)
    ours, cpu = dict(there.named_parameters()), dict(here.named_parameters())
    assert list(ours) == list(cpu)
    for key in cpu:
        with named(f"parameter {key}"):
            assert ours[key].device.type == "mycelya"
            same(ours[key], cpu[key], rtol, atol)
            assert (ours[key].grad is None) == (cpu[key].grad is None)


def same_states(there, here, name):
    """Asserts that two optimizers' state_dicts agree on any device."""
    rtol, atol = tolerance(name)
    ours, cpu = there.state_dict(), here.state_dict()
    assert list(ours["state"]) == list(cpu["state"])
    for index, expected in cpu["state"].items():
        got = ours["state"][index]
        assert list(got) == list(expected)
        for key, value in expected.items():
            with named(f"state {key} of parameter {index}"):
                if isinstance(value, torch.Tensor):
                    assert got[key].dtype == value.dtype
                    assert got[key].shape == value.shape
                    same(got[key].cpu(), value, rtol, atol)
                elif name != "LBFGS":
                    assert got[key] == value
    assert len(ours["param_groups"]) == len(cpu["param_groups"])
    for a, b in zip(ours["param_groups"], cpu["param_groups"], strict=True):
        assert list(a) == list(b)
        assert a["params"] == b["params"]
        assert float(a["lr"]) == float(b["lr"])


def check_places(name, param, state, kwargs, form):
    """Moments are on the parameter's device; `step` only if a kernel reads it there."""
    far = kwargs.get("capturable") or form == "fused" or name == "ASGD"
    for key, value in state.items():
        if key == "step" and isinstance(value, torch.Tensor):
            assert value.device == (param.device if far else torch.device("cpu"))
        elif isinstance(value, torch.Tensor) and value.ndim > 0:
            assert value.device == param.device
