# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Hooks of tensors, nodes, modules and saved tensors behave as on the CPU."""

import pytest
import torch
from agreement import agree, grads, network, raised, some
from torch import nn

# ---- Hooks ----


def test_tensor_hooks_run_in_order_and_may_replace_the_gradient():
    def fn(d):
        log = []
        x = some(d, 3, grad=True)
        y = x * 2
        y.register_hook(lambda g: log.append("first") or g * 3)
        y.register_hook(lambda g: log.append("second") or g + 1)
        gone = y.register_hook(lambda g: log.append("removed"))
        gone.remove()
        x.register_hook(lambda g: log.append(("leaf", g.tolist())))
        y.retain_grad()
        y.sum().backward()
        return log, x.grad, y.grad

    agree(fn)


def test_hooks_of_leaves_after_accumulation():
    """An optimizer in the backward pass updates a parameter and frees its gradient."""

    def fn(d):
        model = network(d)
        log = []

        def hook(p):
            log.append(tuple(p.shape))
            with torch.no_grad():
                p.sub_(p.grad, alpha=0.1)
            p.grad = None

        for p in model.parameters():
            p.register_post_accumulate_grad_hook(hook)
        for _ in range(2):
            model(some(d, 5, 3)).pow(2).sum().backward()
        return log, [p.detach() for p in model.parameters()], grads(model)

    agree(fn)


def test_hooks_of_several_tensors_and_of_nodes():
    def fn(d):
        log = []
        x, y = some(d, 3, grad=True), some(d, 3, grad=True)
        all_ = torch.autograd.graph.register_multi_grad_hook(
            (x, y), lambda gs: log.append([g is not None for g in gs])
        )
        any_ = torch.autograd.graph.register_multi_grad_hook(
            (x, y), lambda g: log.append("any"), mode="any"
        )
        z = (x * y).sum()
        node = z.grad_fn.next_functions[0][0]
        node.register_prehook(lambda gs: (gs[0] * 2,))
        node.register_hook(lambda ins, outs: (ins[0] + 1, ins[1]))
        z.backward()
        all_.remove()
        any_.remove()
        return log, node.name(), x.grad, y.grad

    agree(fn)


def test_module_hooks():
    def fn(d):
        log = []
        model = network(d)
        first, last = model[0], model[2]
        first.register_forward_pre_hook(lambda m, args: (args[0] * 2,))
        first.register_forward_hook(lambda m, args, out: out + 1)
        last.register_full_backward_pre_hook(lambda m, gs: (gs[0] * 3,))
        last.register_full_backward_hook(
            lambda m, ins, outs: log.append(tuple(ins[0].shape)) or (ins[0] * 5,)
        )
        handle = nn.modules.module.register_module_full_backward_hook(
            lambda m, ins, outs: log.append(type(m).__name__)
        )
        x = some(d, 4, 3, grad=True)
        out = model(x)
        out.sum().backward()
        handle.remove()
        return log, out, x.grad, grads(model)

    agree(fn)


def test_an_error_in_a_hook_ends_the_backward_and_the_device_stays_usable():
    def fn(d):
        def hook(g):
            raise KeyError("from the hook")

        x = some(d, 3, grad=True)
        y = x * 2
        y.register_hook(hook)
        error = raised(y.sum().backward)
        (x * 3).sum().backward()
        return error, x.grad

    agree(fn)


def test_a_backward_within_a_backward():
    def fn(d):
        x = some(d, 3, grad=True)
        inner = []

        def hook(g):
            with torch.enable_grad():
                z = g.detach().requires_grad_()
                (z**3).sum().backward()
            inner.append(z.grad)
            return z.grad

        y = x.exp()
        y.register_hook(hook)
        (y * y).sum().backward()
        return inner, x.grad

    agree(fn)


# ---- Saved tensors ----


def test_hooks_of_saved_tensors():
    def fn(d):
        log = []

        def pack(t):
            log.append(("pack", tuple(t.shape)))
            return t.cpu(), t.device

        def unpack(kept):
            log.append("unpack")
            return kept[0].to(kept[1])

        x, w = some(d, 3, grad=True), some(d, 3, grad=True)
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            y = (x * w).exp().sum()
        y.backward()
        with torch.autograd.graph.disable_saved_tensors_hooks("not now"):
            hooks = torch.autograd.graph.saved_tensors_hooks(pack, unpack)
            error = raised(hooks.__enter__)
        product = x * w
        raw = product.grad_fn._raw_saved_self
        raw.register_hooks(lambda t: t * 1, lambda t: t)
        return log, x.grad, w.grad, error

    agree(fn)


@pytest.mark.parametrize("pinned", [False, True])
def test_saved_tensors_on_the_cpu(pinned):
    def fn(d):
        model = network(d)
        x = some(d, 5, 3, grad=True)
        with torch.autograd.graph.save_on_cpu(pinned, device_type="mycelya"):
            out = model(x).pow(2).sum()
        saved = out.grad_fn.next_functions[0][0]._saved_self
        out.backward()
        return x.grad, grads(model), saved.device == x.device

    agree(fn)
