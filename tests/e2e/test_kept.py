# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""What a machine keeps: tensors under names, and checkpoints."""

import copy
import json
import math
import os
import random
import re
import signal
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from helpers import same
from torch import nn

from mycelya_torch import RemoteMachine, _device
from mycelya_torch.errors import DeviceLostError

TRANSPORTS = ["unix", "tcp"]


@pytest.fixture(scope="module")
def machine():
    with RemoteMachine("local", device="cpu") as m:
        yield m


def exact(got, want):
    same(got, want, rtol=0, atol=0)


# ---- Tensors under names ----

DTYPES = [
    "uint8 int8 int16 int32 int64 float16 float32 float64 complex32 complex64",
    "complex128 bool bfloat16 float8_e5m2 float8_e4m3fn float8_e5m2fnuz",
    "float8_e4m3fnuz uint16 uint32 uint64",
]


@pytest.mark.parametrize("name", " ".join(DTYPES).split())
def test_each_dtype(machine, name):
    bits = torch.randint(0, 256, (6, 16), dtype=torch.uint8)
    if name == "bool":
        bits = bits % 2
    here = bits.view(getattr(torch, name))
    machine.save("dtype", here.to(machine.device()))
    got = machine.load("dtype")
    assert got.dtype == here.dtype
    assert torch.equal(got.cpu().view(torch.uint8), here.view(torch.uint8))


def test_what_holds_the_tensors(machine):
    d = machine.device()
    base = torch.arange(24.0, device=d).reshape(4, 6)
    tree = {
        "list": [base, base.t(), base[1:, ::2]],
        "tuple": (base[2], base[3, 4], torch.empty(0, 3, device=d)),
        "expanded": torch.ones(1, device=d).expand(5),
        "conj": torch.ones(2, dtype=torch.cfloat, device=d).mul(1j).conj(),
        "neg": torch.ones(2, dtype=torch.cfloat, device=d).conj().imag,
        "cpu": torch.tensor(7),
        3: {None: 1, True: "text", 0.5: [math.inf, -math.inf, 1e300, 2**70]},
        "parameter": nn.Parameter(torch.ones(2, device=d)),
    }
    machine.save("tree", tree)
    got = machine.load("tree")
    assert list(got) == list(tree)
    for g, w in zip(got["list"], tree["list"], strict=True):
        exact(g.cpu(), w.cpu())
        assert g.is_contiguous() and g.device == d
    for g, w in zip(got["tuple"], tree["tuple"], strict=True):
        exact(g.cpu(), w.cpu())
    for name in ("expanded", "conj", "neg", "parameter"):
        exact(got[name].cpu(), tree[name].detach().cpu())
    assert got["cpu"].device.type == "cpu" and got["cpu"] == 7
    assert got[3] == tree[3]
    machine.save("nan", [math.nan])
    assert math.isnan(machine.load("nan")[0])


def test_a_tensor_that_is_there_twice(machine):
    """Tied weights stay tied."""
    weight = torch.randn(3, 3, device=machine.device())
    machine.save("tied", {"a": weight, "b": weight, "c": weight.t()})
    got = machine.load("tied")
    assert got["a"] is got["b"]
    got["a"].zero_()
    assert got["c"].abs().sum() > 0


def test_a_tensor_without_values(machine):
    machine.save("empty", torch.empty(5, device=machine.device()))
    assert machine.load("empty").shape == (5,)


def test_save_keeps_the_values_of_its_line(machine):
    x = torch.zeros(1000, device=machine.device())
    machine.save("then", x)
    x.add_(1)
    assert machine.load("then").sum().item() == 0
    assert x.sum().item() == 1000
    y = machine.load("then")
    machine.save("then", x)
    assert (y.sum().item(), machine.load("then").sum().item()) == (0, 1000)


