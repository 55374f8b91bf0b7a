# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Copies an op's operands to the CPU or the device, and compares both runs."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch.utils import _pytree as pytree

CPU = torch.device("cpu")
STRIDED = torch.strided


# ---- Copies ----


class Copier:
    """Copies tensors to one device, with strides, offsets and shared storages."""

    def __init__(self, device: torch.device, stay: tuple[torch.Tensor, ...] = ()):
        self.device = device
        self.stay = {id(t) for t in stay}  # operands that stay on the CPU
        self.placed = False  # something was placed, so results are on the device
        self._storages: dict[tuple[int, torch.dtype], torch.Tensor] = {}
        self._tensors: dict[int, torch.Tensor] = {}

    def tree(self, tree: Any) -> Any:
        """Copies a nest of operands. Names of the CPU become names of the device."""
        return pytree.tree_map(self._leaf, tree)

    def _leaf(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            # Two uses of one tensor become two uses of one copy.
            self.placed = True
            if id(leaf) not in self._tensors:
                here = Copier(CPU) if id(leaf) in self.stay else self
                self._tensors[id(leaf)] = here._tensor(leaf)
            return self._tensors[id(leaf)]
        if isinstance(leaf, torch.Generator):
            self.placed = True
            return torch.Generator(self.device).manual_seed(leaf.initial_seed())
        if isinstance(leaf, torch.device) and leaf.type == "cpu":
            self.placed = True
            return self.device
        if isinstance(leaf, str) and leaf == "cpu":
            self.placed = True
            return str(self.device)
        return leaf

    def _tensor(self, t: torch.Tensor) -> torch.Tensor:
        if t.device.type != "cpu":
            return t  # a meta tensor, or one that the case placed
        with torch.no_grad():
            if t.layout is not STRIDED:
                copy = t.detach().to(self.device, copy=True)
            elif t.is_conj():
                copy = self._dense(t.conj()).conj()
            elif t.is_neg():
                copy = torch._neg_view(self._dense(torch._neg_view(t)))
            else:
                copy = self._dense(t)
        return copy.requires_grad_(t.requires_grad)

    def _dense(self, t: torch.Tensor) -> torch.Tensor:
        t = t.detach()
        nbytes = t.untyped_storage().nbytes()
        if t.is_contiguous() and t.numel() * t.itemsize == nbytes:
            return t.to(self.device, copy=True)
        key = (t.untyped_storage()._cdata, t.dtype)
        if key not in self._storages:
            whole = torch.empty(0, dtype=t.dtype)
            whole.set_(t.untyped_storage(), 0, (nbytes // t.itemsize,))
            self._storages[key] = whole.to(self.device, copy=True)
        return self._storages[key].as_strided(t.shape, t.stride(), t.storage_offset())


def tensors(tree: Any) -> list[torch.Tensor]:
    """The tensors of a nest, in order."""
    return [t for t in pytree.tree_leaves(tree) if isinstance(t, torch.Tensor)]


# ---- Layouts ----
# The same values in another layout. None if the layout does not apply.


def stepped(t: torch.Tensor) -> torch.Tensor | None:
    """Every second element of a larger tensor, from the second on."""
    if t.dim() == 0:
        whole = torch.empty(3, dtype=t.dtype)
        whole[...] = t
        return whole[1]
    whole = torch.zeros(*t.shape[:-1], 2 * t.shape[-1] + 1, dtype=t.dtype)
    whole[..., 1::2] = t
    return whole[..., 1::2]


def reversed_dims(t: torch.Tensor) -> torch.Tensor | None:
    """The first dim varies fastest in memory."""
    if t.dim() < 2 or t.numel() < 2:
        return None
    order = list(reversed(range(t.dim())))
    return t.permute(order).clone(memory_format=torch.contiguous_format).permute(order)


def channels_last(t: torch.Tensor) -> torch.Tensor | None:
    """Images with the channels innermost."""
    if t.numel() < 2 or t.dim() not in (4, 5):
        return None
    last = torch.channels_last if t.dim() == 4 else torch.channels_last_3d
    return t.clone(memory_format=last)


def conjugated(t: torch.Tensor) -> torch.Tensor | None:
    """Stored as its conjugate, with the conjugate bit."""
    return torch.conj_physical(t).conj() if t.is_complex() else None


def negated(t: torch.Tensor) -> torch.Tensor | None:
    """Stored as its negative, with the negative bit."""
    if not (t.is_floating_point() or t.is_complex()):
        return None
    return torch._neg_view(torch.neg(t))


# ---- Shapes ----
# Shapes that the database's samples may lack. None if the operand cannot have one.


def no_rows(t: torch.Tensor) -> torch.Tensor | None:
    """The first dim has size 0."""
    return t[:0].clone() if t.dim() > 0 and t.shape[0] > 0 else None


def no_columns(t: torch.Tensor) -> torch.Tensor | None:
    """The last dim has size 0."""
    return t[..., :0].clone() if t.dim() > 1 and t.shape[-1] > 0 else None


def one_row(t: torch.Tensor) -> torch.Tensor | None:
    """The first dim has size 1, so it broadcasts."""
    return t[:1].clone() if t.dim() > 0 and t.shape[0] > 1 else None


def one_number(t: torch.Tensor) -> torch.Tensor | None:
    """A tensor without dims."""
    return t.reshape(-1)[0].clone() if t.dim() > 0 and t.numel() > 0 else None


def expanded(t: torch.Tensor) -> torch.Tensor | None:
    """The last dim has stride 0."""
    return t[..., :1].clone().expand_as(t) if t.dim() > 0 and t.shape[-1] > 1 else None


# ---- Comparing ----


class Difference(Exception):
    """A difference between the two runs, in one line."""


@dataclasses.dataclass
class Tolerance:
    """How much values may differ; None: torch.testing's default for the dtype."""

    rtol: float | None = None
    atol: float | None = None
    metadata_only: bool = False  # the op leaves memory uninitialized
    count_writes: bool = True  # compare version counters


@dataclasses.dataclass
class Operands:
    """The operands of one run, with their versions and devices before the op ran."""

    tree: Any
    device: torch.device  # of the results
    versions: list[int] = dataclasses.field(init=False)
    devices: list[torch.device] = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.versions = [t._version for t in tensors(self.tree)]
        self.devices = [t.device for t in tensors(self.tree)]


class Comparison:
    """Compares one run on the device with the same run on the CPU."""

    def __init__(self, tolerance: Tolerance) -> None:
        self.tolerance = tolerance
        self.exact = True  # every value so far was equal bit for bit

    def check(self, ours: Operands, got: Any, cpu: Operands, expected: Any) -> None:
        """Raises Difference unless results, operands and sharing agree."""
        a, shape = pytree.tree_flatten(got)
        b, cpu_shape = pytree.tree_flatten(expected)
        if shape != cpu_shape:
            raise Difference(f"structure {shape} instead of {cpu_shape}")
        for i, (mine, theirs) in enumerate(zip(a, b, strict=True)):
            what = f"result {i}" if len(a) > 1 else "result"
            self._leaf(what, mine, theirs, ours.device)
        a, b = tensors(ours.tree), tensors(cpu.tree)
        for i, (mine, theirs) in enumerate(zip(a, b, strict=True)):
            wrote = mine._version - ours.versions[i]
            should = theirs._version - cpu.versions[i]
            if self.tolerance.count_writes and wrote != should:
                raise Difference(
                    f"operand {i} was written {wrote} times instead of {should}"
                )
            self._leaf(f"operand {i} afterwards", mine, theirs, ours.devices[i])
        _same_sharing(a + tensors(got), b + tensors(expected), len(a))

    def _leaf(self, what: str, ours: Any, cpu: Any, device: torch.device) -> None:
        if isinstance(cpu, torch.Tensor) and isinstance(ours, torch.Tensor):
            self._tensor(what, ours, cpu, device)
        elif type(ours) is not type(cpu):
            raise Difference(
                f"{what}: {type(ours).__name__} instead of {type(cpu).__name__}"
            )
        elif isinstance(cpu, torch.device):
            if ours.type != (device if cpu == CPU else cpu).type:
                raise Difference(f"{what}: {ours} instead of {cpu}")
        elif isinstance(cpu, (int, float, complex)):
            self._values(what, torch.tensor(ours), torch.tensor(cpu))
        elif ours != cpu:
            raise Difference(f"{what}: {ours!r} instead of {cpu!r}")

    def _tensor(
        self, what: str, ours: torch.Tensor, cpu: torch.Tensor, device: torch.device
    ) -> None:
        on = device.type if cpu.device == CPU else cpu.device.type
        pairs = [
            ("type", type(ours), type(cpu)),
            ("device", ours.device.type, on),
            ("layout", ours.layout, cpu.layout),
            ("dtype", ours.dtype, cpu.dtype),
            ("shape", tuple(ours.shape), tuple(cpu.shape)),
            ("requires_grad", ours.requires_grad, cpu.requires_grad),
            ("leaf", ours.is_leaf, cpu.is_leaf),
            ("conjugate bit", ours.is_conj(), cpu.is_conj()),
            ("negative bit", ours.is_neg(), cpu.is_neg()),
        ]
        if cpu.layout is STRIDED and ours.layout is STRIDED:
            pairs.append(("strides", *significant_strides(ours, cpu)))
            if cpu.numel() > 0:
                pairs.append(("offset", ours.storage_offset(), cpu.storage_offset()))
        for name, mine, theirs in pairs:
            if mine != theirs:
                raise Difference(f"{what}: {name} {mine} instead of {theirs}")
        if cpu.device == CPU and not self.tolerance.metadata_only:
            self._values(what, ours.detach().cpu(), cpu.detach())

    def _values(self, what: str, ours: torch.Tensor, cpu: torch.Tensor) -> None:
        if same_bits(ours, cpu):
            return
        self.exact = False
        try:
            torch.testing.assert_close(
                ours,
                cpu,
                rtol=self.tolerance.rtol,
                atol=self.tolerance.atol,
                equal_nan=True,
            )
        except AssertionError as error:
            text = "; ".join(line for line in str(error).splitlines() if line.strip())
            raise Difference(f"{what}: values: {text}") from None


def significant_strides(
    a: torch.Tensor, b: torch.Tensor
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The strides of two tensors of one shape, in dims of more than one element."""
    if b.numel() == 0:
        return (), ()
    dims = [d for d in range(b.dim()) if b.shape[d] > 1]
    return tuple(a.stride(d) for d in dims), tuple(b.stride(d) for d in dims)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two CPU tensors of one shape and dtype hold the same bytes."""
    if a.layout is not STRIDED:
        return False
    a, b = a.resolve_conj().resolve_neg(), b.resolve_conj().resolve_neg()
    if a.is_complex():
        a, b = torch.view_as_real(a), torch.view_as_real(b)
    if a.is_floating_point():
        bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.itemsize]
        a, b = a.view(bits), b.view(bits)
    return torch.equal(a, b)


def _same_sharing(
    ours: list[torch.Tensor], cpu: list[torch.Tensor], operands: int
) -> None:
    """Raises Difference unless the same tensors are one object or share a storage."""
    mine, theirs = _sharing(ours), _sharing(cpu)

    def name(i: int) -> str:
        return f"operand {i}" if i < operands else f"result {i - operands}"

    for i, (a, b) in enumerate(zip(mine, theirs, strict=True)):
        for how, x, y in (("is", a[0], b[0]), ("shares memory with", a[1], b[1])):
            if x == y:
                continue
            got = f"{how} {name(x)}" if x != i else f"{how} nothing before it"
            want = f"{how} {name(y)}" if y != i else f"{how} nothing before it"
            raise Difference(f"{name(i)} {got}; on the CPU it {want}")


def _sharing(all_tensors: list[torch.Tensor]) -> list[tuple[int, int]]:
    """For each tensor, the first that is the same object and the first that shares
    its storage."""
    objects: dict[int, int] = {}
    storages: dict[int, int] = {}
    found = []
    for i, t in enumerate(all_tensors):
        storage = t.untyped_storage()._cdata if t.layout is STRIDED else -1 - i
        found.append((objects.setdefault(id(t), i), storages.setdefault(storage, i)))
    return found
