# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Draft: a program under construction. The rows of a tape choose its steps."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import prod

import torch
from torch import UntypedStorage
from view_programs_run import Program

MAX_DIMS = 5
MAX_NUMEL = 128
MAX_LIVE = 12


class Draft:
    """A program under construction. Steps draw their choices from the current row."""

    def __init__(self, larger: bool) -> None:
        self.larger = larger
        self.program = Program()
        self.cpu = self.program.cpu
        self.made = 0
        self.row: Sequence[int] = ()
        self.at = 0

    # Choices. Shrinkers move numbers toward 0, so 0 is the simplest choice.

    def pick(self, n: int) -> int:
        """A number from 0 to n - 1."""
        if self.at >= len(self.row):
            return 0
        self.at += 1
        return self.row[self.at - 1] % n

    def one(self, *options):
        return options[self.pick(len(options))]

    def tensor(self, wanted: Callable[[torch.Tensor], bool] | None = None) -> str:
        """The name of a tensor, or "" if none fits. 0 chooses the newest one."""
        tensors = self.cpu.tensors()
        names = [n for n, t in tensors.items() if wanted is None or wanted(t)]
        return names[-1 - self.pick(len(names))] if names else ""

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.cpu.names[name]

    def dim(self, x: str) -> int:
        """A dimension of x, sometimes counted from the end."""
        n = max(self[x].dim(), 1)
        d = self.pick(2 * n)
        return d if d < n else d - 2 * n

    def like(self, x: str) -> str:
        """A source for a write to x: a number, or a tensor, mostly one that fits."""
        shape = self[x].shape
        fits = self.tensor(lambda t: broadcasts(t.shape, shape))
        return self.one(fits, self.number(x), self.tensor(), f"{fits}.t()")

    def number(self, x: str) -> str:
        dtype = self[x].dtype
        if dtype == torch.bool:
            return self.one("True", "False")
        if dtype.is_complex:
            return self.one("2", "(1+2j)", "-1.5")
        if dtype.is_floating_point:
            return self.one("2", "-1.5", "0.25")
        return self.one("2", "-3", "5")

    def new(self) -> str:
        self.made += 1
        return f"v{self.made - 1}"

    def mode(self, line: str) -> str:
        """The line, sometimes wrapped in a grad mode or in inference mode."""
        mode = self.one(*[""] * 12, "no_grad", "no_grad", "inference_mode")
        mode = mode if mode or self.pick(16) < 15 else "enable_grad"
        if re.match(r"v\d+(, v\d+)? = ", line) and self.reads_inference(line):
            # In other modes, the result depends on how the op's kernel is written.
            mode = "inference_mode"
        if mode == "inference_mode" and re.search("requires_grad_|Parameter", line):
            return line  # it would make a leaf that cannot be differentiated
        return f"with torch.{mode}(): {line}" if mode and line[:5] != "with " else line

    def reads_inference(self, line: str) -> bool:
        tensors = self.cpu.tensors()
        names = re.findall(r"v\d+", line)
        return any(n in tensors and tensors[n].is_inference() for n in names)

    # Adding lines to the program.

    def step(self, row: Sequence[int], menu: Menu) -> None:
        self.row, self.at = row, 2
        lines = menu[(row[0] << 8 | row[1]) % len(menu)](self)
        if isinstance(lines, str):
            lines = [self.mode(lines)]
        for line in lines or []:
            self.do(line)
        live = self.cpu.tensors()
        for name in list(live)[: max(len(live) - MAX_LIVE, 0)]:
            self.do(f"del {name}")

    def do(self, line: str) -> None:
        kept = (v for v in self.cpu.names.values() if isinstance(v, UntypedStorage))
        storages = [t.untyped_storage() for t in self.cpu.tensors().values()]
        before = {s._cdata: s.nbytes() for s in (*storages, *kept)}
        outcome = self.cpu.do(line)
        if isinstance(outcome.error, NotImplementedError):
            # No kernel for a dtype. The device reports it only when the worker runs.
            raise Abandoned
        self.program.lines.append(line)
        self.program.outcomes.append(outcome)
        out = re.search(r"out=(v\d+)", line) if outcome.error is None else None
        for name, t in self.cpu.tensors().items():
            storage = t.untyped_storage()
            old = before.get(storage._cdata, storage.nbytes())
            if storage.nbytes() > old:
                before[storage._cdata] = storage.nbytes()
                if not out:
                    self.do(f"fill({name}, {old})")
                elif (start := first_byte(self[out[1]])) > old:
                    self.do(f"fill({name}, {old}, {start})")  # the gap before out


def first_byte(t: torch.Tensor) -> int:
    return t.storage_offset() * t.element_size()


class Abandoned(Exception):
    """A step cannot be part of a program. Its lines may have had effects."""


