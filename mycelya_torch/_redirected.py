# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""What `mycelya run --as-cuda` has redirected: counts by kind and line."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections import Counter

import torch

_ROWS = 20  # of the report

_INTERNAL = tuple(
    os.path.dirname(os.path.realpath(file)) + os.sep
    for file in (torch.__file__, __file__)
)
# Their functions stand between a decorated function and its caller.
_DECORATORS = {"contextlib.py", "functools.py", "typing_extensions.py"}
_counts: Counter[tuple[str, str, int]] = Counter()  # by kind, file and line
_lock = threading.Lock()
_internal: dict[str, bool] = {}  # by file


def _is_internal(file: str) -> bool:
    known = _internal.get(file)
    if known is None:
        known = file.startswith("<") or os.path.basename(file) in _DECORATORS
        known = known or os.path.realpath(file).startswith(_INTERNAL)
        _internal[file] = known
    return known


def count(what: str) -> None:
    """Counts a redirection at the innermost line outside torch and this package.

    What torch asks by itself, as for the seed of all devices, is not counted.
    """
    if torch.compiler.is_compiling():  # torch.compile cannot trace what follows
        return
    frame = sys._getframe(1)
    while frame.f_code.co_filename == __file__ or _is_ours(frame.f_code.co_filename):
        if frame.f_back is None:
            return
        frame = frame.f_back
    by_torch = what.startswith(("torch.cuda.", "torch.is_", "torch.get_"))
    while _is_internal(frame.f_code.co_filename):
        if by_torch or frame.f_back is None:
            return
        frame = frame.f_back
    with _lock:
        _counts[what, frame.f_code.co_filename, frame.f_lineno] += 1


def _is_ours(file: str) -> bool:
    return os.path.dirname(file) == os.path.dirname(__file__)


def report() -> str:
    """The table: the most frequent redirections first."""
    with _lock:
        rows = _counts.most_common()
    total = sum(n for _, n in rows)
    lines = [
        f'mycelya run --as-cuda: "cuda" was the mycelya device {total} '
        f"{'time' if total == 1 else 'times'}, at {len(rows)} "
        f"{'place' if len(rows) == 1 else 'places'}" + (":" if rows else ".")
    ]
    shown = [(str(n), what, f"{_short(f)}:{line}") for (what, f, line), n in rows]
    shown = shown[:_ROWS]
    widths = [max((len(row[i]) for row in shown), default=0) for i in (0, 1)]
    for n, what, place in shown:
        lines.append(f"  {n:>{widths[0]}}  {what:<{widths[1]}}  {place}")
    if len(rows) > _ROWS:
        rest = sum(n for _, n in rows[_ROWS:])
        lines.append(f"  and {rest} times at {len(rows) - _ROWS} other places")
    return "\n".join(lines)


def _short(file: str) -> str:
    """A path from the nearest of: this folder, the folders of modules."""
    prefixes = [os.path.join(folder, "") for folder in (os.getcwd(), *sys.path)]
    fitting = [p for p in prefixes if p and file.startswith(p)]
    return file[len(max(fitting, key=len, default="")) :]


def report_at_exit() -> None:
    """Prints the report to stderr when the process ends."""
    process = os.getpid()

    def last() -> None:
        if os.getpid() == process and sys.stderr is not None:
            sys.stdout.flush()
            print(report(), file=sys.stderr)

    atexit.register(last)
