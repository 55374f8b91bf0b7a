# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""completion: what a shell needs to complete the commands."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    For bash and zsh: eval "$(mycelya completion bash)" in the shell's start file.
    For fish: mycelya completion fish > ~/.config/fish/completions/mycelya.fish
    """
    from mycelya_cli._app import app

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(app, {}, "mycelya", "_MYCELYA_COMPLETE").source())
