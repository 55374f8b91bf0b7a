# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""The first ops on a GPU, and the failures that a session must survive."""

import json
import os
import shlex
import subprocess
import sys
import time
import traceback
from pathlib import Path

import torch
from card import DRY, EAGER, row
from torch.nn import functional as F

from mycelya_torch import _device

DEVICE = "mycelya"
WAY = " unfiltered" if "CARD_UNFILTERED" in os.environ else ""
torch.manual_seed(0)


def both(f, *tensors):
    """The results on the device and of eager PyTorch, on the CPU."""
    return [f(*(t.to(d) for t in tensors)).cpu() for d in (DEVICE, EAGER)]


def equal(f, *tensors) -> str:
    ours, want = both(f, *tensors)
    assert torch.equal(ours, want), f"differs by {(ours - want).abs().max()}"
    return "bits are equal"


def add() -> str:
    return equal(torch.add, torch.randn(1000), torch.randn(1000))


def softmax() -> str:
    ours, want = both(lambda x: (x * 2).softmax(-1), torch.randn(65, 1000))
    torch.testing.assert_close(ours, want)
    return f"differs by {(ours - want).abs().max():.1e}"


def matmul() -> str:
    a, b = torch.randn(512, 384), torch.randn(384, 256)
    equal(torch.matmul, a, b)
    return equal(torch.matmul, a.bfloat16(), b.bfloat16())


def random() -> str:
    def draw(d):
        torch.manual_seed(5)
        return torch.randn(1000, device=d) + F.dropout(torch.ones(1000, device=d), 0.3)

    ours, want = draw(DEVICE).cpu(), draw(EAGER).cpu()
    assert torch.equal(ours, want), "another stream of numbers"
    return "eager's numbers"


def transfers() -> str:
    x = torch.arange((2 if DRY else 50) << 20, dtype=torch.int32)
    begin = time.perf_counter()
    there = x.to(DEVICE)
    torch.mycelya.synchronize()
    up = time.perf_counter()
    assert torch.equal(there.cpu(), x)
    down = time.perf_counter()
    return f"{x.nbytes >> 20} MiB: up {up - begin:.3f} s, down {down - up:.3f} s"


def lives() -> None:
    assert torch.ones(3, device=DEVICE).sum().item() == 3, "the session is lost"


def wrong_index() -> str:
    """One that is uploaded, and one that only the device knows."""
    table = torch.randn(10, 4).to(DEVICE)
    for make in (
        lambda: torch.tensor([10]).to(DEVICE),
        lambda: (table.sum() * 0 + 10).long(),
    ):
        try:
            F.embedding(make(), table).cpu()
        except IndexError as error:
            text = str(error).splitlines()[0]
        else:
            raise AssertionError("no error")
        lives()
    return text


def out_of_memory() -> str:
    huge = torch.empty(1 << 45, dtype=torch.uint8, device=DEVICE)
    huge.fill_(1)
    try:
        huge[:1].cpu()
    except RuntimeError as error:
        text = str(error).splitlines()[0]
    else:
        raise AssertionError("no error")
    del huge
    lives()
    return text


def system_calls() -> str:
    """The session's process has a filter of system calls: Seccomp is 2."""
    pids = [json.loads(_device.device_info(0))["pid"]]
    for task in Path(f"/proc/{pids[0]}/task").iterdir():
        pids += map(int, (task / "children").read_text().split())
    states = []
    for pid in pids:
        status = Path(f"/proc/{pid}/status").read_text()
        states += [line[-1] for line in status.splitlines() if line[:8] == "Seccomp:"]
    assert "2" in states, f"Seccomp is {states}"
    return "filtered"


failed = 0
for check in (
    *(add, matmul, softmax, transfers, random),
    *(wrong_index, out_of_memory, system_calls),
):
    try:
        row(check.__name__ + WAY, ok=True, found=check())
    except Exception as error:
        failed += 1
        row(
            check.__name__ + WAY,
            ok=False,
            found=f"{type(error).__name__}: {error}"[:500],
        )
        traceback.print_exc()
if failed and "CARD_UNFILTERED" not in os.environ:
    # Does the filter of system calls refuse what CUDA needs?
    from mycelya_torch import _load

    worker = [str(_load.WORKER), "--stdio", "--unfiltered"]
    worker += ["--device", "cpu" if DRY else "cuda:0"]
    worker += ["--exec", str(_load.EXEC), "--torch-lib", str(_load.torch_lib())]
    machine = f"exec:{shlex.join(worker)}"
    environment = {**os.environ, "CARD_UNFILTERED": "1", "MYCELYA_MACHINE": machine}
    subprocess.run([sys.executable, __file__], env=environment)
sys.exit(failed > 0)
