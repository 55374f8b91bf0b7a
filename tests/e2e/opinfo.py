# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Runs one op of PyTorch's op database on the device and compares it with the CPU.

    python tests/e2e/opinfo.py OP [DTYPE [CATEGORY]]

prints the differences. Each category of an op is a list of cases. Cases run in batches,
so that a batch becomes one program: it runs all cases on the CPU, uploads all operands,
runs all cases on the device, and then reads all results.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import random
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import opinfo_compare as compare
import torch
from helpers import DEVICE, ROOT, is_running, seed
from opinfo_cases import CASES, Case, Weights, has_grad, inplace_variants
from opinfo_compare import Comparison, Copier, Difference, Operands, Tolerance, tensors
from opinfo_skips import UNINITIALISED, is_known_difference, skip_reason
from torch.testing._internal import common_utils
from torch.testing._internal.common_device_type import toleranceOverride
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo import core

from mycelya_torch import _device

OPS = {op.formatted_name: op for op in op_db}
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float32, torch.float64, torch.bfloat16, torch.float16),
        *(torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool),
        *(torch.complex64, torch.complex128),
    )
}
CATEGORIES = (
    "forward",
    "reference",
    "grad",
    "gradgrad",
    "inplace",
    "out",
    "noncontiguous",
    "shapes",
    "errors",
)
# The shapes that an op accepts hardly depend on the dtype.
SHAPES_DTYPES = ("float32", "int64", "complex64")
# error_inputs do not depend on a dtype.
ERRORS_DTYPE = "float32"
BATCH = 64  # cases whose ops become one program


def dtypes_of(op: Any) -> list[str]:
    """Names of the dtypes that the op supports on the CPU or on CUDA, as in DTYPES."""
    known = set(op.supported_dtypes("cpu")) | set(op.supported_dtypes("cuda"))
    return [name for name, dtype in DTYPES.items() if dtype in known]


def categories_of(op: Any, dtype_name: str) -> list[str]:
    """The categories that the op has in a dtype, without those that are skipped."""
    dtype = DTYPES[dtype_name]
    has = {
        "forward": True,
        "reference": op.reference_inputs_func is not None and dtype is torch.float32,
        "grad": has_grad(op, dtype),
        "gradgrad": bool(op.supports_gradgrad) and dtype is torch.float64,
        "inplace": bool(inplace_variants(op)),
        "out": op.supports_out,
        "noncontiguous": True,
        "shapes": dtype_name in SHAPES_DTYPES,
        "errors": op.error_inputs_func is not None and dtype_name == first_dtype(op),
    }
    name = op.formatted_name
    return [c for c in CATEGORIES if has[c] and skip_reason(name, c) is None]


def first_dtype(op: Any) -> str:
    """The dtype in which an op's error inputs run. They run once for all dtypes."""
    names = dtypes_of(op)
    return ERRORS_DTYPE if ERRORS_DTYPE in names else names[0]


def seed_all(number: int = common_utils.SEED) -> None:
    """Seeds the generators that the database uses."""
    seed(number)
    random.seed(number)
    np.random.seed(number)


def prepare() -> None:
    """Prepares a process to run cases.

    The database wraps random ops so that they restore the state of the generators. This
    reads the device's state even when the op runs on the CPU. It is not needed here,
    because each case sets the seed before it runs.

    The database walks the stack for a unittest.TestCase and sets the seeds with
    torch.manual_seed before it makes a sample. There is no such class here, and both
    take longer than the sample.
    """
    torch.testing._utils.freeze_rng_state = contextlib.nullcontext
    core.extract_test_fn = common_utils.extract_test_fn = lambda: None
    common_utils.set_rng_seed = seed_all
    torch.set_num_threads(1)


def is_random(op: Any) -> bool:
    """Whether the database says so; before torch 2.12 it does not."""
    return getattr(op, "has_nondeterministic_output", False)


# ---- Running them ----


# The tests of PyTorch that compare one device with another; their tolerances apply.
TOLERANT = (None, "test_compare_cpu", "test_noncontiguous_samples", "test_out")
TOLERANT += ("test_variant_consistency_eager",)


