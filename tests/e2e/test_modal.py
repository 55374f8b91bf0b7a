# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Machines of Modal, on a plane of this host: its sandboxes run the real worker."""

import os
import re
import signal
import subprocess
import sys
import time

import modal_plane
import pytest
import torch
from helpers import processes, raised
from killed import check_killed_clients, command_line, listed
from test_transport import trained

import mycelya_torch
from mycelya_torch import GPUType, RemoteMachine, create_modal_machine
from mycelya_torch.errors import DeviceLostError

# A worker of these tests computes on the CPU of its sandbox: this host may have no GPU.
CPU = {"device": "cpu"}


@pytest.mark.parametrize("tunnel", ["tcp", "tls"])
def test_a_training_has_the_same_bits(plane, tunnel):
    if tunnel == "tls":  # the roots of TLS are read once in a process
        code = (
            "from test_transport import trained\n"
            "import torch\n"
            "from mycelya_torch import RemoteMachine\n"
            'with RemoteMachine("modal", "A100", device="cpu", tunnel="tls") as m:\n'
            '    torch.save(trained(m.device()), "out.pt")\n'
        )
        run(code, os.environ["HOME"])
        far = torch.load(os.path.join(os.environ["HOME"], "out.pt"))
    else:
        with RemoteMachine("modal", "A100", tunnel="tcp", **CPU) as machine:
            (sandbox,) = plane.running()
            assert plane.ask("show", id=sandbox)["gpu"] == "A100"
            far = trained(machine.device())
    for a, b, c in zip(far, trained("mycelya"), trained("cpu"), strict=True):
        # A loss is a Python number, computed in float32.
        a, b, c = map(torch.as_tensor, (a, b, c))
        assert torch.equal(a, b)
        torch.testing.assert_close(a, c)


def start(code, folder):
    """Starts another process that runs code."""
    path = os.pathsep.join([str(modal_plane.ROOT), os.path.dirname(__file__)])
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
    )


def run(code, folder, *, kill=False):
    """Runs code in another process."""
    if kill:
        code += "\nimport os, signal; os.kill(os.getpid(), signal.SIGKILL)\n"
    with start(code, folder) as process:
        _, err = process.communicate(timeout=240)
    assert process.returncode == (-signal.SIGKILL if kill else 0), err


DIGITS = """
import runpy, sys
import torch
sys.argv = ["digits.py", "--epochs", "1", "--print-losses", "23"]
names = runpy.run_path(EXAMPLE)
state = {k: v.cpu() for k, v in names["model"].state_dict().items()}
torch.save([names["first_losses"], state], "out.pt")
"""


@pytest.mark.slow
def test_digits_has_the_bits_of_a_local_worker(plane, tmp_path, monkeypatch):
    """examples/digits.py, unchanged: through Modal's API, a tunnel and TLS."""
    pytest.importorskip("sklearn")
    code = DIGITS.replace("EXAMPLE", repr(str(modal_plane.ROOT / "examples/digits.py")))
    results = []
    for machine in ("modal:A100?device=cpu", "local:cpu"):
        monkeypatch.setenv("MYCELYA_MACHINE", machine)
        run(code, tmp_path)
        results.append(torch.load(tmp_path / "out.pt"))
    (far_losses, far), (losses, near) = results
    assert plane.ask("list")["created"] == 1
    assert len(losses) == 23 and losses[-1] < losses[0] / 2
    assert far_losses == losses
    for name, value in near.items():
        assert torch.equal(far[name], value), name


def test_create_modal_machine(plane):
    with create_modal_machine(
        "A100-40GB", timeout=1800, idle_timeout=300, name="mine", **CPU
    ) as machine:
        (sandbox,) = plane.running()
        shown = plane.ask("show", id=sandbox)
        asked = (shown["gpu"], shown["timeout"], shown["idle"])
        assert asked == ("A100-40GB", 1800, 300)
        assert shown["tags"]["mycelya-machine"] == "mine"
        assert "PRIVATE KEY" not in str(shown)
        assert machine.device_name == "Modal A100-40GB"
        assert machine.modal_gpu_spec == "A100-40GB"
        assert torch.ones(3).to(machine).sum().item() == 3


