# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Random programs of views and writes: lines of Python that run on any device.

A program is made from a tape: numbers in rows, a row a step. The numbers choose what a
step does, to which tensors, and how. They are read against the tensors that the lines
before have made on the CPU, so most lines are legal; those that are not must raise on
both devices. Any tape is a program, so whatever a shrinker leaves of one runs too.

Three rules keep programs comparable. Bytes that no line has written are never read:
each storage that is made or grows is filled by the line after. Nothing reaches past the
end of its storage: storages shrink only where nobody needs the end. And what is summed
has sums that float32 holds, so that their order doesn't matter.

One file, because most of it is one function per kind of step, on the state of the tape.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from types import CodeType

import torch
from torch import UntypedStorage

MAX_DIMS = 5
MAX_NUMEL = 128
MAX_LIVE = 12

HEADER = """\
import copy, torch, mycelya_torch

def fill(t, start, end=None):
    with torch.no_grad():
        bytes = torch.empty(0, dtype=torch.uint8, device=t.device)
        bytes.set_(t.untyped_storage())[start:end].fill_(1)

def ends(parts):
    return parts[0], parts[-1]

def program(d, seen):
"""
FOOTER = """\
    return seen, {k: v for k, v in locals().items() if k[0] == "v"}

for device in ("cpu", "mycelya"):
    print(device, *program(device, []), sep="\\n")
"""


def fill(t: torch.Tensor, start: int, end: int | None = None) -> None:
    """Writes bytes of t's storage that are undefined, for it is new or has grown."""
    with torch.no_grad():
        whole = torch.empty(0, dtype=torch.uint8, device=t.device)
        whole.set_(t.untyped_storage())[start:end].fill_(1)


