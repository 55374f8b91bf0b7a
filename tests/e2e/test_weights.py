# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Weights that the worker fetches itself, from a hub on the loopback interface."""

import contextlib
import io
import json
import os
import signal
import sys
import threading
from pathlib import Path

import hub as hubs
import pytest
import torch
from helpers import finish, run
from helpers import start as run_in_background
from safetensors.torch import load as load_safetensors
from safetensors.torch import load_file, save
from torch import nn

import mycelya_torch
from mycelya_torch import (
    RemoteMachine,
    _device,
    _weights,
    load_huggingface_state_dicts,
)

MIB = 1 << 20


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Starts a hub, and a machine whose cache is a folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    left = []

    def begin(repos, **options):
        at = hubs.running(repos)
        hub = at.__enter__()
        left.append(lambda: at.__exit__(None, None, None))
        monkeypatch.setenv("HF_ENDPOINT", hub.url(hub.api))
        machine = RemoteMachine("local", device="cpu", **options)
        left.append(machine.stop)
        torch.mycelya.reset_metrics()
        return hub, machine

    yield begin
    for end in reversed(left):
        end()


def same(got, want):
    """Asserts that two dicts of tensors have the same names and bits."""
    assert set(got) == set(want)
    for name, w in want.items():
        g = got[name]
        assert (g.dtype, g.shape) == (w.dtype, w.shape), name
        assert g.device.type == "mycelya" and g.is_contiguous(), name
        if w.numel():
            here = g.cpu().reshape(-1).view(torch.uint8)
            assert torch.equal(here, w.reshape(-1).view(torch.uint8)), name


DTYPES = """
    uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 bfloat16 float32 float64
    complex64 bool float8_e5m2 float8_e4m3fn
""".split()


def test_each_dtype(start):
    bits = torch.randint(0, 255, (6, 16), dtype=torch.uint8)
    tensors = {
        name: (bits % (2 if name == "bool" else 255)).view(getattr(torch, name))
        for name in DTYPES
    }
    tensors["scalar"] = torch.tensor(7.5)
    tensors["empty"] = torch.empty(0, 3)
    file = save(tensors)
    hub, machine = start({"me/model": hubs.Repo({"model.safetensors": file})})
    got = load_huggingface_state_dicts("me/model", machine)
    assert list(got) == [""]
    same(got[""], load_safetensors(file))
    assert (got[""]["float32"] + 1).shape == tensors["float32"].shape


def test_folders_and_shards(start):
    shards = [{"a": torch.ones(3)}, {"b": torch.arange(4), "c": torch.zeros(2, 2)}]
    index = {"weight_map": {n: f"m-{i}.safetensors" for i in (0, 1) for n in shards[i]}}
    files = {f"m-{i}.safetensors": save(s) for i, s in enumerate(shards)}
    files["model.safetensors.index.json"] = json.dumps(index).encode()
    files["consolidated.safetensors"] = save({"x": torch.ones(5)})
    files["unet/model.safetensors"] = save({"a": torch.full((2,), 7.0)})
    files["unet/deep/x.safetensors"] = save({"a": torch.full((2,), 8.0)})
    files["config.json"] = b"{}"
    _, machine = start({"me/model": hubs.Repo(files)})
    got = load_huggingface_state_dicts("me/model", machine)
    assert sorted(got) == ["", "unet", "unet/deep"]
    same(got[""], shards[0] | shards[1])
    got = load_huggingface_state_dicts("me/model", machine.device(), path="unet")
    assert sorted(got) == ["unet", "unet/deep"]
    same(got["unet"], {"a": torch.full((2,), 7.0)})
    path = "consolidated.safetensors"
    got = load_huggingface_state_dicts("me/model", machine, path, revision="main")
    same(got[""], {"x": torch.ones(5)})


def net(width):
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(4)))


FAULTS = ["429", "503", "reset", "cut"] * 5


