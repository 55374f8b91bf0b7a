# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""The time from a process's start to its first result, against `import torch` alone.

Each row is a fresh process, from its start to its end. The rows take turns; the
figures are medians. The device's worker is a separate process, which also loads
PyTorch. The last line is the CPU time of the package's entry point alone. To measure an
installed wheel, run it with that environment's Python in a folder elsewhere.

    python bench/startup.py [--repeats N] [--markdown]

--markdown writes the table between the marks in bench/RESULTS.md.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import results

HELLO = Path(__file__).resolve().parent.parent / "examples" / "hello.py"
PLAIN = "import torch, without the device"
PYTHON = (sys.executable, "-c")
COMMAND = Path(sys.executable).with_name("mycelya")
# The arguments of each process, and variables of its environment.
PROCESSES = {
    PLAIN: ((*PYTHON, "import torch"), {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}),
    "import torch": ((*PYTHON, "import torch"), {}),
    "a first result on the CPU": (
        (*PYTHON, "import torch; torch.ones(2).add(1).tolist()"),
        {},
    ),
    "a first result on the device": (
        (*PYTHON, "import torch; torch.ones(2, device='mycelya').add(1).tolist()"),
        {},
    ),
    "examples/hello.py": ((sys.executable, HELLO), {}),
    "mycelya run examples/hello.py": ((COMMAND, "run", HELLO), {}),
}


def environment(extra: dict[str, str]) -> dict[str, str]:
    """The variables of a process. It finds compiled modules, as users have them."""
    env = {**os.environ, **extra}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    return env


def measure(repeats: int) -> dict[str, float]:
    """Seconds by name."""
    times: dict[str, list[float]] = {name: [] for name in PROCESSES}
    for repeat in range(repeats + 1):  # the first warms up the file cache
        for name, (command, extra) in PROCESSES.items():
            start = time.perf_counter()
            env = environment(extra)
            subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL)
            if repeat > 0:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(t) for name, t in times.items()}


ENTRY = """
import time
import torch
from importlib.metadata import entry_points

(entry,) = set(entry_points(group="torch.backends", name="mycelya"))
begin = time.process_time()
entry.load()()
print(time.process_time() - begin)
"""


def entry_point(repeats: int) -> float:
    """The least CPU time in seconds of registering the device after `import torch`."""
    env = environment({"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})
    command = [sys.executable, "-c", ENTRY]
    return min(
        float(subprocess.check_output(command, env=env, text=True))
        for _ in range(repeats)
    )


def table(seconds: dict[str, float]) -> str:
    """The rows as markdown."""
    lines = ["| process | s | ratio |", "|---|---:|---:|"]
    for name, s in seconds.items():
        lines.append(f"| {name} | {s:.2f} | {s / seconds[PLAIN]:.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--markdown", action="store_true")
    args = parser.parse_args()
    text = table(measure(args.repeats))
    ms = 1e3 * entry_point(args.repeats)
    text += f"\n\nRegistering the device: {ms:.1f} ms of CPU time, the minimum."
    print(text)
    if args.markdown:
        results.write("startup.py", f"median of {args.repeats} runs", text)


if __name__ == "__main__":
    main()
