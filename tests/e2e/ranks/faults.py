# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""What each rank raises if ranks differ, one fails, or the worker of one ends."""

import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("mycelya")
RANK = dist.get_rank()
t = torch.ones(4, device="mycelya")
dist.all_reduce(t)
assert t.tolist() == [2, 2, 2, 2]
fault = sys.argv[1]
dist.barrier()
if fault == "differ" and RANK == 1:
    dist.broadcast(t, 0)  # here
else:
    if fault == "fail" and RANK == 1:
        t = t[torch.full((4,), 9, device="mycelya")]
    if fault == "end" and RANK == 1:
        tasks = Path("/proc/self/task").glob("*/children")
        (worker,) = [int(pid) for task in tasks for pid in task.read_text().split()]
        os.kill(worker, signal.SIGKILL)
    dist.all_reduce(t)  # there
try:
    t.tolist()
except Exception as error:
    print(f"<{RANK} {error}>", flush=True)
dist.barrier()
dist.destroy_process_group()