@pytest.mark.slow
def test_a_large_model_through_faults(start):
    """200 MB reach the device through 20 faults, and none of them this process."""
    torch.manual_seed(0)
    model = net(3584)
    want = model.state_dict()
    size = sum(t.nbytes for t in want.values())
    assert size > 200e6
    hub, machine = start({"me/model": hubs.Repo({"model.safetensors": save(want)})})
    hub.faults.extend(FAULTS)
    got = load_huggingface_state_dicts("me/model", machine)[""]
    m = torch.mycelya.metrics()
    assert not hub.faults
    assert m["weights_bytes_fetched"] >= size
    assert m["upload_bytes"] == 0
    assert m["bytes_sent"] + m["bytes_received"] < 100_000

    with torch.device("meta"):
        there = net(3584)
    there.load_state_dict(got, assign=True)
    x = torch.randn(2, 3584)
    y = there(x.to(machine.device()))
    torch.testing.assert_close(y.cpu(), model(x), rtol=1e-4, atol=1e-5)
    same(got, want)

    served = hub.served
    torch.mycelya.reset_metrics()
    again = load_huggingface_state_dicts("me/model", machine)[""]
    m = torch.mycelya.metrics()
    assert hub.served == served, "the second time comes from the worker's disk"
    assert m["weights_bytes_fetched"] == 0
    assert m["weights_bytes_cached"] >= size
    assert m["bytes_sent"] + m["bytes_received"] < 100_000
    same(again, want)


def test_over_tcp(start):
    want = {"a": torch.randn(1000)}
    hub, machine = start(
        {"me/m": hubs.Repo({"x.safetensors": save(want)})}, transport="tcp"
    )
    same(load_huggingface_state_dicts("me/m", machine)[""], want)


def test_errors(start, caplog):
    one = save({"a": torch.ones(2)})
    hub, machine = start(
        {
            "me/model": hubs.Repo({"model.safetensors": one}),
            "me/mine": hubs.Repo({"model.safetensors": one}, token="hf_right"),
            "me/gated": hubs.Repo({"m.safetensors": one}, token="hf_right", gated=True),
            "me/pickle": hubs.Repo({"pytorch_model.bin": b"x"}),
            "me/wrong": hubs.Repo({"model.safetensors": one}),
        }
    )
    hub.repos["me/wrong"].wrong["model.safetensors"] = bytes(len(one))

    def fails(kind, match, repo="me/model", **options):
        with pytest.raises(kind, match=match) as error:
            load_huggingface_state_dicts(repo, machine, **options)
        assert "hf_" not in str(error.value)

    fails(ValueError, 'There is no repository "me/no" on "127.0.0.1', "me/no")
    fails(ValueError, 'has no revision "v1"', revision="v1")
    fails(ValueError, 'has no folder or file "unet"', path="unet")
    fails(ValueError, "only as pickle files", "me/pickle")
    fails(ValueError, "pass a token", "me/mine")
    fails(RuntimeError, "gated: its owner lets only some accounts", "me/gated")
    fails(RuntimeError, "the token's account has no access", "me/gated", token="hf_w")
    fails(RuntimeError, "do not have the hash that the hub lists", "me/wrong")
    fails(ValueError, "token=True needs a token", token=True)
    with pytest.raises(ValueError, match="loads to a mycelya device, not to cpu"):
        load_huggingface_state_dicts("me/model", "cpu")
    for token in ("hf_right", True):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HF_TOKEN", "hf_right")
            got = load_huggingface_state_dicts("me/gated", machine, token=token)
        same(got[""], {"a": torch.ones(2)})
    assert not hub.tokens, "the token stays with the hub's own server"
    assert torch.ones(2, device=machine.device()).sum().item() == 2


def test_a_name_twice(start):
    files = {f"{n}.safetensors": save({"a": torch.ones(1)}) for n in "xy"}
    _, machine = start({"me/model": hubs.Repo(files)})
    with pytest.raises(
        ValueError, match='both have a tensor "a".*path="y.safetensors"'
    ):
        load_huggingface_state_dicts("me/model", machine)


def test_other_work_goes_on_during_a_fetch(start):
    hub, machine = start(
        {"me/m": hubs.Repo({"m.safetensors": save({"a": torch.ones(2)})})}
    )
    here, go = threading.Event(), threading.Event()
    fault = hub.fault

    def wait():
        here.set()
        assert go.wait(60)
        return fault()

    hub.fault = wait
    got = []
    thread = threading.Thread(
        target=lambda: got.append(load_huggingface_state_dicts("me/m", machine))
    )
    thread.start()
    assert here.wait(60)
    x = torch.ones(3, device=machine.device())
    assert (x + x).sum().item() == 6
    go.set()
    thread.join(60)
    same(got[0][""], {"a": torch.ones(2)})


