# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Tests with a worker that computes with CUDA; `make gpu` runs them."""

import os
import sys
from pathlib import Path

if not os.environ.get("MYCELYA_MACHINE", "").startswith("local:cuda"):
    raise RuntimeError("tests/gpu needs a CUDA worker; run it with 'make gpu'")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))

import pytest  # noqa: E402

import mycelya_torch  # noqa: E402, F401 (registers the device)


def pytest_collection_modifyitems(items):
    for item in items:
        item.add_marker(pytest.mark.gpu)
