# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Scripts of the three earlier systems run after the page's renaming.

The scripts use all that the earlier systems' references show. Their machines are
sandboxes of a plane of Modal on this host, which has no GPU.
"""

import re
import subprocess
import textwrap
from pathlib import Path

import pytest
from helpers import ROOT, run


def renamed(script: str, folder: Path) -> str:
    """A script of an earlier system after the command of the migration page."""
    page = (ROOT / "docs" / "pages" / "migration.md").read_text()
    command = re.search(r"```shell\n(sed .*?)```", page, re.S)[1]
    file = folder / "script.py"
    file.write_text(textwrap.dedent(script))
    subprocess.run(["bash", "-c", command], cwd=folder, check=True)
    return file.read_text()


# The machines of the plane compute on this host's CPU.
ON_CPU = """
import functools
from mycelya_torch import RemoteMachine
plain = RemoteMachine.__init__
@functools.wraps(plain)
def on_cpu(self, *args, **options):
    plain(self, *args, **{"device": "cpu", **options})
RemoteMachine.__init__ = on_cpu
"""

BASIC = """
    import torch
    import torch_remote

    machine = torch_remote.create_modal_machine("A100-40GB")
    x = torch.randn(1000, 1000, device=machine.device())
    y = torch.randn(1000, 1000, device=machine.device())
    z = x @ y
    result = z.cpu()
    print(result.shape, result.device, z.device == machine.device())
    z = torch.zeros(50, 50, device=machine.device()) + torch.ones(50, 50).to(machine)
    print(z.sum().item(), torch.tensor([1, 2], device=machine.device()).tolist())
"""

SEVERAL = """
    import torch
    import torch_remote

    t4_machine = torch_remote.create_modal_machine("T4")
    a100_machine = torch_remote.create_modal_machine("A100-40GB")
    x_t4 = torch.randn(100, 100, device=t4_machine.device())
    x_a100 = torch.randn(200, 200, device=a100_machine.device())
    y_t4 = x_t4 + x_t4
    y_a100 = x_a100 * 2
    print(y_t4.device.index, y_a100.device.index)
    try:
        x_t4 + torch.randn(100, 100, device=a100_machine.device())
    except RuntimeError as error:
        print(t4_machine.name in str(error) and a100_machine.name in str(error))
"""

REGISTRY = """
    import torch_remote

    device1 = torch_remote.create_modal_machine("T4")
    device2 = torch_remote.create_modal_machine("L4")
    registry = torch_remote.get_device_registry()
    print(f"Registered devices: {len(registry._devices)}")
    index1 = registry.get_device_index(device1)
    retrieved = registry.get_device_by_index(index1)
    assert retrieved == device1
    compatible = registry.devices_compatible(device1, device2)
    print(f"Devices compatible: {compatible}")
    print(device1.remote_index, device2.remote_index, device1 != device2)
"""

CONTEXT = """
    import torch
    import torch_remote
    from torch_remote import GPUType, BackendProvider

    print(GPUType.H100.value, BackendProvider.MODAL.value)
    first = torch_remote.create_modal_machine(GPUType.H100)
    machine = torch_remote.create_modal_machine(GPUType.H100)
    x = torch.randn(5, 5, device=machine.device())
    with torch.remote.device(machine.remote_index):
        y = torch.randn(5, 5, device="remote")
        print((x + y).device == machine.device(), torch.remote.current_device())
    with machine.device():  # the device of every factory
        y = torch.randn(5, 5)
    print((x + y).device == machine.device())
    print(torch.remote.is_available(), torch.remote.device_count())
    torch.remote.manual_seed(1)
    state = torch.remote.get_rng_state(device="remote")
    a = torch.rand(3, device="remote")
    torch.remote.set_rng_state(state, device="remote")
    print(torch.equal(a, torch.rand(3, device="remote")))
    torch.remote.manual_seed_all(2)
    try:
        torch_remote.RemoteMachine(BackendProvider.MODAL, "InvalidGPU")
    except ValueError as error:
        print("A100-40GB" in str(error))
