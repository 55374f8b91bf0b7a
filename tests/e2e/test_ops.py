# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Single ops against the CPU: values, dtypes, strides, gradients."""

import itertools
import math

import pytest
import torch
from helpers import DEVICE, compare, on_cuda, same
from torch.nn import functional as F  # noqa: N812


def f(*shape, dtype=torch.float32, grad=True):
    return torch.randn(*shape, dtype=dtype).requires_grad_(grad)


@pytest.mark.critical
def test_hello():
    x = torch.ones(2, 3, device="mycelya")
    assert x.device == torch.device("mycelya", 0)
    assert (x + 1).cpu().tolist() == [[2.0] * 3] * 2
    assert x.is_mycelya and not x.cpu().is_mycelya


UNARY = (
    "neg abs exp sin cos tanh sigmoid relu floor ceil sign erf exp2 expm1 trunc round "
    "isnan logical_not square reciprocal positive isfinite frac atan sinh"
).split()


@pytest.mark.parametrize("name", UNARY)
def test_unary(name):
    compare(getattr(torch, name), f(5, 7))


@pytest.mark.parametrize("name", "sqrt rsqrt log log2 log1p log10".split())
def test_unary_of_positive(name):
    compare(getattr(torch, name), (torch.rand(5, 7) + 0.1).requires_grad_())


BINARY = (
    "add sub mul div maximum minimum atan2 fmod remainder eq ne lt le gt ge".split()
)


@pytest.mark.parametrize("name", BINARY)
def test_binary(name):
    compare(getattr(torch, name), f(4, 5), f(4, 5))
    compare(getattr(torch, name), f(4, 1, 5), f(3, 1))
    if name not in ("maximum", "minimum", "atan2"):  # these take tensors only
        compare(lambda a: getattr(torch, name)(a, 1.75), f(4, 5))


def test_special_values():
    odd = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, 3e38, -1.0])
    a, b = odd[:, None].expand(8, 8).contiguous(), odd.repeat(8, 1)
    for name in BINARY:
        compare(getattr(torch, name), a, b, device_decides=True)
    for name in ("sqrt", "rsqrt", "log", "neg", "sign", "reciprocal", "relu", "round"):
        got = compare(getattr(torch, name), odd)
        assert torch.equal(
            got.cpu().signbit(), getattr(torch, name)(odd).signbit()
        )  # -0.0 == 0.0 to assert_close


