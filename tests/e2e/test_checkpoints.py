# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""torch.utils.checkpoint: the backward pass computes the forward pass again."""

from functools import partial

import pytest
import torch
from agreement import agree, grads, on_cpu, raised, some
from helpers import DEVICE, on_cuda, same
from torch import nn
from torch.nn.functional import dropout
from torch.utils import checkpoint as ck


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("preserve", [False, True])
def test_checkpoints_give_the_gradients_of_a_run_without(reentrant, preserve):
    """With preserve, the recomputation must draw the dropout mask of the first run."""

    def fn(d):
        a, b = nn.Linear(4, 8).to(d), nn.Linear(8, 4).to(d)
        x = some(d, 3, 4, grad=True)

        def block(x):
            return x + b(dropout(a(x).relu(), 0.5 if preserve else 0.0))

        def run(forward):
            for t in (x, *a.parameters(), *b.parameters()):
                t.grad = None
            torch.manual_seed(7)
            out = forward(x)
            drawn = torch.rand(2, device=d)
            out.pow(2).sum().backward()
            return out, drawn, x.grad, grads(a), grads(b)

        plain = run(block)
        saved = run(
            lambda x: ck.checkpoint(
                block, x, use_reentrant=reentrant, preserve_rng_state=preserve
            )
        )
        same(saved, on_cpu(plain))
        # CUDA draws other random numbers.
        return None if preserve and on_cuda() else saved

    agree(fn)


def test_a_checkpoint_leaves_the_generator_as_a_run_without_does():
    for device in (torch.device("cpu"), DEVICE):
        x = some(device, 4, grad=True)
        torch.manual_seed(3)
        out = ck.checkpoint(dropout, x, 0.5, use_reentrant=False)
        out.sum().backward()
        after = torch.rand(3, device=device)
        torch.manual_seed(3)
        dropout(x, 0.5)
        same(after, torch.rand(3, device=device).cpu())


def test_checkpoints_in_a_row_nested_and_with_keywords():
    def fn(d):
        layers = [nn.Sequential(nn.Linear(4, 4), nn.Tanh()).to(d) for _ in range(4)]
        model = nn.Sequential(*layers)
        x = some(d, 2, 4, grad=True)
        out = ck.checkpoint_sequential(model, 2, x, use_reentrant=False)
        out.pow(2).sum().backward()
        first = [x.grad.clone(), *(g.clone() for g in grads(model))]
        x.grad = None
        model.zero_grad()

        def inner(x, *, times):
            return layers[1](x) * times

        def outer(x):
            y = ck.checkpoint(inner, layers[0](x), times=3, use_reentrant=False)
            return layers[2](y)

        ck.checkpoint(outer, x, use_reentrant=False).sum().backward()
        return first, x.grad, [g for g in grads(model) if g is not None]

    agree(fn)


def test_checkpoints_that_save_some_results():
    def fn(d):
        calls = []

        def policy(ctx, op, *args, **kwargs):
            calls.append(str(op))
            keep = op == torch.ops.aten.mm.default
            policies = ck.CheckpointPolicy
            return policies.MUST_SAVE if keep else policies.PREFER_RECOMPUTE

        w, x = some(d, 4, 4, grad=True), some(d, 2, 4, grad=True)
        out = ck.checkpoint(
            lambda x: (x @ w).sin() @ w,
            x,
            use_reentrant=False,
            context_fn=partial(ck.create_selective_checkpoint_contexts, policy),
        )
        out.sum().backward()
        return calls, out, x.grad, w.grad

    agree(fn)


def test_a_checkpoint_that_recomputes_another_shape_raises():
    def fn(d):
        runs = []

        def fickle(x):
            runs.append(1)
            return x.sin().cos() if len(runs) == 1 else x.sin()[:1].cos()

        x = some(d, 3, grad=True)
        out = ck.checkpoint(fickle, x, use_reentrant=False)
        return raised(out.sum().backward)[0]

    assert agree(fn) == "CheckpointError"
