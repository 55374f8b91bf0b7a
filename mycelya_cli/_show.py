# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Output: tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.table import Table

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON instead of text."
)


def print_json(value: Any) -> None:
    """Prints a value as JSON; programs read it."""
    click.echo(json.dumps(value, indent=2))


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table for a terminal."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    out = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for title in titles:
        out.add_column(title, overflow="fold")
    for row in rows:
        out.add_row(*(Text(cell) for cell in row))
    return out


def print_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints rows under titles: a table in a terminal, else columns of plain text."""
    if sys.stdout.isatty():
        from rich.console import Console

        Console().print(table(titles, rows))
        return
    lines = [titles, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(titles))]
    for line in lines:
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        click.echo("  ".join(cells).rstrip())


def working(text: str) -> Any:
    """Context manager: shows in a terminal that something takes time."""
    from contextlib import nullcontext

    if not sys.stderr.isatty():
        return nullcontext()
    from rich.console import Console

    return Console(stderr=True).status(text)


def note(text: str) -> None:
    """Prints a sentence that is no part of a command's output."""
    click.echo(f"mycelya: {text}", err=True)


# ---- Values ----


def when(text: str | None) -> datetime | None:
    """A time of mycelya-machines."""
    return datetime.fromisoformat(text).astimezone(UTC) if text else None


def span(seconds: float) -> str:
    """A time of so many seconds: "2 d 3 h", "54 min", "12 s"."""
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    left = max(0, round(seconds))
    for i, (unit, size) in enumerate(units):
        if left >= size or unit == "s":
            text = f"{left // size} {unit}"
            rest = left % size
            if i + 1 < len(units) and unit in ("d", "h") and rest >= units[i + 1][1]:
                text += f" {rest // units[i + 1][1]} {units[i + 1][0]}"
            return text
    raise AssertionError


def price(machine: dict[str, Any]) -> str:
    """What a machine costs: "2.10 USD/h (2026-05-07)", with the price list's date."""
    text = money(machine["price_per_hour"], machine["currency"], "/h")
    return f"{text} ({machine['priced']})" if machine["priced"] else text


def money(amount: float | None, currency: str, after: str = "") -> str:
    """An amount of money: "2.10 USD/h", "0", "unknown"."""
    if amount is None:
        return "unknown"
    return f"{amount:.2f} {currency}{after}" if amount else "0"


def size(amount: float) -> str:
    """A number of bytes: "3.4 GiB"."""
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} GiB"
