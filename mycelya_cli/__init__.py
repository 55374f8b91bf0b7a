# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""The command line `mycelya`.

The package never imports torch for a command that does not need it, and never imports
mycelya_torch, which does. It asks the program mycelya-machines, which has the
providers.
"""

from __future__ import annotations


def main() -> None:
    """The console command `mycelya`."""
    from mycelya_cli._app import app

    app(prog_name="mycelya")


def worker() -> None:
    """The console command `mycelya-worker`."""
    from mycelya_cli._worker import run

    run()
