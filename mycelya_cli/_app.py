# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""The commands, each imported when it is needed."""

from __future__ import annotations

import importlib

import click

# The commands by name, in the order of the help, and the modules that have them.
_COMMANDS = {
    "run": "_run",
    "trace": "_run",
    "machines": "_machines",
    "up": "_up",
    "down": "_machines",
    "attach": "_up",
    "logs": "_machines",
    "top": "_top",
    "sweep": "_machines",
    "bench": "_bench",
    "doctor": "_doctor",
    "bisect": "_bisect",
    "completion": "_completion",
}


class _Later(click.Group):
    """A group whose commands are imported on first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(f"mycelya_cli.{_COMMANDS[cmd_name]}")
        command: click.Command = getattr(module, cmd_name)
        return command


def _version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from mycelya_cli import _paths

        click.echo(f"mycelya {_paths.version()}")
        ctx.exit()


@click.command(cls=_Later)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_version,
    help="Print the version and end.",
)
def app() -> None:
    """Machines for the PyTorch device "mycelya".

    A machine is a worker that computes for a Python program. 'mycelya up' starts one
    that outlives its program, 'mycelya run' runs a script with one.
    """
