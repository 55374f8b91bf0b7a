# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Writes what the tests of ir compare with PyTorch.

    python ir/testdata/gen.py

promote.txt: a line "a b c" for each pair of dtypes that promotes to c.
results.txt: a line "a b c" where a and b are dtypes, marked with [] for a 0-dim tensor
and # for a Python number, and c is the dtype in which they meet.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
DTYPES = {
    "u8": torch.uint8, "i8": torch.int8, "i16": torch.int16, "i32": torch.int32,
    "i64": torch.int64, "f16": torch.float16, "f32": torch.float32,
    "f64": torch.float64, "c32": torch.complex32, "c64": torch.complex64,
    "c128": torch.complex128, "b8": torch.bool, "bf16": torch.bfloat16,
    "f8e5m2": torch.float8_e5m2, "f8e4m3fn": torch.float8_e4m3fn,
    "f8e5m2fnuz": torch.float8_e5m2fnuz, "f8e4m3fnuz": torch.float8_e4m3fnuz,
    "u16": torch.uint16, "u32": torch.uint32, "u64": torch.uint64,
}  # fmt: skip
NAMES = {v: k for k, v in DTYPES.items()}
NUMBERS = {"f64": 1.5, "i64": 2, "b8": True, "c128": 1j}


def promotions() -> list[str]:
    out = []
    for (a, x), (b, y) in itertools.product(DTYPES.items(), DTYPES.items()):
        try:
            out.append(f"{a} {b} {NAMES[torch.promote_types(x, y)]}")
        except RuntimeError:
            out.append(f"{a} {b} none")
    return out


def results() -> list[str]:
    operands: dict[str, Any] = {}
    for n, d in DTYPES.items():
        if n.startswith("f8"):
            continue
        operands[n] = torch.ones(2).to(d)
        operands[n + "[]"] = torch.ones(()).to(d)
    for n, v in NUMBERS.items():
        operands[n + "#"] = v
    out = []
    for (a, x), (b, y) in itertools.product(operands.items(), operands.items()):
        if "#" in a and "#" in b:
            continue
        try:
            out.append(f"{a} {b} {NAMES[torch.result_type(x, y)]}")
        except (RuntimeError, KeyError):  # a dtype that is not ours: bcomplex32
            out.append(f"{a} {b} none")
    return out


def main() -> None:
    made = {"promote": promotions, "results": results}
    for name, f in made.items():
        lines = f()
        HERE.joinpath(name + ".txt").write_text("\n".join(lines) + "\n")
        print(name, len(lines))


if __name__ == "__main__":
    main()
