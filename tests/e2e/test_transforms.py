# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Transforms of functions: torch.func, forward AD and torch.autograd.functional."""

import copy

import pytest
import torch
import torch.autograd.forward_ad as fwAD
from agreement import agree, network, raised, some
from torch import func, nn
from torch.autograd.functional import hessian, hvp, jacobian, jvp, vhp, vjp
from torch.nn.functional import dropout

# ---- torch.func ----


def loss(w, x):
    return ((x @ w).tanh() ** 2).sum()


def test_gradients_of_functions():
    def fn(d):
        w, x = some(d, 3, 2), some(d, 4, 3)
        aux = func.grad(lambda w: (loss(w, x), w * 2), has_aux=True)(w)
        out, pull = func.vjp(lambda w: x @ w, w)
        return (
            func.grad(loss)(w, x),
            func.grad(loss, argnums=(0, 1))(w, x),
            func.grad_and_value(loss)(w, x),
            aux,
            out,
            pull(some(d, 4, 2)),
            func.jvp(lambda w: loss(w, x), (w,), (some(d, 3, 2),)),
            func.grad(lambda w: func.grad(loss)(w, x).pow(2).sum())(w),
        )

    agree(fn)


@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node")
def test_jacobians_and_hessians():
    def fn(d):
        x = some(d, 4)
        f = lambda x: x.sin() * x.sum()  # noqa: E731
        g = lambda x: (x**3).sum() * x[0]  # noqa: E731
        linear, tangent = func.linearize(f, x)
        return (
            func.jacrev(f)(x),
            func.jacfwd(f)(x),
            func.jacrev(f, chunk_size=2)(x),
            func.jacfwd(f, randomness="same")(x),
            func.hessian(g)(x),
            func.jacrev(func.jacfwd(g))(x),
            func.jacfwd(func.jacrev(g))(x),
            linear,
            tangent(some(d, 4)),
            func.vmap(func.hessian(g))(some(d, 2, 4)),
        )

    agree(fn)


VMAPS = {
    "mm": (torch.mm, (0, 0), ((3, 2, 4), (3, 4, 2))),
    "shared": (torch.mm, (0, None), ((3, 2, 4), (4, 2))),
    "inner dim": (torch.mv, (1, None), ((2, 3, 4), (4,))),
    "conv": (nn.functional.conv2d, (0, None), ((2, 1, 2, 5, 5), (3, 2, 3, 3))),
    "conv weights": (nn.functional.conv2d, (None, 0), ((1, 2, 5, 5), (2, 3, 2, 3, 3))),
    "softmax": (lambda x: x.softmax(0), (0,), ((3, 4),)),
    "select": (lambda x: x[1:].t().reshape(-1), (0,), ((3, 4, 2),)),
    "index": (lambda x: x[torch.tensor([2, 0], device=x.device)], (1,), ((4, 3),)),
    "written": (lambda x: (x * 1).mul_(2).add_(x), (0,), ((3, 4),)),
    "view written": (lambda x: (y := x * 1)[0].zero_() + y.sum(), (0,), ((3, 4),)),
    "layer norm": (lambda x: nn.functional.layer_norm(x, (4,)), (0,), ((3, 2, 4),)),
    "sort": (lambda x: x.sort()[0], (0,), ((3, 4),)),
    "where": (lambda x, y: torch.where(x > 0, x, y), (0, 0), ((3, 4), (3, 4))),
    "linalg": (lambda x: torch.linalg.solve(x @ x.T + 4, x), (0,), ((3, 3, 3),)),
    "stack": (lambda x, y: torch.stack([x, y]).cumsum(0), (0, 0), ((3, 2), (3, 2))),
}


@pytest.mark.parametrize("name", VMAPS)
def test_vmap(name):
    f, in_dims, shapes = VMAPS[name]

    def fn(d):
        inputs = [some(d, *shape) for shape in shapes]
        # After a layer norm, the sum of squares would not depend on the input.
        grad = func.grad(lambda *xs: func.vmap(f, in_dims)(*xs).pow(3).sum())
        return (
            func.vmap(f, in_dims)(*inputs),
            func.vmap(f, in_dims, out_dims=-1)(*inputs),
            func.vmap(f, in_dims, chunk_size=2)(*inputs),
            grad(*inputs),
        )

    agree(fn)


