# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Runs the tests as CI does, and tells a defect from a chance failure.

    python scripts/tests.py                      all parts
    python scripts/tests.py go python            some parts
    python scripts/tests.py python -- -m fast    more arguments of pytest or `go test`
    python scripts/tests.py --rounds 3 --busy 2 go python     looks for chance failures

A test that fails runs once more, alone. If it passes then, it is FLAKY: a table at the
end names it with its first failure. The run fails if a test fails twice, if more than
ten fail at first, or if another part fails. With --rounds the parts run several times,
beside busy processes, nothing runs again, and each failure counts.

build/tests, or the folder MYCELYA_TESTS, has the output of each part and the report.
"""

from __future__ import annotations

import argparse
import collections
import functools
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUT = Path(os.environ.get("MYCELYA_TESTS") or ROOT / "build" / "tests")
GOTESTSUM = "gotest.tools/gotestsum@v1.13.0"
RERUNS = 10
# The packages of Go with the longest tests begin first.
LONGEST = ["./runtime/provider/modal", "./runtime/provider/ssh", "./worker"]
# The parts of one row run side by side. The tests of "go" and "python" wait for
# processes, so nothing runs beside them.
ROWS = [["check", "cpp"], ["go"], ["attacks"], ["python"]]


@dataclass
class Result:
    """What a part has found. Failures are names of tests, with their first message."""

    name: str
    passed: bool = False
    seconds: float = 0.0
    first: dict[str, str] = field(default_factory=dict)  # failed once
    twice: dict[str, str] = field(default_factory=dict)  # failed again, or was not run

    @property
    def flaky(self) -> dict[str, str]:
        return {k: v for k, v in self.first.items() if k not in self.twice}


def run(name: str, *command: str | Path, live: bool) -> tuple[int, str]:
    """Runs a command; returns its exit status and its output, which is in a log too."""
    lines = []
    # Without CI, pytest shortens the messages of its summary. The tests start hundreds
    # of processes of Python: without bytecode each of them compiles torch's modules.
    environment = {"RAPID_SEED": "1", "CI": "true", **os.environ}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    beside = Path(sys.executable).parent
    environment["PATH"] = f"{beside}{os.pathsep}{environment['PATH']}"
    with (OUT / f"{name}.log").open("a") as log:
        process = subprocess.Popen(
            [str(c) for c in command],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        assert process.stdout
        for line in process.stdout:
            log.write(line)
            log.flush()
            lines.append(line)
            if live:
                print(line, end="", flush=True)
    text = "".join(lines)
    if not live:
        print(text, end="", flush=True)
    return process.wait(), text


def check(result: Result, live: bool, again: bool, more: list[str]) -> None:
    result.passed = run("check", "scripts/check.sh", live=live)[0] == 0


def cpp(result: Result, live: bool, again: bool, more: list[str]) -> None:
    tries = ["--repeat", "until-pass:2"] if again else []
    code, text = run("cpp", "scripts/test_cpp.sh", *tries, *more, live=live)
    result.passed = code == 0
    tests = r"^ *\d+/\d+ Test +#\d+: (\S+) \.* *(.*?) +[\d.]+ sec"
    for name, state in re.findall(tests, text, re.M):
        if not state.endswith("Passed"):
            (result.twice if name in result.first else result.first)[name] = state
    if not again:
        result.twice = result.first


def attacks(result: Result, live: bool, again: bool, more: list[str]) -> None:
    """Its programs have fixed seeds, but a network that fails, and many processes."""
    code, text = run("attacks", "scripts/hostile.sh", *more, live=live)
    if code:
        result.first["scripts/hostile.sh"] = (text.splitlines() or [""])[-1]
        if again:
            code, text = run("attacks", "scripts/hostile.sh", *more, live=live)
        if code:
            result.twice = result.first
    result.passed = code == 0


def go_failures(events: Path) -> tuple[dict[str, str], dict[str, str]]:
    """The failures of a file of `go test -json`: at first, and for good.

    A package that fails without a failed test, as by a panic, was not run again.
    """
    outputs: dict[str, list[str]] = collections.defaultdict(list)
    first: dict[str, str] = {}
    twice: dict[str, str] = {}
    tests: set[str] = set()  # packages with a failed test
    for line in events.read_text(errors="replace").splitlines():
        event = json.loads(line)
        package, test = event.get("Package", ""), event.get("Test", "").split("/")[0]
        name = f"{package} {test}".strip()
        if event["Action"] == "output":
            outputs[name].append(event["Output"])
        elif event["Action"] == "fail" and "/" not in event.get("Test", ""):
            if not test and package in tests:
                continue
            tests.add(package)
            # The location and text of the first failed check.
            text = "".join(outputs.pop(name, []))
            found = re.search(r"^ *\S+\.go:\d+:.*|^panic:.*", text, re.M)
            message = found.group().strip() if found else text.strip()[-200:]
            if "Error:" in text:
                message += " " + text.split("Error:", 1)[1].strip().split("\n")[0]
            if name in first or not test:
                twice[name] = message
            first.setdefault(name, message)
    return first, twice


def go(result: Result, live: bool, again: bool, more: list[str]) -> None:
    events = OUT / "go.json"
    options = ["--format", "pkgname", "--jsonfile", str(events), "--packages"]
    packages = [a for a in more if a.startswith("./")]
    options.append(" ".join(packages or [*LONGEST, "./..."]))
    if again:
        reruns = ["--rerun-fails=1", "--rerun-fails-run-root-test"]
        options = [*reruns, f"--rerun-fails-max-failures={RERUNS}", *options]
    # A package takes minutes at most; a test that hangs ends with all stacks.
    # Some packages wait most of the time, so four run at once, or one a processor.
    side = str(max(4, os.cpu_count() or 1))
    rest = [a for a in more if not a.startswith("./")]
    rest = ["--", "-timeout", "40m", "-p", side, *rest]
    if not again:
        rest.append("-count=1")  # no results of former runs
    code, _ = run("go", "go", "run", GOTESTSUM, *options, *rest, live=live)
    result.first, result.twice = go_failures(events)
    if code and not result.twice:  # nothing was run again
        result.twice = result.first
    result.passed = code == 0 and not result.twice


def python_failures(text: str) -> dict[str, str]:
    """The tests of pytest's summary that failed, with their messages."""
    found = re.findall(
        r"^(?:FAILED|ERROR) (tests/\S+(?:\[.*?\])?)(?: - (.*))?$", text, re.M
    )
    return dict(found)


