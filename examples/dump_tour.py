# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Shows each stage of a compilation, with a dump of a tiny model."""

import argparse
import os
import tempfile
from pathlib import Path

import torch
from torch import nn

import mycelya_torch  # noqa: F401 (registers the device)

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--folder", help="keep the dump here; open index.html")
args = parser.parse_args()
temporary = None if args.folder else tempfile.TemporaryDirectory()
folder = Path(args.folder or temporary.name)
# The variable counts if it is set before the first use of the device. It is usually set
# in the shell: MYCELYA_DUMP=dump python train.py
os.environ["MYCELYA_DUMP"] = f"{folder},data"


class Scorer(nn.Module):
    """Scores for each row: x [n,8] -> probabilities [n,3]."""

    def __init__(self):
        super().__init__()
        self.hidden, self.out = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x):
        y = self.hidden(x)
        scale = torch.ones(16, device=x.device) * 1.5
        y = y * torch.sigmoid(scale * y)  # an activation of elementwise operators
        return torch.softmax(self.out(y), -1)


torch.manual_seed(0)
model, x = Scorer().eval(), torch.randn(4, 8)
with torch.no_grad():
    expected = model(x)
    model, x = model.to("mycelya"), x.to("mycelya")
    torch.mycelya.synchronize()  # what came before is a program of its own
    result = model(x).cpu()  # the read ends the trace, which is compiled and run


def show(title, text, most=40):
    """Prints a part of the dump under a title, with short names of files."""
    lines = text.rstrip().replace(f"{Path(__file__).parent}/", "").splitlines()
    print(f"\n## {title}\n")
    print("\n".join(lines[:most]))
    if len(lines) > most:
        print(f"… {len(lines) - most} more lines")


# A folder for each program: its number, its line, its key.
program = max(p for p in folder.iterdir() if p.is_dir())
stages = sorted(program.glob("*.ir"))
show("Why was a program compiled", (folder / "why.txt").read_text())
show("The graph as it was recorded", stages[0].read_text())
show("The rules that passes applied", (program / "rules.txt").read_text())
show("The graph after the last pass", stages[-1].read_text())
show("What one kernel computes", (program / "kernels.txt").read_text())
show("What no kernel computes together", (program / "unfused.txt").read_text())
show("The program that the worker runs", (program / "plan.txt").read_text())
show("The numbers of the first call", (program / "data.txt").read_text())
kernels = sorted(program.glob("kernel_*.cu"))
if kernels:
    _, start, body = kernels[0].read_text().partition('extern "C"')
    show("A kernel as CUDA C++", start + body)
print(f"\nlargest difference from the CPU: {(result - expected).abs().max():.1e}")
if args.folder:
    print(f"open {folder}/index.html")
