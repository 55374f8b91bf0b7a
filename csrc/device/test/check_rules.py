# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Compares the shape rules with the results of PyTorch's CPU kernels.

Runs the samples of PyTorch's op database, forward and backward. Watches the aten calls
below autograd. If the op table records an overload whole, it applies the rules to the
call and compares. Prints the calls that no rule covers and the wrong results.

Usage: python check_rules.py [--build DIR] [--samples N] [--only REGEX] [--writes]
Exits with 1 if a rule is wrong.
"""

from __future__ import annotations

import argparse
import collections
import copy
import importlib.util
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

HERE = Path(__file__).resolve().parent

# The CPU's results are row-major for conjugate views. The device resolves such views
# before the call.
CONJUGATE_MATTERS = {"linalg_solve_triangular"}

# By overload that PyTorch calls on the CPU: the overload that it calls on the device,
# and the argument that the latter lacks.
SAME_AS = {
    "convolution": ("convolution_overrideable", None),
    "convolution_backward": ("convolution_backward_overrideable", 3),
}


def load_module(build: Path) -> Any:
    path = build / "rules_module.so"
    spec = importlib.util.spec_from_file_location("rules_module", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def whole_overloads() -> dict[str, str]:
    """Maps each overload that is recorded whole to its functional overload."""
    text = (HERE.parent / "record" / "optable.inc").read_text()
    return dict(re.findall(r'MYC_WHOLE\("([^"]+)", "([^"]*)"', text))


def facts(result: Any) -> list[Any]:
    """The dtype, sizes and strides of the tensors of a result, lists flattened."""
    if isinstance(result, torch.Tensor):
        return [(result.dtype, list(result.shape), list(result.stride()))]
    if isinstance(result, (list, tuple)):
        return [f for item in result for f in facts(item)]
    return [None]


def describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype)[6:]}{list(value.shape)}{list(value.stride())}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(describe, value)) + "]"
    return repr(value)


class Watch(TorchDispatchMode):
    """Applies the rules to each call and counts the outcomes."""

    def __init__(self, module: Any, verbose: bool, writes: bool) -> None:
        super().__init__()
        self.check_writes = writes
        self.written: dict[str, list[str]] = collections.defaultdict(list)
        self.module = module
        self.whole = whole_overloads()
        self.verbose = verbose
        self.calls: collections.Counter[str] = collections.Counter()
        self.source: collections.Counter[str] = collections.Counter()
        self.uncovered: collections.Counter[str] = collections.Counter()
        self.wrong: dict[str, list[str]] = collections.defaultdict(list)
        self.raised: dict[str, list[str]] = collections.defaultdict(list)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        kwargs = kwargs or {}
        name = func._schema.name[6:] + ("." + func._schema.overload_name).rstrip(".")
        name, dropped = SAME_AS.get(name, (name, None))
        asked = tuple(a for i, a in enumerate(args) if i != dropped)
        watched = func.namespace == "aten" and name in self.whole
        if not watched:
            return func(*args, **kwargs)
        functional = self.whole[name] or name
        in_place = any(
            a.alias_info is not None and a.alias_info.is_write
            for a in func._schema.arguments
        )
        if in_place and (not self.whole[name] or "out" in kwargs):
            return func(*args, **kwargs)
        schema = functional if in_place else name
        self.calls[name] += 1
        answer: Any = None
        try:
            source, answer = self.module.infer(functional, schema, *asked, **kwargs)
        except Exception as error:
            source, problem = "error", str(error).split("\n")[0]
        before = describe(args) if source == "error" else ""
        if self.check_writes:
            result = self.run_watching_writes(func, name, args, kwargs)
        else:
            result = func(*args, **kwargs)
        self.source[source] += 1
        if source == "error" and "depends on data" in problem:
            self.source[source] -= 1
            self.source["refused"] += 1
            return result
        if source == "":
            self.uncovered[name] += 1
            return result
        call = f"{describe(args)} {kwargs if kwargs else ''}"
        if source == "error":
            self.raised[name].append(f"{before}: {problem}")
            return result
        truth = facts(result)
        if in_place:
            # The tensor keeps its strides, so only the inferred sizes must match.
            ok = len(answer) > 0 and answer[0][1] == truth[0][1]
        else:
            ok = list(map(self.plain, answer)) == list(map(self.plain, truth))
        if not ok and not in_place and self.differ_in_nothing(answer, truth):
            self.source["empty, other strides"] += 1
        elif name in CONJUGATE_MATTERS and any(t.is_conj() for t in tensors_in(args)):
            self.source["conjugate view"] += 1
        elif not ok:
            self.wrong[name].append(f"{call}\n      says {answer}\n      is   {truth}")
        return result

    def run_watching_writes(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Runs the call and reports writes that neither schema nor rules declare."""
        marked = {
            i
            for i, a in enumerate(func._schema.arguments)
            if a.alias_info is not None and a.alias_info.is_write
        }
        if not name.endswith("_overrideable"):  # the CPU calls another overload
            marked |= set(self.module.unmarked_writes(name, *args, **kwargs))
        before = [
            (i, t, t.clone())
            for i, a in enumerate(args)
            if i not in marked
            for t in tensors_in(a)
            if not t.is_conj() and not t.is_neg()  # clone() would resolve them
        ]
        result = func(*args, **kwargs)
        for i, t, copy_of_t in before:
            if not torch.equal(t.nan_to_num(), copy_of_t.nan_to_num()):
                self.written[name].append(f"argument {i} of {describe(args)}")
        return result

    @staticmethod
    def differ_in_nothing(answer: Any, truth: Any) -> bool:
        """Whether the results are equal, apart from the strides of empty tensors."""
        return len(answer) == len(truth) and all(
            a == t
            or (a and t and str(a[0]) == str(t[0]) and a[1] == t[1] and 0 in a[1])
            for a, t in zip(answer, truth, strict=True)
        )

    @staticmethod
    def plain(fact: Any) -> Any:
        return None if fact is None else tuple(map(str, fact))