INTERRUPTED = """
import torch
from mycelya_torch import RemoteMachine, _device, load_huggingface_state_dicts
machine = RemoteMachine("local", device="cpu")
x = torch.ones(2, device=machine.device())
try:
    load_huggingface_state_dicts("me/m", machine)
except KeyboardInterrupt:
    print("interrupted", (x + x).sum().item())
"""


def test_ctrl_c_ends_a_fetch(tmp_path):
    repo = hubs.Repo({"m.safetensors": save({"a": torch.ones(2)})})
    with hubs.running({"me/m": repo}) as hub:
        here, end = threading.Event(), threading.Event()

        def silent():
            here.set()
            end.wait(300)
            return ""

        hub.fault = silent
        env = {"HF_ENDPOINT": hub.url(hub.api), "XDG_CACHE_HOME": str(tmp_path)}
        process = run_in_background(INTERRUPTED, tmp_path, **env)
        assert here.wait(120)
        os.kill(process.pid, signal.SIGINT)
        status, out, err = finish(process, 120)
        assert not end.is_set()
        end.set()
    assert (status, out) == (0, "interrupted 4.0\n"), err[-3000:]


def test_files_go_to_the_device(tmp_path, start):
    """torch.load and safetensors load to the device, also for a model on meta."""
    model = net(8)
    torch.save(model.state_dict(), tmp_path / "m.pt")
    (tmp_path / "m.safetensors").write_bytes(save(model.state_dict()))
    _, machine = start({})
    where = str(machine.device())
    for state in (
        torch.load(tmp_path / "m.pt", map_location=where),
        load_file(tmp_path / "m.safetensors", device=where),
    ):
        same(state, model.state_dict())
        with torch.device("meta"):
            there = net(8)
        there.load_state_dict(state, assign=True)
        x = torch.randn(2, 8)
        torch.testing.assert_close(there(x.to(where)).cpu(), model(x))


