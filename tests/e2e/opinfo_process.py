# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Runs cases in a child process, so that a crash or a hang costs only one case.

The child runs this file as a script. It is forked from a process that has imported the
database, since that takes most of a child's start. It reads requests from stdin and
writes answers to stdout, both as lines of JSON. It reports each step before it starts
the step. The parent therefore knows the step at which the child crashed or hung.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import selectors
import signal
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import preloaded
from helpers import ROOT
from opinfo import BATCH, DTYPES, OPS, Outcome, Runner, WorkerDied, cases_of, prepare

DATABASE = "torch.testing._internal.common_methods_invocations"
HANG = 60.0  # seconds without an answer; the slowest case takes about two
START = 120.0  # the same while PyTorch is imported
GIVE_UP = 5  # crashes and hangs in one category after which its other cases are skipped


class Ended(Exception):
    """The child crashed or hung: (kind, the step, the reason)."""


class CaseProcess:
    """A child process with its own worker. It restarts after an op ended it."""

    def __init__(self, check: str) -> None:
        self.check = check  # MYCELYA_CHECK
        self.process: preloaded.Process | None = None

    def run(self, op: str, dtype: str, category: str, cap: int) -> Outcome:
        """Runs the cases of one category of one op in one dtype."""
        outcome = Outcome()
        size = BATCH
        batch: Ended | None = None  # how a batch ended the child
        while True:
            request = {"op": op, "dtype": dtype, "category": category, "cap": cap}
            request |= {"skip": outcome.cases, "size": size}
            try:
                self._ask(request, outcome)
                if batch is not None and not outcome.crashes + outcome.hangs:
                    self._note(outcome, batch, " (in a batch, not alone)")
                return outcome
            except Ended as ended:
                self.stop()
                if size > 1:
                    size, batch = 1, ended  # repeat the batch one by one
                    continue
                outcome.cases += 1
                self._note(outcome, ended)
                if len(outcome.hangs + outcome.crashes) == GIVE_UP:
                    outcome.failures.append(("the remaining cases", "left out"))
                    return outcome

    def _note(self, outcome: Outcome, ended: Ended, how: str = "") -> None:
        kind, where, why = ended.args
        kept = outcome.hangs if kind == "hang" else outcome.crashes
        kept.append((where + how, why))

    def _ask(self, request: dict[str, Any], outcome: Outcome) -> None:
        if self.process is None:
            self._start()
        self._send(request)
        where = "the samples"
        while True:
            answer = self._receive(HANG, where)
            if "at" in answer:
                where = answer["at"]
            elif "batch" in answer:
                outcome.add(Outcome(**answer["batch"]))
            elif "died" in answer:
                raise Ended("crash", where, "the worker ended: " + answer["died"])
            else:
                return

    def _start(self) -> None:
        path = os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(ROOT)])
        environment = {**os.environ, "PYTHONPATH": path.lstrip(os.pathsep)}
        environment["MYCELYA_CHECK"] = self.check
        environment["OMP_NUM_THREADS"] = "1"  # small tensors, and several children
        self.log = tempfile.TemporaryFile()
        self.process = preloaded.start(
            [str(Path(__file__).resolve())],
            environment,
            modules=(DATABASE,),
            stdin=True,
            stderr=self.log.fileno(),
        )
        self.read = selectors.DefaultSelector()
        self.read.register(self.process.stdout, selectors.EVENT_READ)
        self.lines: list[bytes] = []
        self.rest = b""
        self._receive(START, "the start")

    def _send(self, request: dict[str, Any]) -> None:
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise Ended("crash", "between two ops", self._why()) from None

    def _receive(self, seconds: float, where: str) -> dict[str, Any]:
        end = time.monotonic() + seconds
        while not self.lines:
            if not self.read.select(max(end - time.monotonic(), 0)):
                raise Ended("hang", where, f"no answer for {seconds:.0f} s")
            data = os.read(self.process.stdout.fileno(), 1 << 16)
            if not data:
                raise Ended("crash", where, self._why())
            *self.lines, self.rest = (self.rest + data).split(b"\n")
        return json.loads(self.lines.pop(0))

    def _why(self) -> str:
        status = self.process.wait()
        self.log.seek(0)
        log = " ".join(self.log.read().decode(errors="replace").split())
        return f"the process ended with {status}: {log[-300:]}"

    def stop(self) -> None:
        """Ends the child and its worker."""
        if self.process is None:
            return
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.communicate()
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.read.close()
        self.log.close()
        self.process = None


# ---- The child ----


def answers() -> Any:
    """The real stdout, as a file. Output of ops goes to stderr instead."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return out


def serve() -> None:
    warnings.simplefilter("ignore")
    prepare()
    out = answers()

    def say(**answer: Any) -> None:
        out.write(json.dumps(answer) + "\n")

    say(ready=True)
    for line in sys.stdin:
        ask = json.loads(line)
        op, dtype = OPS[ask["op"]], DTYPES[ask["dtype"]]
        category = ask["category"]
        cases, broken = cases_of(op, dtype, category, ask["cap"])
        try:
            runner = Runner(op, dtype, category, lambda step: say(at=step))
            for outcome in runner.batches(cases[ask["skip"] :], ask["size"]):
                say(batch=dataclasses.asdict(outcome))
        except WorkerDied as died:
            say(died=str(died))
            return
        if broken:
            say(batch=dataclasses.asdict(Outcome(failures=broken)))
        say(end=True)


if __name__ == "__main__":
    serve()