def test_names():
    two = RemoteMachine("modal", GPUType.H100, gpu_count=2, start=False)
    assert two.modal_gpu_spec == "H100:2" and two.device_name == "Modal 2 x H100"
    assert re.fullmatch("modal-h100-[0-9a-f]{8}", two.device_id)
    local = RemoteMachine("local", device="cpu", start=False)
    assert local.device_name == "Local CPU"
    with pytest.raises(ValueError, match="only modal machines have a modal_gpu_spec"):
        _ = local.modal_gpu_spec
    with pytest.raises(ValueError, match="gpu_fallback"):
        RemoteMachine("modal", "A100", gpu_fallbak="H100", start=False)
    with pytest.raises(ValueError, match="use 'tcp'"):
        create_modal_machine("A100", tunnel="udp", start=False)
    assert "create_modal_machine" in mycelya_torch.__all__


def test_a_preempted_machine(plane):
    """The error has the reason that the plane has given."""
    with RemoteMachine("modal", "A100", name="taken", **CPU) as machine:
        x = torch.ones(3, device=machine.device())
        assert x.sum().item() == 3
        (sandbox,) = plane.running()
        plane.ask("end", id=sandbox, why="INTERNAL_FAILURE", text="The host is needed.")
        text = raised(DeviceLostError, lambda: x.add_(1).sum().item())
        assert "machine taken, is lost" in text
        assert "the provider has taken its host" in text
        assert "The host is needed." in text
        machine.restart()
        assert torch.ones(3).to(machine).sum().item() == 3


def folders_of_a_worker(folder):
    """Where the worker of a sandbox keeps kernels, weights and what `save` names."""
    (arguments,) = [
        arguments.decode().split("\0")
        for _, environment, arguments in processes()
        if os.fsencode(folder) in environment
        and b"--listen" in arguments
        and b"--session" not in arguments
    ]
    flags = ("--kernels", "--weights")
    found = [arguments[arguments.index(flag) + 1] for flag in flags]
    state = arguments[arguments.index("--state") + 1]
    return [*found, os.path.dirname(state)]


def test_a_checkpoint_outlives_its_sandbox(plane, tmp_path):
    """On a volume: a training goes on in another sandbox, with the same bits."""
    options = {"volume": "kept", **CPU}
    with RemoteMachine("modal", "A100", name="trains", **options) as machine:
        x = torch.arange(4.0, device=machine.device())
        x.mul_(3)
        machine.checkpoint()
        (first,) = plane.running()
        kept = folders_of_a_worker(tmp_path)
        assert len(set(map(os.path.dirname, kept))) == 1  # all on the volume
        plane.ask("end", id=first, why="INTERNAL_FAILURE", text="The host is needed.")
        x.add_(1)
        assert x.tolist() == [1, 4, 7, 10]
        (second,) = plane.running()
        assert second != first


def test_a_paused_machine_has_no_sandbox(plane):
    options = {"volume": "night", **CPU}
    with RemoteMachine("modal", "A100", name="sleeps", **options) as machine:
        x = torch.arange(4.0, device=machine.device())
        machine.pause()
        assert plane.running() == [] and machine.state == "paused"
        machine.resume()
        assert len(plane.running()) == 1 and x.tolist() == [0, 1, 2, 3]
    with RemoteMachine("modal", "A100", name="cannot", **CPU) as machine:
        with pytest.raises(NotImplementedError, match="machine cannot,.*volume="):
            machine.pause()
        assert torch.ones(1).to(machine).item() == 1


def test_errors_name_the_remedy(plane):
    plane.ask("inject", faults={"NoCapacity": ["H100"]})
    with pytest.raises(RuntimeError, match="no capacity.*gpu_fallback="):
        create_modal_machine("H100", **CPU)
    with create_modal_machine("H100", gpu_fallback="L4", **CPU):
        (sandbox,) = plane.running()
        assert plane.ask("show", id=sandbox)["gpu"] == "L4"
    plane.ask("inject", faults={"BadToken": True})
    with pytest.raises(RuntimeError, match="modal token set"):
        create_modal_machine("H100", **CPU)
    assert plane.ask("list")["created"] == 1


def test_an_image_without_pytorch(plane, tmp_path):
    (tmp_path / "programs" / "python3").write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(RuntimeError, match="the image has no PyTorch"):
        create_modal_machine("A100", image="debian:12", **CPU)
    assert plane.running() == []


def test_packages(plane, tmp_path):
    """pip runs in the sandbox of a machine that runs, and in the image of another."""
    script = f"""#!/bin/sh
case "$*" in
*"pip install"*broken) echo "No matching distribution"; exit 1;;
*"pip install"*) echo "$@"; exit;;
esac
exec "{sys.executable}" "$@"
"""
    (tmp_path / "programs" / "python3").write_text(script)
    machine = create_modal_machine("A100", packages=["numpy"], start=False, **CPU)
    assert machine.pip_install("pillow>=11") == ""
    with machine:
        assert plane.ask("list")["builds"] == 3  # the base, torch, the packages
        assert machine.pip_install(["einops", "toolz"]).endswith("einops toolz\n")
        assert machine.packages == ("numpy", "pillow>=11", "einops", "toolz")
        with pytest.raises(RuntimeError, match=r"broken could not[\s\S]*No matching"):
            machine.pip_install("broken")
        assert torch.ones(3).to(machine).sum().item() == 3


