# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""What each rank raises if ranks differ, one fails, does not come, or loses its worker.

With "restart", the processes end with that error, and torchrun starts them again.
"""

import datetime
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist

fault = sys.argv[1]
dist.init_process_group("mycelya")
RANK = dist.get_rank()
again = os.environ["TORCHELASTIC_RESTART_COUNT"] != "0"


def value(t: torch.Tensor) -> None:
    try:
        print(f"<{RANK} {t.tolist()}>", flush=True)
    except Exception as error:
        print(f"<{RANK} {error}>", flush=True)
        if fault == "restart":
            raise


def end_worker() -> None:
    tasks = Path("/proc/self/task").glob("*/children")
    (worker,) = [int(pid) for task in tasks for pid in task.read_text().split()]
    os.kill(worker, signal.SIGKILL)


impatient = dist.new_group(timeout=datetime.timedelta(seconds=3))
t = torch.ones(4, device="mycelya")
try:
    dist.all_reduce(t, group=impatient if fault == "absent" else None)
except Exception as error:  # the workers do not find each other
    print(f"<{RANK} {error}>", flush=True)
    sys.exit()
assert t.tolist() == [2, 2, 2, 2]
dist.barrier()
if RANK == 1 and fault == "differ":
    dist.broadcast(t, 0)  # here
elif RANK == 0 or fault != "absent":
    if RANK == 1 and fault == "fail":
        t = t[torch.full((4,), 9, device="mycelya")]
    if RANK == 1 and (fault == "end" or fault == "restart" and not again):
        end_worker()
    dist.all_reduce(t, group=impatient if fault == "absent" else None)  # there
value(t)
dist.barrier()
dist.destroy_process_group()