def test_names(machine):
    for name in machine.saved():
        machine.drop(name)
    names = [".", "..", "a/b", "ä ö", "%2e", "x" * 100, "-", "a\nb", "con"]
    for i, name in enumerate(names):
        machine.save(name, torch.tensor(i))
    assert machine.saved() == sorted(names)
    for i, name in enumerate(names):
        assert machine.load(name) == i
        machine.drop(name)
    assert machine.saved() == []
    with pytest.raises(ValueError, match='under the name "a/b"; there are no names'):
        machine.load("a/b")
    machine.save("other", 1)
    with pytest.raises(ValueError, match='under the name "x"; there are "other"'):
        machine.drop("x")
    for name in ("", "x" * 101):
        with pytest.raises(ValueError, match="1 to 100 characters"):
            machine.save(name, 1)


def test_what_cannot_be_kept(machine):
    with pytest.raises(TypeError, match=r"tensors\['a'\]\[1\] is a module\. save\(\)"):
        machine.save("x", {"a": [1, math]})
    with pytest.raises(TypeError, match=r"tensors has the key \(1,\), a tuple"):
        machine.save("x", {(1,): 1})
    with pytest.raises(TypeError, match=r"tensors\[0\] is no dense tensor"):
        machine.save("x", [torch.eye(2).to_sparse()])


def test_an_error_that_nothing_has_raised(machine):
    """save raises the error, and what had the name stays."""
    d = machine.device()
    machine.save("good", torch.ones(2, device=d))
    x = torch.ones(3, device=d).gather(0, torch.tensor([7], device=d))
    with pytest.raises(RuntimeError, match="index 7"):
        machine.save("good", x)
    assert machine.load("good").sum().item() == 2


def test_the_file_is_a_safetensors_file(tmp_path):
    with RemoteMachine("local", device="cpu", state=str(tmp_path)) as m:
        m.save("w", {"x": torch.arange(6, dtype=torch.bfloat16).view(2, 3)})
    data = (tmp_path / "saved" / "w.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    entry = {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}
    assert header["0"] == entry
    assert len(data) == 8 + length + 12
    values = torch.frombuffer(bytearray(data[8 + length :]), dtype=torch.bfloat16)
    assert values.tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_names_outlive_a_machine(tmp_path, transport):
    """A training goes on in another machine as if nothing had happened."""

    def steps(net, optimizer, n):
        for _ in range(n):
            optimizer.zero_grad()
            net(torch.ones(4, 8, device=d)).square().mean().backward()
            optimizer.step()
        return [p.detach().cpu() for p in net.parameters()]

    def make():
        torch.manual_seed(3)
        net = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)).to(d)
        return net, torch.optim.AdamW(net.parameters())

    options = {"device": "cpu", "transport": transport, "state": str(tmp_path)}
    with RemoteMachine("local", **options) as m:
        d = m.device()
        net, optimizer = make()
        steps(net, optimizer, 3)
        state = {"net": net.state_dict(), "optimizer": optimizer.state_dict()}
        m.save("training", state)
        want = steps(net, optimizer, 3)
    with RemoteMachine("local", **options) as m:
        d = m.device()
        net, optimizer = make()
        got = m.load("training")
        net.load_state_dict(got["net"])
        optimizer.load_state_dict(got["optimizer"])
        for g, w in zip(steps(net, optimizer, 3), want, strict=True):
            exact(g, w)


def test_a_damaged_file(tmp_path):
    with RemoteMachine("local", device="cpu", state=str(tmp_path)) as m:
        m.save("w", torch.ones(100))
        path = tmp_path / "saved" / "w.safetensors"
        data = path.read_bytes()
        for bad in (data[:-1], data + b"x", b"", data[:4], b"\xff" * len(data)):
            path.write_bytes(bad)
            with pytest.raises(RuntimeError, match='the name "w" cannot be read'):
                m.load("w")
        path.write_bytes(data)
        assert m.load("w").sum() == 100


def test_a_folder_that_cannot_be_written(tmp_path):
    path = tmp_path / "file"
    path.write_text("")
    with RemoteMachine("local", device="cpu", state=str(path / "x")) as m:
        with pytest.raises(RuntimeError, match="worker's disk.*not a directory"):
            m.save("w", torch.ones(1))
        assert torch.ones(2, device=m.device()).sum().item() == 2


