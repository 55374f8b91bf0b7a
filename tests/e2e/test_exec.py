# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Machines whose worker is a command: mycelya-worker --stdio with the real torch."""

import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from helpers import CUDA_BOUNDS, gone, is_running, on_cuda, processes, raised, run
from killed import check_killed_clients, workers
from test_machine_life import lose
from test_transport import trained

from mycelya_torch import RemoteMachine, _load
from mycelya_torch._provider_table import BackendProvider

COMMAND = shlex.join(
    [
        str(_load.WORKER),
        *("--stdio", "--device", "cpu"),
        *("--exec", str(_load.EXEC), "--torch-lib", str(_load.torch_lib())),
    ]
)


@pytest.fixture
def machine():
    with RemoteMachine("exec", command=COMMAND, name="command") as machine:
        yield machine


def test_a_training_has_the_same_bits(machine):
    far = trained(machine.device())
    for a, b in zip(far, trained("mycelya"), strict=True):
        # The command's worker computes on the CPU.
        bounds = CUDA_BOUNDS if on_cuda() else {"rtol": 0, "atol": 0}
        torch.testing.assert_close(a, b, check_device=False, **bounds)


def test_large_uploads_and_downloads(machine):
    x = torch.arange(8_000_000, dtype=torch.float32)
    assert torch.equal((x.to(machine.device()) * 2).cpu(), x + x)
    assert BackendProvider.EXEC.value == machine.provider.value


def test_a_copy_between_machines_says_that_it_goes_through_this_process(tmp_path):
    code = f"""
        import torch
        from mycelya_torch import RemoteMachine
        with RemoteMachine("exec", command={COMMAND!r}) as far:
            with RemoteMachine("local") as near, RemoteMachine("local") as other:
                x = torch.arange(4.0).to(near)
                print(x.to(other).tolist(), flush=True)
                print(x.to(far).tolist(), x.to(far).to(other).tolist())
    """
    status, out, err = run(code, tmp_path)
    assert status == 0, err
    assert (
        out == "[0.0, 1.0, 2.0, 3.0]\n" + "[0.0, 1.0, 2.0, 3.0] [0.0, 1.0, 2.0, 3.0]\n"
    )
    found = re.findall("A copy from mycelya:(.) to mycelya:(.) goes through this", err)
    assert len(found) == 1 and err.count("from worker to worker") == 1, err


def test_a_command_has_one_stream_and_so_one_device(machine):
    x = torch.ones(2, device=machine.device())
    with pytest.raises(RuntimeError, match="has one stream, so the machine has one"):
        machine.device("cpu")
    assert (x + 1).tolist() == [2, 2]


@pytest.mark.parametrize("flag, state", [("", "2"), ("--unfiltered", "0")])
def test_the_filter_of_system_calls(flag, state):
    """2: the process has a filter. A flag leaves it out, to look for an error."""
    mark = f"--crashes=/nowhere/{os.getpid()}{flag}"
    command = f"{COMMAND} {mark} {flag}"
    with RemoteMachine("exec", command=command) as machine:
        assert torch.ones(2, device=machine.device()).sum().item() == 2
        (session,) = (
            pid
            for pid, _, arguments in processes()
            if mark.encode() in arguments and b"\0--session\0" in arguments
        )
        status = Path(f"/proc/{session}/status").read_text()
    assert f"Seccomp:\t{state}\n" in status


def test_a_lost_process_is_explained_and_replaced(machine):
    torch.ones(2, device=machine.device()).cpu()
    text = lose(machine, signal.SIGSEGV)
    assert "machine command, is lost" in text
    assert "was ended by signal segmentation fault" in text
    machine.restart()
    assert torch.ones(2, device=machine.device()).tolist() == [1, 1]


def test_a_lease_ends_the_command():
    with RemoteMachine("exec", command=COMMAND, timeout=20) as machine:
        x = torch.ones(2, device=machine.device())
        text = raised(RuntimeError, lambda: x.add_(1).sum().item())
        assert "its lease has passed" in text


def test_a_killed_client_takes_its_command_along():
    code = f"""
        import torch
        from mycelya_torch import RemoteMachine
        m = RemoteMachine("exec", command={COMMAND!r})
        torch.ones(2, device=m.device()).sum().item()
        print(m.device(), flush=True)
        import json
        from mycelya_torch import _device
        print(json.loads(_device.device_info(m.remote_index))["pid"], flush=True)
        while True:
            torch.ones(2, device=m.device()).sum().item()
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True
    )
    process.stdout.readline()
    session = int(process.stdout.readline())
    assert is_running(session)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert gone(session)


@pytest.mark.slow
def test_killed_clients_leave_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    mark = f"XDG_STATE_HOME={tmp_path}".encode()
    choice = {"command": COMMAND}
    check_killed_clients(tmp_path, "exec", [choice], lambda: workers(mark))


def test_the_variable(tmp_path):
    """The command stands after the colon, or among the options."""
    code = """
        import torch
        import mycelya_torch
        print((torch.ones(3, device="mycelya") + 1).tolist())
    """
    status, out, err = run(code, tmp_path, MYCELYA_MACHINE="exec:" + COMMAND)
    assert (status, out) == (0, "[2.0, 2.0, 2.0]\n"), err


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({}, RuntimeError, "needs a command"),
        ({"command": "'"}, RuntimeError, "cannot be split into words"),
        ({"command": "true"}, RuntimeError, "ended with code 0 before its worker"),
        ({"command": "echo hello"}, RuntimeError, 'must run "mycelya-worker --stdio'),
        ({"command": "x", "device": "cpu"}, ValueError, "the command chooses"),
        ({"command": "x", "detached": True, "name": "y"}, ValueError, "ends with its"),
        ({"command": "x", "image": "y"}, ValueError, "image='y' is not an option"),
    ],
)
def test_wrong_options(options, error, text):
    with pytest.raises(error, match=text):
        RemoteMachine("exec", **options)