MEMORY = """
import json, os, signal, sys, threading, torch
from pathlib import Path
from mycelya_torch import _device
from safetensors.torch import load_file, save_file
sys.path.append({here!r})
from helpers import freeze

def mib():
    lines = [line.split() for line in open("/proc/self/status")]
    kinds = "RssAnon:", "RssShmem:"  # not the pages of a mapped file
    return sum(int(line[1]) for line in lines if line[0] in kinds) >> 10

state = dict((str(i), torch.full((1 << 20,), float(i))) for i in range(96))
files = [Path(__file__).with_name(name) for name in ("m.pt", "m.safetensors")]
torch.save(state, files[0])
save_file(state, files[1])
state = None
torch.zeros(1, device="mycelya").item()
worker = json.loads(_device.device_info(0))["pid"]
most = before = mib()
ended = threading.Event()

def watch():
    global most
    frozen = True
    while not ended.wait(0.005):
        most = max(most, mib())
        if frozen and torch.mycelya.metrics()["upload_bytes"] >= 256 << 20:
            os.kill(worker, signal.SIGCONT)
            frozen = False

for file in files:
    torch.mycelya.reset_metrics()
    freeze(worker)  # until the client has so much for it that it waits
    thread = threading.Thread(target=watch)
    thread.start()
    if file.suffix == ".pt":
        state = torch.load(file, map_location="mycelya")
    else:
        state = load_file(file, device="mycelya")
    torch.mycelya.synchronize()
    ended.set()
    thread.join()
    print(most - before, state["95"][-1].item())
    file.unlink()
    most, state = before, None
    ended.clear()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_of_loads(tmp_path):
    """A file of 384 MiB goes to the device through at most 256 MiB of copies."""
    code = MEMORY.format(here=str(Path(__file__).parent))
    status, out, err = run(code, tmp_path)
    assert status == 0, err[-3000:]
    peaks = [line.split() for line in out.splitlines()]
    assert [last for _, last in peaks] == ["95.0", "95.0"]
    assert all(int(peak) < 330 for peak, _ in peaks), peaks


def test_the_public_name():
    assert "load_huggingface_state_dicts" in dir(mycelya_torch)
    assert mycelya_torch.load_huggingface_state_dicts is load_huggingface_state_dicts


def test_loaded_weights_survive_the_loss_of_the_worker(start):
    """After a checkpoint, another worker goes on with the weights."""
    want = {"a": torch.randn(1000), "b": torch.arange(5)}
    hub, machine = start({"me/m": hubs.Repo({"m.safetensors": save(want)})})
    x = torch.ones(3, device=machine.device())
    machine.checkpoint()
    got = load_huggingface_state_dicts("me/m", machine)[""]
    doubled = got["a"] + got["a"]
    torch.mycelya.synchronize(machine.device())
    os.kill(
        json.loads(_device.device_info(machine.remote_index))["pid"], signal.SIGKILL
    )
    same(got, want)
    assert torch.equal(doubled.cpu(), want["a"] + want["a"])
    assert x.sum().item() == 3
    assert torch.mycelya.metrics()["workers_replaced"] == 1


def test_a_worker_lost_during_a_fetch(start, monkeypatch):
    """The tensors of one file are there, and the next file comes."""
    files = {f"{n}/m.safetensors": save({"a": torch.ones(2)}) for n in "xy"}
    files["y/m.safetensors"] = save({"a": torch.zeros(2)})
    hub, machine = start({"me/m": hubs.Repo(files)})
    x = torch.ones(3, device=machine.device())
    machine.checkpoint()
    worker = json.loads(_device.device_info(machine.remote_index))["pid"]
    loaded, requests, ask = threading.Event(), [], _weights._ask

    def asked(index, what, **options):
        answer = ask(index, what, **options)
        if what == "load":
            loaded.set()
        return answer

    def kill():
        requests.append(None)
        if len(requests) == 2:
            assert loaded.wait(60)
            os.kill(worker, signal.SIGKILL)
        return ""

    monkeypatch.setattr(_weights, "_ask", asked)
    hub.fault = kill
    with pytest.raises(RuntimeError, match="was lost while it fetched the weights"):
        load_huggingface_state_dicts("me/m", machine)
    got = load_huggingface_state_dicts("me/m", machine)
    same(got["x"], {"a": torch.ones(2)})
    same(got["y"], {"a": torch.zeros(2)})
    assert x.sum().item() == 3


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress(start, monkeypatch, caplog):
    """A bar on a terminal, and otherwise messages of the log."""
    _, machine = start(
        {"me/m": hubs.Repo({"m.safetensors": save({"a": torch.ones(9)})})}
    )
    terminal = Terminal()
    with monkeypatch.context() as patch:
        patch.setattr("sys.stderr", terminal)
        load_huggingface_state_dicts("me/m", machine)
    assert "me/m to the worker" in terminal.getvalue()
    monkeypatch.setattr(_weights, "_LOG_SECONDS", 0.0)
    monkeypatch.setattr("sys.stderr", io.StringIO())
    with caplog.at_level("INFO", logger="mycelya"):
        load_huggingface_state_dicts("me/m", machine)
    assert any(
        "me/m: the worker has 100 % of" in r.getMessage() for r in caplog.records
    )


SECRET = """
import os, torch, mycelya_torch
from mycelya_torch import RemoteMachine, load_huggingface_state_dicts
machine = RemoteMachine("local", device="cpu", transport="tcp")
got = load_huggingface_state_dicts("me/m", machine, token="hf_" + "secret")
print(got[""]["a"].sum().item())
try:
    load_huggingface_state_dicts("me/none", machine, token="hf_" + "secret")
except ValueError as error:
    print(error)
"""


def test_the_token_is_written_nowhere(tmp_path):
    """Not into dumps, logs, errors, the cache, or arguments of processes."""
    repo = hubs.Repo({"m.safetensors": save({"a": torch.ones(2)})}, token="hf_secret")
    seen = []
    with hubs.running({"me/m": repo}) as hub:

        def arguments():
            for process in filter(str.isdigit, os.listdir("/proc")):
                for name in ("cmdline", "environ"):
                    with contextlib.suppress(OSError):  # the process has ended
                        text = Path("/proc", process, name).read_bytes()
                        seen.append(b"mycelya-worker" in text)
                        assert b"hf_secret" not in text, process
            return ""

        hub.fault = arguments
        env = {
            "HF_ENDPOINT": hub.url(hub.api),
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
            "MYCELYA_DUMP": f"{tmp_path / 'dump'},all",
            "MYCELYA_LOG": "debug",
        }
        process = run_in_background(SECRET, tmp_path, **env)
        status, out, err = finish(process, 120)
    assert status == 0 and out.startswith("2.0\n"), err[-3000:]
    assert any(seen), "no process of the worker was seen"
    assert "hf_secret" not in out + err
    found = 0
    for path in tmp_path.rglob("*"):
        # A process of the worker may end a bit later, and removes its files.
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):
            assert b"hf_secret" not in path.read_bytes(), path
            found += 1
    assert found > 3
