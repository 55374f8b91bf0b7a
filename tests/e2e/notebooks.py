# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Runs notebooks in kernels of their own."""

import os
import textwrap

from helpers import ROOT, needs


def executed(book, folder, monkeypatch):
    """Runs a notebook in a folder, with a home of its own."""
    needs(module="nbclient")
    from nbclient import NotebookClient

    monkeypatch.setenv("HOME", str(folder))
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR"):
        monkeypatch.setenv(name, str(folder / name.lower()))
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)
    client = NotebookClient(book, timeout=200, kernel_name="python3")
    client.resources = {"metadata": {"path": str(folder)}}
    return client.execute()


def execute(sources, folder, monkeypatch):
    """Runs cells of code and returns them with their outputs."""
    needs(module="nbformat")
    from nbformat import v4

    cells = [v4.new_code_cell(textwrap.dedent(source).strip()) for source in sources]
    return executed(v4.new_notebook(cells=cells), folder, monkeypatch).cells


def text_of(cell):
    """What a cell has printed and shown."""
    parts = [o.get("text", "") for o in cell.outputs]
    parts += [o.get("data", {}).get("text/plain", "") for o in cell.outputs]
    return "".join(parts)


def pages_of(cell):
    """The HTML that a cell has shown."""
    data = [o.get("data", {}) for o in cell.outputs]
    return [d["text/html"] for d in data if "text/html" in d]
