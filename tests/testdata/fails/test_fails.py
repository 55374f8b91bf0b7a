# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""A test that fails as often as it is told; tests/e2e/test_chance.py runs it."""

import os
from pathlib import Path


def test_fails():
    path = Path(os.environ["MYCELYA_FAILS"])
    words = path.read_text().split()
    path.write_text(" ".join(words[1:]))
    assert not words, "as told"
