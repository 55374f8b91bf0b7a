# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Notebooks: places as "In [3]:4", and reports as HTML with the source of each line.

A notebook compiles each cell under the name of a temporary file. The recorder asks for
a better name when it meets the code of a file, so all texts have it: errors, reports,
traces and dumps.
"""

from __future__ import annotations

import linecache
import re
import sys
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from mycelya_torch import _device

_files: dict[str, str] = {}  # by name of a cell, "In [3]"


# They show the value of a cell's last line, for which the cell waits.
_SHOWING = ("IPython", "ipykernel", "decorator", "traitlets")


def install() -> None:
    """Names the cells of IPython, if it runs in this process."""
    if "IPython" not in sys.modules:
        return
    _device.set_cell_namer(_cell)
    files = [getattr(sys.modules.get(name), "__file__", None) for name in _SHOWING]
    _device.skip_files([file.removesuffix("__init__.py") for file in files if file])


def _cell(file: str) -> str | None:
    shell = sys.modules["IPython"].get_ipython()
    name = getattr(getattr(shell, "compile", None), "format_code_name", None)
    found = name(file) if name is not None else None  # ("Cell", "In[3]")
    number = re.search(r"\d+", found[1]) if found else None
    if number is None:
        return None
    cell = f"In [{number[0]}]"
    _files[cell] = file
    return cell


def shown(file: str) -> str:
    """A file's name for users: that of a cell instead of its temporary file."""
    return ("IPython" in sys.modules and _cell(file)) or file


def source(file: str, line: int) -> str:
    """The text of a line without indentation; "" if it is not known."""
    return linecache.getline(_files.get(file, file), line).strip()


# A place within a sentence: "In [3]:4", "<stdin>:1", "/home/me/my work/train.py:10".
_PLACE = re.compile(
    r"(?P<file>In \[\d+\]|<[^<>\n]+>|(?<!\S)(?:/[^:\n]*|\S+)\.py):(?P<line>\d+)"
)


def with_sources(text: str) -> str:
    """Text as HTML, in which each place shows its line's source to the pointer."""
    parts, at = [], 0
    for found in _PLACE.finditer(text):
        parts.append(escape(text[at : found.start()]))
        line = source(found["file"], int(found["line"]))
        title = f' title="{escape(line)}"' if line else ""
        parts.append(
            f"<code{title}>{escape(_short(found['file']))}:{found['line']}</code>"
        )
        at = found.end()
    return "".join(parts) + escape(text[at:])


def _short(file: str) -> str:
    """A path from its last folder on."""
    return "/".join(file.split("/")[-2:]) if file.startswith("/") else file


def table(titles: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """An HTML table. Its cells are HTML; numbers are aligned on the right."""

    def row(cells: Sequence[Any], tag: str) -> str:
        out = []
        for cell in cells:
            right = isinstance(cell, (int, float))
            style = "right" if right else "left"
            out.append(f'<{tag} style="text-align:{style}">{cell}</{tag}>')
        return f"<tr>{''.join(out)}</tr>"

    body = "".join(row(cells, "td") for cells in rows)
    return f"<table><thead>{row(titles, 'th')}</thead><tbody>{body}</tbody></table>"


class Report(str):
    """Text that a notebook shows as lines, or as HTML."""

    __slots__ = ()

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def _repr_html_(self) -> str:
        return f"<pre>{with_sources(self)}</pre>"


class Explanation(Report):
    """explain(): a paragraph for each device, and one for each of its programs."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        parts = []
        for paragraph in self.split("\n\n"):
            first, *rest = paragraph.split("\n")
            if not first.startswith("#"):
                parts.append(f"<p>{'<br>'.join(map(with_sources, [first, *rest]))}</p>")
                continue
            found = _PLACE.search(first)
            line = source(found["file"], int(found["line"])) if found else ""
            code = f"<pre><b>{escape(line)}</b></pre>" if line else ""
            lines = with_sources("\n".join(line.removeprefix("  ") for line in rest))
            parts.append(
                f"<details><summary>{with_sources(first)}</summary>{code}"
                f'<pre style="white-space:pre-wrap">{lines}</pre></details>'
            )
        return "".join(parts)
