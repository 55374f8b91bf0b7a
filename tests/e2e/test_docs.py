# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Excerpts of dumps in the documents equal what their programs dump today."""

import subprocess
import sys

import pytest
from helpers import ROOT, on_cuda


@pytest.mark.fast
@pytest.mark.skipif(on_cuda(), reason="the documents show a CPU worker; owner: scripts")
def test_excerpts():
    command = [sys.executable, ROOT / "scripts" / "excerpts.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
