# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""A wait for the device says if the work before it was dropped."""

import pytest
from helpers import run

BEFORE = """
    import torch, mycelya_torch
    from torch.utils.benchmark import Timer
    b = torch.rand(9, 9, device="mycelya")
    torch.mycelya.synchronize()
"""
LOOP = "for _ in range(10): c = b @ b"
WAIT = "\n    torch.mycelya.synchronize()"
DROPPED = {
    "a loop": (
        LOOP + WAIT,
        "9 of 10 operators before this wait were not computed, the first one mm at",
    ),
    "Timer": ("Timer('b @ b', globals={'b': b}).timeit(20)", "2 of 2 operators"),
    "events": (
        "first = torch.mycelya.Event(enable_timing=True); first.record()\n"
        f"    {LOOP}\n"
        "    first.record()",
        "first one mm at",
    ),
}
USED = """
    c = [b @ (b + i) for i in range(10)]
    torch.mycelya.synchronize()
    before = torch.mycelya.metrics()["program_hits"]
    with torch.mycelya.eager():
        for _ in range(11): c = b @ b  # the first one compiles
        torch.mycelya.synchronize()
    print(torch.mycelya.metrics()["program_hits"] - before)
    model = torch.nn.Sequential(torch.nn.Linear(9, 9), torch.nn.Dropout()).to("mycelya")
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        model(b).square().mean().backward()
        optimizer.step()
        torch.mycelya.synchronize()
"""


@pytest.mark.parametrize("case", DROPPED)
def test_dropped_work_is_said_once(tmp_path, case):
    program, words = DROPPED[case]
    status, out, err = run(BEFORE + f"    {program}\n    {LOOP}{WAIT}", tmp_path)
    assert (status, out) == (0, "")
    assert words in err
    assert err.count("operators before this wait were not computed") == 1
    assert "with torch.mycelya.eager():" in err


def test_used_work(tmp_path):
    """Kept results, eager(), which computes all, and a training."""
    assert run(BEFORE + USED, tmp_path) == (0, "10\n", "")