def tolerance_of(op: Any, dtype: torch.dtype, category: str) -> Tolerance:
    """The tolerance of torch.testing, or a wider one that the database gives.

    On a CPU worker almost all results are equal bit for bit. COVERAGE.md lists the
    others.
    """
    # A composite op may write its out= any number of times.
    found = Tolerance(count_writes=category != "out")
    name = op.formatted_name
    found.metadata_only = is_random(op)
    found.metadata_only |= (name, category) in UNINITIALISED
    for entry in op.decorators:
        if getattr(entry, "cls_name", None) not in (None, "TestCommon"):
            continue
        if getattr(entry, "test_name", None) not in TOLERANT:
            continue
        if getattr(entry, "device_type", None) not in (None, "cpu", "cuda"):
            continue
        for decorator in getattr(entry, "decorators", (entry,)):
            if isinstance(decorator, toleranceOverride) and dtype in decorator.d:
                given = decorator.d[dtype]
                found.rtol = max(found.rtol or 0.0, given.rtol)
                found.atol = max(found.atol or 0.0, given.atol)
    return found


@dataclasses.dataclass
class Outcome:
    """The outcome of the cases of a category."""

    cases: int = 0
    exact: int = 0  # equal bit for bit
    close: list[str] = dataclasses.field(default_factory=list)  # within tolerance
    refused: int = 0  # the CPU and the device both raised
    refusals: list[str] = dataclasses.field(default_factory=list)  # their messages
    differing: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    failures: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    crashes: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    hangs: list[tuple[str, str]] = dataclasses.field(default_factory=list)

    def add(self, other: Outcome) -> None:
        for field in dataclasses.fields(self):
            sum_of = getattr(self, field.name) + getattr(other, field.name)
            setattr(self, field.name, sum_of)


def cases_of(
    op: Any, dtype: torch.dtype, category: str, cap: int
) -> tuple[list[Case], list[tuple[str, str]]]:
    """The cases of a category, and the error that ended their generation, if any."""
    cases: list[Case] = []
    try:
        cases.extend(CASES[category](op, dtype, cap))
    except Exception as error:
        return cases, [("the samples", brief(error))]
    return cases, []


class WorkerDied(Exception):
    """The worker's process ended, so the machine cannot be used any more."""


