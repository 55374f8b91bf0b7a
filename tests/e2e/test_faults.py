# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""A session over TCP loses nothing when its network fails; see tests/faults."""

import inspect
import os
import signal
import time

import pytest
from helpers import FREEZE, SOAK, finish, freeze, gone, is_running, run, start
from networks import TCP, Network

# Trains with a new batch in each step and a read in some, and prints what came of it.
# After half of the steps it waits for the file `go`, if there is such a name.
TRAINING = """
import hashlib, json, os, sys, time, torch, mycelya_torch
from mycelya_torch import _device, _load
steps, worker, go = {steps}, {worker!r}, {go!r}
if worker:
    paths = (_load.CLIENT, worker, _load.EXEC, _load.torch_lib())
    _device.init(*map(str, paths), *mycelya_torch._default_machine)
torch.manual_seed(0)
net = torch.nn.Sequential(
    torch.nn.Linear(64, 128), torch.nn.Dropout(0.1), torch.nn.ReLU(),
    torch.nn.Linear(128, 10),
).to("mycelya")
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
x, y = torch.randn(1024, 64), torch.randint(0, 10, (1024,))
digest = hashlib.sha256()
for i in range(steps):
    batch = slice(i % 16 * 64, i % 16 * 64 + 64)
    output = net(x[batch].to("mycelya"))
    loss = torch.nn.functional.cross_entropy(output, y[batch].to("mycelya"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if i % 5 == 0:
        digest.update(loss.item().hex().encode())
    if go and i == steps // 2:
        pid = json.loads(_device.device_info(0))["pid"]
        print("half", pid, flush=True)
        while not os.path.exists(go):
            time.sleep(0.01)
big = torch.randn(1_000_000)
assert torch.equal(big.to("mycelya").cpu(), big)
for parameter in net.parameters():
    digest.update(parameter.detach().cpu().numpy().tobytes())
reconnects = torch.mycelya.metrics()["reconnects"]
print(digest.hexdigest(), reconnects, flush=True)
"""


def train(folder, steps, worker="", timeout=240):
    """The digest of a training, and how often it has connected again."""
    code = TRAINING.format(steps=steps, worker=str(worker), go="")
    status, out, err = run(code, folder, timeout, **TCP)
    assert status == 0, err[-4000:]
    digest, reconnects = out.split()[-2:]
    return digest, int(reconnects)


@pytest.mark.parametrize(
    ("seed", "kinds"),
    # Only the heartbeat ends a connection whose bytes are missing: that takes 20 s.
    [(1, ""), *((seed, "cut,corrupt,late,stall") for seed in range(2, 2 + SOAK))],
)
def test_training_through_random_faults_has_the_same_bits(
    faults, tmp_path, seed, kinds
):
    want, none = train(tmp_path, 150)
    assert none == 0
    network = Network(
        faults, tmp_path, f"--seed {seed} --mean 100000 --kinds '{kinds}'"
    )
    got, reconnects = train(tmp_path, 150, network.worker)
    assert got == want
    assert reconnects > 3


def test_a_link_that_is_lost_for_seconds(faults, tmp_path):
    """Training goes on by itself; steps recorded meanwhile arrive once."""

    want, _ = train(tmp_path, 100)
    network = Network(faults, tmp_path)
    go = tmp_path / "go"
    code = TRAINING.format(steps=100, worker=str(network.worker), go=str(go))
    process = start(code, tmp_path, **TCP)
    assert process.stdout.readline().startswith("half")
    network.ask("proxies/worker", enabled=False)
    go.touch()
    time.sleep(4)
    assert process.poll() is None
    network.ask("proxies/worker", enabled=True)
    status, out, err = finish(process, 240)
    assert status == 0, err[-4000:]
    digest, reconnects = out.split()[-2:]
    assert digest == want
    assert int(reconnects) == 1
    assert "connecting again" in err
    assert "nothing was lost" in err


