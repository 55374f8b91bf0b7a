# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Random programs of views and writes: lines of Python that run on any device.

A program is made from a tape: numbers in rows, a row a step. The numbers choose what a
step does, to which tensors, and how. They are read against the tensors that the lines
before have made on the CPU, so most lines are legal; those that are not must raise on
both devices. Any tape is a program, so whatever a shrinker leaves of one runs too.

Three rules keep programs comparable. Bytes that no line has written are never read:
each storage that is made or grows is filled by the line after. Nothing reaches past the
end of its storage: storages shrink only where nobody needs the end. And what is summed
has sums that float32 holds, so that their order doesn't matter.
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
    """The program of a tape; with other sizes it is often the same to a compiler."""
    rows = list(tape)
    while True:
        draft = Draft(larger)
        for number, row in enumerate(rows):
            try:
                draft.step(row, MENU if draft.cpu.tensors() else FIRST)
            except Abandoned:
                del rows[number]
                break
        else:
            draft.program.content = draft.cpu.content()
            return draft.program
