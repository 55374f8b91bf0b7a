# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Asks the program mycelya-machines, which has the providers."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from typing import Any

import click

from mycelya_cli import _paths


def ask(
    command: str,
    *args: str,
    options: Sequence[str] = (),
    unused: bool = False,
    wait: float = 60,
) -> dict[str, Any]:
    """The answer of mycelya-machines to a command, which the head of its source lists.

    Args:
        options: of the provider, as "host=gpu1".
        unused: end only machines that nobody uses.
        wait: seconds that each provider may take.

    Raises:
        ClickException: the program cannot run, or answers with an error.
    """
    program = _paths.machines()
    flags = [f"-wait={wait}s", f"-unused={str(unused).lower()}"]
    flags += [f"-worker={_paths.worker()}", f"-exec={_paths.library('exec')}"]
    flags += [f"-torch-lib={_paths.torch_lib()}"]
    flags += [word for option in options for word in ("-o", option)]
    try:
        done = subprocess.run(
            [program, *flags, command, *args],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
    except OSError as error:
        raise click.ClickException(
            f"The program {program} cannot run: {error.strerror}. Reinstall the "
            "package: pip install --force-reinstall --no-deps mycelya-torch"
        ) from None
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise click.ClickException(
            f"{program.name} ended with code {done.returncode} and without an answer. "
            f"{done.stderr.strip()}"
        ) from None
    if done.returncode != 0:
        raise click.ClickException(answer.get("error", done.stderr.strip()))
    return answer