def test_integers_overflow_as_on_the_cpu():
    big = torch.tensor([2**31 - 1, -(2**31), 7, -7], dtype=torch.int32)
    compare(lambda x: (x + 1, x * 3, -x, x // 2, x % 3, x >> 1, x << 3, ~x), big)
    compare(lambda x: (x & 5, x | 8, x ^ 3), big)
    compare(lambda x: x + 200, torch.tensor([100, 255], dtype=torch.uint8))


DTYPES = [
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64),
]


@pytest.mark.parametrize("a", DTYPES, ids=str)
@pytest.mark.parametrize("b", DTYPES, ids=str)
def test_promotion(a, b):
    x, y = torch.tensor([1, 0, 1]).to(a), torch.tensor([1, 1, 0]).to(b)
    compare(lambda x, y: (x + y, x * y, x == y, torch.where(x == y, x, y)), x, y)


def test_promotion_of_numbers_and_0_dim():
    for dtype in (torch.int64, torch.float16, torch.float32, torch.complex64):
        x = torch.tensor([1, 2, 3]).to(dtype)
        compare(lambda x: (x + 1, x * 2.5, x / 2, x * (1 + 2j), x * True), x)
        compare(lambda x, y: x + y, x, torch.tensor(2.5, dtype=torch.float64))
    x = torch.arange(3.0)
    assert (x.to(DEVICE) * torch.tensor(2.0)).cpu().tolist() == [0.0, 2.0, 4.0]


def test_default_dtype_is_part_of_a_shape_rule():
    x = torch.arange(4)
    compare(lambda x: x / 2, x)
    torch.set_default_dtype(torch.float64)
    try:
        assert compare(lambda x: x / 2, x).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert compare(lambda x: x / 2, x).dtype == torch.float32


REDUCTIONS = {
    "sum": lambda x: (x.sum(), x.sum(0), x.sum((0, 2), keepdim=True)),
    "mean": lambda x: (x.mean(), x.mean(1), x.mean((-1, 0))),
    "amax": lambda x: (x.amax(), x.amax(1), x.amin((0, 1))),
    "max": lambda x: (x.max(), x.max(1), x.min(0, keepdim=True)),
    "argmax": lambda x: (x.argmax(), x.argmax(1), x.argmin(-1)),
    "var": lambda x: (x.var(), x.std(1), x.var(0, correction=0)),
    "prod": lambda x: (x.detach().prod(), x.prod(1)),
    "cumsum": lambda x: (x.cumsum(1), x.cumprod(0)),
    "norm": lambda x: (x.norm(), x.norm(dim=1), torch.linalg.vector_norm(x, 1)),
    "logsumexp": lambda x: x.logsumexp(1),
    "all": lambda x: ((x > 0).all(), (x > 0).any(1), (x > 0).sum()),
    "sort": lambda x: (x.sort(1), x.topk(2, 0), x.argsort(-1)),
    "median": lambda x: (x.median(), x.median(1)),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reduction(name):
    compare(REDUCTIONS[name], f(3, 4, 5))


MATRIX = {
    "mm": (lambda a, b: a @ b, (3, 4), (4, 5)),
    "mv": (lambda a, b: a @ b, (3, 4), (4,)),
    "dot": (lambda a, b: a @ b, (4,), (4,)),
    "bmm": (lambda a, b: a @ b, (2, 3, 4), (2, 4, 5)),
    "broadcast": (lambda a, b: a @ b, (2, 1, 3, 4), (3, 4, 5)),
    "transposed": (lambda a, b: a.t() @ b.t(), (4, 3), (5, 4)),
    "addmm": (lambda a, b: torch.addmm(b[0, :1], a, b, beta=0.5), (3, 4), (4, 5)),
    "baddbmm": (lambda a, b: torch.baddbmm(a @ b, a, b), (2, 3, 4), (2, 4, 5)),
    "einsum": (lambda a, b: torch.einsum("bij,bjk->ik", a, b), (2, 3, 4), (2, 4, 5)),
    "outer": (torch.outer, (3,), (4,)),
    "linear": (F.linear, (2, 3, 4), (5, 4)),
}


@pytest.mark.parametrize("name", MATRIX)
def test_matrix(name):
    fn, a, b = MATRIX[name]
    compare(fn, f(*a), f(*b), rtol=1e-4, atol=1e-5)


SHAPES = {
    "cat": lambda x, y: torch.cat((x, y), 1),
    "stack": lambda x, y: torch.stack((x, y), -1),
    "where": lambda x, y: torch.where(x > 0, x, y),
    "flip": lambda x, y: (x.flip(0), x.roll(1, 1), torch.rot90(x)),
    "repeat": lambda x, y: (x.repeat(2, 3), x.repeat_interleave(2, 0)),
    "pad": lambda x, y: (F.pad(x, (1, 2)), F.pad(x, (-1, 1)), x.tril(), x.triu(1)),
    "index": lambda x, y: (x[1], x[:, 1:3], x[..., None], x[[2, 0]], x[:, -1]),
    "gather": lambda x, y: x.gather(1, y.argsort(1)),
    "index_select": lambda x, y: x.index_select(0, y[:, 0].argsort()),
    "take_along": lambda x, y: torch.take_along_dim(x, y.argmax(1, keepdim=True), 1),
    "masked_fill": lambda x, y: x.masked_fill(y > 0, -1.0),
    "clamp": lambda x, y: (x.clamp(-0.5, 0.5), x.clamp_min(0.1), torch.clamp(x, max=y)),
    "lerp": lambda x, y: (torch.lerp(x, y, 0.3), torch.addcmul(x, x, y, value=0.5)),
    "diag": lambda x, y: (x.diagonal(), torch.diag(x[0]), x[:, :3].trace()),
    "scatter": lambda x, y: x.scatter_add(1, y.argsort(1), y),
    "cdist": lambda x, y: torch.cdist(x.double(), y.double()),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shape_op(name):
    compare(SHAPES[name], f(3, 4), f(3, 4))


NETWORK = {
    "softmax": (lambda x: (x.softmax(-1), x.log_softmax(0)), (3, 5)),
    "gelu": (lambda x: (F.gelu(x), F.gelu(x, approximate="tanh")), (3, 5)),
    "activations": (lambda x: (F.silu(x), F.elu(x), F.softplus(x), F.mish(x)), (3, 5)),
    "hardtanh": (lambda x: (F.hardtanh(x), F.leaky_relu(x), F.relu6(x)), (3, 5)),
    "glu": (lambda x: F.glu(x, -1), (3, 6)),
    "layer_norm": (lambda x: F.layer_norm(x, (5,), x[0], x[1]), (3, 5)),
    "rms_norm": (lambda x: F.rms_norm(x, (5,), x[0]), (3, 5)),
    "group_norm": (lambda x: F.group_norm(x, 2), (2, 4, 3)),
    "batch_norm": (lambda x: F.batch_norm(x, None, None, training=True), (4, 3, 2)),
    "instance_norm": (lambda x: F.instance_norm(x), (2, 3, 8)),
    "conv1d": (lambda x: F.conv1d(x, x[:, :, :3]), (3, 3, 9)),
    "conv2d": (lambda x: F.conv2d(x, x[:, :, :3, :3], padding=1), (2, 2, 6, 6)),
    "conv stride": (lambda x: F.conv2d(x, x[..., :2, :2], stride=2), (2, 2, 6, 6)),
    "conv groups": (lambda x: F.conv2d(x, x[:, :1, :2, :2], groups=2), (2, 2, 6, 6)),
    "conv_transpose": (lambda x: F.conv_transpose2d(x, x[..., :2, :2]), (2, 2, 5, 5)),
    "max_pool2d": (lambda x: F.max_pool2d(x, 2), (2, 2, 6, 6)),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 3, 2, 1), (2, 2, 6, 6)),
    "adaptive_pool": (lambda x: F.adaptive_avg_pool2d(x, (2, 3)), (2, 2, 6, 6)),
    "interpolate": (lambda x: F.interpolate(x, scale_factor=2.0), (2, 2, 3, 3)),
    "bilinear": (
        lambda x: F.interpolate(x, size=(5, 4), mode="bilinear"),
        (1, 2, 3, 3),
    ),
    "attention": (lambda x: F.scaled_dot_product_attention(x, x, x), (2, 2, 4, 8)),
    "mse": (lambda x: (F.mse_loss(x, x * 2), F.l1_loss(x, x.flip(0))), (3, 5)),
    "bce": (lambda x: F.binary_cross_entropy_with_logits(x, x.sigmoid()), (3, 5)),
    "huber": (lambda x: (F.huber_loss(x, -x), F.smooth_l1_loss(x, -x)), (3, 5)),
    "kl_div": (lambda x: F.kl_div(x.log_softmax(1), x.softmax(1)), (3, 5)),
}


@pytest.mark.parametrize("name", NETWORK)
def test_network_op(name):
    fn, shape = NETWORK[name]
    # Which attention kernel CUDA chooses, and so the layout, depends on the GPU.
    strides = name != "attention" or not on_cuda()
    compare(fn, f(*shape), rtol=1e-4, atol=1e-5, strides=strides)


def test_cross_entropy():
    target = torch.tensor([1, 4, -100])
    for options in ({}, {"label_smoothing": 0.1}, {"reduction": "sum"}):
        compare(lambda x, y, o=options: F.cross_entropy(x, y, **o), f(3, 5), target)


def test_embedding():
    ids = torch.tensor([[1, 2], [0, 1]])
    compare(lambda w, i: F.embedding(i, w, padding_idx=0), f(4, 3), ids)


def test_attention_is_causal_and_masked():
    q = f(2, 2, 5, 8)
    compare(
        lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True),
        q,
        rtol=1e-4,
        atol=1e-5,
        strides=not on_cuda(),
    )
    mask = torch.ones(5, 5).tril().bool()
    compare(
        lambda q, m: F.scaled_dot_product_attention(q, q, q, attn_mask=m),
        q,
        mask,
        rtol=1e-4,
        atol=1e-5,
        strides=not on_cuda(),
    )


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrent(kind):
    here = getattr(torch.nn, kind)(4, 6, 2)
    there = getattr(torch.nn, kind)(4, 6, 2).to(DEVICE)
    there.load_state_dict(here.state_dict())
    x = torch.randn(3, 2, 4)
    same(there(x.to(DEVICE)), here(x), 1e-4, 1e-5)


