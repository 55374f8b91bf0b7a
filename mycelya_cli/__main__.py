# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""python -m mycelya_cli: the command `mycelya`."""

from mycelya_cli import main

main()
