# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Child processes of a benchmark, one for each configuration, that take turns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any


class Child:
    """A process that runs the same script with --child and these arguments."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, sys.argv[0], "--child", *arguments],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, *question: Any) -> Any:
        """Calls the child's function with these arguments and returns its result."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def serve(answer: Callable[..., Any]) -> None:
    """In the child: calls answer for each question until the parent ends."""
    for line in sys.stdin:
        print(json.dumps(answer(*json.loads(line))), flush=True)
