# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""The cases of an op of the op database, by category: calls and their operands."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import opinfo_compare as compare
import torch
from helpers import DEVICE
from opinfo_compare import Copier, Difference, tensors
from opinfo_skips import ON_THE_CPU, skip_reason
from torch.utils import _pytree as pytree


class Weights:
    """Cotangents. The CPU's run creates them, and the device's run uses copies."""

    def __init__(self) -> None:
        self.made: list[torch.Tensor] = []
        self.copies: list[torch.Tensor] | None = None
        self.used = 0

    def place(self, copier: Copier) -> None:
        self.copies, self.used = copier.tree(self.made), 0

    def like(self, t: torch.Tensor) -> torch.Tensor:
        """A weight for each element of a result."""
        if self.copies is None:
            values = torch.arange(1, t.numel() + 1, dtype=torch.float64).sin() + 1.5
            self.made.append(values.reshape(t.shape).to(t.dtype))
            return self.made[-1].to(t.device)
        if self.used == len(self.copies):
            raise Difference("has more results with a gradient than on the CPU")
        self.used += 1
        return self.copies[self.used - 1]


Call = Callable[[Any, Weights], Any]  # operands, cotangents -> results


def has_grad(op: Any, dtype: torch.dtype) -> bool:
    return dtype in op.supported_backward_dtypes("cpu") or (
        dtype in op.supported_backward_dtypes("cuda")
    )


@dataclasses.dataclass
class Case:
    """One call, its operands, and the error that it must raise, if any."""

    label: str
    tree: Any
    call: Call
    error: type[Exception] | None = None  # must be raised; None: do as the CPU does
    mixed: bool = False  # its operands are placed already, on two devices
    stay: tuple[torch.Tensor, ...] = ()  # operands that CUDA requires on the CPU
    default: bool = False  # names no device, so it runs with a default device
    weights: Weights = dataclasses.field(default_factory=Weights)


def operands(sample: Any) -> tuple[Any, Any, Any]:
    return sample.input, sample.args, sample.kwargs


def case(
    op: Any, index: int, sample: Any, call: Call, what: str = "", tree: Any = None
) -> Case:
    """A case of an op's sample, or of `tree`, which holds changed operands."""
    made = Case(label(index, sample, what), tree or operands(sample), call)
    if op.formatted_name in ON_THE_CPU:
        made.stay = tuple(tensors(made.tree[1]))
    made.default = op.is_factory_function and "device" not in sample.kwargs
    return made


def label(index: int, sample: Any, what: str = "") -> str:
    """The index of a sample and the beginning of its summary."""
    text = sample.summary().removeprefix("SampleInput(input=")
    text = text.partition(", broadcasts_input=")[0].replace(', device="cpu"', "")
    text = text if len(text) <= 240 else text[:240] + "…"
    return f"{index} {what + ' ' if what else ''}{text}"


def spread(samples: list[Any], cap: int) -> list[tuple[int, Any]]:
    """At most cap (index, sample): one of each summary first, then evenly spread."""
    if len(samples) <= cap:
        return list(enumerate(samples))
    first: dict[str, int] = {}
    for i, sample in enumerate(samples):
        first.setdefault(sample.summary(), i)
    chosen = list(first.values())
    if len(chosen) < cap:
        others = [i for i in range(len(samples)) if i not in set(chosen)]
        chosen += evenly(others, cap - len(chosen))
    return [(i, samples[i]) for i in sorted(evenly(chosen, cap))]


def evenly(items: list[Any], n: int) -> list[Any]:
    if len(items) <= n:
        return items
    if n == 1:
        return items[:1]
    return [items[round(i * (len(items) - 1) / (n - 1))] for i in range(n)]


def samples_of(op: Any, dtype: torch.dtype, requires_grad: bool) -> list[Any]:
    return list(op.sample_inputs("cpu", dtype, requires_grad=requires_grad))


def apply(fn: Callable[..., Any]) -> Call:
    """The call of a case that only calls fn."""
    return lambda tree, weights: fn(tree[0], *tree[1], **tree[2])


