# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Runs cases of tests/e2e/kernels.py on the emulated device.

    python run.py <worker> <case> ...

Runs each case until no kernel is pending. Prints a JSON object for each case, with the
first error of its runs and the last metrics.
"""

import importlib.util
import json
import os
import sys
import time
from pathlib import Path

os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
import torch  # noqa: E402

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
import kernels  # noqa: E402

for case in sys.argv[2:]:
    wrong, waited = "", 0
    while True:
        torch.mycelya.reset_metrics()
        wrong = wrong or kernels.run(case)
        metrics = torch.mycelya.metrics()
        if metrics["groups_waiting"] == 0:
            break
        waited += metrics["groups_waiting"]
        time.sleep(0.1)
    names = "groups_fused", "groups_unfused", "kernels_launched", "fused_ops"
    counted = {name: metrics[name] for name in names}
    print(json.dumps({"case": case, "error": wrong, "waited": waited, **counted}))
    sys.stdout.flush()
