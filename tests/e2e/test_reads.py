# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""metrics() tells reads that the program waits for from those that it does not."""

import json
import os
import signal
from concurrent.futures import Future

import pytest
import torch
from helpers import DEVICE, freeze, to_device

from mycelya_torch import _device

pytestmark = pytest.mark.usefixtures("used")


def reads(m):
    return m["blocking_reads"], m["asynchronous_reads"]


def test_each_way_to_read(counters):
    x = to_device(torch.arange(6.0))
    ways = {
        "item": lambda: (x.sum() + 1).item(),
        "cpu": lambda: (x + 1).cpu(),
        "list": lambda: x.tolist(),
        "condition": lambda: bool(x[1] == 1),
        "print": lambda: repr(x * 2),
        "a shape that depends on values": lambda: x[x > 2],
        "into memory": lambda: torch.empty(6).copy_(x + 2),
    }
    for name, read in ways.items():
        before = reads(counters())
        read()
        after = reads(counters())
        assert after[0] > before[0] and after[1] == 0, name
        assert name.startswith("a shape") or after[0] == before[0] + 1, name
    assert counters()["blocking_seconds"] > 0
    before = reads(counters())
    torch.mycelya.synchronize()  # a wait, and no read
    assert x.shape == (6,) and torch.empty(0, device=DEVICE).cpu().numel() == 0
    assert reads(counters()) == before
    torch.mycelya.reset_metrics()
    m = counters()
    assert (*reads(m), m["blocking_seconds"]) == (0, 0, 0.0)


def test_asynchronous_reads(counters):
    """A future, and a copy to pinned memory."""
    x = to_device(torch.arange(6.0))
    future = (x * 2).cpu_future()
    pinned = torch.empty(6, pin_memory=True)
    pinned.copy_(x * 3, non_blocking=True)
    torch.mycelya.synchronize()
    assert pinned.tolist() == [0, 3, 6, 9, 12, 15]
    assert reads(counters()) == (0, 2)
    assert future.result(60).tolist() == [0, 2, 4, 6, 8, 10]


def test_a_wait_for_a_future_is_a_wait(counters, monkeypatch):
    """The worker is stopped until the wait has begun."""
    x = to_device(torch.arange(6.0))
    torch.mycelya.synchronize()
    pid = json.loads(_device.device_info(0))["pid"]
    torch.mycelya.reset_metrics()
    result = Future.result

    def goes_on(self, timeout=None):
        os.kill(pid, signal.SIGCONT)
        return result(self, timeout)

    freeze(pid)
    try:
        future = (x * 2).cpu_future()
        assert reads(counters()) == (0, 1) and not future.done()
        monkeypatch.setattr(Future, "result", goes_on)
        assert future.result(60).tolist() == [0, 2, 4, 6, 8, 10]
    finally:
        os.kill(pid, signal.SIGCONT)
    m = counters()
    assert reads(m) == (1, 1) and m["blocking_seconds"] > 0
    assert future.result() is future.result()
    assert reads(counters()) == (1, 1)


@pytest.mark.cpu_worker
def test_a_failed_read_is_counted(counters):
    bad = to_device(torch.arange(3.0)).gather(0, to_device(torch.tensor([5])))
    with pytest.raises(RuntimeError, match="gather"):
        bad.cpu()
    assert reads(counters()) == (1, 0)
    future = to_device(torch.arange(3.0)).gather(0, to_device(torch.tensor([5])))
    future = future.cpu_future()
    with pytest.raises(RuntimeError, match="gather"):
        future.result(60)
    assert counters()["asynchronous_reads"] == 1


def test_a_cancelled_future():
    """A future that waits behind another one is cancelled; others go on."""
    x = to_device(torch.arange(3.0))
    pid = json.loads(_device.device_info(0))["pid"]
    torch.mycelya.synchronize()
    freeze(pid)
    try:
        first, second = (x + 1).cpu_future(), (x + 2).cpu_future()
        third = (x + 3).cpu_future()
        assert second.cancel() and second.cancelled()
    finally:
        os.kill(pid, signal.SIGCONT)
    assert first.result(60).tolist() == [1, 2, 3]
    assert third.result(60).tolist() == [3, 4, 5]