def test_vmap_of_vmap_and_of_nests():
    def fn(d):
        x, y = some(d, 3, 4), some(d, 5, 4)
        pairs = func.vmap(func.vmap(torch.dot, (None, 0)), (0, None))(x, y)
        nest = func.vmap(lambda t: {"sum": t["a"] + t["b"][0], "a": t["a"]})(
            {"a": x, "b": (x * 2, x)}
        )
        return pairs, nest

    agree(fn)


@pytest.mark.cpu_worker  # CUDA draws other random numbers
@pytest.mark.parametrize("randomness", ["same", "different", "error"])
def test_random_numbers_in_vmap(randomness):
    def fn(d):
        x = some(d, 3, 4)
        torch.manual_seed(1)
        run = func.vmap(
            lambda x: dropout(x, 0.5) + torch.rand_like(x), 0, 0, randomness
        )
        if randomness == "error":
            return raised(run, x)
        return run(x)

    agree(fn)


def test_errors_of_vmap():
    def fn(d):
        x = some(d, 3, 4)
        return (
            raised(func.vmap(lambda x: x.sum().item()), x),
            raised(func.vmap(lambda x: 1 if x.sum() > 0 else 2), x),
            raised(func.vmap(torch.dot, (0, 0)), x, some(d, 2, 4)),
            raised(func.vmap(lambda x: some(d, 4).add_(x)), x),
            raised(func.grad(lambda x: x), x),
        )

    agree(fn)


def test_modules_as_functions():
    def fn(d):
        model = network(d)
        params = {k: p.detach() for k, p in model.named_parameters()}
        x = some(d, 5, 3)

        def f(params, x):
            return func.functional_call(model, params, (x,)).pow(2).sum()

        per_sample = func.vmap(func.grad(f), in_dims=(None, 0))(params, x)
        doubled = {k: v * 2 for k, v in params.items()}
        return (
            func.functional_call(model, doubled, (x,)),
            func.grad(f)(params, x),
            per_sample,
            [p.detach() for p in model.parameters()],
        )

    agree(fn)


def test_ensembles_of_modules():
    def fn(d):
        models = [network(d) for _ in range(3)]
        params, buffers = func.stack_module_state(models)
        base = copy.deepcopy(models[0]).to("meta")

        def f(params, buffers, x):
            return func.functional_call(base, (params, buffers), (x,))

        x = some(d, 5, 3)
        out = func.vmap(f, in_dims=(0, 0, None))(params, buffers, x)
        out.sum().backward()
        return out, [p.grad for p in params.values()], [m(x) for m in models]

    agree(fn)


def test_batch_norm_with_state_under_transforms():
    def fn(d):
        model = nn.BatchNorm1d(3).to(d)
        func.replace_all_batch_norm_modules_(model)
        return func.vmap(model, in_dims=0, randomness="error")(some(d, 2, 4, 3))

    agree(fn)


def test_functionalize():
    def fn(d):
        def f(x):
            y = x.clone()
            y[0].mul_(2)
            y.t_().add_(1)
            return y.reshape(-1)[::2]

        x = some(d, 3, 3)
        return func.functionalize(f)(x), func.functionalize(f, remove="mutations")(x)

    agree(fn)


# ---- Forward AD ----

FORWARD = {
    "matmul": lambda x: x @ x.t(),
    "views": lambda x: x.t()[1:].reshape(-1).unfold(0, 2, 1),
    "softmax": lambda x: x.softmax(-1),
    "norm": lambda x: nn.functional.layer_norm(x, x.shape[-1:]),
    "loss": lambda x: nn.functional.mse_loss(x, x.flip(0).detach()),
    "max": lambda x: x.max(1)[0] + x.amin(0)[:1],
    "conv": lambda x: nn.functional.conv1d(x[:, None], x[:2, None, :2]),
    "index": lambda x: x[[0, 2, 0]].cumsum(1),
    "sigmoid": lambda x: nn.functional.silu(x).sigmoid(),
    "solve": lambda x: torch.linalg.solve(x[:, :3] @ x[:, :3].t() + 5, x),
}


