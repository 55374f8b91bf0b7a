# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Machines that outlive their process, and clients that attach to them."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch
from helpers import raised
from killed import check_killed_clients, workers

from mycelya_torch import RemoteMachine
from mycelya_torch.errors import DeviceLostError


@pytest.fixture(autouse=True)
def machines(tmp_path, monkeypatch):
    """The folder of this test's machines, none of which is left."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    yield tmp_path / "mycelya" / "machines"
    for name in left(tmp_path):
        RemoteMachine.attach(name).stop()


def left(folder):
    """The names of the machines that run."""
    try:
        RemoteMachine.attach("none of them")
    except RuntimeError as error:
        _, _, text = str(error).partition("There are ")
        return [name.strip('". ') for name in text.split(",") if text]
    raise AssertionError


def run(code, *, kill=False):
    """Runs code in another process."""
    head = "import os, signal, torch\nfrom mycelya_torch import RemoteMachine\n"
    code = head + textwrap.dedent(code)
    if kill:
        code += "\nos.kill(os.getpid(), signal.SIGKILL)\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == (-signal.SIGKILL if kill else 0), done.stderr
    return done.stdout


@pytest.mark.parametrize("kill", [False, True])
@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_another_process_goes_on(transport, kill):
    """What was sent before the end of a process is done, once."""
    run(
        f"""
        m = RemoteMachine(
            "local", device="cpu", name="one", detached=True, transport="{transport}"
        )
        x = torch.zeros(1000, device=m.device())
        m.save("x", x)
        for i in range(200):
            x += 1
            if i % 50 == 49:
                m.save("x", x)
        m.save("x", x)
        """,
        kill=kill,
    )
    m = RemoteMachine.attach("one")
    x = m.load("x")
    assert x.tolist() == [200] * 1000
    x += 1
    m.save("x", x)
    del x
    out = run(
        """
        m = RemoteMachine.attach("one")
        print(m.load("x").sum().item())
        """
    )
    assert float(out) == 201_000
    assert left(None) == ["one"]
    m = RemoteMachine.attach("one")
    m.stop()
    assert left(None) == []


def test_a_client_that_is_replaced(machines):
    """The first client learns why its tensors are gone."""
    first = RemoteMachine("local", device="cpu", name="two", detached=True)
    x = torch.ones(3, device=first.device())
    assert x.sum().item() == 3
    first.save("x", x)
    second = RemoteMachine.attach("two")
    assert second.load("x").sum().item() == 3
    with pytest.raises(RuntimeError, match="Another client"):
        x.sum().item()
    second.stop()
    assert left(None) == []


def test_names(machines):
    with RemoteMachine("local", device="cpu", name="a/b ä", detached=True):
        with pytest.raises(RuntimeError, match=r"runs already.*attach\("):
            RemoteMachine("local", device="cpu", name="a/b ä", detached=True)
        with pytest.raises(RuntimeError, match='There are "a/b ä"'):
            RemoteMachine.attach("other")
    with pytest.raises(RuntimeError, match='No machine with the name "a/b ä" runs'):
        RemoteMachine.attach("a/b ä")
    with pytest.raises(ValueError, match="needs a name="):
        RemoteMachine("local", detached=True)
    with pytest.raises(ValueError, match="idle_timeout=0"):
        RemoteMachine("local", name="x", detached=True, idle_timeout=0)
    with pytest.raises(RuntimeError, match="cannot name a machine"):
        RemoteMachine("local", name=".x", detached=True)


def test_only_this_user_can_enter(machines):
    with RemoteMachine("local", device="cpu", name="c", detached=True, transport="tcp"):
        for path in (machines / "c").iterdir():
            assert path.stat().st_mode & 0o077 == 0, path
        assert (machines / "c").stat().st_mode & 0o077 == 0
    names = {path.name for path in (machines / "c").iterdir()}
    assert names <= {"lock"}, "what a machine has kept ends with it"


def test_an_idle_worker_ends(machines):
    code = """
        import sys
        from mycelya_torch import RemoteMachine

        RemoteMachine(
            "local", device="cpu", name="d", detached=True, idle_timeout=4
        ).save("x", 1)
        print("saved", flush=True)
        sys.stdin.read()
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as client:
        assert client.stdout.readline() == "saved\n"
        assert left(None) == ["d"]  # it has a client, so its clock stands still
        client.communicate(timeout=120)
    end = time.monotonic() + 120
    while left(None):
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.slow
def test_killed_clients_leave_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    mark = f"HOME={tmp_path}".encode()
    choices = [{"device": "cpu", "detached": detached} for detached in (False, True)]
    check_killed_clients(tmp_path, "local", choices, lambda: workers(mark))


def test_a_worker_that_is_killed(machines):
    """A machine is replaced from its checkpoint, in each process that uses it."""
    run(
        """
        m = RemoteMachine("local", device="cpu", name="e", detached=True)
        m.save("x", torch.ones(3, device=m.device()))
        """
    )
    m = RemoteMachine.attach("e")
    x = m.load("x")
    m.checkpoint()
    x += 1
    kill_supervisor(m)
    assert x.tolist() == [2, 2, 2]
    assert m.load("x").tolist() == [1, 1, 1]
    assert left(None) == ["e"]
    m.stop()


def test_a_worker_that_is_killed_without_a_checkpoint(machines):
    """The error names what works: the machine cannot be attached again."""
    run(
        """
        m = RemoteMachine("local", device="cpu", name="f", detached=True)
        m.save("x", torch.ones(3, device=m.device()))
        """
    )
    m = RemoteMachine.attach("f")
    x = m.load("x")
    kill_supervisor(m)
    text = raised(DeviceLostError, lambda: x.add(1).sum().item())
    call = re.search(r"Call (RemoteMachine\(.*?\)), and load\(\)", text)[1]
    m.stop()
    with eval(call) as again:
        assert again.load("x").tolist() == [1, 1, 1]


def kill_supervisor(machine):
    """Kills the process that has started the session's."""
    stat = Path(f"/proc/{session(machine)}/stat").read_text()
    os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGKILL)


def session(machine):
    import json

    from mycelya_torch import _device

    return json.loads(_device.device_info(machine.remote_index))["pid"]


@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_its_devices(transport):
    """A client has several sessions with it. Another client takes the place of all."""
    machine = RemoteMachine(
        name="kept", detached=True, device="cpu", transport=transport
    )
    first, second = machine.device(), machine.device("cpu")
    assert first != second
    x = torch.arange(1000, device=first)
    parked = x.to(second)
    x.zero_()
    assert torch.equal(parked.to(first).cpu(), torch.arange(1000))
    machine.save("x", parked.to(first))
    other = RemoteMachine.attach("kept")
    theirs = other.device("cpu")
    loaded = other.load("x")
    assert torch.equal(loaded.to(theirs).cpu(), torch.arange(1000))
    for mine in (x, parked):
        raised(DeviceLostError, lambda mine=mine: mine.add(1).sum().item())
    again = loaded.to(theirs).add(1)
    assert again.sum().item() == sum(range(1001))
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match="cuda:1"):
            other.device("cuda", 1)
    other.stop()
    machine.stop()
