# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Cases for decompositions: composite operators next to operators that fuse with them.

test_decompositions.py runs this script with MYCELYA_CHECK=3. Each program then also
computes its groups as own ops, and fails if their values differ from PyTorch's. The
name of a case is the name of the operator; text after a space distinguishes cases.
"""

from __future__ import annotations

import json
import re
import sys
import traceback
from collections.abc import Callable
from typing import Any

import torch
from helpers import CUDA_BOUNDS, DEVICE, on_cuda
from torch.nn import functional as F

aten = torch.ops.aten
Case = tuple[Callable[..., Any], list[Any]]


def made(*size: int, seed: int = 1, positive: bool = False) -> torch.Tensor:
    x = torch.randn(size, generator=torch.Generator().manual_seed(seed + sum(size)))
    return x.abs() + 0.1 if positive else x


X, Y, Z = made(5, 7), made(5, 7, seed=2), made(5, 7, seed=3)
ROW, IMAGE, POS = made(7), made(3, 4, 2, 5), made(5, 7, positive=True)
SPECIAL = torch.tensor(
    [[0.0, -0.0, 1.0], [float("inf"), 2.0, -3.0], [float("nan"), 1.0, 0.0]]
)
CHANNELS = [made(4, seed=s, positive=True) for s in range(5)]
MASK = Y > 0
TARGET = torch.tensor([0, 6, -100, 3, 3])
PIXELS = torch.tensor([0, 3, -100, 1, 2, 2]).repeat(5).view(3, 2, 5)
WEIGHTS = made(7, positive=True)
PLACE = TARGET.clamp_min(0).unsqueeze(1)


def norm_backward(g, x, w, b):
    y, m, r = aten.native_layer_norm(x, [7], w, b, 1e-5)
    dx, dw, db = aten.native_layer_norm_backward(
        g, x, [7], m, r, w, b, [True, True, True]
    )
    return dx * 2, dw, db, y


def batch_norm(training: bool) -> Callable[..., Any]:
    def f(x, w, b, mean, var):
        y, m, r = aten.native_batch_norm(x * 1.5, w, b, mean, var, training, 0.1, 1e-5)
        return y.relu(), m, r, mean, var

    return f


def batch_norm_backward(training: bool) -> Callable[..., Any]:
    def f(x, g, w, mean, var, s, r):
        mask = [True, w is not None, True]
        results = aten.native_batch_norm_backward(
            g.neg(), x, w, mean, var, s, r, training, 1e-5, mask
        )
        return [y for y, wanted in zip(results, mask, strict=True) if wanted]

    return f


def dropout(x: torch.Tensor, p: float = 0.3) -> list[torch.Tensor]:
    torch.manual_seed(7)
    y, mask = aten.native_dropout(x.neg(), p, True)
    return [y * 2, mask, torch.rand_like(x)]


def loss(op: Callable[..., Any], reduction: int) -> Callable[..., Any]:
    def f(x, t, w=None):
        return op(F.log_softmax(x, 1), t, w, reduction, -100)

    return f


def loss_backward(op: Callable[..., Any], reduction: int) -> Callable[..., Any]:
    def f(x, t, w=None):
        g = x.select(1, 0) if reduction == 0 else x.new_tensor(0.5)
        return op(g, x, t, w, reduction, -100, x.new_tensor(3.5)) * 2

    return f


def inplace(f: Callable[..., Any]) -> Callable[..., Any]:
    """An operator that writes its first operand, between two others that fuse."""

    def g(x, *args):
        y = x * 1
        f(y, *args)
        return y + 1

    return g


def lists(f: Callable[..., Any]) -> Callable[..., Any]:
    def g(x, y):
        a, b = torch._foreach_mul([x, x[0]], 2.0), [y, y[1]]
        return torch._foreach_neg(f(a, b))

    return g


def between(f: Callable[..., Any]) -> Callable[..., Any]:
    """An operator between two others that fuse with it."""

    def g(x, *args):
        return f(x.neg(), *args) * 2

    return g


def integers(mode: str) -> Callable[..., Any]:
    """A division of integers of two dtypes, between two operators that fuse with it."""

    def f(x, y):
        by = (y * 3).int().mul(2).add(1).to(torch.int8)
        return torch.div((x * 99).long().neg(), by, rounding_mode=mode) * 2

    return f


# Losses of classes, each for all reductions, with weights of the classes and without.
LOSSES = {
    "aten::nll_loss_forward": (loss, aten.nll_loss_forward, X, TARGET, WEIGHTS),
    "aten::nll_loss_backward": (
        loss_backward,
        aten.nll_loss_backward,
        X,
        TARGET,
        WEIGHTS,
    ),
    "aten::nll_loss2d_forward": (
        loss,
        aten.nll_loss2d_forward,
        IMAGE,
        PIXELS,
        WEIGHTS[:4],
    ),
    "aten::nll_loss2d_backward": (
        loss_backward,
        aten.nll_loss2d_backward,
        IMAGE,
        PIXELS,
        WEIGHTS[:4],
    ),
}
CASES: dict[str, Case] = {
    "aten::add.Tensor": (between(lambda x, y: torch.add(x, y, alpha=3)), [X, Y]),
    "aten::add.Tensor of two dtypes": (
        between(lambda x, y: torch.add(x.double(), y, alpha=1 / 3)),
        [X, Y],
    ),
    "aten::add.Tensor of integers": (
        between(lambda x, y: torch.add(x, y.long() * 7, alpha=0.3)),
        [X, Y],
    ),
    "aten::add.Scalar": (between(lambda x: aten.add.Scalar(x, 2)), [X]),
    "aten::sub.Tensor": (between(lambda x, y: torch.sub(x, y, alpha=0.5)), [X, Y]),
    "aten::sub.Scalar": (between(lambda x: aten.sub.Scalar(x, 2)), [X]),
    "aten::pow.Tensor_Scalar": (between(lambda x: x**2), [X]),
    "aten::pow.Tensor_Scalar 3": (between(lambda x: x**3), [X]),
    "aten::pow.Tensor_Scalar 1.5": (lambda x: x.abs() ** 1.5 + 1, [X]),
    "aten::square": (between(torch.square), [X]),
    "aten::div.Tensor_mode": (integers("floor"), [X, Y]),
    "aten::div.Tensor_mode trunc": (integers("trunc"), [X, Y]),
    "aten::clamp": (between(lambda x: x.clamp(-0.5, 0.5)), [X]),
    "aten::clamp special": (between(lambda x: x.clamp(max=0.5)), [SPECIAL]),
    "aten::clamp.Tensor": (between(lambda x, y: torch.clamp(x, y - 1, y)), [X, Y]),
    "aten::clamp_min": (between(lambda x: x.clamp_min(0.25)), [SPECIAL]),
    "aten::clamp_max": (between(lambda x: x.clamp_max(0.25)), [SPECIAL]),
    "aten::hardtanh": (between(F.hardtanh), [X]),
    "aten::masked_fill.Scalar": (between(lambda x, m: x.masked_fill(m, -9)), [X, MASK]),
    "aten::masked_fill.Tensor": (
        between(lambda x, m: x.masked_fill(m, x.new_tensor(4.0))),
        [X, MASK],
    ),
    "aten::zero": (inplace(torch.Tensor.zero_), [X]),
    "aten::fill.Scalar": (inplace(lambda x: x.fill_(2.5)), [X]),
    "aten::full_like": (between(lambda x: torch.full_like(x, 2.5)), [X]),
    "aten::zeros_like": (between(lambda x: torch.zeros_like(x)), [X]),
    "aten::ones_like": (between(lambda x: torch.ones_like(x)), [X]),
    "aten::copy": (inplace(lambda x, y: x.copy_(y.long())), [X, Y]),
    "aten::addcmul": (between(lambda x, y, z: x.addcmul(y, z, value=0.3)), [X, Y, Z]),
    "aten::addcdiv": (between(lambda x, y, z: x.addcdiv(y, z, value=0.3)), [X, Y, POS]),
    "aten::lerp.Scalar": (between(lambda x, y: x.lerp(y, 0.1)), [X, Y]),
    "aten::lerp.Scalar far": (between(lambda x, y: x.lerp(y, 1.0)), [X, Y]),
    "aten::lerp.Tensor": (between(lambda x, y, z: x.lerp(y, z)), [X, Y, Z]),
    "aten::leaky_relu": (between(F.leaky_relu), [SPECIAL]),
    "aten::elu": (between(lambda x: F.elu(x, 1.5)), [X]),
    "aten::softplus": (between(lambda x: F.softplus(x * 20)), [X]),
    "aten::silu": (between(F.silu), [X]),
    "aten::gelu": (between(F.gelu), [X]),
    "aten::gelu tanh": (between(lambda x: F.gelu(x, approximate="tanh")), [X]),
    "aten::threshold_backward": (
        between(lambda x, y: aten.threshold_backward(x, y, 0)),
        [X, SPECIAL.repeat(1, 3)[:1, :7]],
    ),
    "aten::sigmoid_backward": (between(aten.sigmoid_backward), [X, Y]),
    "aten::tanh_backward": (between(aten.tanh_backward), [X, Y]),
    "aten::leaky_relu_backward": (
        between(lambda x, y: aten.leaky_relu_backward(x, y, 0.1, False)),
        [X, Y],
    ),
    "aten::softplus_backward": (
        between(lambda g, x: aten.softplus_backward(g, x, 2.0, 1.0)),
        [X, Y],
    ),
    "aten::softplus_backward special": (
        between(lambda g, x: aten.softplus_backward(g, x, 1, 20)),
        [SPECIAL + 1, SPECIAL],
    ),
    "aten::silu_backward": (between(aten.silu_backward), [X, Y]),
    "aten::gelu_backward": (between(aten.gelu_backward), [X, Y]),
    "aten::gelu_backward tanh": (
        between(lambda x, y: aten.gelu_backward(x, y, approximate="tanh")),
        [X, Y],
    ),
    "aten::native_dropout": (dropout, [X + 3]),
    "aten::native_dropout permuted": (lambda x: dropout(x.movedim(-1, 1)), [IMAGE + 3]),
    "aten::native_dropout all": (lambda x: dropout(x, 1.0), [X]),
    "aten::native_dropout_backward": (
        between(lambda x, m: aten.native_dropout_backward(x, m, 1.25)),
        [X, MASK],
    ),
    "aten::_softmax": (between(lambda x: x.softmax(-1)), [X]),
    "aten::_softmax columns": (between(lambda x: x.softmax(1)), [IMAGE]),
    "aten::_softmax special": (between(lambda x: x.softmax(0)), [SPECIAL]),
    "aten::_softmax masked": (
        between(lambda x: x.masked_fill(x > -9, float("-inf")).softmax(-1)),
        [X],
    ),
    "aten::_log_softmax": (between(lambda x: x.log_softmax(-1)), [X * 40]),
    "aten::_softmax_backward_data": (
        between(lambda g, y: aten._softmax_backward_data(g, y, 1, y.dtype)),
        [X, POS],
    ),
    "aten::_log_softmax_backward_data": (
        between(lambda g, y: aten._log_softmax_backward_data(g, y, 1, y.dtype)),
        [X, Y],
    ),
    "aten::_fused_rms_norm": (
        between(lambda x, w: aten._fused_rms_norm(x, [7], w, 1e-6)[0]),
        [X, ROW],
    ),
    "aten::native_layer_norm": (
        between(lambda x, w, b: F.layer_norm(x, (7,), w, b)),
        [X + 100, ROW, ROW + 1],
    ),
    "aten::native_layer_norm plain": (between(lambda x: F.layer_norm(x, (5, 7))), [X]),
    "aten::native_layer_norm_backward": (norm_backward, [Y, X, ROW, ROW]),
    "aten::native_batch_norm": (
        batch_norm(True),
        [IMAGE, *(made(4, seed=s, positive=True) for s in range(4))],
    ),
    "aten::native_batch_norm eval": (
        batch_norm(False),
        [IMAGE, *(made(4, seed=s, positive=True) for s in range(4))],
    ),
    "aten::native_batch_norm_backward": (
        batch_norm_backward(True),
        [IMAGE, made(3, 4, 2, 5, seed=9), *CHANNELS],
    ),
    "aten::native_batch_norm_backward without weights": (
        batch_norm_backward(True),
        [IMAGE, made(3, 4, 2, 5, seed=9), None, *CHANNELS[1:]],
    ),
    "aten::native_batch_norm_backward eval": (
        batch_norm_backward(False),
        [IMAGE, made(3, 4, 2, 5, seed=9), *CHANNELS],
    ),
    "aten::native_group_norm": (
        between(lambda x, w, b: F.group_norm(x, 2, w, b)),
        [IMAGE, *(made(4, seed=s) for s in range(2))],
    ),
    "aten::native_group_norm plain": (
        between(lambda x: F.group_norm(x, 4)),
        [IMAGE + 100],
    ),
    "aten::mse_loss": (lambda x, y: F.mse_loss(x.neg(), y), [X, Y]),
    "aten::mse_loss sum": (
        lambda x, y: F.mse_loss(x.neg(), y, reduction="sum"),
        [X, Y],
    ),
    "aten::mse_loss none": (
        between(lambda x, y: F.mse_loss(x, y, reduction="none")),
        [X, Y],
    ),
    "aten::mse_loss_backward": (
        between(lambda x, y: aten.mse_loss_backward(x.new_tensor(0.5), x, y, 1)),
        [X, Y],
    ),
    "aten::mse_loss_backward sum": (
        between(lambda x, y: aten.mse_loss_backward(x.new_tensor(0.5), x, y, 2)),
        [X, Y],
    ),
    "aten::gather": (between(lambda x, i: x.gather(1, i)), [X, PLACE]),
    "aten::gather of a class": (between(lambda x: x.gather(1, x.argmax(1, True))), [X]),
    "aten::gather special": (
        between(lambda x, i: x.gather(-1, i)),
        [SPECIAL, torch.tensor([[1], [0], [0]])],
    ),
    "aten::gather columns": (between(lambda x: x.gather(0, x.argmin(0, True))), [X]),
    "aten::embedding": (
        lambda w, i: F.embedding(i, w.neg().contiguous()) * 2 + 1,
        [X, PLACE.clamp_max(4)],
    ),
    "aten::embedding of rows": (
        lambda w, i: F.layer_norm(F.embedding(i, w) + w[0], [7]),
        [X, torch.tensor([[4, 0, 2], [1, 1, 3]])],
    ),
    "aten::embedding narrow indices": (
        between(lambda w, i: F.embedding(i.int(), w.abs(), padding_idx=2)),
        [X, torch.tensor([4, 0, 2])],
    ),
    "aten::cat": (lambda x, y: torch.cat((x, y), 1).neg() * 2, [X, Y]),
    "aten::cat of three": (
        lambda x, y, z: torch.cat((x * 2, y.abs(), z[:2].exp()), 0).relu() + 1,
        [X, Y, Z],
    ),
    "aten::cat of views": (
        lambda x: torch.cat((-x[..., 3:], x.transpose(-1, -2).mT[..., :3]), -1) * x,
        [IMAGE.repeat(1, 1, 1, 2)[..., :6].contiguous()],
    ),
    "aten::cat special": (
        lambda x, y: torch.cat((x, y), -1).mul(2).sum(1),
        [SPECIAL, SPECIAL.flip(0)],
    ),
    "aten::cat of a size that no 16-bit float holds": (
        lambda x, y: torch.cat((x, y)).neg() * 2,
        [made(70001), ROW],
    ),
    "aten::cat of dtypes": (
        lambda x, y: torch.cat((x, (y * 9).int()), 1) / 2,
        [X, Y],
    ),
    "aten::cat of bools": (
        lambda x, m: torch.cat((x > 1, m), 0).logical_not(),
        [X, MASK],
    ),
    "aten::stack": (
        lambda x, y: torch.stack((x, y.exp(), x[:1].expand(5, 7)), 1).neg() * 2,
        [X, Y],
    ),
    "aten::stack interleaves": (
        lambda x: torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2) * x,
        [IMAGE.repeat(1, 1, 1, 2)[..., :6].contiguous()],
    ),
    "aten::stack of dtypes": (
        lambda x, y: torch.stack((x, (y * 9).int()), -1).sum(-1),
        [X, Y],
    ),
    "aten::scatter_add": (
        between(lambda x, y: x.scatter_add(1, x.argmax(1, True), y.sum(1, True))),
        [X, Y],
    ),
    "aten::scatter_add of integers": (
        lambda x: [
            y.scatter_add(0, x.argmax(0, True), y.sum(0, True)) * 3
            for y in [(x * 9).long()]
        ],
        [X],
    ),
    "aten::logsumexp": (between(lambda x: x.logsumexp(1)), [X * 40]),
    "aten::logsumexp columns": (
        between(lambda x: x.logsumexp((0, 2), keepdim=True)),
        [IMAGE],
    ),
    "aten::logsumexp special": (between(lambda x: x.logsumexp(-1)), [SPECIAL]),
    "aten::logsumexp masked": (
        between(lambda x: x.masked_fill(x > -9, float("inf")).logsumexp(0)),
        [X],
    ),
    "aten::var.correction": (between(lambda x: x.var(1)), [X + 100]),
    "aten::var.correction all": (between(torch.var), [X]),
    "aten::var.correction of columns": (
        lambda x: (x - x.mean(0)) * (x.var(0) + 1e-5).rsqrt(),
        [X],
    ),
    "aten::var.correction by another number": (
        between(lambda x: x.var((0, -1), correction=2.5, keepdim=True)),
        [IMAGE],
    ),
    "aten::var.correction by too much": (
        between(lambda x: x.var(0, correction=9)),
        [X],
    ),
    "aten::var.correction special": (between(lambda x: x.var(1)), [SPECIAL]),
    "aten::std.correction": (between(lambda x: x.std(-1, keepdim=True)), [X]),
    "aten::var_mean.correction": (
        lambda x: [y * 2 for y in torch.var_mean(x.neg(), 0)],
        [X],
    ),
    "aten::std_mean.correction": (
        lambda x: [y * 2 for y in torch.std_mean(x.neg(), 1, unbiased=False)],
        [X],
    ),
    "aten::all.dim": (between(lambda x: x.all(1)), [X]),
    "aten::all.dim special": (between(lambda x: x.all(1, True)), [SPECIAL.round()]),
    "aten::all.dim of bools": (lambda x: (x < 1).all(0).logical_not(), [X]),
    "aten::any.dim": (between(lambda x: x.any(0)), [SPECIAL]),
    "aten::any.dim of bytes": (lambda x: (x > 1.5).byte().mul(2).any(0) * 2, [X]),
    "aten::isneginf": (between(torch.isneginf), [SPECIAL]),
    "aten::isposinf": (between(torch.isposinf), [SPECIAL]),
    "aten::where.self_out": (
        inplace(lambda x, m, y: torch.where(m, y, x, out=x)),
        [X, MASK, Y],
    ),
    "aten::argmax": (between(lambda x: x.argmax(1)), [X]),
    "aten::argmax of equals": (between(lambda x: x.long().argmax(0, True)), [X]),
    "aten::argmax special": (between(lambda x: x.argmax(-1)), [SPECIAL]),
    "aten::argmin": (between(lambda x: x.argmin(1)), [X]),
    "aten::argmin special": (between(lambda x: x.argmin(0)), [SPECIAL]),
    "aten::max.dim": (lambda x: [y * 2 for y in x.neg().max(1)], [X]),
    "aten::max.dim of equals": (
        lambda x: [y * 2 for y in x.long().neg().max(-2, keepdim=True)],
        [IMAGE],
    ),
    "aten::max.dim special": (lambda x: [y * 2 for y in x.neg().max(1)], [SPECIAL]),
    "aten::min.dim": (lambda x: [y * 2 for y in x.neg().min(0)], [X]),
    "aten::tril": (between(torch.tril), [X]),
    "aten::tril above": (between(lambda x: x.tril(2)), [IMAGE]),
    "aten::triu": (between(torch.triu), [X]),
    "aten::triu below": (between(lambda x: (x > 0).triu(-2)), [X]),
    "aten::triu special": (between(torch.triu), [SPECIAL]),
    **{
        f"{name} {by}{how}": (make(op, reduction), [x, target, *weights[:given]])
        for name, (make, op, x, target, *weights) in LOSSES.items()
        for given, by in enumerate(("", "weights "))
        for reduction, how in enumerate(("none", "mean", "sum"))
    },
    "aten::linalg_vector_norm": (
        lambda x: torch.linalg.vector_norm(x * 2) + 1,
        [X],
    ),
    "lists add": (lists(lambda a, b: torch._foreach_add(a, b, alpha=2)), [X, Y]),
    "lists mul": (lists(lambda a, b: torch._foreach_mul(a, b)), [X, Y]),
    "lists lerp": (lists(lambda a, b: torch._foreach_lerp(a, b, 0.25)), [X, Y]),
    "lists addcdiv": (
        lists(lambda a, b: torch._foreach_addcdiv(a, b, b, [0.5, 0.25])),
        [X, POS],
    ),
    "lists sqrt": (lists(lambda a, b: torch._foreach_sqrt(b)), [X, POS]),
    "lists pow": (lists(lambda a, b: torch._foreach_pow(a, 2)), [X, Y]),
    "lists maximum": (lists(lambda a, b: torch._foreach_maximum(a, b)), [X, Y]),
}


def flat(value: Any) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else list(value)


def to(values: list[Any], device: Any, dtype: torch.dtype) -> list[Any]:
    def one(v: Any) -> Any:
        if not isinstance(v, torch.Tensor):
            return v
        return v.clone().to(device, dtype if v.is_floating_point() else v.dtype)

    return [one(v) for v in values]


def nearer(got: torch.Tensor, cpu: torch.Tensor, exact: torch.Tensor) -> bool:
    """Whether a result is at least as close to the float64 result as the CPU's."""
    if got.shape != cpu.shape or not cpu.is_floating_point() or cpu.numel() == 0:
        return False
    error = (got.double() - exact).abs().max()
    return bool(error <= (cpu.double() - exact).abs().max())


