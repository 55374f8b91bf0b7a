# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""top: what the workers of machines use, again and again."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import click

from mycelya_cli import _go, _machines, _show

_TITLES = "NAME,PROVIDER,CLIENTS,CPU,MEMORY,CALLS/S,LAST CALL,COST,STOPS IN".split(",")
_AT_ONCE = 16  # machines that are asked at the same time


class _Sample:
    """The metrics of one machine at one time."""

    def __init__(self, machine: dict[str, Any], options: Sequence[str]) -> None:
        self.machine = machine
        self.at = time.monotonic()
        self.error = ""
        self.values: dict[str, float] = {}
        try:
            wanted = _machines.options_of(machine, options)
            text = _go.ask(
                "metrics", machine["provider"], machine["name"], options=wanted
            )["metrics"]
        except click.ClickException as error:
            self.error = error.message
            return
        for name, value in re.findall(r"^mycelya_(\w+) (\S+)$", text, re.MULTILINE):
            self.values[name] = float(value)

    def rate(self, name: str, before: _Sample | None) -> float | None:
        """By how much a value grows in a second; None if it is not known."""
        now = self.values.get(name)
        then = before.values.get(name) if before else None
        if now is None or then is None or before is None or self.at <= before.at:
            return None
        return max(0.0, now - then) / (self.at - before.at)

    def last_call(self) -> float | None:
        """Seconds since the last call of a client; None: there was none."""
        last = self.values.get("last_call_seconds", -1)
        return last if last >= 0 else None

    def stops(self) -> float | None:
        """Seconds until the machine ends by itself; None: it does not."""
        clocks = [self.values.get(f"{c}_seconds_left", -1) for c in ("lease", "alone")]
        return min((c for c in clocks if c >= 0), default=None)

    def cost(self) -> float | None:
        """What the machine has cost since its start; None: it is not known."""
        since, price = _show.when(self.machine["since"]), self.machine["price_per_hour"]
        if price is None or since is None:
            return None
        hours = (datetime.now(UTC) - since).total_seconds() / 3600
        return float(price * hours)

    def data(self, before: _Sample | None) -> dict[str, Any]:
        return {
            **{key: self.machine[key] for key in ("name", "provider", "handle")},
            "clients": self.values.get("sessions"),
            "processors": self.rate("session_cpu_seconds", before),
            "memory_bytes": self.values.get("session_memory_bytes"),
            "calls_per_second": self.rate("session_calls", before),
            "last_call_seconds": self.last_call(),
            "cost": self.cost(),
            "currency": self.machine["currency"],
            "stops_in_seconds": self.stops(),
            "error": self.error,
        }

    def row(self, before: _Sample | None) -> list[str]:
        head = [self.machine["name"], self.machine["provider"]]
        cost = _show.money(self.cost(), self.machine["currency"])
        if self.error:
            return [*head, "does not report", "", "", "", "", cost, ""]
        d, stops = self.data(before), self.stops()
        cpu = "-" if d["processors"] is None else f"{d['processors'] * 100:.0f} %"
        memory = _show.size(d["memory_bytes"] or 0)
        rate, last = d["calls_per_second"], d["last_call_seconds"]
        calls = "-" if rate is None else f"{rate:.0f}"
        ago = "-" if last is None else f"{_show.span(last)} ago"
        ends = "never" if stops is None else _show.span(stops)
        clients = f"{d['clients'] or 0:.0f}"
        return [*head, clients, cpu, memory, calls, ago, cost, ends]


def _take(
    names: Sequence[str], options: Sequence[str], before: dict[str, _Sample]
) -> list[tuple[_Sample, _Sample | None]]:
    machines = _machines.found()
    if names:
        machines = [_machines.named(machines, name) for name in names]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        samples = list(pool.map(lambda m: _Sample(m, options), machines))
    return [(s, before.get(s.machine["handle"])) for s in samples]


@click.command()
@click.argument("names", nargs=-1, shell_complete=_machines.complete_names)
@click.option(
    "--interval",
    type=click.FloatRange(0.2),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two looks.",
)
@click.option("--once", is_flag=True, help="Look twice, print once, and end.")
@_machines.provider_options
@_show.json_option
def top(
    names: Sequence[str],
    interval: float,
    once: bool,
    options: Sequence[str],
    as_json: bool,
) -> None:
    """Show what machines do: processors, memory, calls, money, and the time left.

    Without NAMES, it shows all machines. It ends with Ctrl-C. CPU is 100 % for each
    processor in use. A call is one run of a recorded program. With --json it prints
    one object per look.

    Each worker is asked itself, on a connection of its own. A machine without
    detached=True can only be asked by the process that has started it.
    """
    before = {s.machine["handle"]: s for s, _ in _take(names, options, {})}
    terminal = sys.stdout.isatty() and not as_json and not once
    live: Any = None
    if terminal:
        from rich.live import Live

        live = Live(auto_refresh=False, screen=True)
        live.start()
    try:
        while True:
            time.sleep(interval)
            pairs = _take(names, options, before)
            rows = [now.row(then) for now, then in pairs]
            if as_json:
                _show.print_json({"machines": [now.data(then) for now, then in pairs]})
            elif live is not None:
                live.update(_show.table(_TITLES, rows), refresh=True)
            else:
                _show.print_table(_TITLES, rows)
                for now, _ in pairs:
                    if now.error:
                        _show.note(now.error)
            if once:
                return
            before = {now.machine["handle"]: now for now, _ in pairs}
    except KeyboardInterrupt:
        pass
    finally:
        if live is not None:
            live.stop()
