# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Every optimizer of PyTorch takes the same steps as on the CPU.

Each optimizer runs in every form that CUDA has: loop, foreach and fused. The tests also
cover parameter groups, schedules, sparse gradients and gradient clipping.
"""

import copy
import functools

import pytest
import torch
from helpers import DEVICE, named, same, seed
from optimizer_cases import (
    ALL_FORMS,
    DENSE,
    OPTIMIZERS,
    STEPPED,
    both,
    check_places,
    flags,
    forms_of,
    inputs_of,
    network,
    plain,
    refused,
    same_models,
    same_states,
    tolerance,
    train,
)
from torch import nn
from torch.optim import swa_utils
from torch.testing._internal.common_optimizers import optim_db

pytestmark = pytest.mark.filterwarnings("ignore")


def test_the_database_is_whole():
    assert len(OPTIMIZERS) == len(optim_db) == 15
    assert "Adam" in STEPPED and "LBFGS" not in STEPPED and "SparseAdam" not in DENSE


# ---- Steps ----


def check_steps(name, form, kwargs):
    """Losses, weights, gradients and states after three steps."""
    if name != "LBFGS":
        check_some_steps(name, form, kwargs, torch.float32, 3)
        return
    # A step of LBFGS has up to 20 iterations, and each one amplifies rounding errors.
    # With `maximize` the loss has no maximum, so an error of 1e-15 becomes 1e3.
    up = kwargs.get("maximize", False)
    few = {**kwargs, "max_iter": 1 if up else 3}
    check_some_steps(name, form, few, torch.float32, 1)
    many = {**kwargs, "max_iter": 2} if up else kwargs
    check_some_steps(name, form, many, torch.float64, 1)


def check_some_steps(name, form, kwargs, dtype, steps):
    info = OPTIMIZERS[name]
    here, there = both(name)
    here.to(dtype)
    there.to(dtype)
    expected = info.optim_cls(here.parameters(), **plain(info, kwargs))
    got = info.optim_cls(there.parameters(), **kwargs, **flags(form))
    losses = train(here, expected, steps)
    same(train(there, got, steps), losses, *tolerance(name))
    same_models(there, here, name)
    same_states(got, expected, name)
    for param, state in got.state.items():
        check_places(name, param, state, kwargs, form)


@pytest.mark.parametrize(("name", "form"), ALL_FORMS)
def test_steps(name, form):
    """Runs the first input of the database and the one with the most arguments."""
    info = OPTIMIZERS[name]
    given = [i for i in inputs_of(info) if not refused(info, i[0], form)]
    for kwargs, description in (given[0], max(given, key=lambda i: len(i[0]))):
        with named(f"{description}: {kwargs}"):
            check_steps(name, form, kwargs)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "form"), ALL_FORMS)
def test_steps_with_each_input(name, form):
    info = OPTIMIZERS[name]
    tried = 0
    for kwargs, description in inputs_of(info):
        if not refused(info, kwargs, form):
            tried += 1
            with named(f"{description}: {kwargs}"):
                check_steps(name, form, kwargs)
    assert tried >= 4


@pytest.mark.parametrize("name", STEPPED)
def test_steps_without_a_closure(name):
    info = OPTIMIZERS[name]
    here, there = both(name)
    for model in (here, there):
        device = next(model.parameters()).device
        optimizer = info.optim_cls(model.parameters())
        for i in range(3):
            (model(torch.full((6, 4), i / 3, device=device)) ** 2).mean().backward()
            assert optimizer.step() is None
            optimizer.zero_grad(set_to_none=False)
        kept = [p.grad for p in model.parameters() if p.grad is not None]
        assert kept and all(g.count_nonzero().item() == 0 for g in kept)
    same_models(there, here, name)


@pytest.mark.parametrize("name", [n for n in STEPPED if OPTIMIZERS[n].supports_complex])
def test_complex_parameters(name):
    info = OPTIMIZERS[name]
    for form in forms_of(info):
        if form == "fused":  # fused kernels support floating point only
            continue
        sides = []
        for device in ("cpu", DEVICE):
            seed(3)
            start = torch.randn(3, 4, dtype=torch.complex64)
            param = nn.Parameter(start.to(device))
            if device == "cpu":
                kwargs = plain(info, {})
            else:
                kwargs = flags(form)
            optimizer = info.optim_cls([param], **kwargs)
            for _ in range(3):
                optimizer.zero_grad()
                (param * param.conj() - 0.5).abs().sum().backward()
                optimizer.step()
            sides.append(param.detach())
        with named(form):
            same(sides[1], sides[0], *tolerance(name))


@pytest.mark.parametrize(("name", "form"), [c for c in ALL_FORMS if c[0] in STEPPED])
def test_parameters_of_several_dtypes_and_devices(name, form):
    """One optimizer has float32, float64 and bfloat16, on the CPU and the device."""
    info = OPTIMIZERS[name]
    dtypes = [torch.float32, torch.float64, torch.bfloat16, torch.float32]

    def run(devices, kwargs):
        seed(3)
        starts = [torch.randn(3, 4, dtype=torch.float64) for _ in dtypes]
        params = [
            nn.Parameter(s.to(dtype).to(device))
            for s, dtype, device in zip(starts, dtypes, devices, strict=True)
        ]
        optimizer = info.optim_cls(params, **kwargs)
        for _ in range(3):
            optimizer.zero_grad()
            for p in params:
                (p * p).sum().backward()
            optimizer.step()
        return [p.detach().cpu() for p in params]

    cpu = run(["cpu"] * 4, plain(info, {}))
    ours = run([DEVICE, DEVICE, DEVICE, "cpu"], flags(form))
    for a, b in zip(ours, cpu, strict=True):
        rtol, atol = (2e-2, 2e-2) if b.dtype == torch.bfloat16 else tolerance(name)
        same(a, b, rtol, atol)


def differentiable_step(info, device, steps, kwargs):
    """The result of the last step, and its derivatives.

    The derivatives are with respect to the initial weights and all gradients.
    """
    seed(3)
    start = torch.randn(4, 3, dtype=torch.float64).to(device).requires_grad_()
    grads = [
        torch.randn(4, 3, dtype=torch.float64).to(device).requires_grad_()
        for _ in range(steps)
    ]
    param = start.clone()
    # SGD would choose foreach, which has another derivative than the loop.
    kwargs = {**kwargs, "foreach": False, "differentiable": True}
    optimizer = info.optim_cls([param], **kwargs)
    for grad in grads:
        param.grad = grad
        optimizer.step()
    weight = torch.arange(12, dtype=torch.float64).reshape(4, 3).to(device)
    weighted = (param * weight).sum()
    found = torch.autograd.grad(weighted, [start, *grads], allow_unused=True)
    return [param.detach(), *found]


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize(
    "name", [n for n in STEPPED if "differentiable" in OPTIMIZERS[n].supported_impls]
)
def test_differentiable(name, steps):
    info = OPTIMIZERS[name]
    for kwargs, description in inputs_of(info):
        if kwargs.get("capturable"):
            continue
        with named(description):
            try:
                expected = differentiable_step(info, "cpu", steps, kwargs)
            except RuntimeError as error:
                # Some overwrite saved tensors; version counters detect it.
                assert "modified by an inplace operation" in str(error)
                with pytest.raises(RuntimeError, match="modified by an inplace"):
                    differentiable_step(info, DEVICE, steps, kwargs)
                continue
            got = differentiable_step(info, DEVICE, steps, kwargs)
            same(got, expected, 1e-6, 1e-9)


# ---- Groups, learning rates, schedules ----


GROUPED = [c for c in ALL_FORMS if OPTIMIZERS[c[0]].supports_param_groups]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "form"), GROUPED)
def test_param_groups(name, form):
    """Groups with their own arguments. One is added during training."""
    info = OPTIMIZERS[name]
    here, there = both(name)
    optimizers = []
    for model in (here, there):
        kwargs = plain(info, {}) if model is here else flags(form)
        groups = [{"params": [model.first.weight], "lr": 0.02}]
        if name != "Rprop":
            groups[0]["weight_decay"] = 0.1
        if name == "Muon":
            rest = [model.second.weight]
        else:
            rest = [*model.second.parameters(), model.scale, *model.conv.parameters()]
            groups.append({"params": [model.first.bias], "lr": 0.003})
        groups.append({"params": rest})
        optimizer = info.optim_cls(groups, lr=0.01, **kwargs)
        train(model, optimizer, 2)
        optimizer.add_param_group({"params": [model.unused], "lr": 0.5})
        model.unused.grad = torch.ones_like(model.unused)
        optimizer.step()
        train(model, optimizer, 2)
        optimizers.append(optimizer)
    same_models(there, here, name)
    same_states(optimizers[1], optimizers[0], name)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "form"), [c for c in GROUPED if c[1] != "default"])
def test_learning_rate_as_a_tensor(name, form):
    """lr is a CPU tensor, changed in place, or on the device where CUDA allows that."""
    info = OPTIMIZERS[name]
    kinds = [("cpu", {})]
    if form == "foreach":
        kinds = []
    if info.has_capturable_arg:
        kinds += [("cpu", {"capturable": True}), (DEVICE, {"capturable": True})]
    elif form == "fused":
        kinds.append((DEVICE, {}))
    for where, extra in kinds:
        with named(f"lr on {where}, {extra}"):
            here, there = both(name)
            cpu_lr, our_lr = torch.tensor(0.02), torch.tensor(0.02, device=where)
            expected = info.optim_cls(here.parameters(), lr=cpu_lr, **plain(info, {}))
            got = info.optim_cls(there.parameters(), lr=our_lr, **extra, **flags(form))
            for model, optimizer, lr in (
                (here, expected, cpu_lr),
                (there, got, our_lr),
            ):
                train(model, optimizer, 2)
                lr.mul_(0.5)
                train(model, optimizer, 2)
            assert got.param_groups[0]["lr"] is our_lr
            same_models(there, here, name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [n for n in DENSE if OPTIMIZERS[n].supports_param_groups]
)
def test_schedules(name):
    """The database's schedules. ReduceLROnPlateau gets a loss on the device."""
    info = OPTIMIZERS[name]
    for schedule in info.scheduler_inputs:
        here, there = both(name)
        optimizers = [info.optim_cls(m.parameters(), lr=0.02) for m in (here, there)]
        for model, optimizer in zip((here, there), optimizers, strict=True):
            train(
                model, optimizer, 12, schedules=[make(optimizer) for make in schedule]
            )
        same_models(there, here, name)
        rates = [o.param_groups[0]["lr"] for o in optimizers]
        assert rates[1] == pytest.approx(rates[0])


