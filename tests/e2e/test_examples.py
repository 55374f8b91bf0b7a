# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""The examples run, and training on the device equals training on the CPU."""

import functools
import re

import pytest
from helpers import ROOT, on_cuda, run_file

pytest.importorskip("sklearn", reason="digits.py reads scikit-learn's data set")


def example(name, *arguments, **environment):
    return run_file(ROOT / "examples" / name, *arguments, **environment)[0]


@functools.cache
def losses(name, device, *arguments, **environment):
    arguments = ("--device", device, "--print-losses", "20", *arguments)
    out = example(name, *arguments, **environment)
    return [float(value) for value in re.findall(r"^loss=([\d.]+)$", out, re.M)]


@pytest.mark.critical
def test_hello():
    out = example("hello.py")
    assert "device='mycelya:0'" in out and "grad of w: tensor" in out


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, arguments",
    [
        ("digits.py", ("--epochs", "1")),
        ("chargpt.py", ("--steps", "20", "--sample", "1")),
    ],
)
def test_the_first_losses_equal_those_on_the_cpu(name, arguments):
    """They equal those that PyTorch computes with one of its vector lengths.

    In step 7 of the digits, rounding decides which of two values that differ by less
    than 1e-7 a max pool takes, and PyTorch's own losses differ by 5e-4 in step 20.
    """
    there = losses(name, "mycelya", *arguments)
    here = losses(name, "cpu", *arguments)
    assert len(here) == len(there) == 20
    assert here[19] < here[0]
    tolerance = 2e-2 if on_cuda() else 1e-4
    if there != pytest.approx(here, rel=tolerance):
        here = losses(name, "cpu", *arguments, ATEN_CPU_CAPABILITY="default")
    assert there == pytest.approx(here, rel=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, arguments",
    [
        ("digits.py", ("--epochs", "1")),
        ("chargpt.py", ("--steps", "6", "--sample", "8")),
    ],
)
def test_fused_groups_equal_their_operators(name, arguments):
    """MYCELYA_CHECK=3 fails where a fused group differs from its operators."""
    example(name, *arguments, MYCELYA_CHECK="3")


@pytest.mark.slow
def test_digits_learns():
    last = example("digits.py").splitlines()[-1]
    found = re.fullmatch(
        r"accuracy=(0\.9\d\d|1\.000) device=mycelya:0 steps_per_s=(\d+)", last
    )
    assert found, last
    assert float(found[1]) >= 0.97


@pytest.mark.slow
def test_chargpt_samples():
    out = example("chargpt.py", "--steps", "60", "--sample", "200")
    *_, last = out.splitlines()
    assert re.fullmatch(r"loss=\d\.\d{3} device=mycelya:0 steps_per_s=\d+", last), last
    sample = out.split("step 50: loss")[1].split("\n", 1)[1].rsplit("\n", 2)[0]
    assert len(sample) == 201
