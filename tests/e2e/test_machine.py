# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""RemoteMachine, the functions around it, and the module torch.mycelya."""

import json
import logging
import re

import pytest
import torch
from helpers import DEVICE, ROOT, gone, run, same

import mycelya_torch
from mycelya_torch import (
    GPUType,
    RemoteMachine,
    _device,
    _env,
    _machine_variable,
    _providers,
)


def pid_of(machine):
    return json.loads(_device.device_info(machine.device().index))["pid"]


def test_a_machine_from_start_to_stop():
    before = set(mycelya_torch.get_all_machines())
    with RemoteMachine("local", device="cpu") as machine:
        device = machine.device()
        assert device.type == "mycelya" and device.index == machine.remote_index
        assert set(mycelya_torch.get_all_machines()) - before == {machine}
        assert device.index < torch.mycelya.device_count()
        x = torch.arange(4.0).to(machine)
        assert x.device == device
        assert (x * 2).tolist() == [0.0, 2.0, 4.0, 6.0]
        assert x.to(device=machine) is x
        model = torch.nn.Linear(4, 2).to(machine)
        assert model.weight.device == device and model(x).shape == (2,)
        worker = pid_of(machine)
    assert gone(worker)
    assert set(mycelya_torch.get_all_machines()) == before
    assert machine.remote_index is None
    with pytest.raises(RuntimeError, match=machine.name):
        machine.device()


def test_names_and_equality():
    machine = RemoteMachine("local", name="mine", start=False)
    other = RemoteMachine("mock", start=False)
    assert machine != other and machine == machine and len({machine, other}) == 2
    assert machine.device_id.startswith("local-") and machine.name == "mine"
    assert machine.machine_id == machine.device_id != other.device_id
    assert other.name == other.device_id
    assert str(machine) == "mine" and "new" in repr(machine)
    with pytest.raises(RuntimeError, match="mine.*not running"):
        machine.device()
    with pytest.raises(RuntimeError, match="mine"):
        torch.zeros(1).to(machine)


def test_a_machine_starts_again():
    machine = RemoteMachine("local")
    index, worker = machine.device().index, pid_of(machine)
    old = torch.ones(3).to(machine)
    machine.start()  # runs already: nothing happens
    assert pid_of(machine) == worker
    machine.stop()
    machine.stop()
    assert gone(worker)
    machine.start()
    assert machine.device().index == index and pid_of(machine) != worker
    assert torch.ones(3).to(machine).sum().item() == 3
    with pytest.raises(RuntimeError):  # the first worker held its data
        old.sum().item()
    machine.stop()


def test_two_machines_and_a_copy_between_them():
    with RemoteMachine() as a, RemoteMachine() as b:
        assert pid_of(a) != pid_of(b) and a.device() != b.device()
        x = torch.randn(3, 4)
        same(x.to(a).to(b), x)
        y = torch.zeros(3, 4, device=b.device())
        y.copy_(x.to(a))
        same(y, x)
        with torch.mycelya.device(a.device()):
            assert torch.zeros(1, device="mycelya").device == a.device()
        assert torch.mycelya.current_device() == 0


def test_validation_lists_what_is_valid():
    with pytest.raises(ValueError, match="'local', 'modal', 'ssh', .*'exec'"):
        RemoteMachine("aws")
    with pytest.raises(ValueError, match="'A100-40GB'.*'H100'"):
        RemoteMachine("modal", "GTX-1080")
    with pytest.raises(ValueError, match="'cpu', 'cuda:<index>'"):
        RemoteMachine("local", device="tpu")
    with pytest.raises(ValueError, match="uses the GPU that the host has"):
        RemoteMachine("local", GPUType.A100_40GB)
    assert RemoteMachine(mycelya_torch.BackendProvider.LOCAL, start=False)


def test_the_first_machine_is_the_current_one(tmp_path):
    code = """
        import torch
        from mycelya_torch import RemoteMachine

        with RemoteMachine("local") as machine:
            print(machine.device(), torch.zeros(1, device="mycelya").device)
    """
    status, out, err = run(code, tmp_path)
    assert (status, out) == (0, "mycelya:0 mycelya:0\n"), err


def test_the_machine_of_the_environment(tmp_path):
    code = "import torch, mycelya_torch; print(torch.ones(1, device='mycelya').item())"
    status, out, err = run(code, tmp_path, MYCELYA_MACHINE="local:cpu")
    assert (status, out) == (0, "1.0\n"), err
    status, _, err = run(code, tmp_path, MYCELYA_MACHINE="moon:1")
    assert status == 1 and "'moon' is not a provider; the providers are 'local'" in err


# ---- torch.mycelya ----


@pytest.mark.critical
def test_the_machine_without_a_variable(monkeypatch):
    monkeypatch.delenv("MYCELYA_MACHINE", raising=False)
    assert _env.default_machine() == _machine_variable.of(_providers.DEFAULT)


