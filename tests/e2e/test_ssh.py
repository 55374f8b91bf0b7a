# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Machines on a host that is reached by ssh: a real server on this host."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import hub as hubs
import pytest
import torch
from helpers import raised, run
from killed import check_killed_clients
from safetensors.torch import save
from sshd import Host, eventually
from test_transport import trained
from torch import nn

from mycelya_torch import RemoteMachine, load_huggingface_state_dicts
from mycelya_torch.errors import DeviceLostError


@pytest.fixture(scope="module")
def host():
    """The server of this file's tests. Sockets need a short path."""
    folder = Path(tempfile.mkdtemp(prefix="mssh"))
    server = Host(folder)
    yield server
    server.stop()
    shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def left(host, tmp_path, monkeypatch):
    """Nothing of a test is left on the host."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    yield
    eventually(lambda: not host.processes())
    assert not list((host.folder / "tmp").iterdir())


@pytest.fixture
def machine(host):
    with RemoteMachine("ssh", device="cpu", name="far", **host.options) as machine:
        yield machine


def client(host, code, *, kill=False):
    """Runs code in another process, in which `options` are those of the host."""
    head = (
        "import os, signal, torch\nfrom mycelya_torch import RemoteMachine\n"
        f"options = {host.options!r}\n"
    )
    code = head + textwrap.dedent(code)
    if kill:
        code += "\nos.kill(os.getpid(), signal.SIGKILL)\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == (-signal.SIGKILL if kill else 0), done.stderr
    return done.stdout


def test_a_training_has_the_same_bits(machine):
    far = trained(machine.device())
    for a, b in zip(far, trained("mycelya"), strict=True):
        assert torch.equal(torch.as_tensor(a), torch.as_tensor(b))


def test_a_training_is_that_of_the_cpu(machine):
    far = trained(machine.device())
    for a, b in zip(far, trained("cpu"), strict=True):
        torch.testing.assert_close(torch.as_tensor(a), torch.as_tensor(b))


def test_large_uploads_and_downloads(machine):
    x = torch.arange(8_000_000, dtype=torch.float32)
    y = x.to(machine.device())
    assert torch.equal((y + y).cpu(), x + x)
    link = torch.mycelya.metrics()["links"][str(machine.device().index)]
    assert 0 < link["rtt_seconds"] < 10


def test_a_stream_that_is_cut_goes_on(host, machine):
    """The ssh process of a stream is killed, and then that of all streams."""
    torch.mycelya.reset_metrics()
    x = torch.zeros(1000, device=machine.device())
    for n, word in enumerate((b"--relay", b"ControlMaster=yes"), 1):
        for _ in range(5):
            x += 1
        x.cpu()
        victims = host.clients(word)
        assert victims
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        for _ in range(5):
            x += 1
        # The ssh process of all streams has a stream's pipes too: it can carry bytes
        # after the stream's own process has ended, until it notices that end.
        eventually(lambda n=n: torch.mycelya.metrics()["reconnects"] >= n)
    assert x.tolist() == [20] * 1000


def digits(device, after_step):
    """Trains a CNN on scikit-learn's digits for two epochs: losses and weights."""
    load_digits = pytest.importorskip("sklearn.datasets").load_digits
    scans = load_digits()
    images = torch.tensor(scans.images, dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(scans.target)
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(128, 10)),
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    order = torch.cat([torch.randperm(len(labels)) for _ in range(2)])
    losses = []
    for step, batch in enumerate(order.split(64)):
        x, y = images[batch].to(device), labels[batch].to(device)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        after_step(step)
    return losses, [p.detach().cpu() for p in model.parameters()]


@pytest.mark.slow
def test_a_training_that_is_cut_twenty_times(host, machine):
    """ssh is killed in the middle; the bits are those of a local worker."""
    cuts = 0

    def cut(step):
        nonlocal cuts
        if step % 2 or cuts == 20:
            return
        eventually(lambda: torch.mycelya.metrics()["reconnects"] >= cuts)
        word = (b"--relay", b"ControlMaster=yes")[cuts % 2]
        eventually(lambda: host.clients(word))
        for pid in host.clients(word):
            os.kill(pid, signal.SIGKILL)
        cuts += 1

    torch.mycelya.reset_metrics()
    losses, weights = digits(machine.device(), cut)
    assert cuts == 20
    eventually(lambda: torch.mycelya.metrics()["reconnects"] >= 20)
    near_losses, near = digits("mycelya", lambda step: None)
    assert losses == near_losses and losses[-1] < losses[0] / 4
    for a, b in zip(weights, near, strict=True):
        assert torch.equal(a, b)


