# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Any thread may record, read and drop tensors."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from helpers import DEVICE, same

import mycelya_torch


def test_threads_compute_side_by_side():
    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        here = torch.randn(8, 8, generator=generator)
        there = here.to(DEVICE)
        for i in range(200):
            here = (here @ here.t()).tanh() + seed
            there = (there @ there.t()).tanh() + seed
            if i % 50 == seed:
                there.sum().item()
        return there.cpu(), here

    with ThreadPoolExecutor(4) as pool:
        for there, here in pool.map(work, range(4)):
            same(there, here, 1e-4, 1e-4)


def test_threads_train_one_network_each():
    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        weight = torch.randn(4, 4, generator=generator)
        results = []
        for device in ("cpu", DEVICE):
            w = weight.to(device, copy=True).requires_grad_()
            optimizer = torch.optim.Adam([w], lr=0.1)
            for _ in range(10):
                optimizer.zero_grad()
                (w @ w).pow(2).sum().backward()
                optimizer.step()
            results.append(w.detach().cpu())
        return results

    with ThreadPoolExecutor(3) as pool:
        for here, there in pool.map(work, range(3)):
            same(there, here, 1e-3, 1e-4)


def test_a_tensor_passes_from_thread_to_thread():
    x = torch.zeros(4, device=DEVICE)
    for _ in range(20):
        thread = threading.Thread(target=x.add_, args=(1,))
        thread.start()
        thread.join()
    assert x.tolist() == [20.0] * 4


def test_tensors_die_in_other_threads():
    boxes = [[torch.ones(16, device=DEVICE) * i] for i in range(100)]
    threads = [threading.Thread(target=box.clear) for box in boxes]
    total = sum(box[0] for box in boxes)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert total.sum().item() == 16 * 99 * 50


def test_the_current_device_belongs_to_the_thread():
    with mycelya_torch.RemoteMachine("local") as machine:
        index = machine.device().index
        seen = []
        with torch.mycelya.device(index):
            thread = threading.Thread(
                target=lambda: seen.append(torch.mycelya.current_device())
            )
            thread.start()
            thread.join()
            seen.append(torch.mycelya.current_device())
        assert seen == [0, index]


@pytest.mark.cpu_worker
def test_an_error_reaches_the_thread_that_reads():
    x = torch.ones(3, device=DEVICE)
    bad = x.gather(0, torch.tensor([5]).to(DEVICE))
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(bad.cpu)
        with pytest.raises(RuntimeError, match="gather"):
            future.result()
