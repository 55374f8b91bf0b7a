# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""machines, down, logs, sweep: machines that are already there."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import click

from mycelya_cli import _go, _show


def found(wait: float = 60) -> list[dict[str, Any]]:
    """All machines of all providers; notes which providers could not be asked."""
    answer = _go.ask("list", wait=wait)
    tell_errors(answer["errors"])
    return sort(answer["machines"])


def sort(machines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(machines, key=lambda m: (m["provider"], m["name"], m["id"]))


def tell_errors(errors: list[dict[str, str]]) -> None:
    """Notes providers that could not be asked, in one line if nothing is set up."""
    absent = [e["provider"] for e in errors if e["kind"] != "other"]
    if absent:
        _show.note(
            f"not looked at: {', '.join(absent)} (no access; 'mycelya doctor' says "
            "what is missing)."
        )
    for error in errors:
        if error["kind"] == "other":
            _show.note(f"{error['provider']}: {error['error']}")


def named(machines: Sequence[dict[str, Any]], name: str) -> dict[str, Any]:
    """The machine with a name or a handle.

    Raises:
        ClickException: none or several; the message lists what there is.
    """
    hits = [m for m in machines if name in (m["name"], m["handle"])]
    if len(hits) == 1:
        return hits[0]
    if hits:
        handles = ", ".join(m["handle"] for m in hits)
        raise click.ClickException(
            f"{len(hits)} machines have the name {name!r}; give one of {handles}."
        )
    names = ", ".join(repr(m["name"] or m["handle"]) for m in machines)
    there = f"There are {names}." if names else "None runs; 'mycelya up' starts one."
    raise click.ClickException(f"No machine has the name {name!r}. {there}")


def complete_names(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[str]:
    """Names of machines for the shell's completion."""
    try:
        machines = _go.ask("list", wait=2)["machines"]
    except click.ClickException:
        return []
    return [m["name"] for m in machines if m["name"].startswith(incomplete)]


def stops(machine: dict[str, Any], now: datetime) -> str:
    """When a machine stops by itself."""
    parts = []
    until = _show.when(machine["until"])
    if until is not None:
        parts.append(f"in {_show.span((until - now).total_seconds())}")
    if machine["idle_seconds"]:
        parts.append(f"after {_show.span(machine['idle_seconds'])} without a client")
    return ", or ".join(parts) or "not by itself"


def _gpu(machine: dict[str, Any]) -> str:
    count = f"{machine['gpus']} x " if machine["gpus"] > 1 else ""
    return f"{count}{machine['gpu']}" if machine["gpu"] else "-"


@click.command()
@_show.json_option
def machines(as_json: bool) -> None:
    """List the machines of all providers, whoever has started them."""
    if as_json:
        answer = _go.ask("list")
        answer["machines"] = sort(answer["machines"])
        _show.print_json(answer)
        return
    with _show.working("asking the providers"):
        answer = _go.ask("list")
    all_ = sort(answer["machines"])
    tell_errors(answer["errors"])
    if not all_:
        click.echo("No machine runs.")
        return
    now = datetime.now(UTC)
    rows = []
    for m in all_:
        since = _show.when(m["since"])
        age = f"{_show.span((now - since).total_seconds())} ago" if since else "unknown"
        used = "yes" if m["used"] else "no"
        row = [m["name"] or m["id"], m["provider"], _gpu(m), age, _show.price(m), used]
        rows.append([*row, stops(m, now)])
    titles = ["NAME", "PROVIDER", "GPU", "STARTED", "PRICE", "USED", "STOPS"]
    _show.print_table(titles, rows)


def _end(handles: list[str], unused: bool = False) -> dict[str, Any]:
    with _show.working(f"ending {len(handles)} machines"):
        return _go.ask("end", *handles, unused=unused)


def _tell_ended(answer: dict[str, Any], as_json: bool, ctx: click.Context) -> None:
    if as_json:
        _show.print_json(answer)
    else:
        for m in sort(answer["machines"]):
            text = "ended" if m["ended"] else "still runs: somebody uses it now"
            click.echo(f"{m['name'] or m['handle']}: {text}")
        for error in answer["errors"]:
            _show.note(f"{error['provider']}: {error['error']}")
    if answer["errors"]:
        ctx.exit(1)


@click.command()
@click.argument("names", nargs=-1, required=True, shell_complete=complete_names)
@click.option("--yes", "-y", is_flag=True, help="Do not ask about used machines.")
@_show.json_option
@click.pass_context
def down(ctx: click.Context, names: Sequence[str], yes: bool, as_json: bool) -> None:
    """End machines, and what they have kept.

    NAMES are names or handles (provider:id). A machine that somebody uses is ended
    after a question.
    """
    there = found()
    chosen = [named(there, name) for name in names]
    used = [m["name"] or m["handle"] for m in chosen if m["used"]]
    if used and not yes:
        is_are = "is" if len(used) == 1 else "are"
        click.confirm(
            f"{', '.join(used)} {is_are} in use. End anyway?", abort=True, err=True
        )
    _tell_ended(_end(sorted({m["handle"] for m in chosen})), as_json, ctx)


@click.command()
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@_show.json_option
@click.pass_context
def sweep(ctx: click.Context, yes: bool, as_json: bool) -> None:
    """End the machines that nobody uses."""
    idle = [m for m in found() if not m["used"]]
    if not idle:
        if as_json:
            _show.print_json({"machines": [], "errors": []})
        else:
            click.echo("Each machine that runs is in use.")
        return
    if not yes:
        for m in idle:
            click.echo(f"  {m['name'] or m['handle']} ({m['provider']})", err=True)
        click.confirm(f"End these {len(idle)} machines?", abort=True, err=True)
    _tell_ended(_end([m["handle"] for m in idle], unused=True), as_json, ctx)


def options_of(machine: dict[str, Any], given: Sequence[str]) -> list[str]:
    """The options with which its provider finds a machine, as "host=gpu1".

    The given ones come last, so they count.

    Raises:
        ClickException: only the process that has started the machine can reach it.
    """
    if not machine["detached"]:
        name = machine["name"] or machine["handle"]
        raise click.ClickException(
            f"The machine {name!r} was not started with detached=True, so only the "
            "process that has started it can reach it."
        )
    found = machine["options"] or {}
    return [*(f"{name}={value}" for name, value in found.items()), *given]


provider_options = click.option(
    "-o",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    help="An option of the provider, in place of the one that it finds itself.",
)


@click.command()
@click.argument("name", shell_complete=complete_names)
@click.option("--follow", "-f", is_flag=True, help="Go on until Ctrl-C.")
@provider_options
@_show.json_option
def logs(name: str, follow: bool, options: Sequence[str], as_json: bool) -> None:
    """Print the log of a machine's worker, or the end of a long log."""
    m = named(found(), name)
    wanted = options_of(m, options)

    def read() -> str:
        text: str = _go.ask("logs", m["provider"], m["name"], options=wanted)["log"]
        return text

    text = read()
    if as_json:
        _show.print_json({"name": m["name"], "log": text})
        return
    click.echo(text, nl=False)
    while follow:
        time.sleep(1)
        before, text = text, read()
        click.echo(_new_part(before, text), nl=False)


def _new_part(before: str, after: str) -> str:
    """The end of a log that an earlier reading does not have."""
    if after.startswith(before):
        return after[len(before) :]
    last = before[-1000:]  # the beginning of the log may have been cut off
    at = after.rfind(last)
    return after[at + len(last) :] if last and at >= 0 else after
