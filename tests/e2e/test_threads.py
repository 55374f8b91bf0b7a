# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Any thread may record, read and free tensors, also while data loaders run."""

import asyncio
import copy
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from helpers import DEVICE, run, same
from torch.utils.data import DataLoader, TensorDataset, random_split

import mycelya_torch


def test_threads_compute_concurrently():
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


def test_tensors_are_freed_in_other_threads():
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


def train(model, seed, steps=15):
    """Trains on the model's device; returns the losses and the parameters."""
    generator = torch.Generator().manual_seed(seed)
    device = next(model.parameters()).device
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for _ in range(steps):
        x = torch.randn(8, 6, generator=generator).to(device)
        optimizer.zero_grad()
        loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return torch.tensor(losses), [p.detach().cpu() for p in model.parameters()]


def network(seed):
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(6, 12), torch.nn.Tanh(), torch.nn.Linear(12, 1)
    )


def test_two_threads_train_on_two_devices():
    """Each thread has its own current device."""
    torch.mycelya.init()  # else the machine would be the bare "mycelya"
    models = [network(seed) for seed in range(2)]
    expected = [train(copy.deepcopy(m), seed) for seed, m in enumerate(models)]
    with mycelya_torch.RemoteMachine("local") as machine:
        devices = [torch.device("mycelya:0"), machine.device()]
        barrier = threading.Barrier(2)

        def work(seed):
            with torch.mycelya.device(devices[seed]):
                barrier.wait(60)
                model = models[seed].to("mycelya")
                assert next(model.parameters()).device == devices[seed]
                return train(model, seed)

        with ThreadPoolExecutor(2) as pool:
            got = list(pool.map(work, range(2)))
    for ours, cpu in zip(got, expected, strict=True):
        same(ours, cpu, 1e-3, 1e-4)


def test_two_threads_use_one_tensor_of_each_device():
    """In any thread, values go from machine to machine through this process."""
    torch.mycelya.init()  # else the machine would be the bare "mycelya"
    with mycelya_torch.RemoteMachine("local") as machine:
        here = torch.arange(6.0, device=DEVICE)
        other = torch.arange(6.0, device=machine.device())

        def work(i):
            a = here * i + other.to(here.device)
            b = other * i + here.to(other.device)
            with pytest.raises(RuntimeError, match="mycelya:0"):
                here + other
            return a.cpu(), b.cpu()

        with ThreadPoolExecutor(4) as pool:
            for i, results in enumerate(pool.map(work, range(12))):
                same(list(results), [torch.arange(6.0) * (i + 1)] * 2)


def test_threads_have_their_own_streams():
    def work(i):
        stream = torch.mycelya.Stream()
        with stream:
            assert torch.mycelya.current_stream() == stream
            x = torch.full((4,), float(i), device=DEVICE)
            event = stream.record_event()
        event.wait(torch.mycelya.default_stream())
        return (x + 1).sum().item(), torch.mycelya.current_stream().stream_id

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(20))) == [
            (4.0 * (i + 1), 0) for i in range(20)
        ]


