# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Reads of what depends only on small uploads and constants: the client computes them.

The other tests run with MYCELYA_CHECK=2, where the worker answers each read and the
client compares the answer with its own. Here the client answers.
"""

import json
import os
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from helpers import DEVICE, run, same, to_device

from mycelya_torch import RemoteMachine, _device
from mycelya_torch.errors import DeviceLostError, MachineStoppedError

CHECKED = _device.LocalReads.CHECKED
IDS = torch.tensor([[5, 7, 2, 0, 0], [3, 2, 0, 0, 0], [9, 9, 9, 9, 2]])
MASK = (IDS != 0).long()


@pytest.fixture(autouse=True)
def local(used):
    """The client answers reads of this test."""
    before = _device.set_local_reads(_device.LocalReads.ON)
    torch.mycelya.reset_metrics()
    yield torch.mycelya.metrics
    _device.set_local_reads(before)


def trips():
    m = torch.mycelya.metrics()
    return m["round_trips"], m["local_reads"], m["cuts"]


def positions(ids, mask):
    at = mask.cumsum(-1) - 1
    at.masked_fill_(mask == 0, 1)
    return at


def padded(ids, mask):
    more = torch.nn.functional.pad(ids, (0, 2), value=0)
    return torch.cat([more, torch.zeros_like(more[:1])]).flip(0)


def causal(ids, mask):
    n = ids.shape[1]
    lower = torch.ones(n, n, dtype=torch.bool, device=ids.device).tril()
    return (lower[None] & mask[:, None].bool()).int()


def written(ids, mask):
    out = ids.clone()
    out[:, 1] = 4
    out[0].add_(1)
    out.t()[2:4].mul_(mask.t()[2:4])
    return out


def one_hot(ids, mask):
    return torch.nn.functional.one_hot(ids, 10).sum(1)


VALUES = {
    "the upload": lambda ids, mask: ids,
    "a view": lambda ids, mask: ids.t()[1:4, ::2],
    "all": lambda ids, mask: mask.all(),
    "any of a comparison": lambda ids, mask: (ids == 2).any(-1),
    "lengths": lambda ids, mask: mask.sum(-1),
    "the longest": lambda ids, mask: mask.sum(-1).max(),
    "the first end": lambda ids, mask: (ids == 2).int().argmax(-1),
    "positions": positions,
    "packed": lambda ids, mask: (positions(ids, mask).diff(dim=-1) == 1).all(),
    "padded": padded,
    "causal": causal,
    "written": written,
    "one hot": one_hot,
    "shifted": lambda ids, mask: torch.where(mask.bool(), ids.roll(1, -1), -100),
    "gathered": lambda ids, mask: ids.gather(1, mask.sum(-1, keepdim=True) - 1),
    "indexed": lambda ids, mask: ids[torch.arange(3, device=ids.device), mask[0, :3]],
    "counted": lambda ids, mask: torch.bincount(ids.flatten(), minlength=12),
    "as floats": lambda ids, mask: mask.to(torch.float32)[:, None, :].expand(3, 2, 5),
    "a number on the CPU": lambda ids, mask: ids * torch.tensor(3) - 1,
    "constants": lambda ids, mask: torch.full((4,), 2.5, device=ids.device),
    "integers divided": lambda ids, mask: ids // 2 + ids % 3,
}


@pytest.mark.parametrize("name", VALUES)
def test_value(name):
    f = VALUES[name]
    ids, mask = to_device(IDS), to_device(MASK)
    torch.mycelya.reset_metrics()
    lazy = f(ids, mask)
    got, expected = lazy.cpu(), f(IDS, MASK)
    answers = 2 if name == "counted" else 1  # its shape depends on values
    assert trips() == (0, answers, {})
    same(got, expected)
    _device.set_local_reads(CHECKED)
    same(lazy.cpu(), expected)  # the worker has the same
    assert torch.mycelya.metrics()["round_trips"] == 1


def test_each_way_to_read():
    x, big = to_device(torch.tensor([3, 1, 2])), torch.rand(3, 50_000)
    far = to_device(big)
    torch.mycelya.reset_metrics()
    assert x.tolist() == [3, 1, 2] and x[0].item() == 3 and bool(x.max() == 3)
    assert int(x.sum()) == 6 and "3, 1, 2" in repr(x) and torch.equal(x, x.clone())
    assert [int(i) for i in x] == [3, 1, 2] and max(x) == 3
    assert torch.empty(3, dtype=torch.long).copy_(x).tolist() == [3, 1, 2]
    assert x.cpu_future().result(60).tolist() == [3, 1, 2]
    pinned = torch.empty(3, dtype=torch.long, pin_memory=True)
    assert pinned.copy_(x, non_blocking=True).tolist() == [3, 1, 2]
    # Shapes that depend on known values, also of a tensor whose values are not known.
    rows = far[x > 1]
    assert rows.shape == (2, 50_000) and x[x > 1].tolist() == [3, 2]
    assert x.nonzero().shape == (3, 1) and x.repeat_interleave(x).shape == (6,)
    assert torch.mycelya.metrics()["round_trips"] == 0
    same(rows.cpu(), big[[0, 2]])


def test_what_is_not_known():
    small, large = torch.rand(4), torch.arange(10_000)  # the second has 80 KB
    x, y = to_device(small), to_device(large)
    unknown = {
        "a sum of floats": lambda: x.sum(),
        "arithmetic of floats": lambda: x + 1,
        "a large upload": lambda: y[:3],
        "memory that is read later": lambda: (
            torch.zeros(8192, dtype=torch.long)
            .pin_memory()
            .to(DEVICE, non_blocking=True)
        ),
        "random numbers": lambda: torch.randint(9, (3,), device=DEVICE),
        "a float as an integer": lambda: (x * 1e30).long(),
        "a write of unknown values": lambda: to_device(torch.ones(4)).copy_(x + 1),
        "a write of random ones": lambda: to_device(torch.ones(4)).uniform_(),
        "a part of another": lambda: (
            torch.empty(4, dtype=torch.long, device=DEVICE).fill_(1).add_(y[:4])
        ),
    }
    for name, f in unknown.items():
        before = torch.mycelya.metrics()
        f().cpu()
        after = torch.mycelya.metrics()
        assert after["local_reads"] == before["local_reads"], name
        assert after["round_trips"] > before["round_trips"], name


def test_contents_are_those_of_the_read():
    source, number = torch.tensor([1, 2, 3]), torch.tensor(10)
    x = to_device(source)
    source.fill_(9)
    y, view = x + number, x[1:]
    number.fill_(0)
    x.fill_(7)
    view[0] = 8
    assert y.tolist() == [11, 12, 13] and x.tolist() == [7, 8, 7]
    x.copy_(y)
    y.zero_()
    assert x.tolist() == [11, 12, 13] and view.tolist() == [12, 13]
    x.resize_(5)
    assert x[:3].tolist() == [11, 12, 13]
    x.untyped_storage().resize_(0)
    assert y.tolist() == [0, 0, 0]


def test_an_operator_that_reads_what_it_writes():
    def rows(device):
        x = torch.empty_strided((3, 2), (4, 1), dtype=torch.long, device=device)
        return x.copy_(torch.arange(6, device=device).view(3, 2))

    at = torch.tensor([2, 1, 0])
    for f in (
        lambda x, at: x.index_add_(0, at, x.narrow(0, 0, 3)),
        lambda x, at: x.add_(x).mul_(x.clone()),
    ):
        ours = f(rows(DEVICE), to_device(at))
        assert ours.tolist() == f(rows("cpu"), at).tolist()


def test_a_long_chain_is_no_list_of_its_steps():
    x = to_device(torch.zeros(3, dtype=torch.long))
    kept = torch.mycelya.metrics()["known_bytes"]
    for i in range(1000):
        x = x + 1 if i % 2 else x.add_(1)
    assert torch.mycelya.metrics()["known_bytes"] <= kept + 100
    assert x.tolist() == [1000] * 3 and torch.mycelya.metrics()["round_trips"] == 0


def test_bytes_are_bounded_and_freed():
    first = torch.mycelya.metrics()["known_bytes"]
    source = torch.zeros(8192, dtype=torch.long)  # 64 KiB
    all_of_them = [to_device(source + i) for i in range(1100)]
    assert first < torch.mycelya.metrics()["known_bytes"] <= 64 << 20
    torch.mycelya.reset_metrics()
    assert all_of_them[0][5].item() == 0 and all_of_them[-1][5].item() == 1099
    m = torch.mycelya.metrics()
    assert (m["local_reads"], m["round_trips"]) == (1, 1)
    del all_of_them
    assert torch.mycelya.metrics()["known_bytes"] <= first


def test_errors_are_the_workers():
    x, zero = to_device(torch.tensor([1, 2])), to_device(torch.tensor([0, 1]))
    with pytest.raises(RuntimeError, match="ZeroDivisionError") as error:
        (x // zero).tolist()
    assert "test_local_reads.py" in str(error.value)
    assert x.tolist() == [1, 2]


def test_after_a_failure_the_worker_is_asked():
    """What was recorded after the failure has no effect, though the client knows it."""
    x, kept = to_device(torch.tensor([1, 2])), to_device(torch.tensor([3]))
    torch.mycelya.synchronize()
    with pytest.raises(IndexError):
        torch.rand(3, device=DEVICE)[torch.tensor([7], device=DEVICE) * kept].cpu()
    wrong = torch.nn.functional.embedding(x + 5, torch.rand(3, 2, device=DEVICE))
    x.fill_(9)
    with pytest.raises(IndexError):
        wrong.cpu()
    torch.mycelya.reset_metrics()
    assert x.tolist() == [1, 2] and kept.tolist() == [3]
    assert torch.mycelya.metrics()["local_reads"] == 0
    y = to_device(torch.tensor([4]))
    assert (y + 1).tolist() == [5] and torch.mycelya.metrics()["local_reads"] == 1


@pytest.mark.parametrize("noticed", [False, True])
def test_stopped_and_lost_machines(noticed):
    """What was known is lost, also if the loss is noticed before the next read."""
    with RemoteMachine(name="known") as machine:
        x = torch.tensor([1, 2]).to(machine.device())
        assert x.tolist() == [1, 2]
        info = json.loads(_device.device_info(machine.remote_index))
        os.kill(info["pid"], signal.SIGKILL)
        if noticed:
            while machine.state == "running":
                time.sleep(0.01)
        with pytest.raises(DeviceLostError):
            while True:
                torch.rand(2, device=machine.device()).cpu()
        with pytest.raises(DeviceLostError):
            x.tolist()
        machine.restart()
        with pytest.raises(DeviceLostError):
            x.tolist()
        y = torch.tensor([1, 2]).to(machine.device())
        assert y.tolist() == [1, 2]
    with pytest.raises(MachineStoppedError):
        y.tolist()


def test_transforms_and_modes():
    x = to_device(IDS)
    assert torch.func.vmap(lambda row: row.sum())(x).tolist() == [14, 5, 38]
    with torch.autocast("mycelya", dtype=torch.bfloat16), torch.no_grad():
        assert x.sum().item() == 57
    with torch.inference_mode():
        assert (x + 1)[0].tolist() == [6, 8, 3, 1, 1]
    w = to_device(torch.tensor([1.0, 2.0])).requires_grad_()
    picked = torch.where(to_device(torch.tensor([True, False])), w, 0.0)
    assert picked.tolist() == [1, 0]
    picked.sum().backward()
    assert w.grad.tolist() == [1, 0]


def test_threads():
    """Writes and reads of several threads: each value is one that the tensor had."""
    x = to_device(torch.zeros(4, dtype=torch.long))
    wrong, over = [], threading.Event()

    def write():
        try:
            for i in range(400):
                x.fill_(i)
                torch.arange(5, device=DEVICE).sum().item()
        finally:
            over.set()

    def read():
        while not over.is_set():
            values = x.tolist()
            if not 0 <= values[0] < 400 or len(set(values)) != 1:
                wrong.append(values)

    with ThreadPoolExecutor(3) as pool:
        for thread in [pool.submit(f) for f in (write, read, read)]:
            thread.result()
    assert not wrong


class Program:
    """A random program of operators on views of small integer tensors."""

    def __init__(self, seed, device):
        self.random, self.device = random.Random(seed), device
        self.tensors = [self.new() for _ in range(3)]

    def new(self):
        r = self.random
        data = [[r.randrange(-4, 5) for _ in range(4)] for _ in range(4)]
        dtype = r.choice([torch.long, torch.int, torch.int16])
        return torch.tensor(data, dtype=dtype).to(self.device)

    def pick(self):
        r = self.random
        t = r.choice(self.tensors)
        ways = (
            lambda: t,
            lambda: t.t(),
            lambda: t.flip(0),
            lambda: t.roll(1, 1),
            lambda: t[r.randrange(4)].expand(4, 4),
        )
        return r.choice(ways)()

    def part(self):
        r = self.random
        t = r.choice(self.tensors)
        a = r.randrange(3)
        return r.choice((t, t[a:], t.t()[: a + 1], t[:, a], t[::2, 1:]))

    def step(self):
        r = self.random
        a, b = self.pick(), self.pick()
        results = (
            lambda: a + b,
            lambda: a * 2 - b,
            lambda: torch.where(a > b, a, b),
            lambda: (a == b).to(a.dtype),
            lambda: a.cumsum(1).to(a.dtype),
            lambda: torch.cat([a[:2], b[2:]]),
            lambda: a.masked_fill(b > 0, 3),
            lambda: a.gather(1, b.abs().long() % 4),
            lambda: a.tril() | b.triu(),
            lambda: a.remainder(5).maximum(b),
            lambda: self.new(),
        )
        part = self.part()
        writes = (
            lambda: part.fill_(r.randrange(9)),
            lambda: part.add_(1),
            lambda: part.copy_(part.clone() * 2),
            lambda: part.masked_fill_(part < 0, 2),
            lambda: part.clamp_(-9, 9),
        )
        if r.random() < 0.6:
            self.tensors[r.randrange(3)] = r.choice(results)()
        else:
            r.choice(writes)()
        return r.random() < 0.3 and r.randrange(3)


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_random_programs(first):
    for seed in range(first, first + 50):
        far, here = Program(seed, DEVICE), Program(seed, "cpu")
        for i in range(60):
            read = far.step()
            assert here.step() == read
            if read is not False:
                same(far.tensors[read].cpu(), here.tensors[read])
            if i == 30 and seed % 5 == 0:
                torch.mycelya.synchronize()
        _device.set_local_reads(CHECKED)
        for a, b in zip(far.tensors, here.tensors, strict=True):
            same(a.cpu(), b)
        _device.set_local_reads(_device.LocalReads.ON)
    assert torch.mycelya.metrics()["local_reads"] > 500


SCRIPT = """
import torch
x = torch.tensor([1, 2], device="mycelya")
print((x + 1).tolist(), torch.mycelya.metrics()["local_reads"])
"""


@pytest.mark.parametrize(
    ("settings", "count"),
    [({}, 1), ({"MYCELYA_LOCAL": "on"}, 1), ({"MYCELYA_LOCAL": "off"}, 0)],
)
def test_switch(tmp_path, settings, count):
    status, out, err = run(SCRIPT, tmp_path, MYCELYA_CHECK="1", **settings)
    assert status == 0, err
    assert out.strip() == f"[2, 3] {count}"


def test_wrong_switch(tmp_path):
    status, _, err = run(SCRIPT, tmp_path, MYCELYA_LOCAL="sometimes")
    assert status != 0 and 'MYCELYA_LOCAL is "sometimes"; it is on' in err


def test_the_first_read_starts_the_worker(tmp_path):
    code = """
import torch
print(torch.ones(1, device="mycelya").tolist())
m = torch.mycelya.metrics()
print(m["local_reads"], m["round_trips"], torch.ones(1, device="mycelya").tolist())
print(torch.mycelya.metrics()["local_reads"])
"""
    status, out, err = run(code, tmp_path, MYCELYA_CHECK="1")
    assert status == 0, err
    assert out.splitlines() == ["[1.0]", "0 1 [1.0]", "1"]
