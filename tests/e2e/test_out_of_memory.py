# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Lack of memory: what still fits, what the error says, and that a program goes on."""

import inspect
import json
import os
import re
import resource

import pytest
import torch
from torch import nn

from mycelya_torch import RemoteMachine, _device, errors

pytestmark = pytest.mark.cpu_worker

MIB = 1 << 20
UNIT = 64 * MIB  # the bytes of a tensor
FLOATS = UNIT // 4
RESERVE = 96 * MIB  # the worker leaves 64 MiB to its other parts


def line_before():
    """ "file.py:line" of the line before the caller's."""
    frame = inspect.stack()[1]
    return f"{os.path.basename(frame.filename)}:{frame.lineno - 1}"


class Small:
    """A machine whose worker may take memory for some more tensors."""

    def __init__(self):
        self.machine = RemoteMachine("local")
        self.device = self.machine.device()

    def room_for(self, tensors):
        torch.mycelya.synchronize(self.device)
        torch.mycelya.empty_cache()
        torch.mycelya.synchronize(self.device)
        pid = json.loads(_device.device_info(self.device.index))["pid"]
        with open(f"/proc/{pid}/status") as status:
            now = int(re.search(r"VmData:\s*(\d+)", status.read())[1]) * 1024
        _, most = resource.prlimit(pid, resource.RLIMIT_DATA)
        limit = now + int(tensors * UNIT) + RESERVE
        resource.prlimit(pid, resource.RLIMIT_DATA, (limit, most))


@pytest.fixture
def small():
    torch.ones(1, device="mycelya").cpu()  # so that a bare "mycelya" has index 0
    small = Small()
    yield small
    small.machine.stop()


def test_the_error_has_numbers_and_the_largest_tensors(small):
    one = torch.full((FLOATS,), 2.0, device=small.device)
    by_one = line_before()
    two = [torch.zeros(FLOATS, device=small.device) for _ in range(2)]
    by_two = line_before()
    few = torch.ones(3, device=small.device)
    small.room_for(2)
    big = torch.cat([one, one, two[0], two[1]])
    by_big = line_before()
    with pytest.raises(torch.OutOfMemoryError) as error:
        big[:1].cpu()
    text = str(error.value)
    assert re.search(
        r"^Out of memory: 256\.0 MiB wanted on cpu\. Of its [\d.]+ [MG]iB, [\d.]+ MiB "
        r"are free; the tensors of this session take 19[0-9]\.\d MiB\.\n",
        text,
    ), text
    assert f"in aten::cat(f32[{FLOATS}], " in text
    assert by_big in text
    head = f"\nThe largest live tensors of {small.device}, by the line that made them:"
    lines = (
        rf"\n  128\.0 MiB in 2 tensors, \S*{by_two}"
        rf"\n  64\.0 MiB in 1 tensor, \S*{by_one}$"
    )
    assert re.search(head + lines, text), text
    assert errors.OutOfMemoryError is torch.mycelya.OutOfMemoryError
    assert isinstance(error.value, errors.OutOfMemoryError)
    assert isinstance(error.value, RuntimeError)
    # Nothing is lost, and the session goes on.
    assert one[-1].item() == 2.0
    assert two[1].abs().max().item() == 0.0
    assert (few + 1).tolist() == [2.0] * 3


def test_an_upload_that_finds_no_memory(small):
    kept = torch.ones(FLOATS).to(small.device)
    where = line_before()
    small.room_for(1)
    with pytest.raises(torch.OutOfMemoryError) as error:
        torch.ones(4 * FLOATS).to(small.device).sum().item()
    assert "Out of memory: 256.0 MiB wanted on cpu." in str(error.value)
    assert re.search(rf"\n  64\.0 MiB in 1 tensor, \S*{where}", str(error.value))
    assert kept.sum().item() == FLOATS


def test_what_is_dropped_before_is_free(small):
    old = torch.ones(4 * FLOATS, device=small.device)
    small.room_for(2)
    del old
    new = torch.zeros(5 * FLOATS, device=small.device)
    assert new[-1].item() == 0.0


def test_an_input_that_is_dropped_on_the_way_is_free(small):
    x = torch.arange(FLOATS, device=small.device, dtype=torch.float32)
    small.room_for(1)
    y = x.flip(0)
    del x
    z = y.roll(1)
    del y
    z = z.flip(0).roll(-1)
    want = torch.arange(FLOATS, dtype=torch.float32).flip(0).roll(1).flip(0).roll(-1)
    assert torch.equal(z.cpu(), want)


def test_what_fits_in_the_order_of_the_program_fits(small):
    """Fusion and the order of a compiled program must not need more memory."""
    x = torch.linspace(-1, 1, FLOATS).to(small.device)
    small.room_for(3)
    sums = []
    for i in range(12):
        t = (x * (i + 1)).tanh()
        sums.append(t.flip(0)[: FLOATS // 2].sum())
    got = torch.stack(sums).cpu()
    host = x.cpu()
    want = [(host * (i + 1)).tanh().flip(0)[: FLOATS // 2].sum() for i in range(12)]
    torch.testing.assert_close(got, torch.stack(want), rtol=1e-5, atol=1e-1)


@pytest.mark.parametrize("reads", [False, True])
def test_catch_the_error_and_halve_the_batch(small, reads):
    def train(device, sizes, limit):
        torch.manual_seed(3)
        net = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 1))
        net.to(device)
        optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
        data = torch.linspace(-1, 1, 64).repeat(1 << 17, 1)
        if limit:
            small.room_for(limit)
        used = []
        for size in sizes:
            while True:
                try:
                    optimizer.zero_grad()
                    loss = net(data[:size].to(device)).square().mean()
                    loss.backward()
                    optimizer.step()
                    if reads:
                        loss.item()
                    torch.mycelya.synchronize(device)
                    break
                except torch.OutOfMemoryError:
                    size //= 2
            used.append(size)
        return used, [p.detach().cpu() for p in net.parameters()]

    # A batch of 2 ** 17 rows has 128 MiB for each hidden activation.
    used, got = train(small.device, [1 << 12, 1 << 17, 1 << 12], 2.5)
    assert used[0] == used[2] == 1 << 12
    assert used[1] < 1 << 17
    same, want = train(torch.device("mycelya:0"), used, 0)
    assert same == used
    for a, b in zip(got, want, strict=True):
        assert torch.equal(a, b)
