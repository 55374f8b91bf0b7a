# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""run, trace: a script with a machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from mycelya_cli import _go, _paths, _show

_PASS_ON = {"ignore_unknown_options": True, "allow_interspersed_args": False}


_machine = click.option(
    "--machine",
    "-m",
    metavar="PROVIDER[:TARGET]",
    help='The machine of a bare device="mycelya", as modal:A100 or ssh:gpu1. '
    "Without it, that of MYCELYA_MACHINE, else a local one.",
)


def _choose(machine: str | None) -> None:
    """Makes a machine that of the script, and prints its price."""
    wanted = machine or os.environ.get("MYCELYA_MACHINE") or "local"
    provider, gpu = _paths.split_target(wanted)
    if provider != "local":
        answer = _go.ask("price", provider, *([gpu] if gpu else []))
        cost = _show.price(answer)
        _show.note(f"the machine is {wanted}; price: {cost}.")
    if machine:
        os.environ["MYCELYA_MACHINE"] = machine


def _exec(program: list[str]) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *program])


@click.command(context_settings=_PASS_ON)
@_machine
@click.option(
    "--as-cuda",
    is_flag=True,
    help='For scripts that say "cuda": it means the mycelya device. A report of what '
    "was redirected is printed at the end.",
)
@click.option(
    "--hide-cuda",
    is_flag=True,
    help="With --as-cuda: ignore the CUDA GPUs of this host.",
)
@click.option(
    "--rtt",
    metavar="TIME",
    help="Put an emulated network with this round trip time, as 50ms, before a local "
    "worker. The script runs twice, with it and without it, and a summary follows.",
)
@click.option(
    "--rate", metavar="RATE", help="The rate of the emulated network, as 100Mbit."
)
@click.option(
    "--once", is_flag=True, help="With --rtt or --rate: run the script only once."
)
@click.argument("script", type=click.Path(exists=True, dir_okay=False))
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def run(
    machine: str | None,
    as_cuda: bool,
    hide_cuda: bool,
    rtt: str | None,
    rate: str | None,
    once: bool,
    script: str,
    args: Sequence[str],
) -> None:
    """Run a Python script with a machine.

    The script runs in this Python, and its exit code is this command's. The machine
    starts when the script first uses the device, and ends with the script.
    """
    if hide_cuda and not as_cuda:
        raise click.UsageError("--hide-cuda has an effect with --as-cuda only.")
    program = [script, *args]
    if rtt or rate:
        if as_cuda:
            raise click.UsageError("--rtt and --as-cuda do not go together.")
        from mycelya_cli import _far

        wanted = machine or os.environ.get("MYCELYA_MACHINE") or "local"
        sys.exit(_far.run(wanted, rtt, rate, once, program))
    if once:
        raise click.UsageError("--once has an effect with --rtt or --rate only.")
    _choose(machine)
    if as_cuda:
        # -P: the folder of the script comes first in sys.path, not this folder.
        code = "import sys; from mycelya_torch import _as_cuda; "
        code += f"_as_cuda.main(sys.argv[1:], {hide_cuda})"
        program = ["-P", "-c", code, *program]
    _exec(program)


@click.command(context_settings=_PASS_ON)
@_machine
@click.option(
    "--output",
    "-o",
    metavar="FILE",
    default="mycelya-trace.json.gz",
    show_default=True,
    help="The file for the timeline; a name without .gz makes an uncompressed file.",
)
@click.argument("script", type=click.Path(exists=True, dir_okay=False))
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def trace(machine: str | None, output: str, script: str, args: Sequence[str]) -> None:
    """Run a Python script and write a timeline of it.

    The timeline has what Python records and where it waits, what is compiled, sent and
    received, and each op and kernel that the workers compute, with Python lines. Open
    it at https://ui.perfetto.dev. The first million events are kept.
    """
    _choose(machine)
    code = "import sys; from mycelya_torch import _trace; _trace.main(sys.argv[1:])"
    _exec(["-P", "-c", code, output, script, *args])
