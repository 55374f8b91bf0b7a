# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""What type checkers need to know about Mycelya. No program imports this package."""