def forward_cases(op: Any, dtype: torch.dtype, cap: int) -> Iterator[Case]:
    variants = {"method": op.get_method(), "operator": op.get_operator()}
    variants |= {f"alias {alias.name}": alias.op for alias in op.aliases}
    chosen = spread(samples_of(op, dtype, False), cap)
    for index, sample in chosen:
        yield case(op, index, sample, apply(op.get_op()))
    for name, variant in variants.items():
        if variant is None:
            continue
        for index, sample in evenly(chosen, 3):
            if name == "operator" and (len(sample.args) > 1 or sample.kwargs):
                continue  # an operator takes two operands
            yield case(op, index, sample, apply(variant), name)


def reference_cases(op: Any, dtype: torch.dtype, cap: int) -> Iterator[Case]:
    """The database's larger set: extreme values, promotion, more shapes and layouts."""
    samples = list(op.reference_inputs("cpu", dtype))
    for index, sample in spread(samples, cap):
        yield case(op, index, sample, apply(op.get_op()), "reference")


def differentiable(tree: Any) -> list[torch.Tensor]:
    return [t for t in tensors(tree) if t.requires_grad]


def gradients(
    fn: Callable[..., Any], process: Callable[[Any], Any], order: int
) -> Call:
    """The call of a case: fn, and the gradients of a weighted sum of its results."""

    def call(tree: Any, weights: Weights) -> Any:
        leaves = differentiable(tree)
        results = fn(tree[0], *tree[1], **tree[2])
        found = [results]
        level = differentiable(process(results))
        for i in range(order):
            level = [t for t in level if t.requires_grad]
            if not level or not leaves:
                break
            level = torch.autograd.grad(
                level,
                leaves,
                [weights.like(t) for t in level],
                allow_unused=True,
                create_graph=i + 1 < order,
            )
            found.append(level)
            level = [t for t in level if t is not None]
        return found

    return call


def grad_cases(op: Any, dtype: torch.dtype, cap: int, order: int = 1) -> Iterator[Case]:
    for index, sample in spread(samples_of(op, dtype, True), cap):
        call = gradients(op.get_op(), sample.output_process_fn_grad, order)
        yield case(op, index, sample, call)


def gradgrad_cases(op: Any, dtype: torch.dtype, cap: int) -> Iterator[Case]:
    return grad_cases(op, dtype, cap, order=2)


def inplace_variants(op: Any) -> dict[str, Callable[..., Any]]:
    found = {"in place": op.get_inplace(), "operator": op.get_inplace_operator()}
    found |= {f"alias {alias.name}": alias.inplace_variant for alias in op.aliases}
    return {name: fn for name, fn in found.items() if fn is not None}


