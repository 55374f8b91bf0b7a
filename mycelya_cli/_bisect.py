# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""bisect: the change of the compiler that makes a script fail."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence

import click

from mycelya_cli import _show
from mycelya_cli._run import _PASS_ON

# What the compiler logs at the last change that it makes.
_LAST = re.compile(r'bisection in MYCELYA_PASSES" .*change="?([^"\n]*)"?')


class _Search:
    """Runs a script with the first changes of a pass or rule, or of all."""

    def __init__(self, name: str, program: Sequence[str]) -> None:
        self.name = name
        self.program = program
        self.changes: dict[int, str] = {}  # by number
        self.runs = 0

    def good(self, limit: int) -> bool:
        """Whether the script ends with 0 if no more changes than this happen."""
        self.runs += 1
        words = os.environ.get("MYCELYA_PASSES", "")
        bisect = f"bisect={self.name}:{limit}"
        env = {
            **os.environ,
            "MYCELYA_PASSES": f"{words},{bisect}" if words else bisect,
            "MYCELYA_LOG": "warn",
        }
        done = subprocess.run(
            [sys.executable, *self.program],
            env=env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        found = _LAST.search(done.stderr)
        if found:
            self.changes[limit] = found.group(1)
        ended = "good" if done.returncode == 0 else f"exit code {done.returncode}"
        _show.note(f"{limit} changes: {ended}.")
        if done.returncode and limit == 0:
            lines = done.stderr.strip().splitlines()
            raise click.ClickException(
                "The script fails without these changes, too, so none of them is the "
                f"cause. Its last line: {lines[-1] if lines else 'none'}"
            )
        return done.returncode == 0

    def first(self) -> int:
        """The number of the first change with which the script fails."""
        self.good(0)
        good, bad = 0, 1
        while self.good(bad):
            if bad not in self.changes:
                raise click.ClickException(
                    f"The script ends with 0 with all changes of {self.name!r}; there "
                    f"are fewer than {bad}."
                )
            good, bad = bad, 2 * bad
        while bad - good > 1:
            middle = (good + bad) // 2
            if self.good(middle):
                good = middle
            else:
                bad = middle
        return bad


@click.command(context_settings=_PASS_ON)
@click.option(
    "--of",
    "name",
    metavar="NAME",
    default="all",
    show_default=True,
    help="Count the changes of this pass or rule only.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.argument("script", type=click.Path(exists=True, dir_okay=False))
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def bisect(name: str, as_json: bool, script: str, args: Sequence[str]) -> None:
    """Find the change of the compiler that makes a script fail.

    The script runs again and again, each time with more or fewer of the changes that
    the compiler's passes make to the programs. A run is good if its exit code is 0.
    """
    search = _Search(name, [script, *args])
    number = search.first()
    change = search.changes.get(number, "unknown")
    rule = re.match(r"rule (\w+)|pass (\w+)", change)
    without = f"-{rule.group(1) or rule.group(2)}" if rule else ""
    if as_json:
        found = {"number": number, "change": change, "passes": without}
        click.echo(json.dumps({**found, "runs": search.runs}))
        return
    click.echo(f"change {number} of {name}: {change}")
    if without:
        click.echo(f"MYCELYA_PASSES={without} leaves it out")
