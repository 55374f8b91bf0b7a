# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Random programs of views, writes and gradients behave as on the CPU.

After each line, both devices must have raised the same kind of error, or none, and all
live tensors must have the same metadata. At the end, every tensor, gradient and storage
must have the same bytes, except that any two NaNs are equal. A failure prints the
shortest failing program that hypothesis finds. The printed program can be run directly.
"""

import re

import pytest
import torch
from helpers import DEVICE, SOAK
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from view_programs import make
from view_programs_run import Part, Program, Run, as_bytes, difference

pytestmark = [
    pytest.mark.cpu_worker,  # bytes are compared with those of the CPU's kernels
    pytest.mark.filterwarnings("ignore"),
]

# A row decides one step. hypothesis draws a row at once and shrinks each byte.
tapes = st.lists(st.binary(min_size=16, max_size=16), min_size=2, max_size=16)
programs = tapes.map(make)
common = {
    "deadline": None,
    "database": None,
    "print_blob": False,
    "suppress_health_check": list(HealthCheck),
}


def check(program: Program) -> None:
    found = difference(program, Run(str(DEVICE)))
    if found:
        raise AssertionError(f"{found}\n\n{program.source()}")


@settings(max_examples=400 * SOAK, **common)
@given(program=programs)
def test_programs(program):
    check(program)


@pytest.mark.slow
@pytest.mark.timeout(1800 * SOAK)
def test_two_sizes_of_a_program():
    """From each tape two that differ in sizes.

    The second one often has the key of the first one, and then reuses its program.
    """
    seen = set()

    @settings(max_examples=400 * SOAK, **common)
    @given(tape=tapes)
    def run(tape):
        for larger in (False, True):
            program = make(tape, larger)
            check(program)
            seen.add("\n".join(program.lines))

    run()
    assert len(seen) >= 640 * SOAK


def test_bytes_are_compared_except_those_of_nans():
    def part(*bits: int) -> Part:
        numbers = torch.tensor(bits, dtype=torch.int32).to(torch.int16)
        return Part("v0", as_bytes(numbers), {torch.float32, torch.bfloat16})

    one, nan, negative_nan, zero, negative_zero = 0x3F80, 0x7FC0, 0xFFFF, 0, 0x8000
    assert part(one, nan, zero).same(part(one, negative_nan, zero))
    assert not part(one, nan, zero).same(part(one, nan, negative_zero))
    assert not part(one, nan, zero).same(part(nan, nan, zero))
    assert not part(one, nan).same(part(one, nan, zero))


# ---- Failures are found, and printed as programs that run ----


def replayed(source: str, device: str) -> tuple[list, dict[str, torch.Tensor]]:
    """Runs the function of a printed program on a device."""
    names: dict = {}
    exec(source[: source.index("\nfor device in")], names)
    return names["program"](device, [])


@settings(max_examples=50, derandomize=True, phases=[Phase.generate], **common)
@given(program=programs)
def test_a_printed_program_runs(program):
    for device in ("cpu", str(DEVICE)):
        seen, tensors = replayed(program.source(), device)
        assert repr(seen) == repr(program.cpu.seen)
        assert tensors.keys() == program.cpu.tensors().keys()


class Mistaken(Run):
    """The CPU with a deliberate mistake: it replaces one kind of line."""

    def __init__(self, pattern: str, replacement: str) -> None:
        super().__init__("cpu")
        self.pattern, self.replacement = pattern, replacement

    def do(self, line):
        return super().do(re.sub(self.pattern, self.replacement, line))


ERROR = "CPU: RuntimeError|grad_fn of"
MISTAKES = {
    "a write is lost": (r"\.mul_\(.*\)$", ".mul_(1)", "bytes of"),
    "a view is a copy": (
        r"(= v\d+\.permute\(.*\))$",
        r"\1.clone()",
        "(version|storage) of",
    ),
    "a write is not counted": (r"^(v\d+)\.zero_", r"\1.data.zero_", "version of"),
    "an error is not raised": (r"^(v\d+\.zero_)", r"with torch.no_grad(): \1", ERROR),
    "a gradient is another": (r"\.backward\(", ".mul(2).backward(", "bytes of v.*grad"),
    "a window is elsewhere": (r"(\.select\(-?\d+), 1\)", r"\1, 0)", "offset of"),
}


def found_by_hypothesis(name: str, **options) -> str:
    pattern, replacement, expected = MISTAKES[name]

    @settings(max_examples=2000, derandomize=True, **{**common, **options})
    @given(program=programs)
    def run(program):
        found = difference(program, Mistaken(pattern, replacement))
        assert not found, f"{found}\n{program.source()}"

    with pytest.raises(AssertionError, match=expected) as error:
        run()
    return str(error.value)


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_found(name):
    found_by_hypothesis(name, phases=[Phase.generate])


def test_a_printed_program_is_short():
    text = found_by_hypothesis("a view is a copy")
    program = text[text.index("def program") : text.index("return seen")]
    assert program.count(" = ") == 2, program  # the tensor and the view
