# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""The backward pass: higher derivatives, version counters, modes and threads."""

import threading
import traceback
import warnings
from functools import partial

import pytest
import torch
from agreement import agree, grads, network, raised, some
from helpers import DEVICE
from torch import nn

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


def test_a_gradient_shares_no_memory_with_its_source():
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


def test_versions_of_saved_tensors():
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
        warnings.simplefilter("ignore")  # detect_anomaly warns that it is slow
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
