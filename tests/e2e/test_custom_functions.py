# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""torch.autograd.Function: user code in the forward and in the backward pass."""

import pytest
import torch
import torch.autograd.forward_ad as fwAD
from agreement import agree, raised, some
from helpers import DEVICE
from torch import func
from torch.autograd import Function


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
def test_functions_take_arguments_that_are_not_tensors(mode):
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
    """Writes its operand in place."""

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
    """One result is not differentiable. Gradients of unused results are None."""

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
    """forward without ctx, forward AD, and a vmap rule that PyTorch generates."""

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
    """A hand-written vmap rule."""

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
