# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""A small Kubernetes cluster for tests, whose pods run the real worker."""

import json
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path

import torch
from helpers import needs

from mycelya_torch import _load

ROOT = Path(__file__).resolve().parent.parent.parent


def build(folder: Path) -> Path:
    """Builds the program of tests/cluster, and returns its path."""
    out = folder / "cluster"
    needs("go")
    go = ["go", "build", "-o", str(out), "./tests/cluster"]
    subprocess.run(go, cwd=ROOT, check=True)
    return out


class Cluster:
    """A running cluster."""

    def __init__(self, program: Path, folder: Path) -> None:
        self.program = program
        lib = Path(torch.__file__).parent / "lib"
        command = [program, "--worker", _load.WORKER, "--exec", _load.EXEC]
        self.process = subprocess.Popen(
            [*map(str, command), "--torch-lib", str(lib), "--folder", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        line = json.loads(self.process.stdout.readline())
        self.kubeconfig, self.control = line["kubeconfig"], line["control"]

    def close(self) -> None:
        """Ends the cluster and its pods."""
        self.process.communicate(timeout=60)

    def ask(self, path: str, **values: str):
        """Asks the interface for tests; see tests/cluster."""
        url = f"{self.control}/{path}?{urllib.parse.urlencode(values)}"
        post = None if path == "state" else b""
        with urllib.request.urlopen(url, data=post, timeout=60) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def pods(self) -> list[str]:
        """The names of the pods."""
        objects = self.ask("state")["objects"]
        return [o.rsplit("/", 1)[1] for o in objects if o.startswith("pods/")]

    def wait(self, holds) -> None:
        """Waits until `holds(state)`."""
        end = time.monotonic() + 120
        while not holds(self.ask("state")):
            assert time.monotonic() < end, self.ask("state")
            time.sleep(0.05)

    def sweep(self) -> list[dict]:
        """Ends the machines that no process uses, and returns what was found."""
        done = subprocess.run(
            [str(self.program), "--sweep"], capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout) or []