def inplace_cases(op: Any, dtype: torch.dtype, cap: int) -> Iterator[Case]:
    variants = inplace_variants(op)
    chosen = spread(samples_of(op, dtype, False), cap)
    for name, fn in variants.items():
        main = fn is op.get_inplace()
        for index, sample in chosen if main else evenly(chosen, 3):
            if name == "operator" and (len(sample.args) != 1 or sample.kwargs):
                continue
            if isinstance(sample.input, torch.Tensor):
                yield case(op, index, sample, apply(fn), name)
    if not op.supports_inplace_autograd or not has_grad(op, dtype):
        return
    for index, sample in spread(samples_of(op, dtype, True), max(cap // 2, 1)):
        if isinstance(sample.input, torch.Tensor):
            on_copy = written_copy(next(iter(variants.values())))
            call = gradients(on_copy, sample.output_process_fn_grad, 1)
            yield case(op, index, sample, call, "in place, gradient")


def written_copy(fn: Callable[..., Any]) -> Callable[..., Any]:
    """An in-place op on a copy of its operand, because the operand may be a leaf."""
    return lambda x, *args, **kwargs: fn(x.clone(), *args, **kwargs)


# Names of the forms of an out= operand. other_out creates them.
OUTS = (
    "fitting",
    "empty",
    "larger",
    "strided",
    "wider",
    "narrower",
    "needs a gradient",
)


def out_cases(op: Any, dtype: torch.dtype, cap: int) -> Iterator[Case]:
    chosen = spread(samples_of(op, dtype, False), cap)
    fn, name = op.get_op(), op.formatted_name
    for n, (index, sample) in enumerate(chosen):
        if "out" in sample.kwargs:
            continue
        results = cpu_results(op, sample)
        if results is None:
            continue
        # Every form for some samples, and each sample with some forms.
        forms = OUTS if len(chosen) <= 4 else (OUTS[0], *evenly_from(OUTS[1:], n, 2))
        for form in forms:
            outs = [other_out(t, form) for t in results]
            if any(t is None for t in outs) or skip_reason(name, "out", form):
                continue
            given = outs[0] if len(outs) == 1 else tuple(outs)
            kwargs = {**sample.kwargs, "out": given}
            tree = (sample.input, sample.args, kwargs)
            yield case(op, index, sample, apply(fn), f"out {form}", tree)
    for index, sample in evenly(chosen, 2):
        results = cpu_results(op, sample)
        if results is None or not tensors(operands(sample)):
            continue
        if skip_reason(name, "out", "on the CPU"):
            continue
        if any(t.numel() == 0 for t in results):
            continue
        wrong = case(op, index, sample, into_cpu(fn, results), "out on the CPU")
        wrong.error = RuntimeError
        yield wrong


def into_cpu(fn: Callable[..., Any], results: list[torch.Tensor]) -> Call:
    """The call of a case in which out= is on the CPU, whatever the operands' device."""

    def call(tree: Any, weights: Weights) -> Any:
        outs = tuple(torch.empty_like(t) for t in results)
        out = outs[0] if len(outs) == 1 else outs
        return fn(tree[0], *tree[1], **tree[2], out=out)

    return call


def evenly_from(items: tuple[str, ...], start: int, n: int) -> list[str]:
    """n consecutive items, cyclically."""
    return [items[(start * n + i) % len(items)] for i in range(n)]


def cpu_results(op: Any, sample: Any) -> list[torch.Tensor] | None:
    """The op's results on the CPU; None if it raises or not all are dense tensors."""
    torch.manual_seed(0)
    tree = Copier(compare.CPU).tree(operands(sample))
    try:
        results = op.get_op()(tree[0], *tree[1], **tree[2])
    except Exception:  # the forward category compares the errors
        return None
    results = [results] if isinstance(results, torch.Tensor) else results
    if not isinstance(results, (tuple, list)) or len(results) == 0:
        return None
    plain = all(
        isinstance(t, torch.Tensor) and t.layout is torch.strided for t in results
    )
    return list(results) if plain else None


WIDER = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
    torch.float64: torch.complex128,
    torch.bool: torch.uint8,
    torch.uint8: torch.int32,
    torch.int8: torch.int32,
    torch.int32: torch.int64,
    torch.int64: torch.float32,
}
NARROWER = {
    torch.float16: torch.int64,
    torch.bfloat16: torch.float16,
    torch.float32: torch.int64,
    torch.float64: torch.float32,
    torch.complex64: torch.float32,
    torch.complex128: torch.float64,
    torch.uint8: torch.bool,
    torch.int8: torch.bool,
    torch.int32: torch.int8,
    torch.int64: torch.int32,
}


def other_out(t: torch.Tensor, form: str) -> torch.Tensor | None:
    """An out= operand for a result, filled with ones that the op must overwrite."""
    t = t.detach()
    if form == "fitting":
        out = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype)
    elif form == "empty":
        out = torch.empty(0, dtype=t.dtype)
    elif form == "larger":
        out = torch.empty([n + 1 for n in t.shape] or [2], dtype=t.dtype)
    elif form == "strided":
        out = compare.reversed_dims(compare.stepped(torch.zeros_like(t)))
        out = compare.stepped(torch.zeros_like(t)) if out is None else out
    elif form == "wider" or form == "narrower":
        dtypes = WIDER if form == "wider" else NARROWER
        if t.dtype not in dtypes:
            return None
        out = torch.empty(t.shape, dtype=dtypes[t.dtype])
    else:
        if not (t.is_floating_point() or t.is_complex()):
            return None
        out = torch.zeros_like(t).requires_grad_()
    if out.numel() > 0:
        with torch.no_grad():
            out.fill_(1)
    return out


