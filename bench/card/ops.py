# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""PyTorch's op database on the device against eager CUDA: value, strides, dtype.

    python bench/card/ops.py [--processes 12] [--seconds 140] [--only TEXT]

The first two samples of each op, in float32 and bfloat16, without gradients. A child
runs one op after the other; one that dies costs its op only. A difference is a row, and
the last row has the counts by kind.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import subprocess
import sys
import threading
import time

import torch
from card import DRY, EAGER, row

SAMPLES = 2
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# A child that is silent for so long hangs.
HANG = 30.0


# ---- A child ----


def leaves(tree):
    from torch.utils import _pytree as pytree

    return [t for t in pytree.tree_leaves(tree) if isinstance(t, torch.Tensor)]


def outcome(call):
    """The tensors of a call's results on the CPU, or its error."""
    try:
        results = leaves(call())
        return results, [t.cpu() for t in results], None
    except Exception as error:
        return [], [], error


def fatal(error: Exception | None) -> bool:
    return "CUDA error" in str(error) or "device-side assert" in str(error)


def difference(ours, got, theirs, want) -> str:
    """The kind of the first difference, with its text; "" if there is none."""
    import opinfo_compare as compare

    if len(ours) != len(theirs):
        return f"results: {len(ours)} instead of {len(theirs)}"
    for a, b, x, y in zip(ours, theirs, got, want, strict=True):
        if a.dtype != b.dtype:
            return f"dtype: {a.dtype} instead of {b.dtype}"
        if a.shape != b.shape or a.layout != b.layout:
            return f"shape: {tuple(a.shape)} instead of {tuple(b.shape)}"
        if a.layout is not torch.strided:
            x, y = x.to_dense(), y.to_dense()
        else:
            mine, other = compare.significant_strides(a, b)
            if mine != other:
                return f"strides: {mine} instead of {other}"
        x, y = x.resolve_conj().resolve_neg(), y.resolve_conj().resolve_neg()
        if torch.equal(x, y):
            continue
        try:
            torch.testing.assert_close(x, y, equal_nan=True)
        except AssertionError as error:
            return "value: " + " ".join(str(error).split())[:300]
    return ""


def run_op(name: str, dtype_name: str) -> dict[str, object]:
    """Runs an op's samples both ways."""
    import opinfo
    from opinfo_compare import Copier

    op, dtype = opinfo.OPS[name], DTYPES[dtype_name]
    found: dict[str, object] = {"samples": 0}
    known = op.supported_dtypes("cpu") | op.supported_dtypes("cuda")
    if dtype not in known:
        return found
    for number, sample in enumerate(op.sample_inputs("cpu", dtype)):
        if number == SAMPLES:
            break
        tree = (sample.input, sample.args, sample.kwargs)
        runs = []
        for device in ("mycelya", EAGER):
            first, args, kwargs = Copier(torch.device(device)).tree(tree)

            def call(first=first, args=args, kwargs=kwargs):
                opinfo.seed_all()
                with torch.no_grad():
                    return op.op(first, *args, **kwargs)

            runs.append(outcome(call))
        (ours, got, error), (theirs, want, other) = runs
        if fatal(error) or fatal(other):
            found["difference"] = f"fatal: {error or ''} | {other or ''}"[:500]
            return found
        found["samples"] = number + 1
        if other is not None:
            if error is None:
                found["difference"] = f"only eager fails: {str(other)[:200]}"
        elif error is not None:
            found["difference"] = f"error: {type(error).__name__}: {str(error)[:300]}"
        elif not opinfo.is_random(op):
            text = difference(ours, got, theirs, want)
            if text:
                found["difference"] = text
        if "difference" in found:
            found["difference"] = f"{found['difference']} (sample {number})"
            return found
    return found


def serve() -> None:
    """Answers a line of each "op dtype" from stdin."""
    import opinfo

    import mycelya_torch  # noqa: F401

    opinfo.prepare()
    print("ready", flush=True)
    for line in sys.stdin:
        name, dtype = line.split()
        try:
            found = run_op(name, dtype)
        except Exception as error:  # of the database, while it makes a sample
            found = {"samples": 0, "unmade": f"{type(error).__name__}: {error}"[:300]}
        print("@" + json.dumps(found), flush=True)
        if str(found.get("difference", "")).startswith("fatal"):
            os._exit(1)


# ---- The parent ----


class Child:
    """A process that runs ops, and is replaced when it dies."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def answer(self) -> str:
        """The next line of the child's own; "" if it has died."""
        assert self.process.stdout
        clock = threading.Timer(HANG, self.process.kill)
        clock.start()
        try:
            for line in self.process.stdout:
                if line.startswith(("@", "ready")):
                    return line[1:]
            return ""
        finally:
            clock.cancel()

    def ask(self, name: str, dtype: str) -> dict[str, object]:
        assert self.process.stdin
        try:
            self.process.stdin.write(f"{name} {dtype}\n")
            self.process.stdin.flush()
            line = self.answer()
        except BrokenPipeError:
            line = ""
        return json.loads(line) if line else {"samples": 0, "difference": "died: "}

    def lives(self) -> bool:
        return self.process.poll() is None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=2 if DRY else 12)
    parser.add_argument("--seconds", type=float, default=140)
    parser.add_argument("--only", default="")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return serve()
    from torch.testing._internal.common_methods_invocations import op_db

    names = [op.formatted_name for op in op_db if args.only in op.formatted_name]
    step = 25 if DRY and not args.only else 1
    todo = collections.deque((n, d) for n in names[::step] for d in DTYPES)
    total, end = len(todo), time.monotonic() + args.seconds
    counts: collections.Counter[str] = collections.Counter()
    lock = threading.Lock()

    def work() -> None:
        child: Child | None = None
        while time.monotonic() < end:
            with lock:
                if not todo:
                    break
                name, dtype = todo.popleft()
            if child is None or not child.lives():
                child = Child()
                child.answer()
            found = child.ask(name, dtype)
            text = str(found.get("difference", ""))
            kind = text.split(":")[0] if text else "same"
            if not found["samples"] and not text:
                kind = "unmade" if "unmade" in found else "other dtypes"
            with lock:
                counts[kind] += 1
                if text or kind == "unmade":
                    row(name, dtype=dtype, **found)
        if child is not None:
            child.process.kill()

    threads = [threading.Thread(target=work) for _ in range(args.processes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # What eager CUDA itself refuses can't be compared.
    left_out = ("other dtypes", "unmade", "only eager fails")
    compared = sum(n for kind, n in counts.items() if kind not in left_out)
    row(
        "all",
        cases=total,
        left=len(todo),
        share_of_eager=round(counts["same"] / max(1, compared), 4),
        **counts,
    )


if __name__ == "__main__":
    main()