def test_making():
    for fn in (
        lambda d: torch.arange(2, 9, 2, device=d),
        lambda d: torch.arange(0, 1, 0.25, device=d),
        lambda d: torch.linspace(0, 1, 5, device=d),
        lambda d: torch.eye(3, device=d),
        lambda d: torch.full((2, 3), 7, device=d),
        lambda d: torch.zeros(0, 3, device=d),
        lambda d: torch.tensor([1, 2, 3], device=d),
        lambda d: torch.ones(2, device=d).new_full((2, 2), 1.5),
        lambda d: torch.tril_indices(3, 3, device=d),
        lambda d: torch.zeros(2, 3, device=d).sum(1),
        lambda d: torch.ones_like(torch.zeros(2, 2, device=d), dtype=torch.int32),
        lambda d: torch.empty(3, device=d).fill_(math.pi),
    ):
        same(fn(DEVICE), fn("cpu"))


def test_empty_tensors():
    compare(lambda x: (x + 1, x.sum(), x.sum(0), x @ x.t(), x.reshape(3, 0)), f(0, 3))
    with pytest.raises(IndexError):
        torch.zeros(0, 3, device=DEVICE).max(0)


def test_channels_last():
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    compare(lambda x: (x + 1, x * x, x.relu(), x.contiguous(), x.clone()), x)
    compare(lambda x: torch.empty_like(x).fill_(1), x)


