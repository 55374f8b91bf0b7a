# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""The console command mycelya-worker."""

from __future__ import annotations

import os
import sys

from mycelya_cli import _paths


def run() -> None:
    """Becomes the package's worker program, with the paths of this environment.

    The arguments are passed on. They come last, so they take precedence.
    """
    import click

    try:
        program = _paths.worker()
        paths = ["--exec", str(_paths.library("exec"))]
        paths += ["--torch-lib", str(_paths.torch_lib())]
    except click.ClickException as error:
        error.show()
        sys.exit(1)
    try:
        os.execv(program, [str(program), *paths, *sys.argv[1:]])
    except OSError as error:
        print(
            f"mycelya-worker: {program} cannot run: {error.strerror}. Reinstall the "
            "package: pip install --force-reinstall --no-deps mycelya-torch",
            file=sys.stderr,
        )
        sys.exit(1)
