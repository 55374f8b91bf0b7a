# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""scaled_dot_product_attention: one op forward, one backward, all kinds of masks."""

import pytest
import torch
import torch.nn.functional as F
from helpers import compare as compare_all
from helpers import on_cuda, to_device
from torch.nn.attention import SDPBackend, sdpa_kernel

B, H, L, S, E = 2, 4, 5, 7, 8


def compare(fn, *tensors):
    """The strides are not compared on CUDA: they depend on the kernel that it chooses.

    test_cuda_rules.py compares them with those of CUDA's memory-efficient kernel.
    """
    return compare_all(fn, *tensors, strides=not on_cuda())


def qkv(dtype=torch.float32, heads=H, length=L, **kwargs):
    shapes = [(B, H, length, E), (B, heads, S, E), (B, heads, S, E)]
    return [torch.randn(s, dtype=dtype, **kwargs).requires_grad_() for s in shapes]


MASKS = {
    "none": lambda: None,
    "bool": lambda: torch.rand(B, 1, L, S) > 0.3,
    "bool rows": lambda: torch.ones(L, S, dtype=torch.bool).tril(2),
    "float": lambda: torch.randn(B, H, L, S),
    "float broadcast": lambda: torch.randn(1, 1, L, S),
    "-inf": lambda: torch.zeros(L, S).masked_fill(torch.rand(L, S) < 0.3, -torch.inf),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_masks(mask, dtype):
    mask = MASKS[mask]()
    extra = (
        [] if mask is None else [mask if mask.dtype == torch.bool else mask.to(dtype)]
    )
    compare(
        lambda q, k, v, *m: F.scaled_dot_product_attention(q, k, v, *m),
        *qkv(dtype),
        *extra,
    )


@pytest.mark.parametrize(
    "options",
    [
        {"is_causal": True},
        {"scale": 0.3},
        {"is_causal": True, "scale": 2.0},
        {"dropout_p": 0.4},
        {"dropout_p": 0.4, "is_causal": True},
    ],
    ids=str,
)
def test_options(options):
    def attend(q, k, v):
        torch.manual_seed(5)
        return F.scaled_dot_product_attention(q, k, v, **options)

    # CUDA draws other numbers than the CPU.
    if on_cuda() and "dropout_p" in options:
        options = {**options, "dropout_p": 0.0}
    compare(attend, *qkv())


@pytest.mark.parametrize("heads", [1, 2])
def test_grouped_queries(heads):
    compare(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        *qkv(heads=heads),
    )


def test_layouts():
    """Packed projections with transposed heads, no batch dim, one query."""
    packed = torch.randn(B, L, 3 * H * E, requires_grad=True)

    def attend(x):
        q, k, v = (t.unflatten(-1, (H, E)).transpose(1, 2) for t in x.chunk(3, -1))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return out.transpose(1, 2).flatten(2)

    compare(attend, packed)
    compare(F.scaled_dot_product_attention, *(t.detach()[0] for t in qkv()))
    compare(F.scaled_dot_product_attention, *qkv(length=1))


def test_gradient_of_a_mask():
    mask = torch.randn(B, H, L, S, requires_grad=True)
    compare(F.scaled_dot_product_attention, *qkv(), mask)


@pytest.mark.cpu_worker
def test_forward_and_backward_are_one_op_each(counters):
    q, k, v = (to_device(t) for t in qkv())
    torch.mycelya.synchronize()
    torch.mycelya.reset_metrics()
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert counters()["ops_recorded"] == 1
    torch.mycelya.reset_metrics()
    torch.autograd.grad(out, (q, k, v), torch.ones_like(out))
    assert counters()["ops_recorded"] <= 3  # ones_like is an empty and a fill


def test_sdpa_kernel_selects_the_math_backend():
    with sdpa_kernel(SDPBackend.MATH):
        compare(F.scaled_dot_product_attention, *qkv())


def test_invalid_arguments_are_refused():
    q, k, v = (to_device(t) for t in qkv())
    with pytest.raises(RuntimeError):
        F.scaled_dot_product_attention(q, k[..., :4], v)
    with pytest.raises(RuntimeError, match="dtype"):
        F.scaled_dot_product_attention(q, k.double(), v)
    if torch.__version__.startswith("2.11."):
        return  # only its math kernel refuses a mask with is_causal
    with pytest.raises(RuntimeError, match="is_causal"):
        mask = to_device(torch.ones(L, S, dtype=torch.bool))
        F.scaled_dot_product_attention(q, k, v, mask, is_causal=True)


def test_multi_head_attention_module():
    torch.manual_seed(0)
    cpu = torch.nn.MultiheadAttention(H * E, H, batch_first=True)
    ours = torch.nn.MultiheadAttention(H * E, H, batch_first=True).to("mycelya")
    ours.load_state_dict(cpu.state_dict())
    x = torch.randn(B, L, H * E, requires_grad=True)
    compare(lambda x: (ours if x.device.type == "mycelya" else cpu)(x, x, x)[0], x)


# ---- The overrideable backend: the worker chooses the kernel, as on CUDA ----


def attend_overrideable(q, k, v, mask=None, **options):
    """The worker chooses the kernel for device tensors, PyTorch for CPU tensors."""
    if q.device.type == "cpu":
        return F.scaled_dot_product_attention(q, k, v, mask, **options)
    with sdpa_kernel(SDPBackend.OVERRIDEABLE):
        # The result lies in memory as [batch, length, heads, features], as on CUDA.
        out = F.scaled_dot_product_attention(q, k, v, mask, **options)
    assert out.transpose(1, 2).is_contiguous()
    return out.contiguous()


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_masks_where_the_worker_chooses(mask, dtype):
    mask = MASKS[mask]()
    extra = (
        [] if mask is None else [mask if mask.dtype == torch.bool else mask.to(dtype)]
    )
    compare(attend_overrideable, *qkv(dtype), *extra)


@pytest.mark.parametrize(
    "options",
    [
        {"is_causal": True},
        {"scale": 0.3},
        {"dropout_p": 0.4, "is_causal": True},
    ],
    ids=str,
)
def test_options_where_the_worker_chooses(options):
    def attend(q, k, v):
        torch.manual_seed(5)
        out = attend_overrideable(q, k, v, **options)
        drawn = torch.rand(3, device=q.device)
        return (out, drawn.shape) if on_cuda() else (out, drawn)

    # CUDA draws other numbers than the CPU.
    if on_cuda() and "dropout_p" in options:
        options = {**options, "dropout_p": 0.0}
    compare(attend, *qkv())


@pytest.mark.parametrize("heads", [1, 2])
def test_grouped_queries_where_the_worker_chooses(heads):
    # PyTorch passes keys and values to this backend with fewer heads than queries.
    compare(lambda *x: attend_overrideable(*x, enable_gqa=True), *qkv(heads=heads))


def test_gradients_where_the_worker_chooses(counters):
    mask = torch.randn(B, H, L, S, requires_grad=True)
    compare(attend_overrideable, *qkv(), mask)
    q, k, v = qkv()
    compare(attend_overrideable, q.detach(), k, v.detach())  # some require grad
    compare(attend_overrideable, q.detach(), k.detach(), v.detach())  # none does

    q, k, v = (to_device(t) for t in qkv())
    torch.mycelya.synchronize()
    torch.mycelya.reset_metrics()
    with sdpa_kernel(SDPBackend.OVERRIDEABLE):
        out = F.scaled_dot_product_attention(q, k, v)
    assert counters()["ops_recorded"] == 1
    ones = torch.ones_like(out)
    torch.mycelya.reset_metrics()
    grads = torch.autograd.grad(out, (q, k, v), ones, retain_graph=True)
    assert counters()["ops_recorded"] == 1
    again = torch.autograd.grad(out, (q, k, v), ones)  # retain_graph kept the graph
    for one, other in zip(grads, again, strict=True):
        assert torch.equal(one.cpu(), other.cpu())


def test_saved_state_is_freed_with_the_graph():
    """The worker frees its state for the gradient when the client's graph is freed."""
    q, k, v = (to_device(torch.randn(1, 2, 512, 64)).requires_grad_() for _ in "qkv")

    def step():
        with sdpa_kernel(SDPBackend.OVERRIDEABLE):
            out = F.scaled_dot_product_attention(q, k, v)
        torch.autograd.grad(out.sum(), (q, k, v))
        torch.mycelya.synchronize()

    step()
    first = torch.mycelya.memory_allocated()
    for _ in range(20):
        step()
    assert torch.mycelya.memory_allocated() <= first


def test_invalid_arguments_where_the_worker_chooses():
    q, k, v = (to_device(t) for t in qkv())
    with sdpa_kernel(SDPBackend.OVERRIDEABLE):
        for bad in (
            (q, k[..., :4], v),
            (q, k[:, :, :3], v),
            (q, k[:, :3], v[:, :3]),
            (q[:1], k, v),
        ):
            with pytest.raises(RuntimeError):
                F.scaled_dot_product_attention(*bad)
        for mask in (torch.zeros(L, S), torch.ones(L, S, dtype=torch.bool)):
            with pytest.raises(RuntimeError, match="mycelya:0 and cpu"):
                F.scaled_dot_product_attention(q, k, v, mask)
    assert q.sum().isfinite().item()
