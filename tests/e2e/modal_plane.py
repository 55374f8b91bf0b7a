# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""A control plane of Modal on the loopback interface; see runtime/provider/modal."""

import json
import os
import subprocess
import sys
from pathlib import Path

from helpers import ROOT, needs


def build(folder: Path) -> Path:
    """Builds the program of the plane, and returns its path."""
    out = folder / "fakeplane"
    package = "./tests/fakeplane"
    needs("go")
    subprocess.run(["go", "build", "-o", str(out), package], cwd=ROOT, check=True)
    return out


class Plane:
    """A plane. Its sandboxes are processes of this host, with this environment's torch.

    Attributes:
        environment: the variables with which a client uses the plane, and nothing else.
    """

    def __init__(self, program: Path, folder: Path, *more: str) -> None:
        folder.mkdir()
        # The program python3 of the sandboxes is this one, which has torch.
        programs = folder.parent / "programs"
        programs.mkdir()
        (programs / "python3").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        (programs / "python3").chmod(0o700)
        path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        self.process = subprocess.Popen(
            [str(program), "--folder", str(folder), "--path", path, *more],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.environment = json.loads(self.process.stdout.readline())
        empty = folder.parent / "home"
        empty.mkdir()
        for name in ("HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
            self.environment[name] = str(empty)

    def ask(self, do: str, **values) -> dict:
        """Sends a request; see tests/fakeplane."""
        assert self.process.stdin is not None and self.process.stdout is not None
        print(json.dumps({"do": do, **values}), file=self.process.stdin, flush=True)
        answer = json.loads(self.process.stdout.readline())
        assert "error" not in answer, answer
        return answer

    def running(self) -> list[str]:
        """The sandboxes that have not ended, oldest first."""
        return self.ask("list")["running"] or []

    def close(self) -> None:
        """Ends the plane and its sandboxes."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(timeout=60) == 0