# ---- Sparse gradients ----


SPARSE = [n for n, i in OPTIMIZERS.items() if i.supports_sparse or n == "SparseAdam"]


@pytest.mark.parametrize("name", SPARSE)
def test_sparse_gradients(name):
    info = OPTIMIZERS[name]
    kwargs = dict(info.metadata_for_sparse[0])
    seed(3)
    here = nn.Embedding(10, 4, sparse=True)
    there = copy.deepcopy(here).to(DEVICE)
    for model in (here, there):
        device = model.weight.device
        optimizer = info.optim_cls(model.parameters(), **kwargs)
        for i in range(3):
            optimizer.zero_grad()
            model(torch.tensor([1, i, 7, 1], device=device)).pow(2).sum().backward()
            assert model.weight.grad.is_sparse
            optimizer.step()
    same(there.weight, here.weight, 1e-5, 1e-6)


# ---- Clipping, averaging, hooks ----


@pytest.mark.parametrize("foreach", [None, False, True])
@pytest.mark.parametrize("norm", [1.0, 2.0, float("inf")])
def test_clipping(norm, foreach):
    results = []
    for model in both("Adam"):
        device = next(model.parameters()).device
        model(torch.ones(6, 4, device=device)).pow(2).sum().mul(50).backward()
        clip = nn.utils.clip_grad_norm_
        total = clip(model.parameters(), 0.5, norm_type=norm, foreach=foreach)
        nn.utils.clip_grad_value_(model.parameters(), 0.05, foreach=foreach)
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        results.append([total, *grads])
    assert results[1][0].device.type == "mycelya"
    same(results[1], results[0], 1e-5, 1e-7)


@pytest.mark.parametrize("kind", ["swa", "ema"])
def test_averaged_model(kind):
    averages = []
    for model in both("SGD"):
        multi_avg_fn = {
            "swa": swa_utils.get_swa_multi_avg_fn,
            "ema": functools.partial(swa_utils.get_ema_multi_avg_fn, 0.9),
        }[kind]()
        average = swa_utils.AveragedModel(model, multi_avg_fn=multi_avg_fn)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            train(model, optimizer, 1, step)
            average.update_parameters(model)
        averages.append(average)
    same(list(averages[1].parameters()), list(averages[0].parameters()), 1e-5, 1e-6)
    assert averages[1].n_averaged.item() == averages[0].n_averaged.item() == 3


def test_hooks_of_a_step():
    model = network("Adam").to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters())
    seen = []
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    optimizer.register_state_dict_post_hook(lambda _, state: state.update(mine=1))
    train(model, optimizer, 2)
    assert seen == ["before", "after"] * 2
    assert optimizer.state_dict()["mine"] == 1