def shared(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.untyped_storage()._cdata == b.untyped_storage()._cdata


def lazy(t: torch.Tensor) -> bool:
    """A conjugate or negative view."""
    return t.is_conj() or t.is_neg()


def copies(source: torch.Tensor, to: torch.Tensor) -> bool:
    """Whether all kernels copy source into `to` with the same result.

    If both share a storage and one is lazy, some kernels first clone one of them. If
    dtypes and negative or conjugate bits differ, CPU kernels copy and then negate or
    conjugate in place, which turns an element twice that has two indices.
    """
    if source is to:
        return True
    bits = [(t.is_conj(), t.is_neg()) for t in (source, to)]
    if source.dtype != to.dtype and bits[0] != bits[1] and overlaps(to):
        return False
    return not (shared(source, to) and (lazy(source) or lazy(to)))


def overlaps(t: torch.Tensor) -> bool:
    """Whether two indices of a tensor are the same element in memory."""
    elements = torch.arange(t.untyped_storage().nbytes() + 1)
    return elements.as_strided(t.shape, t.stride()).unique().numel() < t.numel()


def broadcasts(shape: torch.Size, to: torch.Size) -> bool:
    pairs = zip(reversed(shape), reversed(to), strict=False)
    return len(shape) <= len(to) and all(a in (1, b) for a, b in pairs)


dense = torch.ops.aten.is_non_overlapping_and_dense

Lines = str | list[str] | None
Step = Callable[[Draft], Lines]
Menu = list[Step]


def step(menu: Menu, weight: int) -> Callable[[Step], Step]:
    """Adds a step to a menu, weight times. A step returns None if no tensor fits."""

    def add(fn: Step) -> Step:
        menu.extend([fn] * weight)
        return fn

    return add


DTYPES = ("float32", "float64", "int64", "bool", "complex64", "bfloat16")


def ramp(shape: tuple[int, ...], dtype: str, start: int) -> str:
    """An expression for small numbers that are exact in the dtype."""
    n = prod(shape)
    count = f"torch.arange({start}, {start + n}, device=d)"
    if dtype == "bool":
        made = f"({count} % 3 == 0)"
    elif dtype == "complex64":
        made = f"torch.complex({count}.float(), {count}.neg().float())"
    else:
        made = f"torch.arange({start}, {start + n}, device=d, dtype=torch.{dtype})"
    return made if shape == (n,) else f"{made}.reshape({list(shape)})"


def sums(t: torch.Tensor, power: int = 1) -> bool:
    """Whether a sum of elements, or with power 2 of squares, is exact in any order."""
    if not (t.is_floating_point() or t.is_complex()):
        return True
    t = t.detach().resolve_conj().resolve_neg()
    eighths = (torch.view_as_real(t) if t.is_complex() else t).double().abs() * 8
    whole = (eighths == eighths.floor()) & (eighths**power * t.numel() < 2**24)
    return bool((whole | ~eighths.isfinite()).all())


def small(t: torch.Tensor) -> bool:
    return t.numel() <= MAX_NUMEL and t.dim() < MAX_DIMS


def index(s: Draft, t: torch.Tensor) -> str:
    """An index of slices, numbers, None and an ellipsis."""
    parts = []
    for n in t.shape:
        kind = s.pick(4)
        if kind == 0 or n == 0:
            parts.append(":")
        elif kind == 1:
            parts.append(str(s.pick(n) - s.one(0, n)))
        elif kind == 2:
            parts.append(f"{s.pick(n)}:")
        else:
            parts.append(f"{s.one('', '1', '-2')}:{s.one('', '3')}:{s.one(2, 1, 3)}")
    parts = s.one(parts, parts[:1], [*parts[:1], "..."], ["None", *parts])
    return ", ".join(parts) or "..."


WINDOWS = (
    ([2], [1]),
    ([2, 2], [2, 1]),
    ([2, 2], [1, 2]),
    ([3], [2]),
    ([2, 3], [1, 1]),
    ([3, 2], [0, 1]),
    ([2, 2], [3, 1]),
    ([], []),
    ([0, 2], [2, 1]),
    ([2, 2, 2], [1, 2, 1]),
    ([4, 3], [1, 1]),
    ([1, 3], [7, 2]),
)


def last(shape: Sequence[int], stride: Sequence[int]) -> int:
    """The distance from the first element to the last one, in elements."""
    return sum((n - 1) * m for n, m in zip(shape, stride, strict=True) if n)


def window(s: Draft, nbytes: int, itemsize: int) -> tuple[list, list, int]:
    """Sizes, strides and offset of a window of a storage. It may overlap itself."""
    room = nbytes // itemsize
    fitting = [w for w in WINDOWS if last(*w) < room]
    if s.pick(16) == 15 or not fitting:
        return *s.one(*WINDOWS), s.pick(room + 2)
    shape, stride = s.one(*fitting)
    return shape, stride, s.pick(room - last(shape, stride))