@pytest.mark.parametrize("name", FORWARD)
def test_forward_ad(name):
    def fn(d):
        x, v = some(d, 3, 4), some(d, 3, 4)
        with fwAD.dual_level():
            dual = fwAD.unpack_dual(FORWARD[name](fwAD.make_dual(x, v)))
            kept = dual.primal.clone(), dual.tangent.clone()
        return kept, func.jvp(FORWARD[name], (x,), (v,))

    agree(fn)


def test_forward_ad_of_writes_and_views():
    def fn(d):
        x, v = some(d, 3, 4), some(d, 3, 4)
        with fwAD.dual_level():
            dual = fwAD.make_dual(x, v)
            y = dual * 1
            y[0].mul_(3)
            y[:, 1] = dual[:, 0] ** 2
            y.t_()
            z = torch.zeros(4, 3, device=d)
            z.copy_(y)
            row = fwAD.unpack_dual(y[0])
            results = [fwAD.unpack_dual(t) for t in (y, z)]
            same_storage = (
                fwAD.unpack_dual(dual).primal.untyped_storage()._cdata
                == x.untyped_storage()._cdata
            )
            kept = [(r.primal.clone(), r.tangent.clone()) for r in (row, *results)]
        return kept, same_storage, fwAD.unpack_dual(dual).tangent

    agree(fn)


def test_forward_over_reverse():
    def fn(d):
        x, v = some(d, 4, grad=True), some(d, 4)
        with fwAD.dual_level():
            dual = fwAD.make_dual(x, v)
            (g,) = torch.autograd.grad((dual**3).sum(), dual, create_graph=True)
            product = fwAD.unpack_dual(g).tangent
            (third,) = torch.autograd.grad(product.sum(), x)
        return product.detach(), third

    agree(fn)


def test_forward_ad_of_modules():
    def fn(d):
        model = network(d)
        params = dict(model.named_parameters())
        tangents = {k: some(d, *p.shape) for k, p in params.items()}
        x = some(d, 5, 3)
        with fwAD.dual_level():
            dual = {k: fwAD.make_dual(p, tangents[k]) for k, p in params.items()}
            out = func.functional_call(model, dual, (x,))
            return fwAD.unpack_dual(out).tangent.detach()

    agree(fn)


def test_errors_of_forward_ad():
    def fn(d):
        x = some(d, 3)
        outside = raised(fwAD.make_dual, x, x)
        with fwAD.dual_level():
            dual = fwAD.make_dual(x, some(d, 3))
            shape = raised(fwAD.make_dual, some(d, 3), some(d, 2))
            kind = raised(fwAD.make_dual, some(d, 3), some(d, 3).double())
            hidden = raised(some(d, 3).unbind()[0].add_, dual[0])
        return outside, shape, kind, hidden

    agree(fn)


# ---- torch.autograd.functional ----


def test_functional():
    def fn(d):
        x, v = some(d, 4), some(d, 4)
        f = lambda x: x.sin() * x.sum()  # noqa: E731
        g = lambda x: (x**3).sum() * x[0]  # noqa: E731
        return (
            jacobian(f, x),
            jacobian(f, x, vectorize=True),
            jacobian(f, x, strategy="forward-mode", vectorize=True),
            jacobian(lambda x, y: x * y, (x, v)),
            hessian(g, x),
            hessian(g, x, vectorize=True),
            hessian(g, x, vectorize=True, outer_jacobian_strategy="forward-mode"),
            vjp(f, x, v),
            jvp(f, x, v),
            vhp(g, x, v),
            hvp(g, x, v),
            jacobian(f, x, create_graph=True).requires_grad,
        )

    agree(fn)