def run(name: str, dtype: torch.dtype) -> dict[str, Any]:
    """Runs a case: whether it fused, and the error as text, or ""."""
    f, values = CASES[name]
    fused, error = False, ""
    try:
        expected = flat(f(*to(values, "cpu", dtype)))
        on_device = to(values, DEVICE, dtype)
        torch.mycelya.synchronize()
        got = flat(f(*on_device))
        operator = name.split(" ")[0].removeprefix("aten::").split(".")[0]
        for g in got:
            graph = torch.mycelya.explain(g)
            groups = "".join(re.findall(r"  fuse .*?\n  }", graph, re.DOTALL))
            inside = operator in groups or name.startswith("lists")
            fused = fused or inside or bool(groups) and operator not in graph
        exact = flat(f(*to(values, "cpu", torch.float64)))
        for g, e, r in zip(got, expected, exact, strict=True):
            if nearer(g.cpu(), e, r):
                continue
            bounds = {"rtol": None, "atol": None}
            if dtype.itemsize == 2:
                bounds = {"rtol": 2e-2, "atol": 2e-2}
            elif dtype == torch.float32 and on_cuda():
                bounds = CUDA_BOUNDS
            torch.testing.assert_close(g.cpu(), e, equal_nan=True, **bounds)
    except Exception:
        error = traceback.format_exc(limit=-3)
    return {"case": name, "dtype": str(dtype), "fused": fused, "error": error}


if __name__ == "__main__":
    for case in CASES:
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
            print(json.dumps(run(case, dtype)))
            sys.stdout.flush()