def test_the_machine_of_the_environment(plane, tmp_path, monkeypatch):
    value = "modal:L4?device=cpu&timeout=1800&idle_timeout=900"
    monkeypatch.setenv("MYCELYA_MACHINE", value)
    code = """
import json, sys
import torch
print(torch.ones(3, device="mycelya").sum().item(), flush=True)
sys.stdin.readline()
"""
    with start(code, tmp_path) as process:
        assert process.stdout.readline() == "3.0\n", process.communicate()
        (sandbox,) = plane.running()
        shown = plane.ask("show", id=sandbox)
        assert (shown["gpu"], shown["timeout"], shown["idle"]) == ("L4", 1800, 900)
        process.communicate("\n", timeout=200)
    assert process.returncode == 0


def test_a_checkpoint_without_a_volume(plane):
    """It ends with its sandbox, and no other sandbox is started in vain."""
    with RemoteMachine("modal", "A100", **CPU) as machine:
        x = torch.ones(3, device=machine.device())
        machine.checkpoint()
        (sandbox,) = plane.running()
        plane.ask("end", id=sandbox, why="INTERNAL_FAILURE", text="The host is needed.")
        with pytest.raises(RuntimeError, match="ended with its sandbox.*volume="):
            x.add_(1).sum().item()
        assert plane.ask("list")["created"] == 1


DETACHED = """
import torch
from mycelya_torch import RemoteMachine
m = RemoteMachine("modal", "A100", device="cpu", name="stays", detached=True)
x = torch.full((3,), 7.0, device=m.device())
m.save("x", x)
"""


@pytest.mark.parametrize("kill", [False, True])
def test_another_process_goes_on(plane, tmp_path, kill):
    run(DETACHED, tmp_path, kill=kill)
    with RemoteMachine.attach("stays", "modal") as machine:
        assert machine.load("x").tolist() == [7, 7, 7]


@pytest.mark.parametrize("plane", [["--delay=50ms"]], indirect=True)
def test_round_trips_to_the_first_value(plane, tmp_path):
    """TCP, TLS, the Hellos; a program and its value. The goal is five."""
    run(DETACHED, tmp_path)
    code = """
import sys
import torch
from mycelya_torch import RemoteMachine
machine = RemoteMachine.attach("stays", "modal")
print(torch.ones(3, device=machine.device()).add(1).tolist(), flush=True)
sys.stdin.readline()
machine.stop()
"""
    plane.ask("trips")
    with start(code, tmp_path) as process:
        assert process.stdout.readline() == "[2.0, 2.0, 2.0]\n", process.communicate()
        counted = plane.ask("trips")
        process.communicate("\n", timeout=200)
    assert process.returncode == 0
    assert counted["connections"] == 1
    assert 4 <= counted["trips"] <= 5
    assert counted["seconds"] > (counted["trips"] - 0.5) * 0.1


def test_a_sweep_spares_what_another_process_uses(plane):
    options = {"name": "shared", "detached": True, **CPU}
    with RemoteMachine("modal", "A100", **options) as machine:
        x = torch.ones(3, device=machine.device())
        assert x.sum().item() == 3
        assert [m["used"] for m in listed("modal")] == [True]
        command_line("sweep", "--yes")
        assert x.sum().item() == 3


@pytest.mark.slow
def test_killed_clients_leave_nothing(plane, tmp_path):
    one, other = ({**CPU, "gpu_type": "A100", "detached": d} for d in (False, True))
    check_killed_clients(tmp_path, "modal", [one, other], plane.running)


def test_a_killed_training_leaves_nothing_beyond_its_idle_time(plane, tmp_path):
    code = (
        "from test_transport import trained\n"
        "from mycelya_torch import RemoteMachine\n"
        'm = RemoteMachine("modal", "A100", device="cpu", idle_timeout=8)\n'
        "trained(m.device())\n"
    )
    run(code, tmp_path, kill=True)
    assert plane.ask("list")["created"] == 1
    end = time.monotonic() + 120
    while plane.running() and time.monotonic() < end:
        time.sleep(0.1)
    assert plane.running() == []
