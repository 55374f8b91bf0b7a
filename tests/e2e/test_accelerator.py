# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""torch.accelerator, memory statistics, generators and forked processes."""

import gc

import pytest
import torch
from helpers import DEVICE, run, same
from object_helpers import to_device


@pytest.fixture(autouse=True)
def collected():
    """What other tests have left is freed before a test, and not meanwhile."""
    gc.collect()


def test_accelerator():
    accelerator = torch.accelerator
    assert (
        accelerator.is_available()
        and accelerator.current_accelerator().type == "mycelya"
    )
    assert accelerator.device_count() == torch.mycelya.device_count()
    assert accelerator.current_device_index() == torch.mycelya.current_device() == 0
    accelerator.set_device_index(0)
    accelerator.synchronize()
    stream = torch.Stream(device="mycelya")
    with accelerator.device_index(0):
        assert accelerator.current_stream().device_index == 0
    before = accelerator.current_stream()
    accelerator.set_stream(stream)
    assert accelerator.current_stream() == stream
    accelerator.set_stream(before)
    assert torch.get_device_module("mycelya") is torch.mycelya
    assert torch.get_device_module() is torch.mycelya
    assert torch.device(0) == torch.device("mycelya", 0)


def test_accelerator_memory():
    accelerator = torch.accelerator
    keep = to_device(torch.ones(1 << 18))
    assert accelerator.memory_allocated() >= 1 << 20
    assert accelerator.max_memory_allocated() >= accelerator.memory_allocated()
    assert accelerator.memory_reserved() >= accelerator.memory_allocated()
    stats = accelerator.memory_stats()
    assert stats["allocated_bytes.all.current"] == accelerator.memory_allocated()
    free, total = accelerator.get_memory_info()
    assert 0 < free <= total
    peak = accelerator.max_memory_allocated()
    del keep
    assert accelerator.memory_allocated() < peak
    accelerator.empty_cache()
    accelerator.reset_peak_memory_stats()
    accelerator.reset_accumulated_memory_stats()
    assert accelerator.max_memory_allocated() < peak


def test_accelerator_capability():
    dtypes = torch.accelerator.get_device_capability()["supported_dtypes"]
    assert {torch.float32, torch.bfloat16, torch.int64, torch.complex64} <= dtypes


def test_memory_allocated():
    before = torch.mycelya.memory_allocated()
    x = torch.zeros(1 << 20, device=DEVICE)
    assert torch.mycelya.memory_allocated() - before == 4 << 20
    torch.mycelya.reset_peak_memory_stats()
    y = x + 1
    view = y[5:]
    assert torch.mycelya.memory_allocated() - before == 8 << 20
    del x, y, view
    assert torch.mycelya.memory_allocated() == before
    assert torch.mycelya.max_memory_allocated() - before == 8 << 20
    free, total = torch.mycelya.mem_get_info()
    assert 0 < free <= total


def test_memory_that_the_worker_keeps_for_reuse():
    def kept(stats):
        return stats["reserved_bytes.all.current"] - stats["active_bytes.all.current"]

    mycelya = torch.mycelya
    x = torch.ones(16 << 20, device=DEVICE)
    for _ in range(3):  # the previous result is freed before the next one is allocated
        y = x * 2
        mycelya.synchronize()
    stats = mycelya.memory_stats()
    assert stats["active_bytes.all.current"] >= 128 << 20
    assert mycelya.memory_reserved() >= mycelya.memory_allocated()
    for _ in range(3):
        y = x * 2
        mycelya.synchronize()
    # Of large blocks: the question needs a small one, as what other tests have left.
    requests = "segment.large_pool.allocated"
    assert mycelya.memory_stats()[requests] == stats[requests] > 0
    del y
    stats = mycelya.memory_stats()
    assert kept(stats) >= 64 << 20
    assert mycelya.max_memory_reserved() >= 128 << 20
    # Allocated bytes are counted on the client.
    allocated = mycelya.memory_allocated()
    assert stats["allocated_bytes.all.current"] == allocated
    assert f"{allocated / 2**20:.1f}" in mycelya.memory_summary()
    mycelya.empty_cache()
    assert kept(mycelya.memory_stats()) < 64 << 20
    assert x[-1].item() == 1
    peak = mycelya.max_memory_reserved()
    mycelya.reset_peak_memory_stats()
    mycelya.reset_accumulated_memory_stats()
    assert mycelya.max_memory_reserved() < peak
    assert mycelya.memory_stats()["active_bytes.all.freed"] < 1 << 20


def test_memory_statistics_start_no_worker(tmp_path):
    code = """
        import torch, mycelya_torch

        torch.mycelya.empty_cache()
        torch.mycelya.reset_peak_memory_stats()
        print(torch.mycelya.memory_reserved(), torch.mycelya.is_initialized())
    """
    status, out, err = run(code, tmp_path)
    assert (status, out) == (0, "0 False\n"), err


def test_generators():
    generator = torch.Generator("mycelya")
    assert generator.device == torch.device("mycelya", 0)
    generator.manual_seed(5)
    first = torch.rand(4, device=DEVICE, generator=generator)
    assert generator.initial_seed() == 5
    generator.manual_seed(5)
    same(torch.rand(4, device=DEVICE, generator=generator), first.cpu())
    for wrong in (
        lambda: torch.rand(2, device=DEVICE, generator=torch.Generator()),
        lambda: torch.rand(2, generator=generator),
        lambda: torch.randperm(2, generator=generator),
    ):
        with pytest.raises(RuntimeError, match="mycelya"):
            wrong()


def test_a_fork_cannot_use_the_device(tmp_path):
    """Each use of a parent's object raises in the child. The parent still works."""
    code = """
        import os, sys, torch, mycelya_torch
        x = torch.ones(3, device="mycelya")
        x.sum().item()
        pid = os.fork()
        if pid == 0:
            for use in (
                x.tolist,
                lambda: str(x),
                lambda: x.cpu_future().result(20),
                lambda: torch.save(x, os.devnull),
                lambda: x.untyped_storage()[0],
            ):
                try:
                    use()
                except RuntimeError as error:
                    assert "forked child" in str(error), error
                else:
                    os._exit(3)
            assert sys.getsizeof(x) and x.shape == (3,)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        print(x.tolist())
    """
    status, out, err = run(code, tmp_path)
    assert (status, out) == (0, "[1.0, 1.0, 1.0]\n"), err
