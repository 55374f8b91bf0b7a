# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Each template of kernels against eager CUDA, several shapes and dtypes.

The cases are those of tests/gpu/test_fused.py. A group must have run as kernels, and
give what eager CUDA gives.
"""

import sys
import time
import traceback

import torch
from card import DRY, ROOT, compile_all, row

sys.path.append(str(ROOT / "tests" / "gpu"))
import test_fused as fused  # noqa: E402

import mycelya_torch  # noqa: E402, F401

begin = time.monotonic()
names = list(fused.CASES)[:: 6 if DRY else 1]
expected = fused.all_expected("cpu" if DRY else "cuda")
for name in names:  # all kernels are asked for before the first one is waited for
    fused.CASES[name]("mycelya")
    torch.mycelya.synchronize()
failed = 0
for name in names:
    try:
        kept = []
        counted = compile_all(
            lambda name=name, kept=kept: kept.append(fused.CASES[name]("mycelya"))
        )
        fused.close([t.cpu() for t in kept[-1]], expected[name])
        # Groups that draw random numbers are operators, and so are few 16-bit points on
        # a CPU worker.
        free = name == "dropout" or (DRY and "16" in name)
        good = free or (counted["groups_fused"] and not counted["groups_unfused"])
        found = {k: counted[k] for k in ("groups_fused", "groups_unfused")}
        row(name, ok=bool(good), **found)
    except Exception as error:
        good = False
        row(name, ok=False, found=f"{type(error).__name__}: {error}"[:500])
        traceback.print_exc()
    failed += not good
seconds = round(time.monotonic() - begin, 1)
row("all", cases=len(names), failed=failed, seconds=seconds)
sys.exit(failed > 0)
