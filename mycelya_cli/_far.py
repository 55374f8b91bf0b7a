# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""run --rtt: a script behind an emulated network, and what the distance costs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from mycelya_cli import _paths, _show

# How many lines of the script the summary has.
_LINES = 10


def _machine(machine: str, network: Sequence[str]) -> str:
    """A local machine with options, as in MYCELYA_MACHINE."""
    provider, options = _paths.options_of(machine)
    if provider != "local" or options:
        raise click.UsageError(
            "--rtt and --rate emulate a network before a local worker, and the "
            f"machine is {machine!r}. Use 'local', 'local:cpu' or 'local:cuda:0'."
        )
    return f"{machine}?{'&'.join(network)}"


def _run(
    machine: str, program: Sequence[str], quiet: bool
) -> tuple[int, dict[str, Any] | None]:
    """Runs a script on a machine; returns its exit code, and what it has cost."""
    code = "import sys; from mycelya_torch import _summary; _summary.main(sys.argv[1:])"
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        done = subprocess.run(
            [sys.executable, "-P", "-c", code, str(report), *program],
            env={**os.environ, "MYCELYA_MACHINE": machine},
            stdout=subprocess.DEVNULL if quiet else None,
        )
        cost = json.loads(report.read_text()) if report.exists() else None
    return done.returncode, cost


def run(
    machine: str, rtt: str | None, rate: str | None, once: bool, program: Sequence[str]
) -> int:
    """Runs a script behind a network and without it; returns the first exit code."""
    given = {"rtt": rtt, "rate": rate}
    network = []
    for name, value in given.items():
        if value:
            _paths.check_option("local", name, value)
            network.append(f"{name}={value}")
    far = _machine(machine, network)
    near = _machine(machine, ["transport=tcp"])
    code, cost = _run(far, program, quiet=False)
    if cost is None:
        return code
    other = None
    if not once and code == 0:
        _show.note("the script runs again, without the network and its own output")
        other = _run(near, program, quiet=True)[1]
    for line in _summary(" ".join(network), cost, other):
        click.echo(line, err=True)
    return code


def _summary(
    network: str, far: dict[str, Any], near: dict[str, Any] | None
) -> list[str]:
    runs = [far] if near is None else [far, near]
    titles = ["", network] if near is None else ["", network, "without"]
    rows = [titles]
    for name, text in (
        ("seconds", "{:.2f} s"),
        ("stall_seconds", "{:.2f} s"),
        ("round_trips", "{}"),
        ("bytes_sent", "{}"),
        ("bytes_received", "{}"),
    ):
        label = {"seconds": "time", "stall_seconds": "of it waiting"}.get(name, name)
        values = [
            _show.size(r[name]) if name.startswith("bytes") else text.format(r[name])
            for r in runs
        ]
        rows.append([label.replace("_", " "), *values])
    before = {place: wait for place, _, wait in near["lines"]} if near else {}
    for place, trips, wait in far["lines"][:_LINES]:
        if trips == 0 and wait < 0.001:
            continue
        cells = [f"{wait:.2f} s, {trips} trips"]
        if near is not None:
            cells.append(f"{before.get(place, 0.0):.2f} s")
        rows.append([f"waits at {place}", *cells])
    widths = [max(len(row[i]) for row in rows) for i in range(len(titles))]
    return [
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
