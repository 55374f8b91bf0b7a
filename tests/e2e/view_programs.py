# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Random programs of views and writes: lines of Python that run on any device.

A program is made from a tape, which is a list of rows of numbers. Each row chooses one
step: what it does, on which tensors, and how. A row is interpreted with the tensors
that the earlier lines have made on the CPU, so most lines are legal. An illegal line
must raise on both devices. Every tape gives a program, so a shrinker may remove rows.

Three rules make programs comparable:

- Undefined bytes are never read. The line after an allocation or a growth writes them.
- No tensor reaches past the end of its storage. A storage shrinks only to the end of
  the last tensor on it.
- Only numbers whose sum is exact in float32 are summed, so the order does not matter.
"""

from __future__ import annotations

from collections.abc import Sequence

from view_programs_draft import Abandoned, Draft, Menu
from view_programs_results import RESULTS
from view_programs_run import Program
from view_programs_views import VIEWS, strided, tensor, uninitialised, uploaded
from view_programs_writes import WRITES

FIRST: Menu = [tensor, uploaded, strided, uninitialised]
MENU = VIEWS + WRITES + RESULTS


def make(tape: Sequence[Sequence[int]], larger: bool = False) -> Program:
    """Returns a tape's program. larger: with other sizes, often with the same key."""
    rows = list(tape)
    while True:
        draft = Draft(larger)
        for number, row in enumerate(rows):
            try:
                draft.step(row, MENU if draft.cpu.tensors() else FIRST)
            except Abandoned:  # start again without the step
                del rows[number]
                break
        else:
            draft.program.content = draft.cpu.content()
            return draft.program
