# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""up, attach: machines that outlive their process. Both need torch."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from mycelya_cli import _machines, _paths, _show

if TYPE_CHECKING:
    from mycelya_torch import RemoteMachine


def sentence(error: BaseException) -> click.ClickException:
    """An error of mycelya_torch for the command line."""
    return click.ClickException(str(error))


@click.command()
@click.argument("machine", metavar="[PROVIDER[:TARGET]]", default="local")
@click.option("--name", help="Its name; by default one is made.")
@click.option("--gpus", type=int, help="How many GPUs, where one can choose.")
@click.option(
    "--timeout", type=float, metavar="SECONDS", help="It ends after this time."
)
@click.option(
    "--idle-timeout",
    type=float,
    metavar="SECONDS",
    help="It ends after this time without a client; 600 by default.",
)
@_show.json_option
def up(
    machine: str,
    name: str | None,
    gpus: int | None,
    timeout: float | None,
    idle_timeout: float | None,
    as_json: bool,
) -> None:
    """Start a machine that outlives this command.

    The machine is written as in MYCELYA_MACHINE: local:cpu, modal:A100, ssh:gpu1, with
    options after it as in local?state=/data. Programs use it with
    RemoteMachine.attach(NAME).
    """
    provider, _ = _paths.split_target(machine)
    name = name or f"{provider}-{uuid.uuid4().hex[:4]}"
    with _show.working(f"starting {machine}"):
        from mycelya_torch import RemoteMachine, _machine_variable

        try:
            arguments: dict[str, Any] = _machine_variable.machine_arguments(machine)
            for key, value in (
                ("gpu_count", gpus),
                ("timeout", timeout),
                ("idle_timeout", idle_timeout),
            ):
                if value is not None:
                    arguments[key] = value
            started = RemoteMachine(name=name, detached=True, **arguments)
        except (RuntimeError, ValueError) as error:
            raise sentence(error) from None
    if as_json:
        _show.print_json({"name": name, "provider": started.provider.value})
        return
    click.echo(name)
    _show.note(
        f"{started.device_name} runs. Use it with RemoteMachine.attach({name!r}) or "
        f"'mycelya attach {name}'; end it with 'mycelya down {name}'."
    )


def attached(name: str, options: Sequence[str], force: bool) -> RemoteMachine:
    """The machine with a name, whose client this process becomes.

    Raises:
        ClickException: there is none, or somebody uses it and force is not set.
    """
    found = _machines.named(_machines.found(), name)
    if found["used"] and not force:
        raise click.ClickException(
            f"The machine {name!r} is in use, and has one client at a time. --force "
            "ends the session of the other client."
        )
    from mycelya_torch import RemoteMachine

    wanted = _machines.options_of(found, options)
    given = dict(option.partition("=")[::2] for option in wanted)
    try:
        return RemoteMachine.attach(found["name"], found["provider"], **given)
    except (RuntimeError, ValueError) as error:
        raise sentence(error) from None


force_option = click.option(
    "--force", is_flag=True, help="End the session of another client."
)


@click.command()
@click.argument("name", shell_complete=_machines.complete_names)
@click.option("-c", "code", metavar="CODE", help="Run this Python code, and end.")
@force_option
@_machines.provider_options
def attach(name: str, code: str | None, force: bool, options: Sequence[str]) -> None:
    """Open a Python prompt on a machine.

    The names torch, machine and device are defined, and the machine is the current
    device. The machine goes on when the prompt ends.
    """
    with _show.working("connecting"):
        machine = attached(name, options, force)
        import torch

    torch.get_device_module("mycelya").set_device(machine.device())
    names = {"torch": torch, "machine": machine, "device": machine.device()}
    if code is not None:
        exec(compile(code, "<-c>", "exec"), {"__name__": "__main__", **names})
        return
    import code as interpreter

    saved = ", ".join(machine.saved()) or "nothing"
    head = f"torch {torch.__version__}, machine {name!r} as {machine.device()}"
    if sys.stdin.isatty():
        import readline  # noqa: F401 (editing and history at the prompt)
    interpreter.interact(f"{head}\nIt has saved: {saved}", local=names, exitmsg="")
