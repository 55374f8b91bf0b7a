# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Random programs of operators that kernels compute give the same as on the CPU.

They contain elementwise operators, reductions, transposes, writes in place and through
views, and operators that no kernel computes. They use float64, so that rounding can't
hide a mistake. A failure prints the shortest program that Hypothesis has found.
"""

import sys
from pathlib import Path

import pytest
import torch
from helpers import DEVICE, SOAK, run_file
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytestmark = [pytest.mark.cpu_worker]  # for CUDA: tests/gpu/test_fused.py

N = 6
STEPS = [
    "{c} = {a} * 0.5 + {b}",
    "{c} = ({a} * 0.3).sigmoid() - {b}",
    "{c} = {a}.sin() * {b}.cos()",
    "{c} = {a}.t() * 0.5 - {b}",
    "{c} = {a}.flip(0) * 0.5 + {b}{w}.sum()",
    "{c} = torch.where({a} > 0, {b}, {a}.abs())",
    "{c} = {a} - {b}.mean(1, keepdim=True)",
    "{c} = {a} + {b}.sum(0) * 0.1",
    "{c} = ({a} * {b}).amax(0).expand(N, N) - {a}",
    "{c} = torch.softmax({a}, 1) + {b}",
    "{c} = torch.log_softmax({a}, 0)",
    "{c} = F.layer_norm({a}, (N,), {b}[0], {b}[:, 1])",
    "{c} = {a}.reshape(4, 9).tanh().reshape(N, N) + {b}",
    "{c} = {a}.clone()",
    "{c} = {a}.tril(1)",
    "{c} = {a}.triu(-1) + {b}",
    "{c} = torch.cat(({a}[:, :3], {b}[:, 3:]), 1)",
    "{c} = torch.cat((-{a}[:, 3:], {a}[:, :3]), -1) * {b}",
    "{c} = {a}.gather(1, index) * {b}",
    "{c} = {c} + F.cross_entropy({a}, target)",
    "{a}.mul_(0.5).add_({b})",
    "{a}{w}.mul_(0.5).add_(1)",
    "{a}{w}.copy_({b}{w} * 2)",
    "{a}.t().mul_({b} + 1).tanh_()",
    "{a}.sub_({a}.amax(1, keepdim=True))",
    "{a}.copy_({b}.tril() * 0.5)",
    "torch._foreach_sub_([{a}, {b}], [{a}, {c}], alpha=0.5)",
    "torch._foreach_add_([{a}, {b}], [{c}, {a}], alpha=0.5)",
]
WINDOWS = ["[1:4]", "[:, 2:]", "[::2]", "[:, :1]"]

names = st.sampled_from("xyz")
lines = st.builds(
    lambda step, a, b, c, w: step.format(a=a, b=b, c=c, w=w),
    *(st.sampled_from(STEPS), names, names, names, st.sampled_from(WINDOWS)),
)
programs = st.lists(lines, min_size=2, max_size=12).map("\n".join)
common = {
    "deadline": None,
    "database": None,
    "print_blob": False,
    "suppress_health_check": list(HealthCheck),
}


def results(program: str, device: str, noise: int = 0) -> list[torch.Tensor]:
    """Runs a program; noise is the seed of relative errors of about one rounding."""
    generator = torch.Generator().manual_seed(1)
    scope = {"torch": torch, "F": torch.nn.functional, "N": N}
    for name in "xyz":
        numbers = torch.randn(N, N, generator=generator, dtype=torch.float64)
        scope[name] = numbers.to(device)
    scope["index"] = torch.randint(0, N, (N, N), generator=generator).to(device)
    scope["target"] = torch.randint(0, N, (N,), generator=generator).to(device)
    if not noise:
        exec(program, scope)
        return [scope[name].cpu() for name in "xyz"]
    generator.manual_seed(noise)
    for line in program.splitlines():
        for name in "xyz":
            error = torch.randn(N, N, generator=generator, dtype=torch.float64)
            scope[name] *= 1 + error * torch.finfo(torch.float64).eps
        exec(line, scope)
    return [scope[name].cpu() for name in "xyz"]


def close(got: torch.Tensor, want: torch.Tensor, bound: torch.Tensor) -> bool:
    both_nan = got.isnan() & want.isnan()
    return bool(((got == want) | both_nan | ((got - want).abs() <= bound)).all())


def check(program: str) -> None:
    """The results may differ by rounding, as far as the program amplifies it.

    That is measured where they differ: how far relative errors of about one rounding
    at each line move the CPU's results. An element that becomes infinite or NaN in one
    of these runs may have any value.
    """
    got, want = results(program, str(DEVICE)), results(program, "cpu")
    bounds = [1e-10 + 1e-9 * w.abs() for w in want]
    if all(map(close, got, want, bounds)):
        return
    for noise in range(1, 33):
        moved = results(program, "cpu", noise)
        for bound, m, w in zip(bounds, moved, want, strict=True):
            distance = torch.where(m == w, 0, (m - w).abs() * 30)
            distance[distance.isnan() & ~(m.isnan() & w.isnan())] = torch.inf
            torch.fmax(bound, distance, out=bound)
    for name, g, w, bound in zip("xyz", got, want, bounds, strict=True):
        assert close(g, w, bound), f"{name} is\n{g}\nexpected\n{w}\n\n{program}"


# Programs that amplify rounding: a fixed bound took them for mistakes.
AMPLIFIED = [
    "x = x * 0.5 + x\n" * 6
    + "x = F.layer_norm(x, (N,), x[0], x[:, 1])\nx = x.sin() * x.cos()",
    "x = x - x.mean(1, keepdim=True)\ny = x - x.mean(1, keepdim=True)\n"
    "x = x - y\nx = torch.where(x > 0, y, x.abs())",
]


@pytest.mark.parametrize("program", AMPLIFIED)
def test_bounds_follow_the_program(program):
    check(program)


def test_a_wrong_result_is_found(monkeypatch):
    """Also one that is only a little larger than what rounding may cause."""
    ours = results

    def wrong(program, device, noise=0):
        x, y, z = ours(program, device, noise)
        return [x, y * (1 + 1e-6) if device != "cpu" else y, z]

    monkeypatch.setitem(globals(), "results", wrong)
    with pytest.raises(AssertionError, match="y is"):
        check("x = x.sin() * y.cos()\ny = (x * 0.3).sigmoid() - z")


@pytest.mark.timeout(1200 * SOAK)
def test_programs():
    """In a process of its own: it fills the cache, and other tests count hits."""
    run_file(Path(__file__), str(1_000 * SOAK), timeout=1200 * SOAK)


def test_a_loop_that_reads_the_result_of_another_transposed():
    """Both loops read x. The second also reads the first one's result, transposed."""
    check("x = x * z\ny = (x * 0.3).sigmoid() - z\nx = y.t() * 0.5 - x")


def test_programs_launch_kernels():
    torch.mycelya.synchronize()
    before = torch.mycelya.metrics()["kernels_launched"]
    check("x = (x * 2 + y).exp()\ny = x.t() * 0.5 - y\nz.mul_(0.5).add_(x)")
    torch.mycelya.synchronize()
    assert torch.mycelya.metrics()["kernels_launched"] > before


if __name__ == "__main__":
    import mycelya_torch  # noqa: F401

    @settings(max_examples=int(sys.argv[1]), derandomize=SOAK == 1, **common)
    @given(program=programs)
    def run(program):
        check(program)

    run()
