# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Runs the lines of a program on a device, and compares the observable results."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import CodeType

import torch

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
    """Writes undefined bytes of t's storage, which is new or has grown."""
    with torch.no_grad():
        whole = torch.empty(0, dtype=torch.uint8, device=t.device)
        whole.set_(t.untyped_storage())[start:end].fill_(1)


def ends(parts: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    return parts[0], parts[-1]


@dataclass
class Outcome:
    """The effect of one line: the error it raised, and all metadata after it."""

    error: BaseException | None
    state: dict[str, tuple]

    @property
    def kind(self) -> str:
        return type(self.error).__name__ if self.error else "no error"


@dataclass
class Part:
    """Bytes of a tensor, gradient or storage, and the float dtypes that view them."""

    name: str
    bytes: torch.Tensor
    floats: set[torch.dtype]

    def same(self, other: Part) -> bool:
        """Whether the bytes are equal, or differ only in the bits of NaNs.

        Which NaN a PyTorch operator returns depends on the position in the tensor.
        """
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
        except Exception as e:  # any kind: the other device must raise the same
            error = e.with_traceback(None)
        return Outcome(error, self.state())

    def state(self) -> dict[str, tuple]:
        """The metadata of every tensor."""
        storages: dict[int, str] = {}
        bases: dict[int, str] = {}
        tensors = self.tensors()
        for name, t in tensors.items():
            bases.setdefault(id(t), name)
        return {n: metadata(n, t, storages, bases) for n, t in tensors.items()}

    def content(self) -> list[Part]:
        """The bytes of each tensor, gradient and whole storage, with one read."""
        parts: list[Part] = []
        floats: dict[int, set[torch.dtype]] = {}  # by storage: of its tensors
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
    """t.grad, without the warning that a non-leaf has none."""
    try:
        return t.grad if t.is_leaf or t.retains_grad else None
    except RuntimeError:  # a view that a write to its base has made invalid
        return None


def as_bytes(t: torch.Tensor) -> torch.Tensor:
    """The bytes of t: unlike values, they differ for -0.0 and 0.0."""
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

    A storage or base is represented by the name of the first tensor that has it, so
    that it compares between devices.
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
    """Lines, and their effects on the CPU."""

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
    """Runs the program's lines. Returns the first difference from the CPU, or ""."""
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
    except Exception as error:  # of a line that no read has executed before
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
