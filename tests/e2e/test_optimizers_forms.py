# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""PyTorch chooses the same forms of an optimizer as on CUDA; errors agree too."""

import re

import pytest
import torch
from helpers import DEVICE, same, seed
from optimizer_cases import OPTIMIZERS, STEPPED, network
from torch import nn
from torch.optim.optimizer import (
    _default_to_fused_or_foreach,
    _device_dtype_check_for_fused,
    _get_capturable_supported_devices,
)
from torch.testing._internal.common_optimizers import OptimizerErrorEnum
from torch.utils._foreach_utils import (
    _get_foreach_kernels_supported_devices,
    _get_fused_kernels_supported_devices,
)

pytestmark = pytest.mark.filterwarnings("ignore")


def test_lists_of_devices():
    """PyTorch's lists of devices contain this device, as they contain CUDA."""
    for devices in (
        _get_foreach_kernels_supported_devices(),
        _get_fused_kernels_supported_devices(),
        _get_capturable_supported_devices(),
        _get_capturable_supported_devices(supports_xla=False),
    ):
        assert {"cuda", "mycelya"} <= set(devices)
    params = [torch.zeros(2, device=DEVICE)]
    assert _default_to_fused_or_foreach(params, False) == (False, True)
    assert _default_to_fused_or_foreach(params, False, use_fused=True) == (True, False)
    assert _default_to_fused_or_foreach(params, True) == (False, False)
    _device_dtype_check_for_fused(params[0])
    with pytest.raises(RuntimeError, match="`fused=True` requires"):
        _device_dtype_check_for_fused(params[0].long())


def ops_of_a_step(info, counters, **options) -> int:
    """How many ops the second step over 20 parameters records."""
    params = [nn.Parameter(torch.ones(3, device=DEVICE)) for _ in range(20)]
    optimizer = info.optim_cls(params, **options)
    for _ in range(2):
        for p in params:
            p.grad = torch.ones_like(p)
        torch.mycelya.synchronize()
        before = counters()["ops_recorded"]
        optimizer.step()
    torch.mycelya.synchronize()
    return counters()["ops_recorded"] - before


@pytest.mark.parametrize("name", [n for n in STEPPED if n not in ("Adafactor", "Muon")])
def test_the_default_is_foreach(name, counters):
    """As on CUDA, an operator takes lists of parameters, not one parameter."""
    info = OPTIMIZERS[name]
    default = ops_of_a_step(info, counters)
    loop = ops_of_a_step(info, counters, foreach=False)
    assert default == ops_of_a_step(info, counters, foreach=True) != loop
    if name not in ("ASGD", "Rprop"):  # some of their work has no list operators
        assert default * 2 < loop


@pytest.mark.parametrize(
    "name", [n for n in STEPPED if "fused" in OPTIMIZERS[n].supported_impls]
)
def test_fused_is_one_op(name, counters):
    ops = ops_of_a_step(OPTIMIZERS[name], counters, fused=True, lr=0.1)
    assert ops <= 2  # the other one counts steps


@pytest.mark.parametrize(
    "name", [n for n in STEPPED if "fused" in OPTIMIZERS[n].supported_impls]
)
@pytest.mark.parametrize("found", [0.0, 1.0])
def test_fused_with_a_gradient_scale(name, found):
    """torch.amp.GradScaler passes a scale and found_inf, which skips the step."""
    info = OPTIMIZERS[name]
    sides = []
    for device in ("cpu", DEVICE):
        seed(3)
        params = [nn.Parameter(torch.randn(3, 4).to(device)) for _ in range(2)]
        optimizer = info.optim_cls(params, lr=0.1, fused=True)
        optimizer.grad_scale = torch.tensor(4.0, device=device)
        optimizer.found_inf = torch.tensor(found, device=device)
        before = [p.detach().clone() for p in params]
        for p in params:
            p.grad = torch.randn(3, 4).to(device)
        optimizer.step()
        if found:
            unchanged = zip(before, params, strict=True)
            assert all(torch.equal(a.cpu(), b.detach().cpu()) for a, b in unchanged)
        sides.append([*params, *[p.grad for p in params]])
    same(sides[1], sides[0], 1e-5, 1e-6)


