# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Compares a CUDA worker with eager CUDA on the same GPU.

tests/e2e has the tests that do not depend on CUDA.
"""

import os
import subprocess
import sys

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


TRAINING = """
import sys, torch
from torch import nn

device = sys.argv[1]
if device == "mycelya":
    import mycelya_torch
torch.manual_seed(0)
model = nn.Sequential(
    *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
    *(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 10)),
)
x, y = torch.randn(32, 1, 8, 8).to(device), torch.randint(10, (32,)).to(device)
model.to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(20):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
"""


def alone(code: str, *arguments: str) -> str:
    """The output of a process that does not load the device by itself."""
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, check=True
    ).stdout


def test_training_equals_eager_cuda():
    ours, want = (float(alone(TRAINING, device)) for device in ("mycelya", "cuda"))
    assert ours == pytest.approx(want, rel=1e-3)


def test_import_torch_leaves_cuda_as_it_is():
    code = """
import torch
x = torch.ones(3, device="cuda", requires_grad=True)
(x * x).sum().backward()
print(x.grad.tolist(), torch.accelerator.current_accelerator())
"""
    environment = {k: v for k, v in os.environ.items() if k != "MYCELYA_MACHINE"}
    out = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    assert out == "[2.0, 2.0, 2.0] cuda\n"


def test_backward_of_cuda_tensors_beside_the_device():
    """PyTorch can't do it; the error says why and what to do."""
    x = torch.ones(3, device=CUDA, requires_grad=True)
    with pytest.raises(RuntimeError, match="one accelerator in a process"):
        (x * x).sum().backward()


def test_copies_between_cuda_and_the_device():
    x = torch.arange(12.0).reshape(3, 4)
    for here in (x.to(CUDA), x.to(CUDA).t(), x.to(CUDA)[:, 1::2]):
        there = here.to(DEVICE)
        assert there.stride() == here.stride() or not here.is_contiguous()
        assert torch.equal(there.cpu(), here.cpu())
        assert torch.equal((there + 1).to(CUDA), here + 1)
    y = torch.zeros(3, 4, device=CUDA)
    y.copy_(x.to(DEVICE).half())
    assert torch.equal(y.cpu(), x)


def test_pinned_memory_of_both():
    """PyTorch's factories pin for CUDA on such a host."""
    assert torch.empty(3, pin_memory=True).is_pinned()
    assert torch.ones(3).pin_memory().is_pinned()
    assert not torch.ones(3).is_pinned()


def test_wrong_probabilities_are_an_error():
    """CUDA's kernel would spoil the context."""
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(RuntimeError, match="probability tensor contains"):
            torch.multinomial(torch.tensor([wrong, 1, 1], device=DEVICE), 2).cpu()
    assert torch.ones(3, device=DEVICE).sum().item() == 3


def test_a_failed_assertion_of_a_kernel_ends_the_session(tmp_path):
    """The GPU's context can't be used after that; another process can use the GPU."""
    code = """
        import torch, mycelya_torch

        x = torch.ones(3, device="mycelya")
        torch._assert_async((x > 1).all())
        try:
            print(x.cpu())
        except mycelya_torch.errors.DeviceLostError as error:
            print("device-side assert triggered" in str(error))
        torch.mycelya.restart(0)
        print(torch.ones(3, device="mycelya").sum().item())
    """
    status, out, err = run(code, tmp_path, timeout=60)
    assert status == 0, err
    assert out == "True\n3.0\n"


def test_numbers_beside_tensors():
    """ATen's CUDA takes no number in CPU memory there, or copies it and waits."""
    x, m = torch.randn(5, 7), torch.rand(5, 7) > 0.5

    def fn(x, m):
        z = torch.zeros_like(x)
        z.copy_(torch.tensor(2.5))
        return (
            torch.addcmul(torch.zeros_like(x), x, x),
            torch.where(m, x, 0.25),
            torch.where(m, torch.full_like(x, 3), x),
            z,
            (x.tanh() * (1 - x.tanh().square())),
        )

    for ours, want in zip(fn(x.to(DEVICE), m.to(DEVICE)), fn(x, m), strict=True):
        same(ours.cpu(), want, 1e-5, 1e-5)


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
        except IndexError as error:
            print(str(error).splitlines()[0])
        print(x.sum().item())
    """
    status, out, err = run(code, tmp_path, timeout=60)
    assert status == 0, err
    message, value = out.splitlines()
    assert "index 500000000 is out of range" in message
    assert value == "3.0"


def test_an_allocation_that_is_too_large_fails_its_op():
    huge = torch.empty(1 << 42, dtype=torch.uint8, device=DEVICE)
    huge.fill_(1)
    with pytest.raises(RuntimeError, match="emory"):
        huge[:1].cpu()
    del huge
    assert torch.ones(2, device=DEVICE).sum().item() == 2
