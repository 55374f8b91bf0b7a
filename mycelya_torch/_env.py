# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""The environment variable that Python reads; Go reads the others, and checks names."""

from __future__ import annotations

import os


def default_machine() -> str:
    """The worker's device that MYCELYA_MACHINE asks for; "" means the best there is.

    The variable has the form provider or provider:what; only the provider "local"
    exists in this version.
    """
    value = os.environ.get("MYCELYA_MACHINE") or "local"
    provider, _, what = value.partition(":")
    if provider not in ("local", "mock"):
        raise NotImplementedError(
            f"MYCELYA_MACHINE={value!r}: only the local provider exists in this "
            "version. Use 'local', 'local:cpu' or 'local:cuda:0', or unset it."
        )
    return what
