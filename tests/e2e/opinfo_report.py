# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""The report of the op database suite: `--summary` prints it and writes COVERAGE.md."""

from __future__ import annotations

import collections
import dataclasses
import json
import re
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from opinfo import CATEGORIES, DTYPES, OPS, Outcome, dtypes_of
from opinfo_skips import DIFFERENCES, ON_THE_CPU, SKIPPED, UNINITIALISED

FILE = Path(__file__).with_name("COVERAGE.md")
COLUMNS = 120  # of prose; a row of a table is one line
LETTERS = dict(zip(CATEGORIES, "frgsionze", strict=True))
SHORT = {
    "float32": "f32",
    "float64": "f64",
    "bfloat16": "bf16",
    "float16": "f16",
    "int64": "i64",
    "int32": "i32",
    "int8": "i8",
    "uint8": "u8",
    "bool": "bool",
    "complex64": "c64",
    "complex128": "c128",
}
# (op, dtype) -> category -> outcome of its cases.
Results = dict[tuple[str, str], dict[str, Outcome]]


def pack(name: str, dtype: str, outcomes: dict[str, Outcome]) -> str:
    """The outcomes of one test as a property of its report."""
    as_dicts = {c: dataclasses.asdict(o) for c, o in outcomes.items()}
    return json.dumps({"op": name, "dtype": dtype, "outcomes": as_dicts})


def unpack(reports: Iterable[Any]) -> Results:
    """The outcomes that the reports of test_op carry."""
    results: Results = {}
    for report in reports:
        for key, value in report.user_properties:
            if key == "opinfo":
                found = json.loads(value)
                results[found["op"], found["dtype"]] = {
                    c: Outcome(**o) for c, o in found["outcomes"].items()
                }
    return results


def status(category: str, outcome: Outcome) -> str:
    """pass, fail, crash, hang, refused (both sides raised), or none (no cases)."""
    if outcome.crashes:
        return "crash"
    if outcome.hangs:
        return "hang"
    if outcome.failures:
        return "fail"
    if outcome.cases == 0:
        return "none"
    if outcome.refused == outcome.cases and category != "errors":
        return "refused"
    return "pass"


def bad(outcome: Outcome) -> list[tuple[str, str, str]]:
    """(kind, case, text) of each case that did not pass."""
    kinds = {"fail": "failures", "crash": "crashes", "hang": "hangs"}
    return [
        (kind, where, text)
        for kind, field in kinds.items()
        for where, text in getattr(outcome, field)
    ]


class Tally:
    """Counts passes. Categories that both sides refuse do not count."""

    def __init__(self) -> None:
        self.passed = self.counted = 0

    def add(self, states: Iterable[str]) -> None:
        states = [s for s in states if s not in ("none", "refused")]
        self.counted += bool(states)
        self.passed += bool(states) and all(s == "pass" for s in states)

    def __str__(self) -> str:
        return f"{self.passed} / {self.counted}" if self.counted else ""

    def percent(self) -> str:
        return f"{100 * self.passed / self.counted:.2f} %" if self.counted else ""


def table(results: Results) -> list[list[str]]:
    """Rows: each dtype, then the total. Columns: whole ops, then each category."""
    rows = [["dtype", "ops", "%", *CATEGORIES]]
    total = collections.defaultdict(Tally)
    for dtype in DTYPES:
        row = collections.defaultdict(Tally)
        for (_, of), outcomes in results.items():
            if of != dtype:
                continue
            states = {c: status(c, o) for c, o in outcomes.items()}
            for tallies in (row, total):
                tallies["ops"].add(states.values())
                for category, state in states.items():
                    tallies[category].add([state])
        if row:
            rows.append(_row(dtype, row))
    rows.append(_row("all", total))
    return rows


def _row(name: str, tallies: dict[str, Tally]) -> list[str]:
    whole = tallies["ops"]
    return [name, str(whole), whole.percent(), *(str(tallies[c]) for c in CATEGORIES)]


def counts(results: Results) -> str:
    every = [o for outcomes in results.values() for o in outcomes.values()]
    cases = sum(o.cases for o in every)
    return (
        f"{cases} cases: {sum(o.exact for o in every)} the same bit for bit, "
        f"{sum(len(o.close) for o in every)} within tolerance, "
        f"{sum(o.refused for o in every)} raised on either side, "
        f"{sum(len(o.differing) for o in every)} follow CUDA instead, "
        f"{sum(len(o.failures) for o in every)} failures, "
        f"{sum(len(o.crashes) for o in every)} crashes, "
        f"{sum(len(o.hangs) for o in every)} hangs"
    )


def failures(results: Results) -> Iterator[str]:
    """One line for each op, dtype and category that failed, with its first case."""
    for (name, dtype), outcomes in sorted(results.items()):
        for category, outcome in outcomes.items():
            found = bad(outcome)
            if found:
                kind, where, text = found[0]
                more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
                yield f"{kind} {name} {dtype} {category}: {where}: {steady(text)}{more}"


def steady(text: str) -> str:
    """A message without addresses and machine numbers, which differ in each run."""
    text = re.sub(r"0x[0-9a-f]+|\blocal:\d+", "…", text)
    return text if len(text) <= 300 else text[:300] + "…"


def lines(results: Results) -> Iterator[str]:
    """The lines that are printed at the end of a run."""
    rows = table(results)
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True))
    yield counts(results)
    yield from failures(results)


