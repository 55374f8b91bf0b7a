# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Pinned memory: a worker on the same host reads it in place."""

import gc
import json
import os
import signal
import sys
import threading
from pathlib import Path

import pytest
import torch
from helpers import DEVICE, freeze, run, same
from torch.utils.data import DataLoader, Dataset

from mycelya_torch import _device

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux has memory files"
)

KIB, MIB = 1 << 10, 1 << 20
SHARED = 64 * KIB  # uploads of at least this size are shared; see Pinned.h
DTYPES = [
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.uint16, torch.uint32, torch.uint64),
]


def pattern(n: int, seed: int = 0) -> torch.Tensor:
    """n random bytes."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (n,), dtype=torch.uint8, generator=generator)


def pinned(n: int, value: int) -> torch.Tensor:
    return torch.empty(n, dtype=torch.uint8, pin_memory=True).fill_(value)


def send(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(DEVICE, non_blocking=True)


def raw(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


def keep_busy() -> torch.Tensor:
    """Sends work that keeps the worker busy long after this call returns."""
    x = torch.full((1200, 1200), 1e-4, device=DEVICE)
    for _ in range(12):
        x = x @ x
    torch.mycelya.flush()
    return x


def worker_pid() -> int:
    return json.loads(_device.device_info(0))["pid"]


def memory_files(pid: int | str = "self") -> int:
    """The number of descriptors of blocks that a process has open."""
    names = []
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            names.append(os.readlink(fd))
        except FileNotFoundError:
            continue
    return sum("mycelya-pinned" in name for name in names)


def mappings(pid: int | str = "self") -> int:
    """The number of blocks that a process has mapped."""
    return Path(f"/proc/{pid}/maps").read_text().count("mycelya-pinned")


@pytest.mark.critical
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(dtype, counters):
    x = pattern(2 * SHARED)
    x = (x % 2).bool() if dtype == torch.bool else x.view(dtype)
    host = x.pin_memory()
    assert host.is_pinned()
    there = send(host)
    assert there.dtype == dtype and torch.equal(raw(there.cpu()), raw(x))
    assert counters()["upload_bytes_shared"] == 2 * SHARED


SIZES = [
    *(0, 1, 4095, SHARED - 1, SHARED, SHARED + 1, MIB - 1, MIB, MIB + 1),
    *(3 * MIB + 5, 4 * MIB, 4 * MIB + 1, 17 * MIB + 3, 64 * MIB),
]


@pytest.mark.parametrize("n", SIZES)
def test_every_size(n, counters):
    x = pattern(n)
    gc.collect()  # what another test has left is not freed meanwhile, which is sent
    torch.mycelya.synchronize()
    torch.mycelya.reset_metrics()
    host = x.pin_memory()
    assert host.is_pinned() == (n > 0)
    first, second = send(host), send(host)
    torch.mycelya.synchronize()
    host.zero_()
    assert torch.equal(first.cpu(), x) and torch.equal(second.cpu(), x)
    after = counters()
    assert after["upload_bytes"] == 2 * n
    assert after["upload_bytes_shared"] == (2 * n if n >= SHARED else 0)
    if n >= SHARED:
        assert after["bytes_sent"] < 2000


def test_a_blocking_upload_has_read_its_source(counters):
    busy = keep_busy()
    host = pinned(8 * MIB, 3)
    there = host.to(DEVICE)
    host.fill_(4)
    assert there.cpu().unique().tolist() == [3]
    assert counters()["upload_bytes_shared"] == 0
    del busy


def test_small_uploads_are_copied_at_once():
    busy = keep_busy()
    host = pinned(SHARED - 1, 3)
    there = send(host)
    host.fill_(4)
    assert there.cpu().unique().tolist() == [3]
    del busy


@pytest.mark.parametrize("n", [SHARED, 300 * KIB, MIB])
def test_many_tensors_share_blocks(n):
    count = 3 * 4 * MIB // n
    before = memory_files()
    hosts = [pinned(n, i % 251) for i in range(count)]
    assert memory_files() - before <= 2 * 3  # blocks of 4 MiB, slots of powers of two
    for i, there in enumerate([send(host) for host in hosts]):
        assert there.cpu().unique().tolist() == [i % 251]
    spans = sorted((host.data_ptr(), host.data_ptr() + n) for host in hosts)
    assert all(a[1] <= b[0] for a, b in zip(spans, spans[1:], strict=False))


def test_views():
    x = pattern(4 * MIB)
    host = x.pin_memory()
    for view in (host[1:], host[SHARED:], host[12345 : 12345 + SHARED], host[-SHARED:]):
        assert view.is_pinned()
    there = [
        (send(host[lo:hi]), x[lo:hi])
        for lo, hi in [(1, 4 * MIB), (77, 77 + SHARED), (3 * MIB, 4 * MIB), (5, 5)]
    ]
    matrix = host.view(2048, 2048)
    there += [
        (send(v), w)
        for v, w in [
            (matrix[1000:1100], x.view(2048, 2048)[1000:1100]),
            (matrix.t(), x.view(2048, 2048).t()),
            (matrix[:, 3:1003], x.view(2048, 2048)[:, 3:1003]),
            (matrix[::2, ::3], x.view(2048, 2048)[::2, ::3]),
            (host[:SHARED].expand(3, SHARED), x[:SHARED].expand(3, SHARED)),
            (host.view(torch.int64)[7:], x.view(torch.int64)[7:]),
        ]
    ]
    for mine, cpu in there:
        assert torch.equal(mine.cpu(), cpu)


def test_conversions():
    x = torch.randn(64 * KIB)
    host = x.pin_memory()
    same(host.to(DEVICE, torch.float64, non_blocking=True), x.double())
    z = torch.randn(64 * KIB, dtype=torch.complex64)
    same(send(z.pin_memory().conj()), z.conj().resolve_conj())
    same(send(z.pin_memory().imag), z.imag.contiguous())


def test_copy_into_an_existing_tensor():
    """Copies keep their order among the ops: earlier ops see the old content."""
    there = torch.zeros(SHARED, device=DEVICE)
    before = there + 1
    hosts = [torch.full((SHARED,), float(i)).pin_memory() for i in range(1, 5)]
    sums = []
    for host in hosts:
        there.copy_(host, non_blocking=True)
        sums.append(there * 2)
    matrix = torch.zeros(3, SHARED, device=DEVICE)
    matrix[1].copy_(hosts[2], non_blocking=True)
    matrix.copy_(hosts[3], non_blocking=True)
    matrix[0].copy_(hosts[0], non_blocking=True)
    same(before, torch.ones(SHARED))
    for i, total in enumerate(sums):
        same(total, torch.full((SHARED,), 2.0 * (i + 1)))
    assert matrix[:, 0].tolist() == [1, 4, 4]


def test_freed_memory_is_not_reused_while_the_worker_reads_it():
    pid = worker_pid()
    for n in (SHARED, MIB, 5 * MIB):
        torch.mycelya.synchronize()
        there, addresses = [], set()
        freeze(pid)
        try:
            for i in range(8):
                host = pinned(n, i)
                assert host.data_ptr() not in addresses, "reused too early"
                addresses.add(host.data_ptr())
                there.append(send(host))
                del host
            torch.mycelya.flush()
            others = [pinned(n, 99) for _ in range(8)]
            assert not addresses & {host.data_ptr() for host in others}
        finally:
            os.kill(pid, signal.SIGCONT)
        for i, mine in enumerate(there):
            assert mine.cpu().unique().tolist() == [i]
        del others
        torch.mycelya.synchronize()
        again = {pinned(n, 1).data_ptr() for _ in range(4)}
        assert len(again) == 1 and again <= addresses | again


def test_a_stream_with_an_upload_is_not_idle():
    torch.mycelya.synchronize()
    stream = torch.mycelya.current_stream()
    assert stream.query()
    for _ in range(5):
        host = pinned(MIB, 1)
        there = send(host)
        event = torch.mycelya.Event()
        event.record()
        while not stream.query():
            pass
        host.fill_(2)
        event.synchronize()
        assert there.cpu().unique().tolist() == [1]


def test_uploads_leak_no_descriptors_and_mappings():
    """Counted after a thousand uploads, in the client and in the worker."""
    pid = worker_pid()

    def use(i: int) -> None:
        host = pinned((64 + 16 * (i % 40)) * KIB, i % 251)
        large = pinned((3 + i % 5) * MIB, 7)
        there = send(host), send(large)
        if i % 50 == 0:
            assert there[0].cpu().unique().tolist() == [i % 251]

    files = len(os.listdir("/proc/self/fd")) - mappings("self")
    for i in range(1000):
        use(i)
    gc.collect()
    torch.mycelya.synchronize()
    torch.mycelya.synchronize()  # the first one tells the worker which blocks to unmap
    # The number of kept blocks depends on how far the worker was behind. At most
    # 256 MiB stay, in blocks of 3 MiB or more, besides the blocks of other tests.
    kept = mappings("self")
    assert kept <= 100
    assert mappings(pid) <= kept + 1
    assert len(os.listdir("/proc/self/fd")) - kept <= files + 8
    assert memory_files(pid) == 0, "the worker closes a descriptor after mapping it"
    assert len(os.listdir(f"/proc/{pid}/fd")) <= 40


def test_idle_memory_is_bounded():
    hosts = [pinned(40 * MIB, 1) for _ in range(10)]
    for host in hosts:
        send(host)
    del hosts, host
    gc.collect()
    torch.mycelya.synchronize()
    large = [
        line
        for line in Path("/proc/self/maps").read_text().splitlines()
        if "mycelya-pinned" in line
    ]
    total = 0
    for line in large:
        low, high = (int(x, 16) for x in line.split()[0].split("-"))
        total += high - low
    assert total <= 256 * MIB + 64 * MIB  # 64 MiB for other tests' tensors
    torch.mycelya.synchronize()  # the worker has unmapped the freed blocks
    assert mappings(worker_pid()) <= mappings("self")


def test_threads():
    wrong = []

    def work(seed: int) -> None:
        for i in range(40):
            n = (64 + 37 * (i % 9) * (seed + 1)) * KIB
            value = (seed * 40 + i) % 251
            there = send(pinned(n, value))
            if i % 4 == 0 and there.cpu().unique().tolist() != [value]:
                wrong.append((seed, i))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


class Images(Dataset):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return torch.full((3, 128, 128), float(i)), i


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.filterwarnings(
    "ignore:This process .* is multi-threaded:DeprecationWarning"
)
def test_loaders_that_fork(persistent, counters):
    held = pinned(MIB, 5)  # lives across the forks
    loader = DataLoader(
        Images(),
        batch_size=4,
        pin_memory=True,
        num_workers=2,
        multiprocessing_context="fork",
        persistent_workers=persistent,
    )
    for _ in range(3):
        seen, total = [], torch.zeros((), device=DEVICE)
        for x, index in loader:
            assert x.is_pinned() and index.is_pinned()
            there = x.to(DEVICE, non_blocking=True)
            total += there[:, 0, 0, 0].sum()
            seen += index.tolist()
        assert seen == list(range(24)) and total.item() == sum(range(24))
    assert counters()["upload_bytes_shared"] >= 3 * 24 * 3 * 128 * 128 * 4
    assert send(held).cpu().unique().tolist() == [5]


def test_a_forked_child_has_its_own_memory(tmp_path):
    code = """
        import os, torch, mycelya_torch

        torch.set_num_threads(1)  # OpenMP's threads don't survive a fork

        def pinned(value):
            return torch.empty(1 << 20, dtype=torch.uint8, pin_memory=True).fill_(value)

        def files():
            names = []
            for n in os.listdir("/proc/self/fd"):
                try:
                    names.append(os.readlink(f"/proc/self/fd/{n}"))
                except FileNotFoundError:
                    pass  # the descriptor of the folder itself
            return sum("mycelya-pinned" in name for name in names)

        a, b, c = pinned(1), pinned(2), pinned(3)
        there = a.to("mycelya", non_blocking=True)
        torch.mycelya.synchronize()
        old = c.data_ptr()
        read, write = os.pipe()
        back, answer = os.pipe()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                assert a.is_pinned() and files() == 0
                a.fill_(9)
                mine = pinned(8)
                assert mine.is_pinned()
                os.write(answer, b"x")
                os.read(read, 1)  # the parent has written to its own memory
                assert a.unique().tolist() == [9] and c.unique().tolist() == [3]
                del a, b, c, mine
                assert pinned(1).unique().tolist() == [1]
                status = 0
            finally:
                os.write(answer, b"x")
                os._exit(status)
        os.read(back, 1)
        del c
        more = [pinned(7) for _ in range(8)]
        assert old not in [m.data_ptr() for m in more]
        os.write(write, b"x")
        assert os.waitpid(child, 0)[1] == 0
        assert a.unique().tolist() == [1] and b.unique().tolist() == [2]
        sent = [m.to("mycelya", non_blocking=True) for m in (a, b, *more)]
        print([s.cpu().unique().item() for s in sent])
    """
    status, out, err = run(code, tmp_path)
    assert (status, out) == (0, f"{[1, 2] + [7] * 8}\n"), err


def test_a_worker_that_is_killed(tmp_path):
    code = """
        import json, os, signal, threading, torch, mycelya_torch
        from mycelya_torch import _device

        def pinned(value):
            return torch.empty(8 << 20, dtype=torch.uint8, pin_memory=True).fill_(value)

        def blocks():
            return open("/proc/self/maps").read().count("mycelya-pinned")

        torch.zeros(1, device="mycelya").cpu()
        worker = json.loads(_device.device_info(0))["pid"]
        threading.Timer(0.5, lambda: os.kill(worker, signal.SIGKILL)).start()
        try:
            while True:
                pinned(1).to("mycelya", non_blocking=True)
        except RuntimeError as error:
            assert "is lost" in str(error), error
        while blocks() > 33:  # 256 MiB idle, and one in use
            pinned(2)
        print(True)
        address = None  # another block may still become idle between two
        while (following := pinned(3).data_ptr()) != address:
            address = following
        print(True)
    """
    status, out, err = run(code, tmp_path)
    assert (status, out) == (0, "True\nTrue\n"), err


@pytest.mark.slow
def test_few_descriptors(tmp_path):
    """Blocks use at most a quarter of the descriptors; further uploads are copied."""
    code = """
        import os, resource, torch, mycelya_torch

        resource.setrlimit(resource.RLIMIT_NOFILE, (80, 80))
        hosts = [
            torch.empty(2 << 20, dtype=torch.uint8, pin_memory=True).fill_(i)
            for i in range(100)
        ]
        assert all(h.is_pinned() for h in hosts)
        print(len(os.listdir("/proc/self/fd")) < 40)
        there = [h.to("mycelya", non_blocking=True) for h in hosts]
        print(all(t.cpu().unique().tolist() == [i] for i, t in enumerate(there)))
        m = torch.mycelya.metrics()
        print(m["upload_bytes_shared"] >> 21, m["upload_bytes"] >> 21)
    """
    status, out, err = run(code, tmp_path)
    assert (status, out) == (0, "True\nTrue\n20 100\n"), err


def test_no_block_before_the_first_large_pinned_tensor(tmp_path):
    code = """
        import torch, mycelya_torch

        def blocks():
            return open("/proc/self/maps").read().count("mycelya-pinned")

        torch.ones(3, device="mycelya").cpu()
        torch.ones(3).pin_memory().to("mycelya", non_blocking=True)
        print(blocks())
        x = torch.ones(1 << 16).pin_memory()
        print(blocks())
    """
    assert run(code, tmp_path)[:2] == (0, "0\n1\n")


def test_too_much_memory():
    """Pinned memory takes no pages until written. Too much raises PyTorch's error."""
    for n in (1 << 45, 1 << 52):
        with pytest.raises(RuntimeError, match="allocate memory|not enough memory"):
            torch.empty(n, dtype=torch.uint8, pin_memory=True)
    half = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    host = torch.empty(half, dtype=torch.uint8, pin_memory=True)
    host[-SHARED:] = 3
    assert send(host[-SHARED:]).cpu().unique().tolist() == [3]