def tensors_in(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [t for item in value for t in tensors_in(item)]
    if isinstance(value, dict):
        return [t for item in value.values() for t in tensors_in(item)]
    return []


def channels_last(t: torch.Tensor) -> torch.Tensor:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return t.contiguous(memory_format=formats[t.dim()]) if t.dim() in formats else t


def transposed(t: torch.Tensor) -> torch.Tensor:
    return t.transpose(0, -1).contiguous().transpose(0, -1) if t.dim() > 1 else t


def spread(t: torch.Tensor) -> torch.Tensor:
    """The same values as every second element of a larger tensor."""
    return t.repeat_interleave(2, -1)[..., ::2] if t.dim() > 0 else t


# The memory layouts of each sample.
LAYOUTS: list[Callable[[torch.Tensor], torch.Tensor] | None] = [
    None,
    channels_last,
    transposed,
    spread,
]


def relaid(value: Any, layout: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The value with its tensors in another layout."""
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided or value.is_conj() or value.is_neg():
            return value
        other = layout(value.detach())
        return other.requires_grad_(value.requires_grad)
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return type(value)(relaid(v, layout) for v in value)
    if isinstance(value, dict):
        return {k: relaid(v, layout) for k, v in value.items()}
    return value


def run_sample(op: Any, sample: Any, watch: Watch, backward: bool) -> None:
    with watch:
        result = op(sample.input, *sample.args, **sample.kwargs)
        if not backward:
            return
        outputs = [t for t in tensors_in(result) if t.requires_grad]
        inputs = [
            t
            for t in tensors_in([sample.input, sample.args, sample.kwargs])
            if t.requires_grad
        ]
        if outputs and inputs:
            torch.autograd.grad(
                outputs,
                inputs,
                [torch.ones_like(o) for o in outputs],
                allow_unused=True,
            )


def run_database(watch: Watch, limit: int, only: str) -> int:
    """Runs the op database; returns how many samples PyTorch itself refused."""
    from torch.testing._internal.common_methods_invocations import op_db

    refused = 0
    dtypes = [torch.float32, torch.int64, torch.bool, torch.bfloat16, torch.complex64]
    for op in op_db:
        if not re.search(only, op.name):
            continue
        for dtype in dtypes:
            if dtype not in op.supported_dtypes("cpu"):
                continue
            backward = dtype in op.supported_backward_dtypes("cpu")
            try:
                samples = op.sample_inputs("cpu", dtype, requires_grad=backward)
                for i, sample in enumerate(samples):
                    if i >= limit:
                        break
                    for layout in LAYOUTS:
                        try:
                            other = sample
                            if layout is not None:
                                other = copy.copy(sample)
                                other.input = relaid(sample.input, layout)
                                other.args = relaid(sample.args, layout)
                                other.kwargs = relaid(sample.kwargs, layout)
                            run_sample(op, other, watch, backward)
                        except Exception as error:
                            refused += 1
                            if watch.verbose:
                                print("refused", op.name, dtype, str(error)[:200])
            except Exception as error:
                refused += 1
                if watch.verbose:
                    print("no samples", op.name, dtype, str(error)[:200])
    return refused


def run_modules(watch: Watch, limit: int) -> int:
    """Runs the module database in training and evaluation; returns refusals."""
    from torch.testing._internal.common_modules import module_db

    refused = 0
    for info in module_db:
        for dtype in (torch.float32, torch.bfloat16):
            for training in (True, False):
                samples = info.module_inputs_func(
                    info, "cpu", dtype, requires_grad=True, training=training
                )
                for sample in samples[:limit]:
                    for layout in LAYOUTS[:2]:
                        try:
                            run_module(info, sample, dtype, training, layout, watch)
                        except Exception as error:
                            refused += 1
                            if watch.verbose:
                                print("refused", info.name, dtype, str(error)[:200])
    return refused


def run_module(
    info: Any,
    sample: Any,
    dtype: torch.dtype,
    training: bool,
    layout: Any,
    watch: Watch,
) -> None:
    arguments = sample.constructor_input
    module = info.module_cls(*arguments.args, **arguments.kwargs).to(dtype)
    module.train(training)
    inputs = sample.forward_input
    args, kwargs = inputs.args, inputs.kwargs
    if layout is not None:
        args, kwargs = relaid(args, layout), relaid(kwargs, layout)
        for parameter in module.parameters():
            parameter.data = layout(parameter.data)
    with watch:
        result = module(*args, **kwargs)
        outputs = [t for t in tensors_in(result) if t.requires_grad]
        if outputs:
            torch.autograd.backward(outputs, [torch.ones_like(o) for o in outputs])


def run_optimizers(watch: Watch) -> int:
    """Two steps of each optimizer in each implementation; returns refusals."""
    from torch.testing._internal.common_optimizers import optim_db

    refused = 0
    database: list[Any] = list(optim_db)
    for info in database:
        for mode in ({}, {"foreach": True}, {"foreach": False}, {"fused": True}):
            for case in info.optim_inputs_func(device="cpu"):
                parameters = [
                    torch.nn.Parameter(torch.randn(shape))
                    for shape in ((3, 4), (5,), ())
                ]
                try:
                    options = {**case.kwargs, **mode}
                    optimizer: Any = info.optim_cls(parameters, **options)
                    with watch:
                        for _ in range(2):
                            for p in parameters:
                                p.grad = torch.randn_like(p)
                            optimizer.step(lambda: torch.tensor(1.0))
                except Exception as error:
                    refused += 1
                    if watch.verbose:
                        print("refused", info.optim_cls, mode, str(error)[:200])
    return refused


def report(watch: Watch, refused: int) -> bool:
    """Prints the counts; returns whether all rules were right."""
    total = sum(watch.calls.values())
    covered = total - sum(watch.uncovered.values())
    print(f"{total} calls of {len(watch.calls)} overloads ({refused} samples refused)")
    print(
        f"covered {covered} = {100 * covered / max(total, 1):.2f} %, by",
        dict(watch.source),
    )
    print("uncovered:", dict(watch.uncovered.most_common()))
    scores = {"raised": watch.raised, "wrong": watch.wrong, "written": watch.written}
    for title, problems in scores.items():
        n = sum(map(len, problems.values()))
        print(f"{title}: {n} calls of {len(problems)} overloads")
        for name, calls in sorted(problems.items()):
            print(f"  {name}: {len(calls)} of {watch.calls[name]}")
            for call in calls[:3]:
                print(f"    {call[:900]}")
    return not any(scores.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    default = HERE.parent.parent.parent / "build" / "rules"
    parser.add_argument("--build", type=Path, default=default)
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--only", default="")
    parser.add_argument("--writes", action="store_true", help="find unmarked writes")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    watch = Watch(load_module(options.build), options.verbose, options.writes)
    refused = run_database(watch, options.samples, options.only)
    if not options.only:
        refused += run_modules(watch, options.samples) + run_optimizers(watch)
    sys.exit(0 if report(watch, refused) else 1)


if __name__ == "__main__":
    main()
