# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""The compiled form of captured graphs, and the time to compile them.

The graphs are those of tests/replay/corpus: one step of each of ten models. "ms" is the
minimum over the repeats of the time of all passes and codegen. It is the cost of a miss
to the client's background thread, after the trace has become a graph. "launches" are
the operators if each runs alone, "kernels" the steps that remain with the groups of the
fuse pass; a group is one to three kernels. "MiB apart" and "moved" are the bytes that
the two read and write, with the sizes of the first call.

    python bench/compile.py [--repeats N] [--markdown]

--markdown writes the table between the marks in bench/RESULTS.md. Needs Go.
"""

import argparse
import json
import subprocess
from pathlib import Path

import results

ROOT = Path(__file__).resolve().parent.parent


def measure(repeats: int) -> list[dict]:
    command = ["go", "run", "./tests/replay/summary", "-json", f"-repeats={repeats}"]
    done = subprocess.run(
        [*command, "tests/replay/corpus"], cwd=ROOT, check=True, stdout=subprocess.PIPE
    )
    return json.loads(done.stdout)


def table(graphs: list[dict]) -> str:
    """The rows as markdown."""
    lines = [
        "| graph | ops | after | ms | µs/op | launches | kernels | MiB apart | moved |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for g in graphs:
        ms = g["Took"] / 1e6
        mib = [g[k] / 2**20 for k in ("Apart", "Moved")]
        lines.append(
            f"| {g['Name']} | {g['Before']} | {g['After']} | {ms:.1f} "
            f"| {1e3 * ms / g['Before']:.1f} | {g['Calls']} | {g['Kernels']} "
            f"| {mib[0]:.2f} | {mib[1]:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--markdown", action="store_true")
    args = parser.parse_args()
    text = table(measure(args.repeats))
    print(text)
    if args.markdown:
        results.write("compile.py", f"minimum of {args.repeats} runs", text)


if __name__ == "__main__":
    main()
