# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Round trips from the first dial to the first value, counted; see tests/trips.

A new client process uses a machine that runs already, at 100 ms. The goal is five.
"""

import json
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import networks
import pytest
from sshd import Host, eventually

from mycelya_torch import RemoteMachine, _load

ROUND_TRIP = 0.1  # seconds, twice the default of --delay
GOAL = 5

# Counts of a client. {machine} is an expression; reports are sockets of tests/trips.
CLIENT = """
import json, socket, sys
from pathlib import Path
import torch
from mycelya_torch import RemoteMachine

def ask(word="count"):
    "The sum of the counts of all streams."
    total = dict(trips=0, connections=0, seconds=0.0)
    for path in Path({folder!r}).glob("*"):
        with socket.socket(socket.AF_UNIX) as report:
            report.connect(str(path))
            report.sendall(word.encode() + b"\\n")
            for name, value in json.loads(report.makefile().readline()).items():
                total[name] += value
    return total

ask("reset")
machine = {machine}
device = machine.device()
counts = [ask()]
assert torch.ones(3, device=device).add(1).cpu().tolist() == [2, 2, 2]
counts.append(ask())
assert torch.arange(100.0).to(device).sum().item() == 4950
counts.append(ask())
print(json.dumps(counts), flush=True)
"""


@pytest.fixture(scope="module")
def trips(tmp_path_factory):
    """The path of the program of tests/trips."""
    return networks.build(tmp_path_factory.mktemp("trips"), "trips")


@pytest.fixture
def reports():
    """A folder for sockets, whose paths must be short."""
    folder = Path(tempfile.mkdtemp(prefix="trp"))
    yield folder
    shutil.rmtree(folder)


def script(path, line):
    """A program that becomes the program of tests/trips."""
    path.write_text(f"#!/bin/sh\nexec {line}\n")
    path.chmod(0o700)
    return path


def counted(reports, machine):
    """The counts of a client: the session is open, a value, a value of an upload."""
    code = CLIENT.format(folder=str(reports), machine=machine)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    opened, value, upload = json.loads(done.stdout)
    print(f"{opened=} {value=} {upload=}")
    assert value["trips"] <= GOAL
    if opened["connections"] == 1:  # the line delays what it carries
        assert value["seconds"] > (value["trips"] - 0.5) * ROUND_TRIP
    assert value["trips"] < upload["trips"] <= value["trips"] + 2
    return opened["trips"], value["trips"], value["connections"]


@pytest.fixture
def detached(trips, reports, tmp_path, monkeypatch):
    """A machine on TCP behind the line, started by a process that has ended."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    worker = script(
        tmp_path / "worker",
        f'"{trips}" --report "{reports}/tcp" --worker "{_load.WORKER}" -- "$@"',
    )
    code = f"""
import torch, mycelya_torch
from mycelya_torch import RemoteMachine, _device, _load
paths = (_load.CLIENT, {str(worker)!r}, _load.EXEC, _load.torch_lib())
_device.init(*map(str, paths), *mycelya_torch._default_machine)
m = RemoteMachine("local", device="cpu", name="far", detached=True, transport="tcp")
m.save("x", torch.ones(3, device=m.device()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    yield 'RemoteMachine.attach("far")'
    RemoteMachine.attach("far").stop()


def test_attach_over_tcp(detached, reports):
    """TCP, TLS, the Hellos; a program and its value."""
    for _ in range(2):
        opened, value, connections = counted(reports, detached)
        assert opened == 3
        assert value >= 4
        assert connections == 1


def test_a_command(trips, reports):
    """The worker's first line, the Hellos; a program and its value."""
    worker = [str(_load.WORKER), "--stdio", "--device", "cpu"]
    worker += ["--exec", str(_load.EXEC), "--torch-lib", str(_load.torch_lib())]
    line = [str(trips), "--report", f"{reports}/pipe", "--pipe", "--", *worker]
    machine = f'RemoteMachine("exec", command={shlex.join(line)!r})'
    opened, value, _ = counted(reports, machine)
    assert opened == 2
    assert value >= 3


def test_attach_over_ssh(trips, reports, tmp_path, monkeypatch):
    """The agent's answer; TLS, the Hellos; a program and its value.

    The trips of ssh itself, for its login and its channels, are not counted.
    """
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = Path(tempfile.mkdtemp(prefix="mssh"))
    host = Host(folder)
    try:
        # The next client takes its place.
        first = RemoteMachine(
            "ssh", name="far", device="cpu", detached=True, **host.options
        )
        line = f'"{trips}" --report "{reports}/$$" --pipe --tls -- '
        ssh = script(tmp_path / "ssh", line + host.options["ssh"] + ' "$@"')
        machine = f'RemoteMachine.attach("far", "ssh", host="loop", ssh={str(ssh)!r})'
        opened, value, streams = counted(reports, machine)
        assert streams == 2
        assert opened == 3
        assert value >= 4
        RemoteMachine.attach("far", "ssh", **host.options).stop()
        first.stop()
        eventually(lambda: not host.processes())
    finally:
        host.stop()
        shutil.rmtree(folder)
