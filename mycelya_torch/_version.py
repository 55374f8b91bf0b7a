# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""The version of the package, read by the build too."""

__version__ = "0.1.0"