# ---- Checkpoints ----


class Training:
    """A training with dropout, new batches, and a read now and then."""

    def __init__(self, device, reads):
        self.device, self.reads = device, reads
        torch.manual_seed(11)
        random.seed(11)
        layers = [nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 4)]
        self.net = nn.Sequential(*layers).to(device)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-2)
        self.generator = torch.Generator(device=device).manual_seed(5)
        self.losses = []

    def step(self, i):
        x = torch.randn(8, 16).to(self.device)
        y = torch.randint(0, 4, (8,)).to(self.device)
        noise = torch.randn(8, 16, device=self.device, generator=self.generator)
        loss = nn.functional.cross_entropy(self.net(x + noise), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.detach())
        if self.reads and i % self.reads == 0:
            loss.item()

    def run(self, steps, disturb=lambda i: None):
        for i in range(steps):
            disturb(i)
            self.step(i)
        weights = [p.detach().cpu() for p in self.net.parameters()]
        return [*torch.stack(self.losses).cpu().tolist()], weights


def worker_of(machine):
    """The numbers of the processes of a machine: the session's and the worker."""
    session = json.loads(_device.device_info(machine.remote_index))["pid"]
    text = open(f"/proc/{session}/stat").read()
    return session, int(text.rsplit(")", 1)[1].split()[1])


