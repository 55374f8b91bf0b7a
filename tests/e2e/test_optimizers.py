# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Every optimizer of PyTorch's optimizer database, in each form that CUDA has.

The reference is the same optimizer on the CPU, as a plain loop over its parameters. A
long file, because every form of a step goes through the same few functions.
"""

import copy
import functools
import io
import pickle
import re

import pytest
import torch
from helpers import DEVICE, named, on_cuda, same
from torch import nn
from torch.optim import swa_utils
from torch.optim.optimizer import (
    _default_to_fused_or_foreach,
    _device_dtype_check_for_fused,
    _get_capturable_supported_devices,
)
from torch.testing._internal.common_optimizers import OptimizerErrorEnum, optim_db
from torch.utils._foreach_utils import (
    _get_foreach_kernels_supported_devices,
    _get_fused_kernels_supported_devices,
)

pytestmark = pytest.mark.filterwarnings("ignore")

OPTIMIZERS = {info.name: info for info in optim_db}
DENSE = [n for n, info in OPTIMIZERS.items() if not info.only_supports_sparse_grads]
STEPPED = [n for n in DENSE if not OPTIMIZERS[n].step_requires_closure]


def forms_of(info):
    """The forms of an optimizer on CUDA; "default" leaves the choice to PyTorch."""
    forms = ["default"]
    if "foreach" in info.supported_impls:
        forms += ["forloop", "foreach"]
    if "fused" in info.supported_impls:
        assert "cuda" in info.supports_fused_on
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
    """The keyword arguments that PyTorch tries on CUDA, capturable ones included."""
    return [(i.kwargs, i.desc) for i in info.optim_inputs_func(device="cuda")]


def refused(info, kwargs, form):
    """Whether PyTorch refuses a tensor for lr or betas in this form, here as there.

    As "default" it becomes foreach where that is allowed, so it is never refused.
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
    """The same arguments for a loop on the CPU, which cannot be captured."""
    kwargs = {k: v for k, v in kwargs.items() if k != "capturable"}
    return {**kwargs, "foreach": False} if "foreach" in info.supported_impls else kwargs


class Network(nn.Module):
    """Matrices, vectors, a number, a filter in channels_last, one without a grad."""

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
    torch.manual_seed(7)
    # LBFGS takes views of gradients, which it refuses for other strides.
    return Network(matrices_only=name == "Muon", dense=name == "LBFGS")


def both(name):
    here = network(name)
    return here, copy.deepcopy(here).to(DEVICE)


def train(model, optimizer, steps, seed=5, schedules=(), set_to_none=True):
    """Steps on batches of a seed; returns the losses."""
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
    """The forms round in another order; Muon multiplies in bfloat16."""
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
    """Asserts two optimizers' state_dicts to agree, whatever device a tensor is on."""
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


def test_the_database_is_whole():
    assert len(OPTIMIZERS) == len(optim_db) == 15
    assert "Adam" in STEPPED and "LBFGS" not in STEPPED and "SparseAdam" not in DENSE


# ---- Steps ----


def check_steps(name, form, kwargs):
    """Losses, weights, gradients and states after three steps."""
    if name != "LBFGS":
        check_some_steps(name, form, kwargs, torch.float32, 3)
        return
    # Each step is twenty, and each of those makes what was rounded many times larger.
    # There is no maximum: on the way there 1e-15 becomes 1e3.
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
    """The default arguments, and those of the input with the most arguments."""
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


def check_places(name, param, state, kwargs, form):
    """A moment is where its parameter is; `step` only if a kernel reads it there."""
    far = kwargs.get("capturable") or form == "fused" or name == "ASGD"
    for key, value in state.items():
        if key == "step" and isinstance(value, torch.Tensor):
            assert value.device == (param.device if far else torch.device("cpu"))
        elif isinstance(value, torch.Tensor) and value.ndim > 0:
            assert value.device == param.device


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
        if form == "fused":  # PyTorch: floating point only
            continue
        sides = []
        for device in ("cpu", DEVICE):
            torch.manual_seed(3)
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
    """One optimizer over float32, float64 and bfloat16, here and there."""
    info = OPTIMIZERS[name]
    dtypes = [torch.float32, torch.float64, torch.bfloat16, torch.float32]

    def run(devices, kwargs):
        torch.manual_seed(3)
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
    """The derivative of the last step's result by the first weights and all grads."""
    torch.manual_seed(3)
    start = torch.randn(4, 3, dtype=torch.float64).to(device).requires_grad_()
    grads = [
        torch.randn(4, 3, dtype=torch.float64).to(device).requires_grad_()
        for _ in range(steps)
    ]
    param = start.clone()
    # SGD would choose foreach even so, whose derivative is not that of the loop.
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
                # Some write what autograd has saved: version counters see it here too.
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
    """Groups with their own arguments, one of them added while training."""
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
    """A number of the CPU, changed in place; on the device too where CUDA has that."""
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
    """Those of the database, ReduceLROnPlateau fed with a loss on the device."""
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