def python(result: Result, live: bool, again: bool, more: list[str]) -> None:
    pytest = [sys.executable, "-m", "pytest", "-o", f"cache_dir={OUT}/pytest"]
    tests = [] if any(a.startswith("tests/") for a in more) else ["tests/e2e"]
    # Two processors take this number: some tests wait for processes that they start.
    workers = ["-n", "3", "--dist", "worksteal", "--durations=25", "--cache-clear"]
    code, text = run("python", *pytest, *tests, *workers, *more, live=live)
    result.passed = code == 0
    result.first = result.twice = python_failures(text)
    if code == 1 and again and 0 < len(result.first) <= RERUNS:
        last = ["--last-failed", "--last-failed-no-failures=none", "-n", "0"]
        code, text = run("python", *pytest, *tests, *more, *last, live=live)
        result.twice = python_failures(text)
        result.passed = code == 0


PARTS: dict[str, Callable[[Result, bool, bool, list[str]], None]] = {
    "check": check,
    "cpp": cpp,
    "go": go,
    "attacks": attacks,
    "python": python,
}


def part(name: str, live: bool, again: bool, more: list[str]) -> Result:
    result = Result(name)
    began = time.monotonic()
    PARTS[name](result, live, again, more)
    result.seconds = time.monotonic() - began
    return result


def run_parts(names: list[str], again: bool, more: list[str]) -> Iterator[Result]:
    for row in ROWS:
        wanted = [name for name in row if name in names]
        run_part = functools.partial(
            part, live=len(wanted) == 1, again=again, more=more
        )
        with ThreadPoolExecutor() as pool:
            yield from pool.map(run_part, wanted)


def table(title: str, rows: dict[str, str]) -> list[str]:
    return [f"{title}: {len(rows)}", *(f"  {k}\n      {v}" for k, v in rows.items())]


def report(results: list[Result]) -> tuple[bool, str]:
    lines = [f"{r.name:8} {r.seconds:7.0f} s  {'' if r.passed else 'FAILED'}".rstrip()
             for r in results]  # fmt: skip
    flaky = {k: v for r in results for k, v in r.flaky.items()}
    twice = {k: v for r in results for k, v in r.twice.items()}
    good = all(r.passed for r in results)
    if flaky:
        lines += table("FLAKY, passed when run again, alone", flaky)
    if twice:
        lines += table("FAILED", twice)
    if len(flaky) + len(twice) > RERUNS:
        lines.append(f"More than {RERUNS} tests failed at first.")
        good = False
    lines.append("tests: passed" if good else "tests: FAILED")
    return good, "\n".join(lines) + "\n"


def look_for_chance(names: list[str], rounds: int, busy: int, more: list[str]) -> bool:
    """Runs parts several times beside busy processes; prints what failed how often."""
    loops = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(busy)
    ]
    failed: collections.Counter[str] = collections.Counter()
    first: dict[str, str] = {}
    try:
        for _ in range(rounds):
            for result in run_parts(names, False, more):
                found = result.first or ({} if result.passed else {result.name: ""})
                failed.update(found.keys())
                first = {**found, **first}
    finally:
        for loop in loops:
            loop.kill()
    counts = {f"{n} of {rounds}  {name}": first[name] for name, n in failed.items()}
    print("\n".join(table(f"Failed beside {busy} busy processes", counts)))
    return not failed


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", help=", ".join(PARTS))
    parser.add_argument("--rounds", type=int, help="run so often, nothing again")
    parser.add_argument("--busy", type=int, default=0, help="busy processes beside")
    own, more = sys.argv[1:], []
    if "--" in own:
        at = own.index("--")
        own, more = own[:at], own[at + 1 :]
    args = parser.parse_args(own)
    names = args.parts or list(PARTS)
    for name in names:
        if name not in PARTS:
            parser.error(f"no part {name!r}; there are {', '.join(PARTS)}")
    if more and len(names) > 1:
        parser.error(f"{shlex.join(more)}: arguments after -- need exactly one part")
    OUT.mkdir(parents=True, exist_ok=True)
    for log in OUT.glob("*.log"):
        log.unlink()
    if args.rounds:
        return 0 if look_for_chance(names, args.rounds, args.busy, more) else 1
    good, text = report(list(run_parts(names, True, more)))
    (OUT / "report.txt").write_text(text)
    print(text, end="")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