def test_complex():
    x = torch.randn(3, 4, dtype=torch.complex64).requires_grad_()
    compare(lambda x: (x.abs(), x.real, x.imag * 2, x.conj() * x, x @ x.mH), x)
    compare(lambda x: (x.conj(), x.mH, x.conj().clone(), x.conj().imag), x.detach())
    compare(lambda x: torch.fft.ifft(torch.fft.fft(x)), x, rtol=1e-4, atol=1e-5)


def test_linear_algebra():
    a = torch.randn(4, 4, dtype=torch.float64)
    spd = a @ a.T + 4 * torch.eye(4, dtype=torch.float64)
    compare(torch.linalg.cholesky, spd)
    compare(torch.linalg.inv, spd)
    compare(torch.linalg.det, spd)
    compare(lambda a: torch.linalg.solve(a, a.sum(1)), spd)


def test_foreach():
    a, b = [f(2, 3, grad=False) for _ in range(3)], [f(2, 3, grad=False)] * 3
    for fn in (
        lambda *t: torch._foreach_add(t[:3], t[3:], alpha=2),
        lambda *t: torch._foreach_mul(t[:3], 1.5),
        lambda *t: torch._foreach_addcmul(t[:3], t[3:], t[:3], [0.1, 0.2, 0.3]),
        lambda *t: torch._foreach_norm(t[:3]),
        lambda *t: torch._foreach_lerp(t[:3], t[3:], 0.25),
        lambda *t: torch._foreach_sqrt(torch._foreach_abs(t[:3])),
    ):
        compare(fn, *a, *b)


def test_float64_is_computed_as_float64():
    a = torch.randn(17, 19, dtype=torch.float64)
    compare(lambda a: a @ a.t(), a, rtol=1e-12, atol=1e-12)
    compare(lambda a: (a / 3 + 1e-9).sum(), a, rtol=1e-12, atol=1e-12)


SHORT = {
    "add": lambda x, y, n: (
        torch.add(x, y, alpha=n),
        torch.ops.aten.add.Scalar(x, n, 3),
    ),
    "sub": lambda x, y, n: (x - y, torch.ops.aten.sub.Scalar(x, n, 2), n - x),
    "mul": lambda x, y, n: (x * y, torch.ops.aten.mul.Scalar(x, n), n * x, x * True),
    "div": lambda x, y, n: (x / y, torch.ops.aten.div.Scalar(x, n), x / n),
    "in place": lambda x, y, n: (x.clone().add_(y, alpha=n), x.clone().mul_(n)),
    "itself": lambda x, y, n: (x.clone().add_(x), (z := x.clone()).mul_(z), x + x),
    "part of itself": lambda x, y, n: (
        z := x.clone(),
        z[1:].add_(z[1:]),
        z[0].sub_(z[1]),
    ),
    "strided": lambda x, y, n: (x.mT + y.mT, x[:, ::2] * y[:, ::2], x[:1] + y),
    "row": lambda x, y, n: (x + y[0], x * y[:, :1], x[:1] + y[:1]),
    "relu": lambda x, y, n: (x.relu(), -x, torch.relu_(x.clone())),
    "mm": lambda x, y, n: (x @ y.mT, x.mT @ y, x[:1] @ y[:1].mT, x[:0] @ y.mT),
    "addmm": lambda x, y, n: tuple(
        torch.addmm(bias, x, y.mT, beta=2, alpha=n)
        for bias in (x[0, :3], x[:, :3], x[:1, :3], x[:, :1], x[0, 0])
    ),
    "number of the CPU": lambda x, y, n: (x * torch.tensor(n), x + torch.tensor(2)),
    "other dtype": lambda x, y, n: (x + y.double(), x * y.to(torch.int8), x.half() * y),
}
SHORT_DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.bool]
SHORT_NUMBERS = [2, 0.5, True, 1 + 2j]