class Runner:
    """Runs the cases of one category; calls `report` before each step."""

    def __init__(
        self,
        op: Any,
        dtype: torch.dtype,
        category: str,
        report: Callable[[str], None] = len,
    ) -> None:
        self.name, self.category, self.report = op.formatted_name, category, report
        self.tolerance = tolerance_of(op, dtype, category)
        self.outcome = Outcome()
        self.worker = json.loads(_device.device_info(0))["pid"]

    def batches(self, cases: list[Case], size: int) -> Iterator[Outcome]:
        """Runs the cases in batches of `size` and yields the outcome of each batch.

        Raises:
            WorkerDied: an op of the batch ended the worker.
        """
        for start in range(0, len(cases), size):
            batch = cases[start : start + size]
            self.outcome = Outcome(cases=len(batch))
            unread = self._batch(batch)
            if unread and size > 1:
                # An op failed, but no read raised its error. Run the cases one by one
                # to find the op.
                yield from self.batches(batch, 1)
                continue
            if unread and not self.outcome.failures + self.outcome.refusals:
                self._fail(batch[0].label, "raised after the last read " + unread[0])
            yield self.outcome

    def _batch(self, cases: list[Case]) -> list[str]:
        """Runs the cases as one program; returns the errors that no read has raised."""
        batched = []
        for case in cases:
            self.report("cpu " + case.label)
            case.weights = Weights()
            if case.error is not None:
                self._raising(case, case.error)
                continue
            cpu = self._place(case, compare.CPU)
            expected, ok = self._run(case, cpu, compare.CPU)
            if ok:
                batched.append((case, cpu, expected))
            else:
                self._raising(case, expected)
        uploaded = [(*case, self._placed(case[0])) for case in batched]
        ran = []
        for case, cpu, expected, ours in uploaded:
            if ours is not None:
                self.report("device " + case.label)
                got, ok = self._run(case, ours, DEVICE)
                ran.append((case, cpu, expected, ours, got, ok))
        for case, cpu, expected, ours, got, ok in ran:
            self.report("read " + case.label)
            self._compare(case, ours, got, ok, cpu, expected)
        return self._unread()

    def _unread(self) -> list[str]:
        """Errors of ops whose results were not read. Each error is raised once."""
        found = []
        while True:
            try:
                torch.mycelya.synchronize()
                return found
            except Exception as error:
                self._alive(error)
                found.append(brief(error))

    def _alive(self, error: Exception) -> None:
        if not is_running(self.worker):
            raise WorkerDied(brief(error))

    def _place(self, case: Case, device: torch.device) -> Operands:
        if case.mixed:
            return Operands(case.tree, device)
        copier = Copier(device, case.stay)
        if device != compare.CPU:
            case.weights.place(copier)
        tree = copier.tree(case.tree)
        # If no operand names a device, results are on the default device or the CPU.
        here = copier.placed or case.default
        return Operands(tree, device if here else compare.CPU)

    def _placed(self, case: Case) -> Operands | None:
        """The operands on the device; None, with a failure, if the copy raised."""
        try:
            return self._place(case, DEVICE)
        except Exception as error:
            self._alive(error)
            self._fail(case.label, "raised at the upload " + brief(error))
            return None

    def _run(
        self, case: Case, placed: Operands, device: torch.device
    ) -> tuple[Any, bool]:
        seed(zlib.crc32(case.label.encode()))
        try:
            with device if case.default else contextlib.nullcontext():
                return case.call(placed.tree, case.weights), True
        except Exception as error:
            return error, False

    def _compare(
        self,
        case: Case,
        ours: Operands,
        got: Any,
        ok: bool,
        cpu: Operands,
        expected: Any,
    ) -> None:
        if not ok:
            text = str(got) if isinstance(got, Difference) else "raised " + brief(got)
            return self._fail(case.label, text)
        comparison = Comparison(self.tolerance)
        try:
            comparison.check(ours, got, cpu, expected)
            self.outcome.exact += comparison.exact
            if not comparison.exact:
                self.outcome.close.append(case.label)
        except Difference as difference:
            self._fail(case.label, str(difference))
        except Exception as error:  # a read raises the worker's errors
            self._alive(error)
            self._fail(case.label, "raised at the read " + brief(error))

    def _raising(self, case: Case, expected: Any) -> None:
        """Checks that the device raises, at the latest at a read.

        The CPU raised `expected`, or `expected` is the type that CUDA would raise.
        """
        known = isinstance(expected, type)
        want = expected if known else type(expected)
        text = f"expected {want.__name__ if known else brief(expected)}"
        self.report("device " + case.label)
        ours = self._placed(case)
        if ours is None:
            return
        case.weights = Weights()  # for a gradient that the CPU did not reach
        got, ok = self._run(case, ours, DEVICE)
        try:
            if ok:
                for t in tensors(got) + tensors(ours.tree):
                    t.detach().cpu()
                torch.mycelya.synchronize()
        except Exception as error:
            self._alive(error)
            got, ok = error, False
        self._unread()
        if ok:
            self._fail(case.label, f"raised nothing; {text}")
        elif type(got) is not want:
            self._fail(case.label, f"raised {brief(got)}; {text}")
        else:
            self.outcome.refused += 1
            if brief(got) not in self.outcome.refusals:
                self.outcome.refusals.append(brief(got))

    def _fail(self, where: str, text: str) -> None:
        known = is_known_difference(self.name, self.category, text)
        kept = self.outcome.differing if known else self.outcome.failures
        kept.append((where, text))


def brief(error: BaseException) -> str:
    """The type and the message of an exception, in one line."""
    text = " ".join(str(error).split()).replace(f"{ROOT}/", "")
    return f"{type(error).__name__}: {text[:300]}"


def main() -> None:
    prepare()
    name, *rest = sys.argv[1:]
    op = OPS[name]
    for dtype in rest[:1] or dtypes_of(op):
        for category in rest[1:2] or categories_of(op, dtype):
            runner, outcome = Runner(op, DTYPES[dtype], category), Outcome()
            cases, broken = cases_of(op, DTYPES[dtype], category, 1 << 30)
            outcome.failures += broken
            for batch in runner.batches(cases, BATCH):
                outcome.add(batch)
            print(
                f"{name} {dtype} {category}: {outcome.cases} cases, "
                f"{outcome.exact} exact, {outcome.refused} refused by both, "
                f"{len(outcome.differing)} differ as known, "
                f"{len(outcome.failures)} failed"
            )
            for where, text in outcome.failures:
                print(f"  {where}\n      {text}")


if __name__ == "__main__":
    import conftest  # noqa: F401 (registers the device)

    main()
