# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Machines that pause and end at once, their logs; remote execution switched off."""

import json
import os
import signal

import pytest
import torch
from helpers import gone, raised, run, same

from mycelya_torch import RemoteMachine, _device
from mycelya_torch.errors import DeviceLostError, MachineStoppedError


def worker_of(machine):
    return json.loads(_device.device_info(machine.remote_index))["pid"]


def test_pause_and_resume():
    machine = RemoteMachine(name="sleeper")
    x = torch.arange(4.0, device=machine.device())
    generator = torch.Generator(machine.device()).manual_seed(7)
    x += 1
    first = torch.rand(3, device=machine.device(), generator=generator)
    pending = x * 2  # recorded, and perhaps not sent
    worker = worker_of(machine)
    machine.pause()
    assert machine.state == "paused" and machine.remote_index is not None
    assert gone(worker)
    machine.pause()
    for use in (
        lambda: x + 1,
        lambda: x.tolist(),
        lambda: torch.ones(1).to(machine),
        lambda: torch.mycelya.synchronize(machine.device()),
        lambda: machine.save("x", x),
    ):
        with pytest.raises(MachineStoppedError, match=r"sleeper.*resume\(\)"):
            use()
    assert isinstance(machine.logs(), str)
    assert machine.resume() is machine and machine.state == "running"
    assert machine.resume() is machine
    assert worker_of(machine) != worker
    assert x.tolist() == [1, 2, 3, 4] and pending.tolist() == [2, 4, 6, 8]
    second = torch.rand(3, device=machine.device(), generator=generator)
    expected = torch.Generator(machine.device()).manual_seed(7)
    same(torch.rand(3, device=machine.device(), generator=expected), first.cpu())
    same(torch.rand(3, device=machine.device(), generator=expected), second.cpu())
    machine.pause()
    assert machine.start() is machine and (x + 1).tolist() == [2, 3, 4, 5]
    machine.pause()
    machine.stop()
    assert machine.state == "stopped"
    with pytest.raises(RuntimeError, match="sleeper"):
        machine.pause()
    machine.start()
    with pytest.raises(DeviceLostError):
        x.tolist()
    machine.stop()


def test_a_paused_process_ends(tmp_path):
    """The end of the interpreter does not wait for a paused machine."""
    code = """
        import torch
        from mycelya_torch import RemoteMachine

        machine = RemoteMachine()
        x = torch.ones(3, device=machine.device())
        machine.pause()
        print("paused")
    """
    status, out, err = run(code, tmp_path, timeout=120)
    assert (status, out, err) == (0, "paused\n", "")