# ---- State ----


def fresh(info, model, kwargs):
    if info.optim_cls is torch.optim.LBFGS:  # which leaps away at its default rate
        kwargs = {"lr": 0.1, "max_iter": 4, **kwargs}
    return info.optim_cls(model.parameters(), **kwargs)


def saved(state, **kwargs):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, **kwargs)


ROUTES = {
    "as it is": lambda state: state,
    "deep copy": copy.deepcopy,
    "saved": saved,
    "saved, to the CPU": lambda state: saved(state, map_location="cpu"),
    "pickled": lambda state: pickle.loads(pickle.dumps(state)),
}


@pytest.mark.parametrize(("name", "form"), ALL_FORMS)
def test_state_dict_continues(name, form):
    """A new optimizer with the old one's state goes on as the old one does."""
    info, kwargs = OPTIMIZERS[name], flags(form)
    # LBFGS makes much of rounding, and two graphs may round one number differently.
    dtype = torch.float64 if name == "LBFGS" else torch.float32
    model = network(name).to(DEVICE, dtype)
    optimizer = fresh(info, model, kwargs)
    train(model, optimizer, 2)
    halfway = copy.deepcopy(model)
    states = {name: route(optimizer.state_dict()) for name, route in ROUTES.items()}
    for route, state in states.items():
        with named(route):
            other = copy.deepcopy(halfway)
            restored = fresh(info, other, kwargs)
            restored.load_state_dict(copy.deepcopy(state))
            if "to the CPU" not in route or name != "ASGD":
                for param, entry in restored.state.items():
                    check_places(name, param, entry, {}, form)
            train(other, restored, 2, seed=6)
            states[route] = other
    train(model, optimizer, 2, seed=6)
    for route, other in states.items():
        with named(route):
            rtol, atol = tolerance(name) if name == "Muon" else (1e-6, 1e-7)
            ours, theirs = list(other.parameters()), list(model.parameters())
            same([p.cpu() for p in ours], [p.cpu() for p in theirs], rtol, atol)