def test_a_fork_keeps_the_session(machine):
    x = torch.ones(4, device=machine.device())
    x.cpu()
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert (x + 1).tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize("kill", [False, True])
def test_another_process_goes_on(host, kill):
    client(
        host,
        """
        m = RemoteMachine("ssh", device="cpu", name="one", detached=True, **options)
        x = torch.zeros(1000, device=m.device())
        for i in range(100):
            x += 1
        m.save("x", x)
        """,
        kill=kill,
    )
    m = RemoteMachine.attach("one", "ssh", **host.options)
    x = m.load("x")
    assert x.tolist() == [100] * 1000
    with pytest.raises(RuntimeError, match="runs already"):
        RemoteMachine("ssh", device="cpu", name="one", detached=True, **host.options)
    m.stop()
    with pytest.raises(RuntimeError, match="No machine with this name runs"):
        RemoteMachine.attach("one", "ssh", **host.options)


def test_a_machine_that_is_let_go_runs_on(host):
    """Another client takes the place; the first one's ssh processes end."""
    first = RemoteMachine(
        "ssh", device="cpu", name="two", detached=True, **host.options
    )
    first.save("x", torch.ones(3, device=first.device()))
    second = RemoteMachine.attach("two", "ssh", **host.options)
    assert second.load("x").tolist() == [1, 1, 1]
    with pytest.raises(RuntimeError, match="Another client"):
        torch.ones(3, device=first.device()).cpu()
    first.stop()
    assert second.load("x").tolist() == [1, 1, 1]
    second.stop()


TRAINING = """
    m = RemoteMachine("ssh", device="cpu", idle_timeout={idle}, **options)
    x = torch.ones(64, 64, device=m.device())
    x.sum().item()
    print("trains", flush=True)
    while True:
        x = (x @ x).tanh()
        x.sum().item()
"""