def ends(parts: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    return parts[0], parts[-1]


# ---- Running lines ----


@dataclass
class Outcome:
    """What one line did: the error it raised, and how the tensors look after it."""

    error: BaseException | None
    state: dict[str, tuple]

    @property
    def kind(self) -> str:
        return type(self.error).__name__ if self.error else "no error"


@dataclass
class Part:
    """Bytes of a program's tensors, and the floats that they may be read as."""

    name: str
    bytes: torch.Tensor
    floats: set[torch.dtype]

    def same(self, other: Part) -> bool:
        """Whether the bytes are those of another, or differ in the bits of NaNs only:
        which of them an operator makes, PyTorch leaves to the place in the tensor."""
        if torch.equal(self.bytes, other.bytes):
            return True
        return any(same_numbers(self.bytes, other.bytes, d) for d in self.floats)


def same_numbers(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> bool:
    if len(a) != len(b) or len(a) % dtype.itemsize:
        return False
    x, y = a.clone().view(dtype), b.clone().view(dtype)
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    same = (x.view(bits) == y.view(bits)) | (x.isnan() & y.isnan())
    return bool(same.all())


compiled: dict[str, CodeType] = {}


class Run:
    """The tensors of a program on one device."""

    def __init__(self, device: str) -> None:
        self.seen: list[object] = []
        self.names: dict[str, object] = {
            "copy": copy,
            "torch": torch,
            "d": device,
            "seen": self.seen,
            "fill": fill,
            "ends": ends,
        }

    def tensors(self) -> dict[str, torch.Tensor]:
        values = self.names.items()
        return {k: v for k, v in values if isinstance(v, torch.Tensor)}

    def do(self, line: str) -> Outcome:
        code = compiled.get(line)
        if code is None:
            if len(compiled) > 10_000:
                compiled.clear()
            code = compiled[line] = compile(line, "<program>", "exec")
        error = None
        try:
            exec(code, self.names)
        except Exception as e:  # whatever it is, the other device must raise it too
            error = e.with_traceback(None)
        return Outcome(error, self.state())

    def state(self) -> dict[str, tuple]:
        """All that can be known of the tensors without their values."""
        storages: dict[int, str] = {}
        bases: dict[int, str] = {}
        tensors = self.tensors()
        for name, t in tensors.items():
            bases.setdefault(id(t), name)
        return {n: metadata(n, t, storages, bases) for n, t in tensors.items()}

    def content(self) -> list[Part]:
        """Each tensor, gradient and whole storage, by one read."""
        parts: list[Part] = []
        floats: dict[int, set[torch.dtype]] = {}  # of the tensors of a storage
        with torch.no_grad():
            for name, t in self.tensors().items():
                storage = t.untyped_storage()
                if storage._cdata not in floats:
                    floats[storage._cdata] = set()
                    whole = torch.empty(0, dtype=torch.uint8, device=t.device)
                    whole.set_(storage)
                    parts.append(
                        Part(name + "'s storage", whole, floats[storage._cdata])
                    )
                parts.append(Part(name, as_bytes(t), floats[storage._cdata]))
                if t.is_floating_point() or t.is_complex():
                    floats[storage._cdata].add(t.dtype.to_real())
                if (grad := gradient(t)) is not None:
                    real = {grad.dtype.to_real()}
                    parts.append(Part(name + ".grad", as_bytes(grad), real))
            if not parts:
                return []
            joined = torch.cat([p.bytes for p in parts]).cpu()
        for part, read in zip(
            parts, joined.split([len(p.bytes) for p in parts]), strict=True
        ):
            part.bytes = read
        return parts


def gradient(t: torch.Tensor) -> torch.Tensor | None:
    """t.grad without the warning about tensors that have none."""
    try:
        return t.grad if t.is_leaf or t.retains_grad else None
    except RuntimeError:  # a view whose base was written where it must not be
        return None


def as_bytes(t: torch.Tensor) -> torch.Tensor:
    """Bytes tell -0.0 from 0.0."""
    t = t.detach().resolve_conj().resolve_neg()
    return t.clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8)


FIELDS: dict[str, Callable[[torch.Tensor], object]] = {
    "shape": lambda t: t.shape,
    "stride": lambda t: t.stride(),
    "offset": lambda t: t.storage_offset(),
    "dtype": lambda t: t.dtype,
    "version": lambda t: t._version,  # inference tensors raise
    "requires grad": lambda t: t.requires_grad,
    "is leaf": lambda t: t.is_leaf,
    "output number": lambda t: t.output_nr,
    "grad_fn": lambda t: type(t.grad_fn).__name__,
    "conjugate": lambda t: t.is_conj(),
    "negative": lambda t: t.is_neg(),
    "inference": lambda t: t.is_inference(),
    "storage bytes": lambda t: t.untyped_storage().nbytes(),
    "retains grad": lambda t: t.retains_grad,
}


def metadata(
    name: str, t: torch.Tensor, storages: dict[int, str], bases: dict[int, str]
) -> tuple:
    """The values of FIELDS, then storage, base and gradient.

    Storages and bases have the name of the first tensor that has them, so that they
    compare between devices.
    """
    values = []
    for get in FIELDS.values():
        try:
            values.append(get(t))
        except RuntimeError:
            values.append(RuntimeError)
    base, grad = t._base, gradient(t)
    return (
        *values,
        storages.setdefault(t.untyped_storage()._cdata, name),
        None if base is None else bases.setdefault(id(base), f"base of {name}"),
        None if grad is None else (grad.shape, grad.stride(), grad.dtype),
    )


# ---- Programs ----


@dataclass
class Program:
    """Lines, and what they did on the CPU."""

    lines: list[str] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    cpu: Run = field(default_factory=lambda: Run("cpu"))
    content: list[Part] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"\n{self.source()}"

    def source(self) -> str:
        """A Python program that runs the lines on the CPU and on the device."""
        body = []
        for line, outcome in zip(self.lines, self.outcomes, strict=True):
            if outcome.error:
                body += ["try:", f"    {line}", f"except {outcome.kind}: pass"]
            else:
                body.append(line)
        return HEADER + "".join(f"    {line}\n" for line in body) + FOOTER


def difference(program: Program, run: Run) -> str:
    """Runs a program that the CPU has run; "" if all that can be seen is the same."""
    lines = zip(program.lines, program.outcomes, strict=True)
    for number, (line, expected) in enumerate(lines):
        got = run.do(line)
        where = f"after line {number}, {line}:"
        if got.kind != expected.kind:
            errors = f"CPU: {expected.kind}: {expected.error}\n"
            return f"{where}\n{errors}here: {got.kind}: {got.error}"
        if got.state != expected.state:
            return f"{where}\n{changed(got.state, expected.state)}"
    if repr(run.seen) != repr(program.cpu.seen):
        return f"CPU: {program.cpu.seen}\nhere: {run.seen}"
    try:
        content = run.content()
        torch.get_device_module(run.names["d"]).synchronize()
    except Exception as error:  # of a line whose result nobody has asked for
        return f"at the end\nhere: {type(error).__name__}: {error}"
    for ours, cpu in zip(content, program.content, strict=True):
        if not ours.same(cpu):
            cpu_bytes, our_bytes = cpu.bytes.tolist(), ours.bytes.tolist()
            return f"bytes of {cpu.name}\nCPU: {cpu_bytes}\nhere: {our_bytes}"
    return ""


def changed(got: dict[str, tuple], expected: dict[str, tuple]) -> str:
    fields = [*FIELDS, "storage", "base", "grad"]
    for name, values in expected.items():
        for field_, cpu, ours in zip(fields, values, got[name], strict=True):
            if cpu != ours:
                return f"{field_} of {name}\nCPU: {cpu}\nhere: {ours}"
    return f"names\nCPU: {list(expected)}\nhere: {list(got)}"


# ---- Making lines ----


class Draft:
    """A program in the making. The functions in STEPS draw from it."""

    def __init__(self, larger: bool) -> None:
        self.larger = larger
        self.program = Program()
        self.cpu = self.program.cpu
        self.made = 0
        self.row: Sequence[int] = ()
        self.at = 0

    # What a step draws. 0, to which shrinkers tend, is the simplest choice.

    def pick(self, n: int) -> int:
        """A number below n."""
        if self.at >= len(self.row):
            return 0
        self.at += 1
        return self.row[self.at - 1] % n

    def one(self, *options):
        return options[self.pick(len(options))]

    def tensor(self, wanted: Callable[[torch.Tensor], bool] | None = None) -> str:
        """The name of a tensor, "" if there is none; 0 is the youngest."""
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
        """Something to write into x: a tensor that broadcasts to it, or a number."""
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
        """Sometimes a line runs in a mode of its own."""
        mode = self.one(*[""] * 12, "no_grad", "no_grad", "inference_mode")
        mode = mode if mode or self.pick(16) < 15 else "enable_grad"
        if re.match(r"v\d+(, v\d+)? = ", line) and self.reads_inference(line):
            # Elsewhere, what an op makes of them shows how its kernel is written.
            mode = "inference_mode"
        if mode == "inference_mode" and re.search("requires_grad_|Parameter", line):
            return line  # a leaf that nobody can differentiate
        return f"with torch.{mode}(): {line}" if mode and line[:5] != "with " else line

    def reads_inference(self, line: str) -> bool:
        tensors = self.cpu.tensors()
        names = re.findall(r"v\d+", line)
        return any(n in tensors and tensors[n].is_inference() for n in names)

    # What a program becomes.

    def step(self, row: Sequence[int]) -> None:
        self.row, self.at = row, 2
        choices = FIRST if not self.cpu.tensors() else MENU
        lines = choices[(row[0] << 8 | row[1]) % len(choices)](self)
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
            # No kernel for a dtype: a device hears of that when its worker runs it.
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
                    self.do(f"fill({name}, {old}, {start})")  # what is before it


def first_byte(t: torch.Tensor) -> int:
    return t.storage_offset() * t.element_size()


class Abandoned(Exception):
    """A step that can't be in a program, and may have left something behind."""


def make(tape: Sequence[Sequence[int]], larger: bool = False) -> Program:
    """The program of a tape; with other sizes it is often the same to a compiler."""
    rows = list(tape)
    while True:
        draft = Draft(larger)
        for number, row in enumerate(rows):
            try:
                draft.step(row)
            except Abandoned:
                del rows[number]
                break
        else:
            draft.program.content = draft.cpu.content()
            return draft.program


def shared(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.untyped_storage()._cdata == b.untyped_storage()._cdata


def lazy(t: torch.Tensor) -> bool:
    """A conjugate or negative view."""
    return t.is_conj() or t.is_neg()


def copies(source: torch.Tensor, to: torch.Tensor) -> bool:
    """Whether a copy means the same to all kernels.

    Of lazy views that lie within each other, some kernels copy the one first.
    """
    return source is to or not (shared(source, to) and (lazy(source) or lazy(to)))


def broadcasts(shape: torch.Size, to: torch.Size) -> bool:
    pairs = zip(reversed(shape), reversed(to), strict=False)
    return len(shape) <= len(to) and all(a in (1, b) for a, b in pairs)


dense = torch.ops.aten.is_non_overlapping_and_dense

Lines = str | list[str] | None
STEPS: list[tuple[int, Callable[[Draft], Lines]]] = []


def step(weight: int):
    """Makes a function a step of programs. It returns lines, None if it can't."""

    def add(fn: Callable[[Draft], Lines]) -> Callable[[Draft], Lines]:
        STEPS.append((weight, fn))
        return fn

    return add


# Tensors

SHAPES = ((6,), (2, 3), (4, 4), (2, 3, 2), (), (1,), (0,), (8, 2), (2, 0), (3, 1, 4))
LARGER = ((9,), (3, 4), (5, 5), (3, 4, 3), (), (1,), (0,), (9, 3), (3, 0), (4, 1, 5))
DTYPES = ("float32", "float64", "int64", "bool", "complex64", "bfloat16")


def ramp(shape: tuple[int, ...], dtype: str, start: int) -> str:
    """Different numbers, small and exact in each dtype."""
    n = prod(shape)
    count = f"torch.arange({start}, {start + n}, device=d)"
    if dtype == "bool":
        made = f"({count} % 3 == 0)"
    elif dtype == "complex64":
        made = f"torch.complex({count}.float(), {count}.neg().float())"
    else:
        made = f"torch.arange({start}, {start + n}, device=d, dtype=torch.{dtype})"
    return made if shape == (n,) else f"{made}.reshape({list(shape)})"


@step(8)
def tensor(s: Draft) -> Lines:
    shape, dtype = s.one(*(LARGER if s.larger else SHAPES)), s.one("float32", *DTYPES)
    made = f"{s.new()} = {ramp(shape, dtype, s.pick(5) - 2)}"
    kind = s.pick(4) if dtype not in ("int64", "bool") else 0
    if kind == 1:
        return f"{made}.requires_grad_()"
    if kind > 1:  # a leaf and something that may be written
        leaf = made[: made.index(" ")]
        return [f"{made}.requires_grad_()", f"{s.new()} = {leaf} * 1"]
    return made


@step(1)
def uploaded(s: Draft) -> Lines:
    rows = s.one([[1.0, 2.0], [3.0, 4.0]], [0, 1, 2], [[True], [False]], 7.0)
    if s.larger:
        rows = [*rows, rows[0]] if isinstance(rows, list) else -rows
    return f"{s.new()} = torch.tensor({rows}, device=d)"


@step(2)
def strided(s: Draft) -> Lines:
    kinds = ((2, 3), (1, 2)), ((3, 2), (4, 1)), ((2, 2, 2), (1, 4, 2)), ((4,), (2,))
    if s.larger:
        kinds = ((3, 4), (1, 3)), ((4, 2), (3, 1)), ((2, 3, 2), (1, 4, 2)), ((5,), (3,))
    shape, stride = s.one(*kinds)
    dtype = s.one("float32", "int64", "complex64")
    v = s.new()
    made = (
        f"{v} = torch.empty_strided({shape}, {stride}, dtype=torch.{dtype}, device=d)"
    )
    return [made, f"fill({v}, 0)", f"{v}.copy_({ramp(shape, dtype, 1)})"]


@step(2)
def uninitialised(s: Draft) -> Lines:
    """Storages that a write defines: whole, through a view, or by an out= op."""
    v, shape = s.new(), s.one((4 + s.larger,), (2 + s.larger, 3), (3, 2 + s.larger))
    write = s.one(
        f"{v}.fill_(3)",
        f"{v}.view(-1)[:] = 5",
        f"{v}.t().copy_(torch.ones({list(reversed(shape))}, device=d))",
        f"torch.arange({prod(shape)}, out={v}.view(-1))",
        f"{v}.zero_()",
    )
    return [f"{v} = torch.empty({list(shape)}, device=d)", write]


@step(3)
def made_like(s: Draft) -> Lines:
    x = s.tensor()
    how = s.one(
        "torch.zeros_like({x})",
        "{x}.clone()",
        "torch.ones_like({x})",
        "{x}.new_zeros((2, 3))",
        "{x}.new_full((3,), 1)",
        "torch.full_like({x}, 1)",
        "{x}.contiguous()",
        "{x}.clone(memory_format=torch.contiguous_format)",
    )
    return f"{s.new()} = {how.format(x=x)}"


@step(2)
def deleted(s: Draft) -> Lines:
    return f"del {s.tensor()}"


# Views


def sums(t: torch.Tensor, power: int = 1) -> bool:
    """Whether the sum of its elements, or of their squares, is exact in any order."""
    if not (t.is_floating_point() or t.is_complex()):
        return True
    t = t.detach().resolve_conj().resolve_neg()
    eighths = (torch.view_as_real(t) if t.is_complex() else t).double().abs() * 8
    whole = (eighths == eighths.floor()) & (eighths**power * t.numel() < 2**24)
    return bool((whole | ~eighths.isfinite()).all())


def small(t: torch.Tensor) -> bool:
    return t.numel() <= MAX_NUMEL and t.dim() < MAX_DIMS


def shape_of(s: Draft, n: int) -> list[int]:
    """A shape of n elements."""
    if n == 0:
        return s.one([0], [2, 0], [0, 3])
    a = s.one(*[i for i in (1, 2, 3, 4) if n % i == 0])
    return s.one([n], [a, n // a], [n // a, a], [1, n], [a, 1, n // a], [-1], [n + 1])


@step(6)
def reshaped(s: Draft) -> Lines:
    x = s.tensor(small)
    if not x:
        return None
    how = s.one("view", "reshape", "view", "flatten", "view_as", "ravel", "unflatten")
    if how == "flatten":
        return f"{s.new()} = {x}.flatten({s.pick(2)})"
    if how == "ravel":
        return f"{s.new()} = {x}.ravel()"
    if how == "view_as":
        return f"{s.new()} = {x}.view_as({s.tensor()})"
    if how == "unflatten":
        d = s.dim(x)
        n = s[x].shape[d] if s[x].dim() else 1
        return f"{s.new()} = {x}.unflatten({d}, {shape_of(s, n)})"
    return f"{s.new()} = {x}.{how}({shape_of(s, s[x].numel())})"


@step(8)
def permuted(s: Draft) -> Lines:
    x = s.tensor()
    t = s[x]
    how = s.one("transpose", "permute", "t", "movedim", "property", "swapaxes", "flip")
    if t.dim() != 2 and how in ("t", "property") and s.pick(8):
        how = "permute"
    if how == "property":
        how = s.one("T", "mT", "H", "mH")
        return f"{s.new()} = {x}.{how}"
    if how == "t":
        return f"{s.new()} = {x}.t()"
    if how == "permute":
        dims = list(range(t.dim()))
        turn = s.pick(t.dim() + 1)
        dims = dims[turn:] + dims[:turn]
        return f"{s.new()} = {x}.permute({dims[:: s.one(1, -1)]})"
    if how == "flip":  # a copy, not a view
        return f"{s.new()} = {x}.flip({[s.dim(x)]})"
    return f"{s.new()} = {x}.{how}({s.dim(x)}, {s.dim(x)})"


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


@step(10)
def windowed(s: Draft) -> Lines:
    x = s.tensor()
    t = s[x]
    how = s.one("index", "narrow", "select", "index", "diagonal", "unfold")
    if how == "index" or t.dim() == 0 and s.pick(8):
        if t.dim() >= MAX_DIMS:
            return None
        return f"{s.new()} = {x}[{index(s, t)}]"
    d = s.dim(x)
    n = t.shape[d] if t.dim() else 1
    if how == "narrow":
        start = s.pick(n + 1)
        length = s.pick(n - start + 1) if s.pick(8) < 7 else n + 1
        return f"{s.new()} = {x}.narrow({d}, {start}, {length})"
    if how == "select":
        at = s.pick(n) if n and s.pick(8) else n
        return f"{s.new()} = {x}.select({d}, {s.one(at, at - n)})"
    if how == "diagonal":
        other = s.one((d + 1) % max(t.dim(), 1), s.dim(x))
        return f"{s.new()} = {x}.diagonal({s.pick(3) - 1}, {d}, {other})"
    if t.dim() >= MAX_DIMS:
        return None
    return f"{s.new()} = {x}.unfold({d}, {s.pick(n + 1)}, {s.one(1, 2, 3)})"


@step(5)
def stretched(s: Draft) -> Lines:
    x = s.tensor(small)
    if not x:
        return None
    t = s[x]
    how = s.one("unsqueeze", "expand", "squeeze", "squeeze_dim", "expand_as", "to")
    if how == "unsqueeze":
        return f"{s.new()} = {x}.unsqueeze({s.pick(2 * t.dim() + 2) - t.dim() - 1})"
    if how == "squeeze":
        return f"{s.new()} = {x}.squeeze()"
    if how == "squeeze_dim":
        return f"{s.new()} = {x}.squeeze({s.one(str(s.dim(x)), '(0, -1)')})"
    if how == "expand_as":
        return f"{s.new()} = {x}.expand_as({s.tensor(small) or x})"
    shape = [n if n != 1 else s.one(1, 2, 3) for n in t.shape]
    shape = s.one([], [2], [1], [0]) + [s.one(n, -1, n) for n in shape]
    if how == "to":
        return f"{s.new()} = torch.broadcast_to({x}, {shape})"
    return f"{s.new()} = {x}.expand({shape})"


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
    """How far the last element is from the first."""
    return sum((n - 1) * m for n, m in zip(shape, stride, strict=True) if n)


def window(s: Draft, nbytes: int, itemsize: int) -> tuple[list, list, int]:
    """Sizes, strides and offset of a window on a storage; it may overlap itself."""
    room = nbytes // itemsize
    fitting = [w for w in WINDOWS if last(*w) < room]
    if s.pick(16) == 15 or not fitting:
        return *s.one(*WINDOWS), s.pick(room + 2)
    shape, stride = s.one(*fitting)
    return shape, stride, s.pick(room - last(shape, stride))


@step(6)
def restrided(s: Draft) -> Lines:
    x = s.tensor()
    shape, stride, offset = window(
        s, s[x].untyped_storage().nbytes(), s[x].element_size()
    )
    return f"{s.new()} = {x}.as_strided({shape}, {stride}, {offset})"


@step(6)
def reinterpreted(s: Draft) -> Lines:
    x = s.tensor()
    t = s[x]
    if t.is_complex():
        how = s.one(
            "torch.view_as_real({x})",
            "{x}.real",
            "{x}.imag",
            "{x}.conj()",
            "torch._neg_view({x})",
            "{x}.conj().imag",
            "{x}.resolve_conj()",
            "{x}.conj().mT",
            "torch.view_as_real({x}.resolve_conj())",
            "{x}.view(torch.float32)",
        )
        return f"{s.new()} = {how.format(x=x)}"
    how = s.one("view", "view_as_complex", "neg_view", "real")
    if how == "view":
        dtype = s.one("int32", "uint8", "int64", "float32", "bfloat16", "int16")
        if t.dtype == torch.bool or dtype == "bool":
            dtype = "uint8"  # other bytes than 0 and 1 are no bools
        return f"{s.new()} = {x}.view(torch.{dtype})"
    if how == "neg_view" and t.dtype != torch.bool:  # whose values nobody can have
        return f"{s.new()} = torch._neg_view({x})"
    if how == "real":
        return f"{s.new()} = {x}.{s.one(*['real', 'conj()'] * 4, 'imag')}"
    if (t.dim() == 0 or t.shape[-1] != 2) and s.pick(4):
        x = s.tensor(lambda t: t.dtype == torch.float32 and t.shape[-1:] == (2,)) or x
    return f"{s.new()} = torch.view_as_complex({x})"


@step(4)
def parts(s: Draft) -> Lines:
    x = s.tensor(lambda t: t.dim() > 0)
    if not x:
        return None
    d = s.dim(x)
    n = s[x].shape[d]
    how = s.one(
        f"{x}.split({s.one(1, 2)}, {d})",
        f"{x}.chunk({s.one(2, 3)}, {d})",
        f"{x}.unbind({d})",
        f"{x}.tensor_split({s.one(2, 3)}, {d})",
        f"{x}.split([{n // 2}, {n - n // 2}], {d})",
        f"{x}.unsafe_chunk(2, {d})",
    )
    a, b = s.new(), s.new()
    return f"{a}, {b} = ends({how})"


@step(5)
def aliased(s: Draft) -> Lines:
    x = s.tensor()
    how = s.one(
        "{x}.detach()",
        "{x}.data",
        "{x}.view_as({x})",
        "torch.ops.aten.alias({x})",
        "{x}[...]",
        "torch.nn.Parameter({x})",
        "{x}.to({x}.dtype)",
        "{x}.positive()",
        "{x}.resolve_neg()",
        "torch.atleast_2d({x})",
    )
    return f"{s.new()} = {how.format(x=x)}"


# Writes


@step(12)
def written(s: Draft) -> Lines:
    x = s.tensor()
    how = s.one("add_", "mul_", "copy_", "sub_", "fill_", "zero_", "copy_", "add_")
    if how == "zero_":
        return f"{x}.zero_()"
    if how == "fill_":
        value = s.number(x)
        scalars = s.tensor(lambda t: t.dim() == 0)
        return f"{x}.fill_({s.one(value, value, scalars or value)})"
    if how == "copy_":
        shape, to = s[x].shape, s[x]
        source = s.tensor(lambda t: broadcasts(t.shape, shape) and copies(t, to))
        turned = source if lazy(to) else f"{x}.mT"
        return f"{x}.copy_({s.one(source, source, turned, f'{source}.flip(0)')})"
    return f"{x}.{how}({s.like(x)})"


@step(3)
def overlapping(s: Draft) -> Lines:
    """Writes that read the storage that they write."""
    x = s.tensor(lambda t: t.dim() > 0 and t.shape[0] > 1 and not lazy(t))
    if not x:
        return None
    how = s.one(
        "{x}[1:].copy_({x}[:-1])",
        "{x}[:-1].add_({x}[1:])",
        "{x}[1:].mul_({x}[0])",
        "{x}.add_({x})",
        "{x}[0] = {x}[-1]",
        "{x}.copy_({x}.clone())",
        "{x}[::2].copy_({x}[:({x}.shape[0] + 1) // 2])",
        "{x}.copy_({x}.flip(0))",
        "{x}.sub_({x}.view_as({x}))",
        "{x}.mT.copy_({x})",
        "torch.add({x}[:-1], {x}[1:], out={x}[1:])",
        "torch.mul({x}, 2, out={x})",
    )
    return how.format(x=x)


@step(5)
def pointwise(s: Draft) -> Lines:
    x = s.tensor()
    how = s.one(
        "neg_()",
        "clamp_(min=0)",
        "masked_fill_({x} == {x}.flip(0), {n})" if s[x].dim() else "neg_()",
        "abs_()",
        "relu_()",
        "square_()",
        "tril_()" if dense(s[x]) else "add_(1)",
        "conj_physical_()",
        "resolve_conj().add_(1)",
        "addcmul_({x}, {x}, value=1)",
        "lerp_({x}, 0.5)",
        "logical_not_()",
        "cumsum_(0)",
        "addmm_({x}, {x})",
        "clamp_(max=2)",
        "fill_diagonal_(1)",
        "eq_(2)",
        "pow_(2)",
    )
    return f"{x}.{how.format(x=x, n=s.number(x))}"


@step(6)
def set_item(s: Draft) -> Lines:
    x = s.tensor()
    t = s[x]
    kind = s.pick(5)
    if kind < 3:
        where = index(s, t)
        fits = s.tensor()
        try:
            shape = eval(f"x[{where}]", {"x": t}).shape
            fits = s.tensor(
                lambda v: (
                    broadcasts(v.shape, shape)
                    and copies(v, t)
                    # A number on the CPU is not copied but filled in.
                    and (v.dim() > 0 or not (v.requires_grad or t.requires_grad))
                    and (v.dim() > 0 or not shared(v, t))
                    # Bools have no negatives, but a number's truth is that of its.
                    and (v.dim() > 0 or t.dtype != torch.bool or not v.is_neg())
                )
            )
        except (IndexError, RuntimeError):  # the line itself will say so
            pass
        return f"{x}[{where}] = {s.one(s.number(x), fits or '1')}"
    if kind == 3:
        mask = s.one("{x} == {x}", "{x} != 2", "~({x} == 2)", "{x}.isfinite()")
        return f"{x}[{mask.format(x=x)}] = {s.number(x)}"
    part = s.one("real", "imag") if t.is_complex() else "data"
    return (
        f"{x}.{part}[...] = {s.number(x)}" if s.pick(2) else f"{x}.{part} = {x}.neg()"
    )


@step(6)
def indexed(s: Draft) -> Lines:
    """Writes at places that a tensor names, each place once."""
    x = s.tensor(lambda t: t.dim() > 0)
    if not x:
        return None
    d = s.pick(s[x].dim() + 1) % s[x].dim()
    n = s[x].shape[d]
    rows = s.one([0], [n - 1, 0] if n > 1 else [0], list(range(n))[::-1], [])
    rows = rows if n else []
    i = f"torch.tensor({rows}, dtype=torch.int64, device=d)"
    source = f"{x}.index_select({d}, {i})"
    source = s.one(
        source,
        f"{source}.neg()",
        f"{source}.clone()",
        f"{x}.narrow({d}, 0, {len(rows)})",
    )
    v = s.number(x)
    first = f"{x}.transpose(0, {d})" if d else x
    return s.one(
        f"{x}.index_fill_({d}, {i}, {v})",
        f"{x}.index_copy_({d}, {i}, {source})",
        f"{x}.index_add_({d}, {i}, {source})",
        f"{first}.index_put_(({i},), torch.tensor({v}, device=d).to({x}.dtype))",
        f"{first}[{i}] = {v}",
        f"{x}.scatter_({d}, {i}.reshape({[-1] + [1] * (s[x].dim() - 1 - d)}), {v})",
        f"{x}.index_put_(({x} != 1,), torch.tensor({v}, device=d).to({x}.dtype))",
        f"{x}.masked_scatter_({x} == {x}, {x}.neg())",
        f"{first}[{i}] = {first}[{i}].neg()",
        f"{first}.index_put_(({i},), {first}[:1], accumulate=True)",
    )


@step(6)
def given_out(s: Draft) -> Lines:
    out = s.tensor()
    shape, dtype = s[out].shape, str(s[out].dtype)
    where = s.one(out, out, f"{out}.mT", f"{out}[...]", f"{out}.detach()")
    kind = s.pick(4)
    if kind:  # an operand may lie where the result goes, if nothing has to be resized
        a = s.tensor(lambda t: t.shape == shape)
        b = s.tensor(lambda t: broadcasts(t.shape, shape))
        b = s.one(s.number(a), b)
        if where.endswith("mT"):
            a, b = f"{a}.mT", s.number(a)
    else:
        data = s[out].untyped_storage()._cdata
        a = s.tensor(lambda t: t.untyped_storage()._cdata != data)
        if not a:
            return None
        shape = s[a].shape
        b = s.tensor(
            lambda t: broadcasts(t.shape, shape) and t.untyped_storage()._cdata != data
        )
    how = s.one(
        f"torch.add({a}, {b}, out={where})",
        f"torch.mul({a}, {b}, out={where})",
        f"torch.neg({a}, out={where})",
        f"torch.sub({a}, {b}, out={where})",
        f"torch.add({a}, {a}, out={where})",
        f"torch.eq({a}, {b}, out={where})",
        f"torch.clamp({a}, min=0, out={where})",
        f"torch.abs({a}, out={where})",
        *(
            [
                f"torch.sum({a}, 0, out={where})"
                if sums(s[a])
                else f"torch.neg({a}, out={where})",
                f"torch.cat([{a}, {a}], out={where})",
                f"torch.stack([{a}], out={where})",
                f"torch.arange(3, dtype={dtype}, out={where})"
                if dtype not in ("torch.bool", "torch.complex64")
                else f"torch.zeros([2], out={where})",
            ]
            if kind == 0
            else []
        ),
    )
    return f"with torch.no_grad(): {how}" if s.pick(2) else how


@step(2)
def foreach(s: Draft) -> Lines:
    # Kernels differ in what they have written when they find an error.
    x = s.tensor(lambda t: dense(t) and not t.is_inference())
    if not x:
        return None
    dtype = s[x].dtype
    y = s.tensor(lambda t: t.dtype == dtype and dense(t) and not t.is_inference())
    how = s.one(
        f"torch._foreach_add_([{x}], 1)",
        f"torch._foreach_mul_([{x}, {y}], 2)",
        f"torch._foreach_copy_([{x}], [{y}])",
        f"torch._foreach_zero_([{x}])",
    )
    return f"with torch.no_grad(): {how}" if s.pick(4) else how


# Metadata in place, storages


@step(5)
def turned(s: Draft) -> Lines:
    x = s.tensor()
    a, b = s.dim(x), s.dim(x)
    grown = s[x].dim() == MAX_DIMS
    swap = s.one("swapaxes_", "swapdims_")
    if lazy(s[x]):  # swapped as a clone, in inference mode
        swap = "transpose_"
    return s.one(
        f"{x}.t_()",
        f"{x}.transpose_({a}, {b})",
        f"{x}.squeeze_()" if grown else f"{x}.unsqueeze_({a})",
        f"{x}.squeeze_()",
        f"{x}.squeeze_({a})",
        f"{x}.detach_()",
        f"{x}.{swap}({a}, {b})",
    )


@step(2)
def restrided_in_place(s: Draft) -> Lines:
    x = s.tensor()
    shape, stride, offset = window(
        s, s[x].untyped_storage().nbytes(), s[x].element_size()
    )
    return f"{x}.as_strided_({shape}, {stride}, {offset})"


@step(5)
def sized(s: Draft) -> Lines:
    x = s.tensor(lambda t: not lazy(t))  # of which a clone is resized
    if not x:
        return None
    shape = s.one([2, 2], [1], [8], [3, 4], [], [0], [2, 0, 3], [17])
    return s.one(
        f"{x}.resize_({shape})",
        f"{x}.resize_as_({s.tensor()})",
        f"{x}.resize_({shape})",
        f"{x}.data.resize_({shape})",
        f"{x}.resize_([1, 2, 2, 2], memory_format=torch.channels_last)"
        if s[x].shape != (1, 2, 2, 2)  # strides would change, the storage would not
        else f"{x}.resize_([2, 2, 2, 1])",
    )


@step(5)
def reset(s: Draft) -> Lines:
    """set_ by nothing, a tensor, a storage, and a window on a storage."""
    x = s.tensor(lambda t: not lazy(t))  # of which a clone is set
    if not x:
        return None
    dtype = s[x].dtype
    y = s.tensor(lambda t: t.dtype == dtype) if s.pick(8) < 7 else s.tensor()
    how = s.pick(6)
    if how < 2:
        return f"{x}.set_({y})"
    if how == 2:
        if s[x].dim() == 1 and s[x].stride() != (1,):
            return None  # keeps its strides if the size fits, and reaches past the end
        return f"{x}.set_({y}.untyped_storage())"
    if how == 3:
        return f"{x}.set_()"
    if how == 4:
        return f"{x}.data.set_({y})"
    nbytes = s[y].untyped_storage().nbytes()
    shape, stride, offset = window(s, nbytes, s[x].element_size())
    offset = s.one(offset, offset, offset, nbytes // s[x].element_size())
    return f"{x}.set_({y}.untyped_storage(), {offset}, {shape}, {stride})"


@step(2)
def storage_kept(s: Draft) -> Lines:
    """A storage lives on without a tensor."""
    x = s.tensor()
    name = f"s{s.pick(2)}"
    if name not in s.cpu.names:
        return [f"{name} = {x}.untyped_storage()", f"del {x}"]
    of = s[name].nbytes()
    sizes, strides, offset = window(s, of, 4)
    into = f"torch.empty(0, device=d).set_({name}, {offset}, {sizes}, {strides})"
    return [f"{s.new()} = {into}", f"del {name}"]


@step(2)
def copied_deeply(s: Draft) -> Lines:
    """Copies of two tensors share a storage if the tensors do."""
    a, b = s.new(), s.new()
    return f"{a}, {b} = copy.deepcopy([{s.tensor()}, {s.tensor()}])"


@step(4)
def to_and_from_the_cpu(s: Draft) -> Lines:
    x = s.tensor(lambda t: not t.is_inference())
    if not x:
        return None
    shape, dtype = s[x].shape, s.one(str(s[x].dtype)[6:], "float32", "int64")
    shape = tuple(shape[s.pick(2) :])
    if dtype not in DTYPES:
        return None
    there = ramp(shape, dtype, s.pick(3)).replace(", device=d", "")
    copy = f"{x}.to('cpu', copy=True)"
    # A number from the CPU fills, as on CUDA; on the CPU itself it is copied, which
    # memory that several elements share refuses.
    number = not shape and not dense(s[x])
    return s.one(
        f"{x}.copy_({there})",
        f"{x}.copy_({there})" if number else f"{x}[...] = {there}",
        f"{s.new()} = {there}.clone().to(d)",
        f"seen.append(torch.zeros(2).copy_({copy}.sum()).tolist())",
        f"seen.append({copy}.neg().mT.tolist())",
        f"{x}.data = {there}.clone().to(d)",
        f"seen.append(torch.zeros({list(reversed(shape))}).mT.copy_({x}).tolist())",
    )


@step(4)
def data_assigned(s: Draft) -> Lines:
    x = s.tensor(lambda t: not t.is_inference())
    if not x:
        return None
    dtype = s[x].dtype
    y = s.tensor(lambda t: t.dtype == dtype) if s.pick(8) < 7 else s.tensor()
    value = s.one("{y}", "{y} * 2", "{y}.clone()", "{y}[...]", "{y}.mT", "{y}.detach()")
    return f"{x}.data = {value.format(y=y)}"


@step(3)
def storage(s: Draft) -> Lines:
    x = s.tensor()
    nbytes = s[x].untyped_storage().nbytes()
    bytes = f"{x}.untyped_storage()"
    kind = s.pick(4)
    if kind == 0:
        return f"{bytes}.resize_({nbytes + s.one(8, 16, 0, 4)})"
    if kind == 1 and not any(t.requires_grad for t in s.cpu.tensors().values()):
        # Only what nobody reaches goes: a tensor past the end reads foreign memory.
        data = s[x].untyped_storage()._cdata
        need = max(
            reach(b)
            for t in s.cpu.tensors().values()
            for b in (t, t._base)
            if b is not None and b.untyped_storage()._cdata == data
        )
        return f"{bytes}.resize_({need})"
    if kind == 2:
        return f"{bytes}.fill_({s.one(0, 1)})"
    y = s.tensor(lambda t: t.untyped_storage().nbytes() == nbytes)
    return f"{bytes}.copy_({y}.untyped_storage())"


def reach(t: torch.Tensor) -> int:
    """One past the last byte of its storage that t has."""
    if t.numel() == 0:
        return 0
    end = t.storage_offset() + last(t.shape, t.stride()) + 1
    return end * t.element_size()


# Results, gradients, reads


@step(8)
def computed(s: Draft) -> Lines:
    x = s.tensor(lambda t: t.numel() <= MAX_NUMEL)
    if not x:
        return None
    shape = s[x].shape
    y = s.tensor(lambda t: broadcasts(t.shape, shape))
    how = s.one(
        "{x} + {y}",
        "{x} * 2",
        "{x} * {y}",
        "{x}.sum()" if sums(s[x]) else "{x}.neg()",
        "{x}.relu()",
        "{x}.sum(0)" if sums(s[x]) else "{x}.abs()",
        "{x} == {y}",
        "{x}.float()",
        "torch.cat([{x}, {x}])",
        "torch.where({x} == {y}, {x}, {y})",
        "{x}.square()",
        "{x} + {x}.conj()" if lazy(s[x]) else "{x} @ {x}",
        "torch.stack([{x}, {x}], -1)",
        "{x}.to(torch.bfloat16)",
        "{x}.masked_fill({x} == {y}, 0)",
        "{x}.double()",
        "{x}.index_select(-1, torch.arange({x}.shape[-1], device=d))",
        "{x}.tril()",
        "{x}.long()",
        "{x}.repeat(2)",
        "{x}.amax()",
        "torch.complex({x}, {y})",
        "{x}.cumsum(0)",
    )
    return f"{s.new()} = {how.format(x=x, y=y)}"


def differentiable(t: torch.Tensor) -> bool:
    return t.requires_grad


@step(14)
def gradients(s: Draft) -> Lines:
    x = s.tensor(lambda t: differentiable(t) and sums(t, 2))
    if not x:
        return None
    total = f"{x}.sum()"
    if s[x].is_complex():
        total = f"({x} * {x}.conj()).real.sum()"
    elif s.pick(2):
        total = f"({x} * {x}).sum()"
    retain = s.one("", "retain_graph=True")
    how = s.pick(4)
    if how < 2:
        return f"{total}.backward({retain})"
    y = s.tensor(differentiable)
    if how == 2:
        return (
            f"{s.new()}, = torch.autograd.grad({total}, {y}, allow_unused=True"
            f"{', ' if retain else ''}{retain})"
        )
    return s.one(
        f"{x}.retain_grad()",
        f"{x}.grad = None",
        f"{x}.grad.mul_(2)",
        f"{x}.requires_grad_(False)",
        f"{x}.grad = {y}.detach().clone()",
    )


@step(10)
def saved(s: Draft) -> Lines:
    """A result that saves its operands or itself, a write, and the backward pass."""
    x = s.tensor(
        lambda t: t.requires_grad and not t.is_complex() and small(t) and sums(t, 2)
    )
    if not x:
        return None
    shape = s[x].shape
    y, z = s.tensor(lambda t: broadcasts(t.shape, shape)), s.new()
    # A quotient is seldom exact, and the gradient of what broadcasts is a sum.
    either = "{x} / {y}" if s[y].shape == shape else "{x} - {y}"
    made = s.one("{x} * {x}", "{x} * {y}", "{x}.relu()", "{x}.square()", either)
    target = s.one(x, z, y, f"{x}[...]", f"{z}.view(-1)[:1]", s.tensor())
    target = s.one("{t}", "{t}", "{t}", "{t}.detach()", "{t}.data").format(t=target)
    write = s.one("{t}.add_(1)", "{t}.zero_()", "{t}.mul_(2)", "{t}.copy_({x})")
    write = s.mode(write.format(t=target, x=x))
    return [f"{z} = {made.format(x=x, y=y)}", write, f"{z}.sum().backward()"]


@step(2)
def leaf(s: Draft) -> Lines:
    return f"{s.tensor()}.requires_grad_({s.one('', 'False')})"


@step(7)
def read(s: Draft) -> Lines:
    x = s.tensor()
    how = s.one(
        "{x}.detach().tolist()",
        "{x}.detach().sum().item()" if sums(s[x]) else "{x}.dim()",
        "torch.equal({x}, {x}.clone())",
        "bool(({x} == {x}).all())",
        "{x}.to('cpu', copy=True).stride()",
        "{x}.is_set_to({y})",
        "{x}.is_contiguous()",
        "list({x}.untyped_storage())[:4]",
        "{x}.data_ptr() == {y}.data_ptr()",
        "torch._C._overlaps({x}, {y})",
    )
    return f"seen.append({how.format(x=x, y=s.tensor())})"


@step(7)
def cut(s: Draft) -> Lines:
    """Ends the open trace: what comes after sees the storages as inputs."""
    return ["torch.get_device_module(d).synchronize()"]


FIRST = [tensor, uploaded, strided, uninitialised]
MENU = [fn for weight, fn in STEPS for _ in range(weight)]