def kill(machine, which, killed):
    """Kills a process of the machine's worker, which is not one that was killed."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        try:
            pid = worker_of(machine)[which]
            worker = b"mycelya-worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            worker = False  # it is being replaced
        # A process whose parent has ended has another one, which is no worker.
        if worker and pid not in killed:
            killed.append(pid)
            os.kill(pid, signal.SIGKILL)
            return
        time.sleep(0.01)
    raise AssertionError("the worker was not replaced")


def undisturbed(reads, steps, **options):
    with RemoteMachine("local", device="cpu", **options) as m:
        return Training(m.device(), reads).run(steps)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("reads", [0, 1, 7])
@pytest.mark.parametrize("which", [0, 1])
def test_a_worker_that_is_killed(which, reads, transport):
    """Training ends with the same bits. which: the process that is killed."""
    steps = 60
    want = undisturbed(reads, steps, transport=transport)
    killed = []
    with RemoteMachine("local", device="cpu", transport=transport) as m:
        training = Training(m.device(), reads)

        def disturb(i):
            if i == 5:
                m.checkpoint()
            if i in (12, 13, 40):
                kill(m, which, killed)
            if i == 30:
                m.checkpoint()

        before = torch.mycelya.metrics()["workers_replaced"]
        got = training.run(steps, disturb)
        assert torch.mycelya.metrics()["workers_replaced"] == before + 3
        assert m.state == "running"
    assert got[0] == want[0]
    for g, w in zip(got[1], want[1], strict=True):
        exact(g, w)


def test_a_worker_that_is_killed_at_any_time():
    """As many steps as it takes to lose four workers; then the same undisturbed.

    After each loss there is a checkpoint: a machine that loses four workers without one
    is lost, and on a slow host the next worker may be killed before it has made one.
    """
    killed = []
    lost, kept = threading.Event(), threading.Event()
    with RemoteMachine("local", device="cpu") as m:
        training = Training(m.device(), 3)
        m.checkpoint(every=0.3)

        def killer():
            times = random.Random(1)
            while len(killed) < 4:
                time.sleep(times.uniform(0.3, 2.5))
                kept.clear()
                kill(m, len(killed) % 2, killed)
                lost.set()
                assert kept.wait(120)

        with ThreadPoolExecutor(1) as pool:
            killing = pool.submit(killer)
            steps = 0
            while not killing.done():
                training.step(steps)
                steps += 1
                if lost.is_set():
                    lost.clear()
                    m.checkpoint(every=0.3)
                    kept.set()
            killing.result()
        got = training.run(0)
    assert len(killed) == 4
    want = undisturbed(3, steps)
    assert got[0] == want[0]
    for g, w in zip(got[1], want[1], strict=True):
        exact(g, w)


def test_a_failure_stays_a_failure(machine):
    """A worker that is lost after a failure: the error is raised, once."""
    with RemoteMachine("local", device="cpu") as m:
        d = m.device()
        x = torch.zeros(4, device=d)
        m.checkpoint()
        x.add_(1)
        y = x.gather(0, torch.tensor([9], device=d))
        x.add_(100)
        torch.mycelya.flush()
        time.sleep(0.3)
        kill(m, 0, [])
        with pytest.raises(RuntimeError, match=r"index 9.*\n.*test_kept.py"):
            torch.mycelya.synchronize(d)
        x.add_(10)
        assert x.tolist() == [11] * 4
        with pytest.raises(RuntimeError, match="index 9"):
            y.tolist()


def test_uploads_are_kept(machine):
    """The memory of an upload may change before the worker is lost."""
    with RemoteMachine("local", device="cpu") as m:
        d = m.device()
        m.checkpoint()
        large = torch.ones(12 << 20)
        pinned = torch.ones(1 << 20).pin_memory()
        small = torch.ones(3)
        there = [large.to(d), pinned.to(d, non_blocking=True), small.to(d)]
        torch.mycelya.synchronize(d)
        for t in (large, pinned, small):
            t.zero_()
        kill(m, 1, [])
        assert [t.mean().item() for t in there] == [1, 1, 1]


def test_without_a_checkpoint_the_tensors_are_lost():
    with RemoteMachine("local", device="cpu") as m:
        x = torch.ones(2, device=m.device())
        x.sum().item()
        kill(m, 0, [])
        with pytest.raises(DeviceLostError):
            x.sum().item()
        assert m.state == "lost"


def test_what_ends_each_worker_ends_the_machine(tmp_path):
    """A checkpoint that cannot be restored: a few attempts, then the loss."""
    with RemoteMachine("local", device="cpu", state=str(tmp_path)) as m:
        x = torch.ones(2, device=m.device())
        m.checkpoint()
        for path in (tmp_path / "checkpoint").iterdir():
            path.unlink()
        kill(m, 0, [])
        with pytest.raises(DeviceLostError, match="is lost"):
            x.sum().item()
        assert m.state == "lost"


def test_checkpoints_end_with_the_machine(tmp_path):
    with RemoteMachine("local", device="cpu", state=str(tmp_path)) as m:
        x = torch.ones(2, device=m.device())
        for _ in range(4):
            m.checkpoint()
            x.add_(1)
        assert len(list((tmp_path / "checkpoint").iterdir())) == 2
    assert list((tmp_path / "checkpoint").iterdir()) == []
    assert list(tmp_path.glob("draft-*")) == []


@pytest.mark.parametrize("every", [0, -1, math.nan])
def test_wrong_intervals(machine, every):
    with pytest.raises(ValueError, match=re.escape(f"every={every!r} is not")):
        machine.checkpoint(every=every)


def test_a_lost_checkpoint_leaves_state_as_it_was(tmp_path):
    """Flags and the default dtype are restored, too."""
    with RemoteMachine("local", device="cpu", state=str(tmp_path)) as m:
        d = m.device()
        torch.set_default_dtype(torch.float64)
        try:
            x = torch.ones(3, device=d) / 3
            m.checkpoint()
            kill(m, 0, [])
            y = torch.ones(3, device=d) / 3
            assert y.dtype == torch.float64
            exact(x.cpu(), y.cpu())
        finally:
            torch.set_default_dtype(torch.float32)


def test_copies_of_a_loaded_state(machine):
    machine.save("c", {"w": torch.ones(3, device=machine.device())})
    got = copy.deepcopy(machine.load("c"))
    assert got["w"].sum().item() == 3