# Computes with a read in each step. Until there is the file `go`, a thread takes each
# descriptor that becomes free, also that of a connection that has ended.
WITHOUT_DESCRIPTORS = """
import os, resource, threading, time, torch, mycelya_torch
from mycelya_torch import _device, _load
paths = (_load.CLIENT, {worker!r}, _load.EXEC, _load.torch_lib())
_device.init(*map(str, paths), *mycelya_torch._default_machine)
x = torch.arange(1000.0, device="mycelya")
x.sum().item()
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (200, most))

def hold():
    kept, full = [], False
    while not os.path.exists({go!r}):
        try:
            kept.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            if not full:
                print("full", flush=True)
            full = True
            time.sleep(0.001)
    for fd in kept:
        os.close(fd)

holds = threading.Thread(target=hold)
holds.start()
n = 0
while holds.is_alive() or n < 300:
    x = x + 1
    x[0].item()
    n += 1
    time.sleep(0.01)
print(torch.equal(x.cpu(), torch.arange(1000.0) + n), flush=True)
print(torch.mycelya.metrics()["reconnects"])
"""


def test_a_link_that_is_lost_while_no_descriptor_is_free(faults, tmp_path):
    """The client cannot connect. It tries again until it can, and loses nothing."""
    network = Network(faults, tmp_path)
    go = tmp_path / "go"
    code = WITHOUT_DESCRIPTORS.format(worker=str(network.worker), go=str(go))
    process = start(code, tmp_path, **TCP)
    assert process.stdout.readline() == "full\n"
    network.ask("proxies/worker", enabled=False)
    # The thread takes the descriptor of the connection, and the client says so.
    assert any("too many open files" in line for line in process.stderr)
    network.ask("proxies/worker", enabled=True)
    time.sleep(1)
    assert process.poll() is None
    go.touch()
    status, out, err = finish(process, 240)
    assert status == 0, err[-4000:]
    assert out == "True\n1\n"


def test_a_process_that_is_stopped_for_seconds(faults, tmp_path):
    """Its connection stays, and the training goes on when the process does."""
    want, _ = train(tmp_path, 100)
    go = tmp_path / "go"
    code = TRAINING.format(steps=100, worker="", go=str(go))
    process = start(code, tmp_path, **TCP)
    pid = int(process.stdout.readline().split()[1])
    freeze(pid)
    go.touch()
    time.sleep(3)
    assert process.poll() is None
    os.kill(pid, signal.SIGCONT)
    status, out, err = finish(process, 240)
    assert status == 0, err[-4000:]
    assert out.split()[-2:] == [want, "0"]


SILENT = f"""
{FREEZE}
{inspect.getsource(is_running)}
{inspect.getsource(gone)}
from pathlib import Path
import json, os, signal, time, torch, mycelya_torch
from mycelya_torch import _device
x = torch.arange(1000.0, device="mycelya")
print(x.sum().item())
time.sleep(9)  # no answer is due
print((x + 1).sum().item(), flush=True)
pid = json.loads(_device.device_info(0))["pid"]
freeze(pid)
began = time.monotonic()
try:
    print((x + 2).sum().item())
except mycelya_torch.errors.DeviceLostError as error:
    print(time.monotonic() - began, error)
torch.mycelya.restart(0)
print(torch.ones(3, device="mycelya").sum().item())
print(gone(pid))
"""


@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_a_worker_that_stays_silent(tmp_path, transport):
    """Its client waits for a limited time, and leaves no process."""
    machine = f"local:cpu?transport={transport}"
    status, out, err = run(
        SILENT, tmp_path, MYCELYA_TIMEOUT="6", MYCELYA_MACHINE=machine
    )
    assert status == 0, err[-4000:]
    first, second, lost, last, ended = out.splitlines()
    assert (first, second, last, ended) == ("499500.0", "500500.0", "3.0", "True")
    took, text = lost.split(" ", 1)
    assert 5 < float(took) < 60
    assert "has been silent for 6s although an answer is due; MYCELYA_TIMEOUT" in text