def test_a_list_of_machines(monkeypatch):
    many = (
        "local:cpu, ssh:a?python=py ,exec:run --tty a,b,local, modal:H100?gpu_count=2"
    )
    machines = ["local:cpu", "ssh:a?python=py", "exec:run --tty a,b", "local"]
    machines.append("modal:H100?gpu_count=2")
    assert _machine_variable.machines(many) == machines
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MYCELYA_MACHINE", many)
    assert _env.ranks() == (0, 5)  # for torchrun --nproc-per-node=mycelya
    assert _env.default_machine() == _machine_variable.of("local:cpu")
    monkeypatch.setenv("WORLD_SIZE", "5")
    for rank, machine in enumerate(machines):
        monkeypatch.setenv("RANK", str(rank))
        assert _env.default_machine() == _machine_variable.of(machine)
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert _env.ranks() == (1, 2)
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ValueError, match=r"lists 5 machines.* has 4 ranks\. Set it to"):
        _env.default_machine()
    monkeypatch.setenv("MYCELYA_MACHINE", "local:cpu")  # each rank's
    assert _env.default_machine() == _machine_variable.of("local:cpu")


def test_the_module():
    assert torch.mycelya.is_available() and torch.mycelya.device_count() >= 1
    assert torch.mycelya.current_device() == 0
    torch.zeros(1, device=DEVICE).cpu()
    assert torch.mycelya.is_initialized() and not torch.mycelya._is_in_bad_fork()
    properties = torch.mycelya.get_device_properties("mycelya:0")
    assert properties.torch.split("+")[0] == torch.__version__.split("+")[0]
    assert torch.mycelya.get_device_name() == properties.name != ""
    assert properties.device.split(":")[0] in ("cpu", "cuda")
    assert torch.bfloat16 in torch.mycelya.get_amp_supported_dtype()
    assert torch.get_device_module("mycelya") is torch.mycelya


def test_contexts():
    with RemoteMachine() as machine:
        index = machine.device().index
        with torch.mycelya.device(f"mycelya:{index}"):
            assert torch.mycelya.current_device() == index
            with torch.mycelya.device(None):
                assert torch.mycelya.current_device() == index
            with torch.mycelya.device_of(torch.zeros(1, device="mycelya:0")):
                assert torch.mycelya.current_device() == 0
            with torch.mycelya.device_of(torch.zeros(1)):
                assert torch.mycelya.current_device() == index
        assert torch.mycelya.current_device() == 0
        torch.mycelya.set_device(index)
        assert torch.zeros(1, device="mycelya").device.index == index
        torch.mycelya.set_device(0)


def test_metrics_and_flush(counters):
    x = torch.ones(3, device=DEVICE)
    (x + 1).view(3, 1)
    assert counters()["ops_recorded"] >= 2
    torch.mycelya.flush()
    torch.mycelya.synchronize()
    cuts = counters()["cuts"]
    assert cuts["flush"] == 1
    torch.mycelya.reset_metrics()
    assert counters()["ops_recorded"] == 0 and counters()["cuts"] == {}
    readme = (ROOT / "mycelya_torch" / "README.md").read_text()
    table = readme.split("## Counters\n")[1].split("\n## ")[0]
    named = re.findall(r"`(\w+)`", "".join(re.findall(r"^\|(.*?)\|", table, re.M)))
    assert set(named) == set(counters())


def test_a_repeated_program_is_not_sent_again(counters):
    x = torch.ones(3, device=DEVICE)
    for _ in range(5):
        x = (x * 2).tanh()
        torch.mycelya.synchronize()
    after = counters()
    assert after["program_hits"] >= 3 and after["program_misses"] <= 2


def test_storage_ids_and_hashes():
    x, y = torch.zeros(3, device=DEVICE), torch.zeros(3, device=DEVICE)
    assert 0 < mycelya_torch.get_storage_id(x) < mycelya_torch.get_storage_id(y)
    hashes = [x, y, x[1:], x.view(3, 1), x.view(torch.int32)]
    hashes = [mycelya_torch.get_metadata_hash(t) for t in hashes]
    assert len(set(hashes)) == 5
    assert mycelya_torch.get_metadata_hash(x.detach()) == hashes[0]


def test_logging_levels():
    mycelya_torch.set_logging_level("debug")
    assert mycelya_torch.get_logging_level() == logging.DEBUG
    mycelya_torch.enable_info_logging()
    assert logging.getLogger("mycelya.any").getEffectiveLevel() == logging.INFO
    mycelya_torch.disable_logging()
    assert not logging.getLogger("mycelya").isEnabledFor(logging.CRITICAL)
    mycelya_torch.reset_logging()
    assert mycelya_torch.get_logging_level() == logging.getLogger().level
    with pytest.raises(ValueError, match="DEBUG"):
        mycelya_torch.set_logging_level("loud")