"""

MODAL = """
    import torch
    import torch_modal

    torch_modal.enable_remote_execution()
    x = torch.randn(3, 3, device="modal")
    print((x + torch.randn(3, 3, device="modal")).shape, torch.modal.is_available())
    torch_modal.disable_remote_execution()
    print(torch_modal.is_remote_execution_enabled(), (x * 2).shape)
    torch_modal.enable_remote_execution()
    print(torch_modal.is_remote_execution_enabled())
    print(torch.randn(2, 2).mycelya().device.type)  # torch-modal's tensor.modal()
"""

TRAINING = """
    import torch
    import torch.nn as nn
    import mycelya_torch

    machine = mycelya_torch.RemoteMachine("modal", "A100")
    device = machine.device()
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(0)
    data = torch.randn(64, 8)
    target = (data.sum(1) > 0).long()
    losses = []
    for epoch in range(30):
        inputs, wanted = data.to(device), target.to(device)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), wanted)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(losses[-1] < losses[0] / 2)
    first = mycelya_torch.get_storage_id(data.to(device))
    print(first < mycelya_torch.get_storage_id(data.to(device)))
    print(len(mycelya_torch.get_metadata_hash(inputs)))
    mycelya_torch.enable_info_logging()
    mycelya_torch.reset_logging()
    print(mycelya_torch.get_all_machines() == [machine])
    machine.stop()
"""

REFERENCE = """
    import torch
    import torch_remote
    from torch_remote import BackendProvider, GPUType

    machine = torch_remote.create_modal_machine("A100-40GB")
    print(machine.device_id[:15], machine.device_name, machine.modal_gpu_spec)
    print(machine.remote_index, str(machine) in repr(machine), len({machine, machine}))
    x = torch.randn(5, 5)
    x_remote = x.to(machine)
    wide = x.to("remote", dtype=torch.float64, copy=True)
    print(torch.equal(x_remote.cpu(), x), wide.dtype)
    make = {"device": machine.device()}
    parts = [f(2, 3, **make) for f in (torch.zeros, torch.ones, torch.empty)]
    print(sum(p.numel() for p in parts), torch.tensor([[1.5]], **make).item())
    for gpu_type in (GPUType.T4, GPUType.B200):
        one = torch_remote.RemoteMachine(BackendProvider.MODAL, gpu_type, start=False)
        print(one.device_name, one == machine)
    try:
        torch_remote.create_modal_machine("InvalidGPU")
    except ValueError as error:
        print(all(gpu_type.value in str(error) for gpu_type in GPUType))
"""

OUTPUTS = {
    "reference": (
        REFERENCE,
        "modal-a10040gb- Modal A100-40GB A100-40GB\n0 True 1\nTrue torch.float64\n"
        "18 1.5\nModal T4 False\nModal B200 False\nTrue\n",
    ),
    "basic": (
        BASIC,
        "torch.Size([1000, 1000]) cpu True\n2500.0 [1, 2]\n",
    ),
    "several": (SEVERAL, "0 1\nTrue\n"),
    "registry": (
        REGISTRY,
        "Registered devices: 2\nDevices compatible: False\n0 1 True\n",
    ),
    "context": (
        CONTEXT,
        "H100 modal\nTrue 1\nTrue\nTrue 2\nTrue\nTrue\n",
    ),
    "modal": (
        MODAL,
        "torch.Size([3, 3]) True\nFalse torch.Size([3, 3])\nTrue\nmycelya\n",
    ),
    "training": (TRAINING, "True\nTrue\n16\nTrue\n"),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_an_earlier_script(name, plane, tmp_path):
    script, expected = OUTPUTS[name]
    folder = tmp_path / "scripts"
    folder.mkdir()
    status, out, err = run(ON_CPU + renamed(script, folder), folder)
    assert (status, out) == (0, expected), err
