# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""A script for CUDA and NCCL, for `mycelya run --as-cuda`."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

rank = int(os.environ["LOCAL_RANK"])
assert torch.cuda.device_count() == 2 and dist.is_nccl_available()
torch.cuda.set_device(rank)
dist.init_process_group(backend="nccl")
torch.manual_seed(0)
model = torch.nn.Linear(4, 1).to(rank)
model = DistributedDataParallel(model, device_ids=[rank])
x = torch.full((2, 4), rank + 1.0).cuda()
assert x.is_cuda and x.device == torch.device("cuda", rank)
model(x).sum().backward()
assert model.module.weight.grad.tolist() == [[3, 3, 3, 3]]  # the mean of 2 and 4
pair = dist.new_group([0, 1], backend="nccl")
total = torch.ones(1, device="cuda")
dist.all_reduce(total, group=pair)
assert total.item() == 2
dist.destroy_process_group()
print("done")
