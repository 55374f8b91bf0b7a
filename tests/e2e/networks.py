# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Workers behind a network that fails or is slow; see tests/faults."""

import json
import subprocess
import urllib.request
from pathlib import Path

from helpers import needs

ROOT = Path(__file__).resolve().parent.parent.parent
TCP = {"MYCELYA_MACHINE": "local:cpu?transport=tcp"}


def build(folder: Path, name: str = "faults") -> Path:
    """Builds the program of a folder of tests; returns its path."""
    out = folder / name
    needs("go")
    go = ["go", "build", "-o", str(out), f"./tests/{name}"]
    subprocess.run(go, cwd=ROOT, check=True)
    return out


class Network:
    """A worker behind a network that fails, and the interface that cuts it."""

    def __init__(self, faults: Path, folder: Path, *options: str) -> None:
        from mycelya_torch import _load

        self.address = folder / "api"  # of the interface, when the worker runs
        # A script, because the client passes no arguments of ours to the worker.
        self.worker = folder / "worker"
        self.worker.write_text(
            f'#!/bin/sh\nexec "{faults}" --worker "{_load.WORKER}" '
            f'--api "{self.address}" {" ".join(options)} -- "$@"\n'
        )
        self.worker.chmod(0o700)

    def ask(self, path: str, **values) -> None:
        """Sends a request with a JSON object; a client uses the worker already."""
        url = f"http://{self.address.read_text()}/{path}"
        request = urllib.request.Request(url, json.dumps(values).encode())
        urllib.request.urlopen(request, timeout=60).close()
