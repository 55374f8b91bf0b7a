# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Workers behind a network that fails or is slow; see tests/faults."""

import json
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
TCP = {"MYCELYA_MACHINE": "local:cpu?transport=tcp"}


def build(folder: Path) -> Path:
    """Builds the program of tests/faults, and returns its path."""
    out = folder / "faults"
    go = ["go", "build", "-o", str(out), "./tests/faults"]
    subprocess.run(go, cwd=ROOT, check=True)
    return out


class Network:
    """A worker behind a network that fails, and toxiproxy's HTTP interface."""

    def __init__(self, faults: Path, folder: Path, *options: str) -> None:
        from mycelya_torch import _load

        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        # A script, because the client passes no arguments of ours to the worker.
        self.worker = folder / "worker"
        self.worker.write_text(
            f'#!/bin/sh\nexec "{faults}" --worker "{_load.WORKER}" --api {self.port} '
            f'{" ".join(options)} -- "$@"\n'
        )
        self.worker.chmod(0o700)

    def ask(self, path: str, **values) -> None:
        """Sends a request with a JSON object, until the interface answers."""
        url = f"http://127.0.0.1:{self.port}/{path}"
        request = urllib.request.Request(url, json.dumps(values).encode())
        for _ in range(100):
            try:
                urllib.request.urlopen(request, timeout=5).close()
                return
            except ConnectionRefusedError:
                time.sleep(0.05)
        raise AssertionError("toxiproxy does not answer")