@pytest.mark.parametrize(
    "capturable", [False, pytest.param(True, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(("name", "form"), ALL_FORMS)
def test_state_dict_crosses_devices(name, form, capturable):
    """CPU to device and device to CPU, then as if it had never moved."""
    info = OPTIMIZERS[name]
    if capturable and not info.has_capturable_arg:
        return
    extra = {"capturable": True} if capturable else {}
    here, there = both(name)
    expected = fresh(info, here, plain(info, {}))
    train(here, expected, 2)
    moved = copy.deepcopy(here).to(DEVICE)
    got = fresh(info, moved, {**extra, **flags(form)})
    state = copy.deepcopy(expected.state_dict())
    for group in state["param_groups"]:  # the state's own flags would win
        group.update({**extra, **flags(form)})
    got.load_state_dict(state)
    for param, entry in got.state.items():
        if name != "ASGD":  # whose count stays where it is loaded from, if not captured
            check_places(name, param, entry, extra, form)
    train(here, expected, 2, seed=6)
    train(moved, got, 2, seed=6)
    same_models(moved, here, name)
    same_states(got, expected, name)

    back = copy.deepcopy(moved).to("cpu")
    again = fresh(info, back, plain(info, {}))
    state = got.state_dict()
    for group in state["param_groups"]:
        group.update(plain(info, {}))
        for flag in ("fused", "capturable"):
            if flag in group:
                group[flag] = False
    again.load_state_dict(state)
    for entry in again.state.values():
        if not capturable and form != "fused":
            tensors = [v for v in entry.values() if isinstance(v, torch.Tensor)]
            assert all(t.device.type == "cpu" for t in tensors)
    if capturable or form == "fused":
        # PyTorch leaves `step` where it was, on CUDA too.
        for entry in again.state.values():
            for key, value in entry.items():
                if isinstance(value, torch.Tensor):
                    entry[key] = value.cpu()
    train(here, expected, 2, seed=8)
    train(back, again, 2, seed=8)
    same(list(back.parameters()), list(here.parameters()), *tolerance(name))


# PyTorch's copies of these two fail in step(), on CUDA too: it does not copy LBFGS's
# list of parameters, and asks a copied Adafactor for a flag that it never had.
COPIED = [n for n in DENSE if n not in ("LBFGS", "Adafactor")]


@pytest.mark.parametrize("name", COPIED)
def test_copies_of_an_optimizer(name):
    """A deep copy, and one through pickle, keep their own parameters and go on."""
    info = OPTIMIZERS[name]
    model = network(name).to(DEVICE)
    optimizer = fresh(info, model, {})
    train(model, optimizer, 2)
    assert repr(optimizer) == repr(fresh(info, network(name), {}))
    pairs = [
        copy.deepcopy((model, optimizer)),
        pickle.loads(pickle.dumps((model, optimizer))),
    ]
    train(model, optimizer, 2, seed=6)
    for other, copied in pairs:
        assert copied.param_groups[0]["params"][0] is next(other.parameters())
        train(other, copied, 2, seed=6)
        ours, theirs = list(other.parameters()), list(model.parameters())
        same([p.cpu() for p in ours], [p.cpu() for p in theirs])


# ---- What PyTorch asks of a device ----


def test_lists_of_devices():
    """PyTorch's lists name this device, so that it gets what CUDA gets."""
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


@pytest.mark.parametrize("name", [n for n in STEPPED if n not in ("Adafactor", "Muon")])
def test_the_default_is_foreach(name, counters):
    """As on CUDA: lists of parameters, not one parameter after the other."""
    info = OPTIMIZERS[name]

    def recorded(kwargs):
        params = [nn.Parameter(torch.ones(3, device=DEVICE)) for _ in range(20)]
        optimizer = info.optim_cls(params, **kwargs)
        for _ in range(2):
            for p in params:
                p.grad = torch.ones_like(p)
            torch.mycelya.synchronize()
            before = counters()["ops_recorded"]
            optimizer.step()
        torch.mycelya.synchronize()
        return counters()["ops_recorded"] - before

    default, loop = recorded({}), recorded({"foreach": False})
    assert default == recorded({"foreach": True}) != loop
    if name not in ("ASGD", "Rprop"):  # these have no list op for all that they do
        assert default * 2 < loop


@pytest.mark.parametrize(
    "name", [n for n in STEPPED if "fused" in OPTIMIZERS[n].supported_impls]
)
def test_fused_is_one_op(name, counters):
    info = OPTIMIZERS[name]
    params = [nn.Parameter(torch.ones(3, device=DEVICE)) for _ in range(20)]
    optimizer = info.optim_cls(params, fused=True, lr=0.1)
    for _ in range(2):
        for p in params:
            p.grad = torch.ones_like(p)
        torch.mycelya.synchronize()
        before = counters()["ops_recorded"]
        optimizer.step()
    torch.mycelya.synchronize()
    assert counters()["ops_recorded"] - before <= 2  # and one that counts steps


@pytest.mark.parametrize(
    "name", [n for n in STEPPED if "fused" in OPTIMIZERS[n].supported_impls]
)
@pytest.mark.parametrize("found", [0.0, 1.0])
def test_fused_with_a_gradient_scale(name, found):
    """What torch.amp.GradScaler gives a fused optimizer: a scale, and a veto."""
    info = OPTIMIZERS[name]
    sides = []
    for device in ("cpu", DEVICE):
        torch.manual_seed(3)
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
    """The count of steps is on the device, and no step reads it back."""
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


# ---- Sparse gradients ----


SPARSE = [n for n, i in OPTIMIZERS.items() if i.supports_sparse or n == "SparseAdam"]


@pytest.mark.parametrize("name", SPARSE)
def test_sparse_gradients(name):
    info = OPTIMIZERS[name]
    kwargs = dict(info.metadata_for_sparse[0])
    torch.manual_seed(3)
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


# ---- Beside the step ----


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
        for seed in range(3):
            train(model, optimizer, 1, seed)
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


# ---- Errors ----


def error_cases():
    for name, info in OPTIMIZERS.items():
        for i in range(len(error_inputs(info))):
            yield name, i


def error_inputs(info):
    torch.manual_seed(3)
    return info.optim_error_inputs_func(device="cpu", dtype=torch.float32)


def there(params):
    """The same nest of parameters on the device; equal ones stay equal."""
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
    params = there(given.params)
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
def test_capturable_wants_its_state_on_the_device(name, foreach):
    """As on CUDA: a count of steps on the CPU is refused."""
    param = nn.Parameter(torch.ones(3, device=DEVICE))
    make = OPTIMIZERS[name].optim_cls
    optimizer = make([param], capturable=True, foreach=foreach)
    param.grad = torch.ones_like(param)
    optimizer.step()
    optimizer.state[param]["step"] = optimizer.state[param]["step"].cpu()
    with pytest.raises((AssertionError, RuntimeError), match="capturable=True"):
        optimizer.step()