def test_nonblocking_downloads():
    """They go to pinned memory, which has the values after a synchronisation."""
    x = torch.arange(20000.0).to(DEVICE)
    torch.mycelya.synchronize()
    torch.mycelya.reset_metrics()
    here = [(x * i).to("cpu", non_blocking=True) for i in range(5)]
    assert torch.mycelya.metrics()["stalls"] == 0
    assert all(t.is_pinned() for t in here)
    torch.mycelya.synchronize()
    for i, t in enumerate(here):
        assert torch.equal(t, torch.arange(20000.0) * i)
    assert torch.mycelya.metrics()["round_trips"] == 6
    # The values are those at the time of the call, despite later writes.
    y = x.clone()
    before = y.to("cpu", non_blocking=True)
    y.zero_()
    event = torch.Event("mycelya")
    event.record()
    event.synchronize()
    assert torch.equal(before, torch.arange(20000.0))
    # A download into freed memory ends before another tensor gets that memory.
    for _ in range(20):
        x.to("cpu", non_blocking=True)
    fresh = torch.zeros(20000, pin_memory=True)
    torch.mycelya.synchronize()
    assert fresh.count_nonzero() == 0


def test_a_download_comes_before_an_upload_of_its_memory():
    x = torch.arange(20000.0).to(DEVICE)
    here = torch.empty(20000, pin_memory=True)
    for i in range(10):
        here.copy_(x + i, non_blocking=True)
        there = here.to(DEVICE, non_blocking=True)
        other = torch.empty(20000, device=DEVICE)
        other.copy_(here[:1].expand(20000))
        assert torch.equal(there.cpu(), torch.arange(20000.0) + i)
        assert other[7].item() == i


@pytest.mark.cpu_worker
def test_a_nonblocking_download_of_a_failed_op():
    x = torch.ones(3).to(DEVICE)
    bad = x.gather(0, torch.tensor([5]).to(DEVICE))
    bad.to("cpu", non_blocking=True)
    with pytest.raises(RuntimeError, match="gather"):
        torch.mycelya.synchronize()
    torch.mycelya.synchronize()
    assert (x + 1).sum().item() == 6