def short_path_calls():
    """The combinations that the CPU has kernels for."""
    for name, number, dtype in itertools.product(SHORT, SHORT_NUMBERS, SHORT_DTYPES):
        matrices = name in {"mm", "addmm"}
        if dtype == torch.bool and (matrices or name == "relu"):
            continue
        if isinstance(number, complex) and (matrices or dtype == torch.bfloat16):
            continue
        yield pytest.param(name, number, dtype, id=f"{name}-{number}-{dtype}")


@pytest.mark.parametrize(("name", "number", "dtype"), list(short_path_calls()))
def test_short_and_general_paths(name, number, dtype):
    """Simple calls take the recorder's short path. Other calls do not."""

    def fn(x, y):
        try:
            return SHORT[name](x, y, number)
        except (RuntimeError, TypeError) as error:
            return type(error).__name__

    x, y = (torch.randn(3, 4) * 4).to(dtype), (torch.randn(3, 4) * 4 + 9).to(dtype)
    if name in {"mm", "addmm"} and dtype == torch.int32 and on_cuda():
        # CUDA has no product of integer matrices.
        with pytest.raises(NotImplementedError, match="not implemented for 'Int'"):
            compare(fn, x, y)
        return
    compare(fn, x, y)


def test_the_short_path_raises_pytorchs_errors():
    x, y = torch.randn(2, 3, device=DEVICE), torch.randn(2, 3, device=DEVICE)
    for call, text in {
        (
            lambda: x + torch.randn(2, 3)
        ): "Expected all tensors to be on the same device",
        (lambda: x + y[:, :2]): "must match the size",
        (lambda: x @ y): "cannot be multiplied",
        (lambda: x[0].expand(2, 3).add_(y)): "single memory location",
    }.items():
        with pytest.raises(RuntimeError, match=text):
            call()
    empty = torch.empty(2, 3, device=DEVICE)  # never written
    torch.mycelya.synchronize()
    assert (empty.add_(1) * 0 + 1).cpu().shape == (2, 3)
    assert (torch.empty(2, 3, device=DEVICE) * 0).cpu().shape == (2, 3)


PRODUCTS = {
    "mm": lambda x, y: x.double() @ y,
    "mm, integers": lambda x, y: x.int() @ y,
    "mm, nothing": lambda x, y: x[:0].double() @ y,
    "bmm": lambda x, y: torch.bmm(x[None].double(), y[None]),
    "addmm": lambda x, y: torch.addmm(x[:, :2], x.double(), y),
    "addmm, sum": lambda x, y: torch.addmm(x[:, :2].double(), x, y),
    "addmm_": lambda x, y: x[:, :2].double().addmm_(x, y),
    "addbmm": lambda x, y: torch.addbmm(x[:, :2], x[None].double(), y[None]),
    "out": lambda x, y: torch.mm(x.double(), y, out=x[:, :2].double()),
    "bias": lambda x, y: torch.addmm(x, x, y),
    "bias, rank": lambda x, y: torch.addmm(x[None, :, :2], x, y),
    "bias, nothing": lambda x, y: torch.addmm(x[0], x[:0], y),
    "linear": lambda x, y: F.linear(x, x, x[0]),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_that_do_not_fit_raise_at_the_call(name):
    x, y = torch.ones(2, 3), torch.ones(3, 2)
    with pytest.raises(RuntimeError) as cpu:
        PRODUCTS[name](x, y)
    with pytest.raises(RuntimeError) as ours:
        PRODUCTS[name](x.to(DEVICE), y.to(DEVICE))
    if name != "bmm":  # its message differs between CPU and CUDA in PyTorch
        assert str(cpu.value)[:13] == str(ours.value)[:13]
