# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Runs cases of tests/e2e/kernels.py on the emulated device.

    python run.py <worker> <case> ...

Runs each case until no kernel is pending. Prints a JSON object for each case, with the
first error of its runs and the last metrics.
"""

import json
import sys
import time

import emulated  # noqa: F401 (registers the device)
import kernels
import torch

for case in sys.argv[2:]:
    wrong, waited, tried, refused = "", 0, 0, 0
    while True:
        torch.mycelya.reset_metrics()
        wrong = wrong or kernels.run(case)
        metrics = torch.mycelya.metrics()
        tried += metrics["groups_tried"]
        refused += metrics["groups_wrong"]
        if metrics["groups_waiting"] + metrics["groups_tried"] == 0:
            break
        waited += metrics["groups_waiting"]
        time.sleep(0.1)
    names = "groups_fused", "groups_unfused", "kernels_launched", "fused_ops"
    counted = {name: metrics[name] for name in names}
    counted |= {"waited": waited, "tried": tried, "wrong": refused}
    print(json.dumps({"case": case, "error": wrong, **counted}))
    sys.stdout.flush()
