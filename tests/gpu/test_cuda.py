# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Compares a CUDA worker with eager CUDA on the same GPU.

tests/e2e has the tests that do not depend on CUDA.
"""

import copy

import pytest
import torch
from helpers import DEVICE, on_cuda, run, same
from torch import nn

CUDA = torch.device("cuda:0")


def test_the_worker_computes_with_cuda():
    assert on_cuda()
    properties = torch.mycelya.get_device_properties()
    assert properties.name == torch.cuda.get_device_name(0)
    assert properties.device == "cuda:0"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_matrix_products_equal_eager_cuda(dtype):
    a, b = torch.randn(512, 384).to(dtype), torch.randn(384, 256).to(dtype)
    ours = (a.to(DEVICE) @ b.to(DEVICE)).cpu()
    assert torch.equal(ours, (a.to(CUDA) @ b.to(CUDA)).cpu())


@pytest.mark.parametrize("size", [1, 1000, 1 << 20, 3 << 24])
def test_transfers_of_all_sizes(size):
    x = torch.arange(size, dtype=torch.int32)
    assert torch.equal(x.to(DEVICE).cpu(), x)


def test_random_numbers_equal_eager_cuda():
    for draw in (
        lambda d: torch.randn(1000, device=d),
        lambda d: torch.rand(77, device=d),
        lambda d: torch.randint(9, (50,), device=d),
        lambda d: nn.functional.dropout(torch.ones(1000, device=d), 0.3),
    ):
        torch.manual_seed(5)
        here = [draw(CUDA) for _ in range(2)]
        torch.manual_seed(5)
        there = [draw(DEVICE) for _ in range(2)]
        for a, b in zip(here, there, strict=True):
            assert torch.equal(a.cpu(), b.cpu())


def test_training_equals_eager_cuda():
    net = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 10)),
    )
    images, labels = torch.randn(32, 1, 8, 8), torch.randint(10, (32,))
    losses = []
    for device in (CUDA, DEVICE):
        model = copy.deepcopy(net).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        x, y = images.to(device), labels.to(device)
        for _ in range(20):
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)


def test_attention():
    q, k, v = (torch.randn(2, 4, 64, 32) for _ in range(3))
    attend = nn.functional.scaled_dot_product_attention
    ours = attend(*(t.to(DEVICE) for t in (q, k, v)), is_causal=True)
    same(ours.cpu(), attend(q, k, v, is_causal=True), 1e-3, 1e-3)


def test_an_index_out_of_range_raises_and_does_not_hang(tmp_path):
    code = """
        import torch, mycelya_torch

        x = torch.ones(3, device="mycelya")
        bad = x.gather(0, torch.tensor([500000000]).to("mycelya"))
        try:
            print(bad.cpu())
        except RuntimeError as error:
            print("RuntimeError:", " ".join(str(error).split()))
    """
    status, out, err = run(code, tmp_path, timeout=60)
    assert status == 0, err
    assert out.startswith("RuntimeError:")


def test_an_allocation_that_is_too_large_fails_its_op():
    huge = torch.empty(1 << 42, dtype=torch.uint8, device=DEVICE)
    huge.fill_(1)
    with pytest.raises(RuntimeError, match="emory"):
        huge[:1].cpu()
    del huge
    assert torch.ones(2, device=DEVICE).sum().item() == 2