def test_threads_write_one_tensor():
    """In-place ops of several threads are atomic."""
    x = torch.zeros(1000, device=DEVICE)
    barrier = threading.Barrier(4)

    def work():
        barrier.wait(60)
        for _ in range(50):
            x.add_(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert x.unique().tolist() == [200.0]


def test_backward_in_another_thread():
    x = torch.ones(3, device=DEVICE, requires_grad=True)
    loss = (x * x).sum()
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()
    assert x.grad.tolist() == [2.0, 2.0, 2.0]


# ---- Data loaders, while the device is in use ----

SAMPLES = torch.arange(48.0).reshape(12, 4)
LOADERS = {
    "in this process": {},
    "pinned": {"pin_memory": True},
    "fork": {"num_workers": 2, "multiprocessing_context": "fork"},
    "fork, pinned": {
        "num_workers": 2,
        "multiprocessing_context": "fork",
        "pin_memory": True,
    },
    "spawn": {"num_workers": 1, "multiprocessing_context": "spawn"},
    "spawn, pinned, persistent": {
        "num_workers": 1,
        "multiprocessing_context": "spawn",
        "pin_memory": True,
        "persistent_workers": True,
    },
}


@pytest.mark.parametrize("how", LOADERS)
@pytest.mark.filterwarnings(
    "ignore:This process .* is multi-threaded:DeprecationWarning"
)
def test_loaders(how):
    options = LOADERS[how]
    weight = torch.ones(4, 2, device=DEVICE, requires_grad=True)
    loader = DataLoader(
        TensorDataset(SAMPLES, torch.arange(12)), batch_size=5, **options
    )
    for _ in range(2):
        seen = []
        for x, index in loader:
            assert x.device.type == "cpu"
            assert x.is_pinned() == options.get("pin_memory", False)
            x = x.to(DEVICE, non_blocking=True)
            (x @ weight).sum().backward()
            seen += index.to(DEVICE).tolist()
        assert seen == list(range(12))
    same(weight.grad, 2 * SAMPLES.sum(0)[:, None].expand(4, 2))


def test_a_dataset_on_the_device():
    """Without worker processes, it works like any other dataset."""
    there = TensorDataset(SAMPLES.to(DEVICE), torch.arange(12, device=DEVICE))
    generator = torch.Generator().manual_seed(1)
    seen = []
    for x, index in DataLoader(there, batch_size=4, shuffle=True, generator=generator):
        assert x.is_mycelya and index.is_mycelya
        same(x, SAMPLES[index.cpu()])
        seen += index.tolist()
    assert sorted(seen) == list(range(12))
    first, second = random_split(there, [4, 8], generator=generator)
    assert len(first) == 4 and second[0][0].is_mycelya


def test_a_dataset_on_the_device_cannot_go_to_a_worker():
    there = TensorDataset(SAMPLES.to(DEVICE))
    with pytest.raises(RuntimeError, match=r"Send tensor\.cpu\(\)"):
        next(iter(DataLoader(there, num_workers=1, multiprocessing_context="spawn")))
    with pytest.raises(RuntimeError, match="forked child"):
        next(iter(DataLoader(there, num_workers=1, multiprocessing_context="fork")))
    assert there[1][0].tolist() == [4.0, 5.0, 6.0, 7.0]


def test_a_spawned_process_has_its_own_worker(tmp_path):
    code = """
        import torch, mycelya_torch
        import torch.multiprocessing as mp

        def child(queue):
            queue.put((torch.arange(4.0).to("mycelya") * 2).tolist())

        if __name__ == "__main__":
            x = torch.ones(4, device="mycelya")
            context = mp.get_context("spawn")
            queue = context.Queue()
            process = context.Process(target=child, args=(queue,))
            process.start()
            print(queue.get(timeout=200), (x + 1).tolist())
            process.join()
            print(process.exitcode)
    """
    status, out, err = run(code, tmp_path)
    assert status == 0, err
    assert out == "[0.0, 2.0, 4.0, 6.0] [2.0, 2.0, 2.0, 2.0]\n0\n"


def test_threads_make_and_drop_downloads(tmp_path):
    """pybind11's table of objects is changed with the GIL only."""
    code = """
        import sys, threading, time
        import torch, mycelya_torch
        from mycelya_torch import _device

        sys.setswitchinterval(1e-6)
        x = torch.ones(0, device="mycelya")
        end = time.monotonic() + 1.5
        def many():
            while time.monotonic() < end:
                kept = [_device.Download(x) for _ in range(200)]
        threads = [threading.Thread(target=many) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print("ok")
    """
    status, out, err = run(code, tmp_path)
    assert (status, out) == (0, "ok\n"), err


def test_futures_in_asyncio():
    """asyncio.wrap_future makes a future that a coroutine awaits or cancels."""
    x = torch.arange(4.0).to(DEVICE)

    async def step(i):
        return await asyncio.wrap_future((x + i).cpu_future())

    async def main():
        values = await asyncio.gather(*(step(i) for i in range(20)))
        late = asyncio.wrap_future((x @ x).cpu_future())
        late.cancel()
        with pytest.raises(asyncio.CancelledError):
            await late
        bad = x.gather(0, torch.tensor([9]).to(DEVICE))
        # A CUDA worker checks the indices, which is an IndexError.
        with pytest.raises((RuntimeError, IndexError), match="gather"):
            await asyncio.wrap_future(bad.cpu_future())
        return values

    values = asyncio.run(main())
    assert [v.tolist() for v in values] == [[i, i + 1, i + 2, i + 3] for i in range(20)]
