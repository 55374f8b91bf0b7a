# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""PyTorch's own autograd runs above the device: gradients, hooks, checkpointing."""

import copy

import pytest
import torch
from helpers import DEVICE, compare, same, to_device
from torch import nn
from torch.utils.checkpoint import checkpoint


def twins(*layers):
    """The same network on the CPU and on the device."""
    here = nn.Sequential(*layers)
    return here, copy.deepcopy(here).to(DEVICE)


def grads(module):
    return [p.grad for p in module.parameters()]


@pytest.mark.critical
def test_a_network_learns_as_on_the_cpu():
    here, there = twins(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2))
    x, y = torch.randn(4, 5), torch.randn(4, 2)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (here, there)]
    for _ in range(5):
        losses = []
        for model, optimizer in zip((here, there), optimizers, strict=True):
            device = next(model.parameters()).device
            loss = nn.functional.mse_loss(model(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    same(list(there.parameters()), list(here.parameters()))


def test_gradients_accumulate_into_the_same_tensor():
    def fn(x):
        (x * 2).sum().backward()
        first = x.grad
        (x * 3).sum().backward()
        assert x.grad is first
        return x.grad

    compare(lambda x: fn(x).clone(), torch.randn(3, requires_grad=True))


def test_second_derivatives():
    def fn(x):
        (g,) = torch.autograd.grad((x.tanh() * x).sum(), x, create_graph=True)
        (h,) = torch.autograd.grad(g.pow(2).sum(), x)
        return g.detach(), h

    compare(fn, torch.randn(4, requires_grad=True))


def test_retained_graph_and_freed_graph():
    x = torch.randn(3, device=DEVICE, requires_grad=True)
    y = x.exp().sum()
    y.backward(retain_graph=True)
    y.backward()
    same(x.grad, 2 * x.detach().cpu().exp())
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        y.backward()


def test_hooks_see_tensors_of_the_device():
    seen = []
    x = torch.randn(3, device=DEVICE, requires_grad=True)
    y = x * 2
    y.register_hook(lambda g: seen.append(g.device.type) or g * 10)
    x.register_post_accumulate_grad_hook(lambda t: seen.append(t.grad.device.type))
    y.sum().backward()
    assert seen == ["mycelya", "mycelya"]
    assert x.grad.cpu().tolist() == [20.0] * 3


def test_custom_function():
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad * 3 * x**2

    compare(lambda x: Cube.apply(x * 1), torch.randn(4, requires_grad=True))


def test_in_place_writes_under_autograd():
    def fn(x):
        y = x * 1
        y[0] = 0.0
        y[1:].mul_(x[1:].detach())
        y.add_(x.sum())
        return y

    compare(fn, torch.randn(3, 2, requires_grad=True))


def test_no_grad_and_detach():
    x = torch.randn(3, device=DEVICE, requires_grad=True)
    with torch.no_grad():
        assert not (x * 2).requires_grad
    with torch.inference_mode():
        y = x * 2
    same(y, x.detach().cpu() * 2)
    assert not x.detach().requires_grad


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing(reentrant):
    here, there = twins(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4))
    x = torch.randn(2, 4)
    for model in (here, there):
        device = next(model.parameters()).device
        inputs = x.to(device).requires_grad_()
        out = checkpoint(
            model, inputs, use_reentrant=reentrant, preserve_rng_state=False
        )
        out.pow(2).sum().backward()
    same(grads(there), grads(here))


def test_clipping_gradients():
    here, there = twins(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    x = torch.randn(8, 4) * 100
    norms = []
    for model in (here, there):
        model(x.to(next(model.parameters()).device)).sum().backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5).cpu())
    same(norms[1], norms[0])
    same(grads(there), grads(here))


def test_tied_weights_survive_moving_a_module():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
            self.head.weight = self.embed.weight

    model = Tied()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # made before the move
    before = model.embed.weight
    model.to(DEVICE)
    assert model.head.weight is model.embed.weight is before
    old = before.detach().cpu().clone()
    model.head(model.embed(torch.tensor([1, 2], device=DEVICE))).sum().backward()
    optimizer.step()
    assert not torch.equal(model.embed.weight.detach().cpu(), old)
    assert torch.equal(model.head.weight.cpu(), model.embed.weight.cpu())


def test_backward_with_autograd_threads_on():
    x = torch.randn(4, device=DEVICE, requires_grad=True)
    with torch.autograd.set_multithreading_enabled(True):
        (x.sin() * 2).sum().backward()
    same(x.grad, 2 * x.detach().cpu().cos())


def test_gradient_check():
    x = to_device(torch.randn(3, 2, dtype=torch.float64, requires_grad=True))
    assert torch.autograd.gradcheck(lambda x: (x @ x.t()).softmax(-1), x, eps=1e-6)