def test_a_detached_machine_pauses(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    machine = RemoteMachine("local", device="cpu", name="night", detached=True)
    machine.save("kept", torch.ones(2, device=machine.device()))
    x = torch.ones(3, device=machine.device())
    machine.pause()
    machine.resume()
    assert (x + 1).tolist() == [2, 2, 2] and machine.load("kept").tolist() == [1, 1]
    machine.pause()
    machine.stop()
    left = {
        path.name for path in (tmp_path / "mycelya" / "machines" / "night").iterdir()
    }
    assert left <= {"lock"}


def test_force_stop():
    machine = RemoteMachine(name="stuck")
    worker = worker_of(machine)
    x = torch.ones(3, device=machine.device())
    machine.force_stop()
    assert machine.state == "stopped" and gone(worker)
    machine.force_stop()
    with pytest.raises(RuntimeError, match="stuck"):
        x.tolist()
    assert torch.ones(1).to(machine.start()).item() == 1
    machine.stop()


def test_force_stop_gives_a_start_up(tmp_path):
    """A start that hangs in another thread ends with an error there."""
    code = """
        import os, tempfile, threading, time
        from mycelya_torch import RemoteMachine, _load, _device

        script = os.path.join(tempfile.mkdtemp(), "worker")
        with open(script, "w") as file:
            file.write("#!/bin/sh\\nsleep 1000\\n")  # it never says that it listens
        os.chmod(script, 0o755)
        paths = [str(p) for p in (_load.CLIENT, script, _load.EXEC)]
        _device.init(*paths, str(_load.torch_lib()), "local", "", "")
        machine = RemoteMachine(start=False)
        errors = []

        def start():
            try:
                machine.start()
            except RuntimeError as error:
                errors.append(str(error))

        thread = threading.Thread(target=start)
        thread.start()
        while machine._starting is None:
            time.sleep(0.001)
        machine.force_stop()
        thread.join()
        print(len(errors), machine.state)
    """
    status, out, err = run(code, tmp_path)
    assert (status, out) == (0, "1 new\n"), err


def test_logs(tmp_path):
    with RemoteMachine() as machine:
        assert isinstance(machine.logs(), str)
    with pytest.raises(MachineStoppedError):
        machine.logs()


def test_the_log_of_a_lost_machine():
    machine = RemoteMachine()
    x = torch.ones(2, device=machine.device())
    assert x.sum().item() == 2
    os.kill(worker_of(machine), signal.SIGSEGV)
    raised(DeviceLostError, lambda: x.sum().item())
    assert _device.state(machine.remote_index) == "lost"
    assert isinstance(machine.logs(), str)
    machine.stop()


def test_packages_cannot_be_installed_locally():
    with RemoteMachine() as machine:
        with pytest.raises(NotImplementedError, match="runs no Python.*numpy"):
            machine.pip_install("numpy")


# ---- Remote execution ----

EXECUTION = """
    import json, os, threading
    import torch, mycelya_torch
    from mycelya_torch import RemoteMachine, _device

    def bare():
        return torch.zeros(1, device="mycelya").device.index

    def pid(index):
        return json.loads(_device.device_info(index))["pid"]
"""


def test_disabled_remote_execution(tmp_path):
    """A machine over TCP counts as remote; a bare "mycelya" is then a local worker."""
    code = (
        EXECUTION
        + """
    x = torch.arange(3.0, device="mycelya")
    print(x.device.index, mycelya_torch.is_remote_execution_enabled())
    mycelya_torch.disable_remote_execution()
    here = bare()
    print(here != 0, pid(here) != pid(0), mycelya_torch.is_remote_execution_enabled())
    print(x.device.index, (x * 2).device.index, (x * 2).tolist())  # it stays
    print((x > 1).nonzero().device.index, torch.zeros_like(x).device.index)
    print(bare() == here == torch.mycelya.current_device())
    found = []
    thread = threading.Thread(target=lambda: found.append(bare()))
    thread.start()
    thread.join()
    print(found == [here])
    with torch.mycelya.device(0):
        print(bare())
    y = torch.ones(2, device="mycelya")
    mycelya_torch.disable_remote_execution()
    mycelya_torch.enable_remote_execution()
    print(bare(), y.device.index == here, (y + 1).tolist())
    mycelya_torch.disable_remote_execution()
    print(bare() == here)
    """
    )
    status, out, err = run(code, tmp_path, MYCELYA_MACHINE="local:cpu?transport=tcp")
    expected = """0 True
True True False
0 0 [0.0, 2.0, 4.0]
0 0
True
True
0
0 True [2.0, 2.0]
True
"""
    assert (status, out) == (0, expected), err


def test_disabled_before_the_first_use(tmp_path):
    code = (
        EXECUTION
        + """
    mycelya_torch.disable_remote_execution()
    remote = RemoteMachine("local", transport="tcp")
    print(remote.remote_index != 0, bare(), torch.ones(1, device="mycelya").item())
    print(_device.state(0))
    """
    )
    status, out, err = run(code, tmp_path)
    assert (status, out) == (0, "True 0 1.0\nrunning\n"), err


def test_a_remote_machine_was_first(tmp_path):
    code = (
        EXECUTION
        + """
    remote = RemoteMachine("local", transport="tcp")
    print(remote.remote_index, bare())
    mycelya_torch.disable_remote_execution()
    print(bare() != 0, torch.ones(1).to(remote).device.index)
    mycelya_torch.enable_remote_execution()
    print(bare())
    """
    )
    status, out, err = run(code, tmp_path)
    assert (status, out) == (0, "0 0\nTrue 0\n0\n"), err
