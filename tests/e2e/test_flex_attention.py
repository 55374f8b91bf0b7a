# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""flex_attention and create_block_mask on the device, plain and compiled."""

import pytest
import torch
from helpers import DEVICE, same
from torch.nn.attention.flex_attention import (
    AuxRequest,
    create_block_mask,
    create_mask,
    flex_attention,
)

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without")


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def causal(b, h, q, k):
    return q >= k


def distance(score, b, h, q, k):
    return score + 0.1 * (q - k)


def capped(score, b, h, q, k):
    return 5 * torch.tanh(score / 5)


def dense(q, k, v, score_mod=None, mask_mod=None):
    """Attention by its definition, on the CPU; also has gradients there."""
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    scores = q @ k.mT / q.shape[-1] ** 0.5
    rows, columns = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
    if score_mod is not None:
        scores = score_mod(scores, None, None, rows, columns)
    if mask_mod is not None:
        keep = mask_mod(None, None, rows, columns)
        scores = scores.masked_fill(~keep, -float("inf"))
    return scores.softmax(-1) @ v


def operands(heads=2):
    torch.manual_seed(0)
    shapes = [(2, 2, 64, 16), (2, heads, 64, 16), (2, heads, 64, 16)]
    return [torch.randn(*s) for s in shapes]


@pytest.mark.parametrize("options", [None, {}, {"backend": "mycelya"}], ids=str)
@pytest.mark.parametrize("score_mod", [None, distance, capped])
def test_values(score_mod, options):
    q, k, v = operands()
    function = flex_attention
    if options is not None:
        function = torch.compile(flex_attention, fullgraph=True, **options)
    mask = create_block_mask(causal, None, None, 64, 64, device=DEVICE, BLOCK_SIZE=16)
    there = [t.to(DEVICE) for t in (q, k, v)]
    got = function(*there, score_mod=score_mod, block_mask=mask)
    same(got, dense(q, k, v, score_mod, causal), 1e-4, 1e-5)


@pytest.mark.parametrize("compiled", [False, True])
def test_gradients(compiled):
    q, k, v = (t.requires_grad_() for t in operands(heads=1))
    function = torch.compile(flex_attention) if compiled else flex_attention
    there = [t.detach().to(DEVICE).requires_grad_() for t in (q, k, v)]
    mask = create_block_mask(causal, None, None, 64, 64, device=DEVICE, BLOCK_SIZE=16)
    got = function(*there, score_mod=distance, block_mask=mask, enable_gqa=True)
    expected = dense(q, k, v, distance, causal)
    weight = torch.randn_like(expected)
    (got * weight.to(DEVICE)).sum().backward()
    (expected * weight).sum().backward()
    same(got.detach(), expected.detach(), 1e-4, 1e-5)
    same([t.grad for t in there], [t.grad for t in (q, k, v)], 1e-3, 1e-4)


@pytest.mark.skipif(
    torch.__version__.startswith("2.11."),
    reason="compiled by torch 2.11, flex_attention gives a captured tensor no gradient",
)
def test_a_bias_with_gradients():
    """A tensor that the score function reads gets its gradient."""
    q, k, v = operands()
    bias = torch.randn(64, 64, requires_grad=True)
    there = bias.detach().to(DEVICE).requires_grad_()

    def biased(table):
        return lambda score, b, h, q, k: score + table[q, k]

    fast = torch.compile(flex_attention)
    got = fast(*(t.to(DEVICE) for t in (q, k, v)), score_mod=biased(there))
    expected = dense(q, k, v, biased(bias))
    got.square().sum().backward()
    expected.square().sum().backward()
    same(got.detach(), expected.detach(), 1e-4, 1e-5)
    same(there.grad, bias.grad, 1e-3, 1e-4)


def test_auxiliary_results():
    q, k, v = operands()
    fast = torch.compile(flex_attention)
    there = [t.to(DEVICE) for t in (q, k, v)]
    _, aux = fast(*there, return_aux=AuxRequest(lse=True, max_scores=True))
    scores = q @ k.mT / 4
    same(aux.lse, scores.logsumexp(-1), 1e-4, 1e-5)
    same(aux.max_scores, scores.amax(-1), 1e-4, 1e-5)


def test_autocast():
    q, k, v = operands()
    there = [t.to(DEVICE) for t in (q, k, v)]
    for function in (flex_attention, torch.compile(flex_attention)):
        with torch.autocast("mycelya", dtype=torch.bfloat16):
            got = function(*there)
        assert got.dtype == torch.bfloat16
        same(got.float(), dense(q, k, v), 0.05, 0.05)


@pytest.mark.parametrize("compiled", [False, True])
def test_masks(compiled):
    """A block mask on the device has the blocks of one on the CPU."""

    def window(b, h, q, k):
        return (q >= k) & (q - k < 24)

    def make(device):
        function = torch.compile(create_block_mask) if compiled else create_block_mask
        return function(window, 1, 2, 80, 96, device=device, BLOCK_SIZE=16)

    here, there = (
        create_block_mask(window, 1, 2, 80, 96, device="cpu", BLOCK_SIZE=16),
        make("mycelya"),
    )
    assert there.kv_indices.is_mycelya
    for name in (
        "kv_num_blocks",
        "kv_indices",
        "full_kv_num_blocks",
        "full_kv_indices",
        "q_num_blocks",
        "q_indices",
    ):
        same(getattr(there, name).cpu(), getattr(here, name))
    same(there.to_dense().cpu(), here.to_dense())
    same(
        create_mask(window, 1, 1, 40, 40, device="mycelya").cpu(),
        create_mask(window, 1, 1, 40, 40, device="cpu"),
    )
    assert there.to("cpu").kv_indices.device.type == "cpu"