@pytest.mark.parametrize("everything", [False, True])
def test_a_killed_client_leaves_nothing(host, everything):
    """Its worker ends at once, or by its clock if ssh is killed as well."""
    head = "import torch\nfrom mycelya_torch import RemoteMachine\n"
    code = head + f"options = {host.options!r}\n"
    code += textwrap.dedent(TRAINING.format(idle=10 if everything else 600))
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "trains\n"
    ssh = host.clients(b"ControlMaster") if everything else []
    process.kill()
    for pid in ssh:
        with contextlib.suppress(ProcessLookupError):  # it has ended with its client
            os.kill(pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    eventually(lambda: not host.processes(b"mycelya-worker"))


@pytest.mark.slow
def test_killed_clients_leave_nothing(host, tmp_path):
    choices = [{"device": "cpu", **host.options, "detached": d} for d in (False, True)]
    check_killed_clients(
        tmp_path, "ssh", choices, lambda: host.processes(b"mycelya-worker")
    )


def test_a_lost_worker_is_replaced_from_its_checkpoint(host, machine):
    x = torch.ones(3, device=machine.device())
    machine.checkpoint()
    x += 1
    (worker,) = [
        pid
        for pid in host.processes(b"mycelya-worker\0--socket")
        if pid not in host.processes(b"--session")
    ]
    os.kill(worker, signal.SIGKILL)
    assert x.tolist() == [2, 2, 2]
    kept = list((host.folder / "state").glob("mycelya/hosted/*/kept/*"))
    assert kept
    machine.stop()
    assert not kept[0].exists(), "checkpoints end with the machine"


def test_a_paused_machine_has_no_worker(host, machine):
    x = torch.ones(3, device=machine.device())
    machine.pause()
    eventually(lambda: not host.processes(b"mycelya-worker"))
    machine.resume()
    assert (x + 1).tolist() == [2, 2, 2]


def test_the_host_fetches_weights(host, tmp_path, monkeypatch):
    """They lie in a folder of the host, and outlive the machine."""
    want = torch.randn(1000)
    file = save({"w": want})
    options = {**host.options, "weights": str(tmp_path / "weights")}
    with hubs.running({"me/m": hubs.Repo({"m.safetensors": file})}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url(hub.api))
        for served in (len(file), 0):
            hub.served = 0
            with RemoteMachine("ssh", device="cpu", **options) as far:
                got = load_huggingface_state_dicts("me/m", far)[""]["w"]
                assert torch.equal(got.cpu(), want)
            assert hub.served == served
    assert any(path.is_file() for path in (tmp_path / "weights").rglob("*"))


def test_the_log(host, machine):
    """It is read while the worker runs, and when it has been lost."""
    torch.ones(3, device=machine.device()).cpu()
    logs = (host.folder / "state").glob("mycelya/hosted/*/once-*/log")
    log = max(logs, key=lambda path: path.stat().st_mtime_ns)  # others have ended
    with log.open("a") as file:
        file.write("a line of the worker\n")
    assert machine.logs().endswith("a line of the worker\n")
    with pytest.raises(NotImplementedError, match="runs no Python.*numpy"):
        machine.pip_install("numpy")
    device = machine.device()
    for pid in host.processes(b"mycelya-worker\0--socket"):
        with contextlib.suppress(ProcessLookupError):  # it has ended with another one
            os.kill(pid, signal.SIGKILL)
    raised(DeviceLostError, lambda: torch.ones(3, device=device).sum().item())
    assert machine.logs().endswith("a line of the worker\n")


def command(*args, code=0):
    """What a command of mycelya prints, as text and as an object."""
    done = subprocess.run(
        [sys.executable, "-m", "mycelya_cli", *args], capture_output=True, text=True
    )
    assert done.returncode == code, done.stderr
    return done


def test_the_command_line(host, machine):
    """top and logs find a machine by its name, and do not disturb its client."""
    with RemoteMachine(
        "ssh", device="cpu", name="kept", detached=True, **host.options
    ) as kept:
        x = torch.ones(3, device=kept.device())
        x.sum().item()
        torch.ones(3, device=machine.device()).sum().item()
        flags = ["--once", "--interval", "0.2", "--json"]
        answer = json.loads(command("top", *flags).stdout)
        one = {m["name"]: m for m in answer["machines"]}
        assert one["kept"]["clients"] == 1 and one["kept"]["memory_bytes"] > 1e6
        assert one["kept"]["last_call_seconds"] >= 0 and one["kept"]["error"] == ""
        assert one["far"]["clients"] is None
        assert "only the process that has started it" in one["far"]["error"]
        (log,) = (host.folder / "state").glob("mycelya/hosted/*/name-kept/log")
        with log.open("a") as file:
            file.write("a line of the worker\n")
        assert command("logs", "kept").stdout.endswith("a line of the worker\n")
        done = command("logs", "far", code=1)
        assert "'far' was not started with detached=True" in done.stderr
        assert x.tolist() == [1, 1, 1], "its session lives"


def test_a_killed_session_is_explained(machine):
    from mycelya_torch import _device

    torch.ones(3, device=machine.device()).cpu()
    os.kill(json.loads(_device.device_info(machine.remote_index))["pid"], 11)
    with pytest.raises(RuntimeError, match="ended by signal segmentation fault"):
        torch.ones(3, device=machine.device()).sum().item()


def test_the_variable(host, tmp_path):
    """MYCELYA_MACHINE has the host, and options as in a URL."""
    from urllib.parse import urlencode

    options = {k: v for k, v in host.options.items() if k != "host"}
    code = """
        import torch
        import mycelya_torch
        print((torch.ones(3, device="mycelya") + 1).tolist())
    """
    value = f"ssh:{host.options['host']}?{urlencode({**options, 'device': 'cpu'})}"
    env = {"MYCELYA_MACHINE": value, "XDG_STATE_HOME": str(tmp_path)}
    status, out, err = run(code, tmp_path, **env)
    assert (status, out) == (0, "[2.0, 2.0, 2.0]\n"), err


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({}, RuntimeError, "needs a host"),
        ({"host": "-oProxyCommand=x"}, ValueError, "what you give to ssh"),
        ({"host": "a b"}, ValueError, "what you give to ssh"),
        ({"host": "x", "folder": "relative"}, ValueError, "a folder on the host"),
        ({"host": "x", "port": "22"}, ValueError, "port='22' is not an option"),
        ({"host": "no-such-host.invalid"}, RuntimeError, "cannot be resolved"),
    ],
)
def test_wrong_options(options, error, text):
    with pytest.raises(error, match=text):
        RemoteMachine("ssh", **options)
    with pytest.raises(ValueError, match="uses the GPU that the host has"):
        RemoteMachine("ssh", "H100", host="x")
    with pytest.raises(ValueError, match="runs no Python.*numpy"):
        RemoteMachine("ssh", host="x", packages=["numpy"])