Form = Callable[[torch.Tensor], torch.Tensor | None]
# Layouts of operands, and whether only the first operand gets the layout.
LAYOUTS: dict[str, tuple[Form, bool]] = {
    "stepped": (compare.stepped, False),
    "reversed": (compare.reversed_dims, False),
    "channels last": (compare.channels_last, False),
    "conjugate": (compare.conjugated, True),
    "negative": (compare.negated, True),
}
# Shapes of operands, and whether only the first operand gets the shape.
SHAPES: dict[str, tuple[Form, bool]] = {
    "no rows": (compare.no_rows, False),
    "no columns": (compare.no_columns, False),
    "one row": (compare.one_row, True),
    "one number": (compare.one_number, True),
    "expanded": (compare.expanded, False),
}


def noncontiguous_cases(op: Any, dtype: torch.dtype, cap: int) -> Iterator[Case]:
    """The samples in other layouts."""
    layouts = dict(LAYOUTS)
    if not op.test_conjugated_samples:
        del layouts["conjugate"]
    if not op.test_neg_view:
        del layouts["negative"]
    return formed_cases(op, dtype, cap, "noncontiguous", layouts)


def shape_cases(op: Any, dtype: torch.dtype, cap: int) -> Iterator[Case]:
    """The samples in other shapes, which the CPU may refuse."""
    return formed_cases(op, dtype, cap, "shapes", SHAPES)


def formed_cases(
    op: Any,
    dtype: torch.dtype,
    cap: int,
    category: str,
    forms: dict[str, tuple[Form, bool]],
) -> Iterator[Case]:
    """The samples with operands of other forms, and the gradients of these."""
    grad = op.supports_autograd and has_grad(op, dtype)
    cases = []
    for index, sample in spread(samples_of(op, dtype, grad), cap):
        for name, (form, first) in forms.items():
            if skip_reason(op.formatted_name, category, name):
                continue
            if any(form(t.detach()) is not None for t in formed(sample, first)):
                cases.append((index, sample, name))
    for index, sample, name in evenly(cases, cap):
        other = other_operands(sample, *forms[name])
        if grad:
            call = gradients(op.get_op(), sample.output_process_fn_grad, 1)
        else:
            call = apply(op.get_op())
        yield case(op, index, sample, call, name, other)


def formed(sample: Any, first: bool) -> list[torch.Tensor]:
    """The operands that get another form."""
    found = tensors(operands(sample))
    found = [t for t in found if t.layout is torch.strided]
    return found[:1] if first else found


@torch.no_grad()
def other_operands(sample: Any, form: Form, first: bool) -> Any:
    """A sample's operands in another form."""
    change = {id(t) for t in formed(sample, first)}

    def to_form(t: torch.Tensor) -> torch.Tensor:
        other = form(t.detach()) if id(t) in change else None
        return t if other is None else other.requires_grad_(t.requires_grad)

    return pytree.tree_map_only(torch.Tensor, to_form, operands(sample))


def error_cases(op: Any, dtype: torch.dtype, cap: int) -> Iterator[Case]:
    for index, error in enumerate(op.error_inputs("cpu")):
        yield case(op, index, error.sample_input, apply(op.get_op()))
    # Operands on two devices raise only on a device. The database gives the type.
    for index, error in enumerate(op.error_inputs(str(DEVICE))):
        given = tensors(operands(error.sample_input))
        if len({t.device.type for t in given}) > 1:
            call = apply(op.get_op())
            mixed = case(op, index, error.sample_input, call, "two devices")
            mixed.error, mixed.mixed = error.error_type, True
            yield mixed


# For each category a function of an op, a dtype and a limit of samples: its cases.
CASES: dict[str, Callable[[Any, torch.dtype, int], Iterator[Case]]] = {
    "forward": forward_cases,
    "reference": reference_cases,
    "grad": grad_cases,
    "gradgrad": gradgrad_cases,
    "inplace": inplace_cases,
    "out": out_cases,
    "noncontiguous": noncontiguous_cases,
    "shapes": shape_cases,
    "errors": error_cases,
}
