# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Importing this makes "mycelya" the emulated device of the worker sys.argv[1]."""

import importlib.util
import os
import sys
from pathlib import Path

os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
import torch  # noqa: E402, F401

# The package passes the worker's path to its library at import, so the path must be
# replaced before.
spec = importlib.util.find_spec("mycelya_torch")
assert spec is not None and spec.loader is not None
package = importlib.util.module_from_spec(spec)
sys.modules["mycelya_torch"] = package
from mycelya_torch import _load  # noqa: E402

_load.WORKER = Path(sys.argv[1])
spec.loader.exec_module(package)

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "e2e"))