@pytest.mark.parametrize(
    "name", [n for n in STEPPED if OPTIMIZERS[n].has_capturable_arg]
)
def test_capturable_waits_for_nothing(name, counters):
    """The step count is on the device, and no step reads it back."""
    info = OPTIMIZERS[name]
    model = network(name).to(DEVICE)
    optimizer = info.optim_cls(model.parameters(), capturable=True)
    x = torch.ones(6, 4, device=DEVICE)

    def step():
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()

    for _ in range(3):
        step()
    torch.mycelya.synchronize()
    before = counters()["round_trips"]
    for _ in range(10):
        step()
    assert counters()["round_trips"] == before
    steps = optimizer.state[model.first.weight]["step"]
    assert steps.device.type == "mycelya" and steps.item() == 13


# ---- Errors ----


def error_cases():
    for name, info in OPTIMIZERS.items():
        for i in range(len(error_inputs(info))):
            yield name, i


def error_inputs(info):
    seed(3)
    return info.optim_error_inputs_func(device="cpu", dtype=torch.float32)


def to_device(params):
    """Copies a nest of parameters. Two uses of one parameter share one copy."""
    memo = {}

    def one(value):
        if isinstance(value, torch.Tensor):
            if id(value) not in memo:
                moved = value.detach().to(DEVICE)
                is_param = isinstance(value, nn.Parameter)
                memo[id(value)] = nn.Parameter(moved) if is_param else moved
                if value.grad is not None:
                    memo[id(value)].grad = value.grad.to(DEVICE)
            return memo[id(value)]
        if isinstance(value, dict):
            return {k: one(v) for k, v in value.items()}
        if isinstance(value, (list, tuple, set)):
            return type(value)(one(v) for v in value)
        return value

    return one(params)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("name", "i"), list(error_cases()))
def test_error_inputs(name, i):
    info = OPTIMIZERS[name]
    case = error_inputs(info)[i]
    given = case.optimizer_error_input
    params = to_device(given.params)
    if params is None:
        params = [nn.Parameter(torch.ones(2, 3, device=DEVICE))]
    if issubclass(case.error_type, Warning):
        with pytest.warns(case.error_type, match=case.error_regex):
            info.optim_cls(params, **given.kwargs)
        return
    if case.error_on == OptimizerErrorEnum.CONSTRUCTION_ERROR:
        with pytest.raises(case.error_type) as caught:
            info.optim_cls(params, **given.kwargs)
    else:
        optimizer = info.optim_cls(params, **given.kwargs)
        with pytest.raises(case.error_type) as caught:
            optimizer.step()
    assert type(caught.value) is case.error_type
    assert re.search(case.error_regex, str(caught.value))


@pytest.mark.parametrize(
    "name", [n for n in STEPPED if "fused" in OPTIMIZERS[n].supported_impls]
)
def test_errors_that_pytorch_tests_on_cuda(name):
    make, params = OPTIMIZERS[name].optim_cls, [torch.empty((), device=DEVICE)]
    with pytest.raises(RuntimeError, match="`fused` and `foreach` cannot be `True`"):
        make(params, foreach=True, fused=True)
    with pytest.raises(RuntimeError, match="`fused` does not support `differentiable`"):
        make(params, fused=True, differentiable=True)
    whole = [torch.zeros(2, dtype=torch.complex64, device=DEVICE, requires_grad=True)]
    with pytest.raises(RuntimeError, match="`fused=True` requires all the params"):
        optimizer = make(whole, fused=True)
        whole[0].grad = torch.ones_like(whole[0])
        optimizer.step()


@pytest.mark.parametrize(
    "name", [n for n in STEPPED if OPTIMIZERS[n].has_capturable_arg]
)
@pytest.mark.parametrize("foreach", [False, True])
def test_capturable_requires_its_state_on_the_device(name, foreach):
    """As on CUDA, a step count on the CPU is refused."""
    param = nn.Parameter(torch.ones(3, device=DEVICE))
    make = OPTIMIZERS[name].optim_cls
    optimizer = make([param], capturable=True, foreach=foreach)
    param.grad = torch.ones_like(param)
    optimizer.step()
    optimizer.state[param]["step"] = optimizer.state[param]["step"].cpu()
    with pytest.raises((AssertionError, RuntimeError), match="capturable=True"):
        optimizer.step()
