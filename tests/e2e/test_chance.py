# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""A run of the tests tells a defect from a chance failure (scripts/tests.py)."""

import os
import subprocess
import sys

import pytest
from helpers import ROOT

GO = ["./tests/testdata/fails", "-count=1"]
PYTHON = ["tests/testdata/fails/test_fails.py"]


def run(folder, part, tests, words):
    """A run of one part with a test that fails in the given ways, one by one."""
    fails = folder / "fails"
    fails.write_text(words)
    environment = {**os.environ, "MYCELYA_TESTS": folder, "MYCELYA_FAILS": fails}
    command = [sys.executable, "scripts/tests.py", part, "--", *tests]
    status = subprocess.run(command, cwd=ROOT, env=environment, stdout=-3).returncode
    return status, (folder / "report.txt").read_text()


@pytest.mark.parametrize("part, tests", [("go", GO), ("python", PYTHON)])
def test_a_test_that_fails_once_is_flaky(tmp_path, part, tests):
    status, report = run(tmp_path, part, tests, "fail")
    assert status == 0 and "FLAKY, passed when run again, alone: 1\n" in report
    assert "fails" in report and "as told" in report


@pytest.mark.parametrize(
    "part, tests, words",
    [
        ("go", GO, "fail fail"),
        ("python", PYTHON, "fail fail"),
        ("go", GO, "panic"),
        ("go", GO, "exit"),
    ],
)
def test_other_failures_are_defects(tmp_path, part, tests, words):
    status, report = run(tmp_path, part, tests, words)
    assert status == 1 and "FLAKY" not in report, report
    assert "FAILED: 1\n" in report and "tests: FAILED" in report


def test_rounds_count_the_failures(tmp_path):
    """Two rounds, of which the first one and then both fail."""
    fails = tmp_path / "fails"
    environment = {**os.environ, "MYCELYA_TESTS": tmp_path, "MYCELYA_FAILS": fails}
    command = [sys.executable, "scripts/tests.py", "python", "--rounds", "2", "--"]
    for words in ("fail", "fail fail"):
        fails.write_text(words)
        done = subprocess.run(
            [*command, *PYTHON], cwd=ROOT, env=environment, capture_output=True
        )
        name = PYTHON[0].encode() + b"::"
        assert done.returncode == 1
        assert b"%d of 2  %b" % (len(words.split()), name) in done.stdout
