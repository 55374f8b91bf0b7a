# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Hooks, custom functions, checkpoints, torch.func, forward AD: what stands above ops.

None of it is ours. It works if the device gives each layer what it expects, so the rule
is agree(): the same function on the CPU and on the device returns the same nest of
tensors, strings and numbers. A long file, because each section is short and all of
them share agree() and what it compares.
"""

import copy
import re
import threading
import traceback
import warnings
from functools import partial

import pytest
import torch
import torch.autograd.forward_ad as fwAD
from helpers import DEVICE, on_cuda, same
from torch import func, nn
from torch.autograd import Function
from torch.autograd.functional import hessian, hvp, jacobian, jvp, vhp, vjp
from torch.nn.functional import dropout
from torch.utils import checkpoint as ck
from torch.utils._pytree import tree_map


def agree(fn, rtol=1e-5, atol=1e-6):
    """fn(device) must return the same on both devices. Returns the device's."""
    torch.manual_seed(0)
    expected = fn(torch.device("cpu"))
    torch.manual_seed(0)
    got = fn(DEVICE)
    if on_cuda():
        rtol, atol = max(rtol, 1e-3), max(atol, 1e-4)
    same(got, expected, rtol, atol)
    return got


def some(device, *shape, grad=False, dtype=torch.float32):
    """Normal numbers, drawn on the CPU."""
    return torch.randn(shape, dtype=dtype).to(device).requires_grad_(grad)


def raised(fn, *args, **kwargs):
    """The error of a call: its type, and its text without the device's name."""
    try:
        fn(*args, **kwargs)
    except Exception as error:
        text = str(error).replace("mycelya:0", "cpu")
        return type(error).__name__, re.sub(
            r"mycelya(\w+)Type", r"torch.\1Tensor", text
        )
    return "no error", ""


def on_cpu(nest):
    return tree_map(lambda t: t.cpu() if isinstance(t, torch.Tensor) else t, nest)


def network(device):
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    return model.to(device)


def grads(module):
    return [p.grad for p in module.parameters()]


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
    """An optimizer in the backward pass: step and forget each gradient at once."""

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


def test_a_hook_that_raises_ends_the_backward_and_leaves_the_device_well():
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


# ---- Custom functions ----


class Scale(Function):
    """Takes tensors, a number, a string and None."""

    @staticmethod
    def forward(ctx, x, factor, w, mode, nothing):
        assert nothing is None
        ctx.save_for_backward(x, w)
        ctx.factor, ctx.mode = factor, mode
        return x * w * factor if mode == "times" else x + w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        if ctx.mode != "times":
            return g, None, g, None, None
        gx = g * w * ctx.factor if ctx.needs_input_grad[0] else None
        gw = g * x * ctx.factor if ctx.needs_input_grad[2] else None
        return gx, None, gw, None, None