def summarise(reporter: Any) -> None:
    """Prints the tables at the end of a pytest run, and writes a complete COVERAGE.md.

    With pytest-xdist this runs in the controller, which receives all reports.
    """
    reports = [r for rs in reporter.stats.values() for r in rs]
    reports = [r for r in reports if getattr(r, "when", None) == "call"]
    results = unpack(reports)
    reporter.section("op database")
    for line in lines(results):
        reporter.write_line(line)
    # A test has no properties if its pytest process ended.
    for report in reporter.stats.get("failed", []):
        if "test_op[" in report.nodeid and not report.user_properties:
            reporter.write_line(f"no result: {report.nodeid}")
    if is_complete(results):
        write(results)
        reporter.write_line(f"wrote {FILE}")
    else:
        reporter.write_line("not every op and dtype ran: COVERAGE.md stays as it was")


# ---- COVERAGE.md ----


def is_complete(results: Results) -> bool:
    """Whether every op ran in every dtype that it supports."""
    return all(
        (name, dtype) in results for name, op in OPS.items() for dtype in dtypes_of(op)
    )


def write(results: Results) -> None:
    FILE.write_text("".join(line + "\n" for line in document(results)))


def document(results: Results) -> Iterator[str]:
    licence = "SPDX-License-Identifier: AGPL-3.0-or-later"
    yield f"<!-- Copyright (C) 2026 The Mycelya Authors. {licence} -->"
    yield ""
    yield "# The op database on the device"
    yield ""
    yield "Made by `pytest tests/e2e/test_opinfo.py --summary`; see README.md there."
    yield ""
    yield "Ops that pass in all their categories, and categories that pass:"
    yield ""
    yield from _markdown(table(results))
    yield ""
    yield from textwrap.wrap(counts(results) + ".", COLUMNS)
    yield ""
    yield "## Failures"
    yield ""
    found = list(failures(results))
    for line in found:
        item = f"- `{line.replace('`', '')}`"
        yield from textwrap.wrap(item, COLUMNS, subsequent_indent="  ")
    yield "" if found else "None."
    yield ""
    yield "## Left out"
    yield ""
    rows = [["op", "category", "form", "reason"]]
    for (name, category, form), reason in sorted(SKIPPED.items()):
        rows.append([name, category or "all", form or "all", reason])
    for (name, category), reason in sorted(UNINITIALISED.items()):
        rows.append([name, category, "values", reason])
    for name, reason in sorted(ON_THE_CPU.items()):
        rows.append([name, "all", "indices on the device", reason])
    yield from _markdown(rows)
    yield ""
    yield "## Where CUDA differs from the CPU"
    yield ""
    yield "The device does what CUDA does."
    yield ""
    rows = [["op", "category", "difference", "reason"]]
    for (name, category), (what, reason) in sorted(DIFFERENCES.items()):
        rows.append([name, category, f"`{what}`", reason])
    yield from _markdown(rows)
    yield ""
    yield "## Within tolerance, not bit for bit"
    yield ""
    yield from _markdown(list(_close(results)))
    yield ""
    yield "## What CPU PyTorch refuses"
    yield ""
    yield "Each case of these raises on the CPU, and the same type on the device."
    yield ""
    yield from _markdown(list(_refused(results)))
    yield ""
    yield "## Ops"
    yield ""
    letters = ", ".join(f"{letter} {c}" for c, letter in LETTERS.items())
    text = (
        f"A letter is a category that passes: {letters}. A category that fails is in "
        "bold capitals, one that CPU PyTorch refuses in parentheses. An empty field is "
        "a dtype that the op has neither on the CPU nor on CUDA."
    )
    yield from textwrap.wrap(text, COLUMNS)
    yield ""
    rows = [["op", *SHORT.values()]]
    for name in OPS:
        cells = (_cell(results.get((name, dtype))) for dtype in SHORT)
        rows.append([name, *cells])
    yield from _markdown(rows)


def _cell(outcomes: dict[str, Outcome] | None) -> str:
    by_state: dict[str, str] = collections.defaultdict(str)
    for category, outcome in (outcomes or {}).items():
        state = status(category, outcome)
        state = "fail" if state in ("crash", "hang") else state
        by_state[state] += LETTERS[category]
    text = by_state["pass"]
    if by_state["fail"]:
        text += f" **{by_state['fail'].upper()}**"
    if by_state["refused"]:
        text += f" ({by_state['refused']})"
    return text.strip()


def _close(results: Results) -> Iterator[list[str]]:
    """Rows of op, and its inexact cases: dtype, category, count."""
    yield ["op", "cases"]
    by_op: dict[str, list[str]] = collections.defaultdict(list)
    for (name, dtype), outcomes in sorted(results.items()):
        for category, outcome in outcomes.items():
            if outcome.close:
                n = len(outcome.close)
                by_op[name].append(f"{SHORT[dtype]} {category} {n}")
    for name, found in by_op.items():
        yield [name, ", ".join(found)]


def _refused(results: Results) -> Iterator[list[str]]:
    """Rows of op, dtypes, categories and the CPU's error."""
    yield ["op", "dtypes", "categories", "with"]
    groups: dict[tuple[str, str], tuple[list[str], list[str]]] = {}
    for (name, dtype), outcomes in sorted(results.items()):
        for category, outcome in outcomes.items():
            if status(category, outcome) == "refused":
                text = re.sub(r"'\w+'$", "…", steady(outcome.refusals[0])[:120])
                dtypes, categories = groups.setdefault((name, text), ([], []))
                if SHORT[dtype] not in dtypes:
                    dtypes.append(SHORT[dtype])
                if category not in categories:
                    categories.append(category)
    for (name, text), (dtypes, categories) in groups.items():
        yield [name, " ".join(dtypes), " ".join(categories), text]


def _markdown(rows: list[list[str]]) -> Iterator[str]:
    for i, row in enumerate(rows):
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"
        if i == 0:
            yield "|" + "---|" * len(row)
