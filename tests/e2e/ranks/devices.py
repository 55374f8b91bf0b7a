# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Each rank has the device of its number, as scripts for CUDA expect it."""

import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from mycelya_torch import RemoteMachine

RANK = int(os.environ["LOCAL_RANK"])
assert torch.accelerator.device_count() == torch.mycelya.device_count() == 2

# NCCL has no device here.
if not torch.cuda.is_available():
    try:
        dist.init_process_group("nccl")
        raise SystemExit("NCCL is not refused")
    except (RuntimeError, ValueError) as error:
        assert "call init_process_group() without a backend" in str(error), error

for before in (True, False):  # the device is used
    dist.init_process_group("gloo")
    listed = torch.device("mycelya") in dist.group.WORLD._device_types
    assert listed != before
    try:
        dist.all_reduce(torch.ones(1, device="mycelya"))
        raise SystemExit("Gloo takes a tensor of the device")
    except RuntimeError as error:
        found = str(error)
    assert found.startswith(
        "Backend gloo has no tensors of mycelya. Call init_process_group() without a "
        'backend, or with "cpu:gloo,mycelya:mycelya". It does not support allreduce'
    ), found
    count = torch.ones(1)
    dist.all_reduce(count)
    dist.barrier()
    assert count.item() == 2
    dist.destroy_process_group()

assert torch.accelerator.current_device_index() == RANK

# What the scripts of pytorch/examples begin with.
torch.accelerator.set_device_index(RANK)
device = torch.device(torch.accelerator.current_accelerator().type, RANK)
backend = dist.get_default_backend_for_device(device)
dist.init_process_group(backend=backend, device_id=device)
mesh = init_device_mesh("mycelya", (2,))
assert mesh.get_local_rank() == RANK

t = torch.full((2,), RANK + 1.0, device="mycelya")
assert t.device == device
dist.all_reduce(t)
assert t.tolist() == [3, 3]
assert torch.ones(1).to(RANK).device == device

other = f"mycelya:{1 - RANK}"
for use in (
    lambda: torch.ones(1, device=other),
    lambda: torch.ones(1).to(other),
    lambda: t.to(other),
):
    try:
        use()
        raise SystemExit(f"{other} does not refuse")
    except RuntimeError as error:
        found = str(error)
    assert found == (
        f"{other} is the device of another process: of that with LOCAL_RANK="
        f'{1 - RANK}. This one has {device}, which is also its bare "mycelya".'
    ), found
machine = RemoteMachine("local", device="cpu").start()
assert machine.device().index == 2
assert torch.ones(2, device=machine.device()).sum().item() == 2
torch.mycelya.restart()
assert torch.ones(2, device="mycelya").sum().item() == 2
print("done")