@pytest.mark.parametrize("mode", ["times", "plus"])
def test_functions_take_arguments_that_are_no_tensors(mode):
    def fn(d):
        x, w = some(d, 4, grad=True), some(d, 4, grad=True)
        out = Scale.apply(x, 2.5, w, mode, None)
        (gx,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        second = ()
        if mode == "times":
            second = torch.autograd.grad(gx.sum(), w)
        one = Scale.apply(x.detach(), 2.5, w, mode, None)
        one.sum().backward()
        return out, gx, second, w.grad, x.grad

    agree(fn)


class Halve(Function):
    """Writes its operand."""

    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(0.5)

    @staticmethod
    def backward(ctx, g):
        return g * 0.5


def test_functions_that_write_their_operand():
    def fn(d):
        x = some(d, 2, 3, grad=True)
        y = x * 1
        z = Halve.apply(y)
        row = (w := x * 2)[0]
        v = Halve.apply(row)
        leaf = raised(Halve.apply, x)
        (z.sum() + w.pow(2).sum() + v.sum()).backward()
        return z is y, y._version, w._version, z, w, x.grad, leaf

    agree(fn)


class Largest(Function):
    """One result has no gradient; those that are not asked for are None."""

    @staticmethod
    def forward(ctx, x):
        values, indices = x.max(1)
        ctx.mark_non_differentiable(indices)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(indices)
        ctx.shape = x.shape
        return values, indices, x * 2

    @staticmethod
    def backward(ctx, g, none, twice):
        assert none is None
        (indices,) = ctx.saved_tensors
        out = torch.zeros(ctx.shape, device=indices.device)
        if g is not None:
            out.scatter_(1, indices[:, None], g[:, None])
        return out if twice is None else out + 2 * twice


def test_functions_with_results_that_have_no_gradient():
    def fn(d):
        x = some(d, 3, 4, grad=True)
        values, indices, twice = Largest.apply(x)
        flags = [t.requires_grad for t in (values, indices, twice)]
        (a,) = torch.autograd.grad(values.sum(), x, retain_graph=True)
        (b,) = torch.autograd.grad(twice.sum(), x)
        return flags, values, indices, a, b

    agree(fn)


class Cube(Function):
    """forward without ctx, forward AD, and a vmap rule that PyTorch makes."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        (x,) = inputs
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 * x**2

    @staticmethod
    def jvp(ctx, t):
        (x,) = ctx.saved_tensors
        return t * 3 * x**2


class Outer(Function):
    """A vmap rule of its own."""

    @staticmethod
    def forward(x, y):
        return x[:, None] * y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g @ y, x @ g

    @staticmethod
    def vmap(info, in_dims, x, y):
        x = x.movedim(in_dims[0], 0) if in_dims[0] is not None else x[None]
        y = y.movedim(in_dims[1], 0) if in_dims[1] is not None else y[None]
        return x[:, :, None] * y[:, None, :] + 0 * info.batch_size, 0


@pytest.mark.filterwarnings("ignore:.*torch.jit.script. is deprecated")
def test_functions_under_transforms():
    def fn(d):
        x, v = some(d, 5), some(d, 5)
        out, tangent = func.jvp(Cube.apply, (x,), (v,))
        with fwAD.dual_level():
            dual = fwAD.unpack_dual(Cube.apply(fwAD.make_dual(x, v)))
            dual = (dual.primal, dual.tangent)
        return (
            out,
            tangent,
            dual,
            func.grad(lambda x: Cube.apply(x).sum())(x),
            func.vmap(Cube.apply)(x),
            func.vmap(func.grad(Cube.apply))(x),
            func.jacrev(Cube.apply)(x),
            func.vmap(Outer.apply, in_dims=(0, None))(some(d, 3, 4), some(d, 2)),
            func.vmap(Outer.apply, in_dims=(1, 0))(some(d, 4, 3), some(d, 3, 2)),
        )

    agree(fn)


class OnlyOnce(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return g * ctx.saved_tensors[0].exp()


class Wrong(Function):
    @staticmethod
    def forward(ctx, x, how):
        ctx.how = how
        return x * 2

    @staticmethod
    def backward(ctx, g):
        if ctx.how == "count":
            return g
        if ctx.how == "shape":
            return g.new_zeros(7), None
        if ctx.how == "type":
            return "no tensor", None
        raise ZeroDivisionError("in backward")


def test_errors_of_functions():
    def fn(d):
        errors = []
        x = some(d, 3, grad=True)
        for how in ("count", "shape", "type", "raise"):
            errors.append(raised(Wrong.apply(x, how).sum().backward))
        (g,) = torch.autograd.grad(OnlyOnce.apply(x).sum(), x, create_graph=True)
        errors.append(raised(g.sum().backward))
        y = x * 1
        out = OnlyOnce.apply(y)
        with torch.no_grad():
            y.add_(1)
        errors.append(raised(out.sum().backward))
        return errors

    agree(fn)


def test_a_gradient_from_another_device_is_refused():
    class Stray(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g.cpu()

    x = some(DEVICE, 3, grad=True)
    with pytest.raises(RuntimeError, match="expected device mycelya:0 but got cpu"):
        Stray.apply(x).sum().backward()


# ---- Gradients of gradients ----

TWICE = {
    "matmul": lambda x: (x @ x.t()).tanh(),
    "softmax": lambda x: x.softmax(-1) * x,
    "layer norm": lambda x: nn.functional.layer_norm(x, x.shape[-1:]),
    "views": lambda x: x.t()[1:].unfold(1, 2, 1).diagonal(0, 0, 1) ** 3,
    "gelu": lambda x: nn.functional.gelu(x),
    "prod": lambda x: x.prod(1),
    "cumsum": lambda x: x.cumsum(0) ** 2,
    "conv": lambda x: (
        nn.functional.conv1d(x[None], x[:2, None, :2], groups=1)
        if x.shape[0] == 1
        else nn.functional.conv1d(x[:, None], x[:2, None, :2])
    ),
    "index": lambda x: x[[0, 0, 2]] * x[:, :3].t()[:, :1],
    "written": lambda x: (x * 1).index_put_((torch.tensor([0]),), x[1] ** 2) ** 2,
    "norm": lambda x: x.norm(dim=1) * x.logsumexp(1),
}


@pytest.mark.parametrize("name", TWICE)
def test_second_and_third_derivatives(name):
    def fn(d):
        x = some(d, 3, 4, grad=True, dtype=torch.float64)
        (g,) = torch.autograd.grad(TWICE[name](x).sin().sum(), x, create_graph=True)
        (h,) = torch.autograd.grad(g.pow(2).sum(), x, create_graph=True)
        (third,) = torch.autograd.grad(h.sum(), x)
        return g, h, third

    agree(fn, 1e-9, 1e-9)


@pytest.mark.parametrize("name", ["matmul", "softmax", "views", "index", "norm"])
def test_gradient_checks(name):
    x = some(DEVICE, 3, 4, grad=True, dtype=torch.float64)
    check = partial(torch.autograd.gradcheck, fast_mode=True)
    assert check(TWICE[name], x, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(TWICE[name], x, fast_mode=True)


def test_gradient_check_of_complex_numbers():
    x = some(DEVICE, 3, grad=True, dtype=torch.complex128)
    assert torch.autograd.gradcheck(lambda x: (x * x.conj()).real * x.imag, x)
    assert torch.autograd.gradcheck(lambda x: torch.view_as_real(x * x), x)


# ---- torch.autograd.grad and backward ----


def test_unused_and_materialised_gradients():
    def fn(d):
        x, y = some(d, 3, grad=True), some(d, 2, grad=True)
        out = (x * 2).sum()
        grad = partial(torch.autograd.grad, out, (x, y), retain_graph=True)
        return (
            raised(grad),
            grad(allow_unused=True),
            grad(materialize_grads=True),
            raised(torch.autograd.grad, x.detach().sum(), x),
            raised(torch.autograd.grad, (x * 2), x),
        )

    agree(fn)


def test_outputs_inputs_and_batches_of_gradients():
    def fn(d):
        x, w = some(d, 3, grad=True), some(d, 3, grad=True)
        y, z = x * w, x.exp()
        both = torch.autograd.grad(
            (y, z), (x, w), (some(d, 3), some(d, 3)), retain_graph=True
        )
        batch = torch.autograd.grad(
            y, x, torch.eye(3, device=d), is_grads_batched=True, retain_graph=True
        )
        torch.autograd.backward((y.sum(), z.sum()), inputs=[x], retain_graph=True)
        only_x = x.grad.clone(), w.grad
        edge = torch.autograd.graph.get_gradient_edge(y)
        at_edge = torch.autograd.grad(edge, x, some(d, 3))
        return both, batch, only_x, at_edge

    agree(fn)


def test_graphs_that_are_kept_and_freed():
    def fn(d):
        x = some(d, 3, grad=True)
        y = x.exp().sum()
        y.backward(retain_graph=True)
        y.backward()
        again = raised(y.backward)
        z = (x * x).sum()
        z.backward(create_graph=True)
        graph = x.grad.requires_grad
        first = x.grad.clone()
        x.grad = None
        first.sum().backward()
        return again, graph, first.detach(), x.grad

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # create_graph makes a reference cycle
        agree(fn)


def test_accumulated_gradients_have_the_strides_of_their_leaf():
    def fn(d):
        kept = []
        for grad in (
            lambda p: (p * p).sum(),
            lambda p: p.sum(),
            lambda p: (p.t().contiguous() * 2).sum(),
            lambda p: p[::2].sum(),
        ):
            for strides in ((4, 1), (1, 3), (8, 2)):
                p = torch.empty_strided((3, 4), strides, device=d)
                p.copy_(torch.randn(3, 4)).requires_grad_()
                grad(p).backward()
                first = p.grad
                grad(p).backward()
                kept.append((p.grad, p.grad is first, p.grad._version))
        return kept

    agree(fn)


def test_a_gradient_is_not_shared_with_what_made_it():
    def fn(d):
        x = some(d, 3, grad=True)
        g = some(d, 3)
        x.backward(g)
        x.grad.add_(1)
        y = some(d, 3, grad=True)
        z = some(d, 3, grad=True)
        (y + z).backward(g)
        y.grad.mul_(2)
        return g, x.grad, y.grad, z.grad

    agree(fn)


def test_leaves_are_written_only_without_gradients():
    def fn(d):
        x = some(d, 2, 3, grad=True)
        errors = [
            raised(x.add_, 1),
            raised(x[0].add_, 1),
            raised(x.view(-1).zero_),
            raised(x.unbind(0)[0].mul_, 2),
            raised(lambda: x.resize_(7)),
            raised(x.__setitem__, 0, 1.0),
            raised(torch.add, x, 1, out=torch.empty(2, 3, device=d)),
            raised(x.detach().requires_grad_().t_),
        ]
        with torch.no_grad():
            x.add_(1)
            x[0] = 5.0
        x.data.mul_(2)
        version = x._version
        (x * x).sum().backward()
        return errors, version, x.grad

    agree(fn)


def test_views_written_under_autograd():
    def fn(d):
        x = some(d, 3, 4, grad=True)
        y = x * 1
        row, column, window = y[0], y[:, 1], y.as_strided((2, 2), (1, 4), 1)
        names = [type(t.grad_fn).__name__ for t in (row, column, window)]
        row.mul_(3)
        names += [type(t.grad_fn).__name__ for t in (y, row, column)]
        column.copy_(row[:3])
        window.t().neg_()
        y.diagonal().zero_()
        detached = y.detach()
        detached.mul_(1)
        (y.sum() * 2 + row.sum() + column.pow(2).sum() + window.sum()).backward()
        return names, y, x.grad

    agree(fn)


def test_errors_of_views_written_under_autograd():
    def fn(d):
        x = some(d, 4, 3, grad=True)
        errors = []
        y = x * 1
        a, _ = y.split(2)
        errors.append(raised(a.add_, 1))
        with torch.no_grad():
            b = y[0]
        errors.append(raised(b.add_, x[1]))
        z = x.exp()
        z[0] = 1.0
        errors.append(raised(z.sum().backward))
        w = x * 1
        out = (w[0] * x[0]).sum()
        w[1] = 0.0  # another row, the same version counter
        errors.append(raised(out.backward))
        e = (x * 1)[:1].expand(2, 3)
        errors.append(raised(e.add_, 1))
        return errors

    agree(fn)


def test_versions_of_what_is_saved():
    def fn(d):
        x = some(d, 3, grad=True)
        y = x * 1
        saved = y.sin()
        steps = [y._version]
        with torch.no_grad():
            y.zero_()
        steps.append(y._version)
        error = raised(saved.sum().backward)
        with torch.autograd._unsafe_preserve_version_counter(y):
            y.add_(0)
        steps.append(y._version)
        with torch.autograd.graph.allow_mutation_on_saved_tensors():
            u = some(d, 3, grad=True)
            v = u * 1
            out = v.sin().sum()
            v.mul_(0)
            out.backward()
        return error, steps, u.grad

    agree(fn)


# ---- Checkpoints ----


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("preserve", [False, True])
def test_checkpoints_give_the_gradients_of_a_run_without(reentrant, preserve):
    """With dropout, where the second forward must draw what the first drew."""

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
        # The numbers that CUDA draws are others.
        return None if preserve and on_cuda() else saved

    agree(fn)


def test_the_generator_is_where_it_was_after_a_checkpoint():
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


def test_a_checkpoint_that_changes_its_mind_is_found_out():
    def fn(d):
        runs = []

        def fickle(x):
            runs.append(1)
            return x.sin().cos() if len(runs) == 1 else x.sin()[:1].cos()

        x = some(d, 3, grad=True)
        out = ck.checkpoint(fickle, x, use_reentrant=False)
        return raised(out.sum().backward)[0]

    assert agree(fn) == "CheckpointError"


# ---- Anomaly mode ----


def test_anomaly_mode_names_the_forward_line():
    def fn(d):
        x = torch.tensor([-1.0, 4.0], device=d, requires_grad=True)
        with torch.autograd.detect_anomaly(), warnings.catch_warnings(record=True) as w:
            warnings.simplefilter("always")
            y = x.sqrt()  # the forward line
            error = raised(y.sum().backward)
        texts = "\n".join(str(one.message) for one in w)
        assert "y = x.sqrt()  # the forward line" in texts
        assert f'File "{__file__}"' in texts
        return error

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # detect_anomaly says that it is slow
        kind, text = agree(fn)
    assert kind == "RuntimeError"
    assert text == "Function 'SqrtBackward0' returned nan values in its 0th output."


def test_anomaly_mode_names_the_line_of_an_error_in_backward():
    def fn(d):
        x = some(d, 3, grad=True)
        with warnings.catch_warnings(record=True) as w, torch.autograd.detect_anomaly():
            warnings.simplefilter("always")
            y = x.exp()  # what is saved here
            y.add_(1)
            error = raised(y.sum().backward)
        assert "y = x.exp()  # what is saved here" in "\n".join(
            str(o.message) for o in w
        )
        with torch.autograd.set_detect_anomaly(True, check_nan=False):
            (x * float("nan")).sum().backward()
        return error, x.grad

    agree(fn)


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
        # The squares' sum after a layer norm would not depend on its input.
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


@pytest.mark.cpu_worker  # the numbers that CUDA draws are others
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


# ---- Inference mode ----


def test_inference_tensors():
    def fn(d):
        x = some(d, 3, grad=True)
        with torch.inference_mode():
            y = x * 2
            view = x[1:]
            y.add_(1)
            made = torch.zeros(3, device=d)
            inner = raised(lambda: y._version)
        flags = [t.is_inference() for t in (x, y, view, made)]
        errors = [
            raised(y.add_, 1),
            raised(torch.add, y, 1, out=made),
            raised(lambda: (y * x).sum().backward()),
            raised(lambda: y._version),
            raised(y.requires_grad_),
            raised(view.mul_, 2),
            raised(torch._foreach_add_, [made], 1.0),
        ]
        with torch.inference_mode():
            y.mul_(2)
        normal = y.clone()
        normal.add_(1)
        (normal * x).sum().backward()
        with torch.inference_mode(), torch.inference_mode(False):
            z = x * 3
        return inner, flags, errors, y + 0, x.grad, z.requires_grad

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
        raw = (x * w).grad_fn._raw_saved_self
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


# ---- Threads ----


def test_backward_by_the_engine_s_threads():
    def fn(d):
        with torch.autograd.set_multithreading_enabled(True):
            model = network(d)
            x = some(d, 5, 3, grad=True)
            seen = []
            x.register_hook(lambda g: seen.append(torch.is_grad_enabled()))
            out = model(x)
            (g,) = torch.autograd.grad(out.sum(), x, create_graph=True)
            g.pow(2).sum().backward()
            return x.grad, grads(model), seen

    agree(fn)


def test_backward_in_two_threads_into_the_same_leaves():
    """Sums of whole numbers, so that their order doesn't matter."""

    def fn(d):
        w = torch.ones(64, device=d, requires_grad=True)
        errors = []

        def work(i):
            try:
                for j in range(10):
                    (w * (i + j)).sum().backward()
            except Exception:
                errors.append(traceback.format_exc())

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        return errors, w.grad

    agree(fn)


def test_threads_with_graphs_of_their_own():
    def fn(d):
        results = {}

        def work(i):
            x = torch.arange(8.0, device=d).add_(i).requires_grad_()
            for _ in range(5):
                x.grad = None
                (g,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
                g.sum().backward()
            results[i] = x.grad

        threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        return [results[i] for i in range(3)]

    agree(fn)


def test_one_graph_differentiated_by_two_threads():
    def fn(d):
        x = torch.arange(1.0, 5.0, device=d, requires_grad=True)
        y = (x * x).sum()
        kept = []

        def work():
            kept.append(torch.autograd.grad(y, x, retain_graph=True)[0])

        threads = [threading.Thread(target=work) for _ in range(2)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        return kept

    agree(fn)
