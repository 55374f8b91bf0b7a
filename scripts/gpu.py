# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Runs the tests and benchmarks of a CUDA worker, in parts with a time limit each.

    python scripts/gpu.py                        all parts, or what `make gpu` runs
    PART=hello,fused python scripts/gpu.py       some parts
    GPU_OUT=folder python scripts/gpu.py         where logs and results.json go
    GPU_LIMIT=0.5 python scripts/gpu.py          half of each part's time

A part that fails or runs out of time ends alone, and the next one starts. Output
appears as it comes, and is also in <folder>/<part>.log. results.json has the state and
the seconds of each part that ran, and keeps those of earlier calls. The folder is
build/gpu unless GPU_OUT names another.

The host needs a GPU, and a Python with a CUDA build of torch, numpy, pytest and
hypothesis. The part "build" needs a C++ compiler, cmake and ninja; leave it out if the
libraries for this torch are in mycelya_torch/lib. Neither Go nor the internet is needed
if Go's artefacts are there.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

# Seconds that an interrupted part has to print its results.
LAST_WORDS = 20
ROOT = Path(__file__).resolve().parent.parent
PYTEST = ["-m", "pytest", "-p", "no:cacheprovider", "-q", "--tb=short", "-W", "ignore"]
HELLO = """
import torch, mycelya_torch

x = torch.arange(6.0).reshape(2, 3).to("mycelya")
y = (x @ x.T).relu() + 1
print(torch.mycelya.get_device_properties())
print(y.cpu(), y.sum().item())
"""
FACTS = """
import platform, torch

print("Python", platform.python_version(), "torch", torch.__version__)
print("CUDA", torch.version.cuda, "cuDNN", torch.backends.cudnn.version())
print(torch.cuda.get_device_properties(0))
"""


def parts() -> dict[str, tuple[float, list[str]]]:
    """The parts: seconds at most, and the arguments of Python."""
    many = ["-n", str(max(1, (os.cpu_count() or 1) // 2)), "--dist", "worksteal"]
    e2e = [*PYTEST, "tests/e2e", "--ignore", "tests/e2e/test_package.py", *many]
    database = "tests/e2e/test_opinfo.py"
    gpu = ["--device", "cuda:0"]
    return {
        "build": (300, ["scripts/build.py", "--jobs", str(os.cpu_count() or 1)]),
        "facts": (60, ["-c", FACTS]),
        "hello": (60, ["-c", HELLO]),
        "cuda": (120, [*PYTEST, "tests/gpu/test_cuda.py"]),
        "fused": (400, [*PYTEST, "tests/gpu/test_fused.py"]),
        "e2e": (560, [*e2e, "--ignore", database]),
        "opinfo": (560, [*PYTEST, database, *many, "--summary"]),
        "capture": (60, ["bench/capture.py"]),
        "kernels": (400, ["bench/kernels.py", *gpu, "--repeats", "6"]),
        "models": (500, ["bench/models.py", *gpu, "--rounds", "6", "--seconds", "0.4"]),
    }


def run(name: str, limit: float, arguments: list[str], folder: Path) -> dict:
    """Runs a part and copies its output to a log; returns its row."""
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
        "PYTHONUNBUFFERED": "1",
        "MYCELYA_MACHINE": "local:cuda:0",
    }
    if arguments[0].startswith("bench/"):
        # Eager CUDA's processes must not know the device: see RATIONALE.md.
        environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    began = time.monotonic()
    late = threading.Event()
    with (folder / f"{name}.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )

        def interrupt() -> None:
            late.set()
            process.send_signal(signal.SIGINT)

        # An interrupt makes pytest and the benchmarks print their results so far.
        kill = functools.partial(os.killpg, process.pid, signal.SIGKILL)
        clocks = [
            threading.Timer(limit, interrupt),
            threading.Timer(limit + LAST_WORDS, kill),
        ]
        for clock in clocks:
            clock.start()
        assert process.stdout
        for line in process.stdout:
            log.write(line)
            log.flush()
            print(line, end="", flush=True)
        code = process.wait()
        for clock in clocks:
            clock.cancel()
    state = "late" if late.is_set() else "passed" if code == 0 else f"failed ({code})"
    return {"state": state, "seconds": round(time.monotonic() - began, 1)}


def main() -> int:
    all_parts = parts()
    wanted = os.environ.get("PART", "")
    names = wanted.split(",") if wanted else list(all_parts)
    unknown = [n for n in names if n not in all_parts]
    if unknown:
        print(f"make gpu: no part {unknown[0]!r}; there are {', '.join(all_parts)}")
        return 2
    found = subprocess.run(
        "nvidia-smi -L", shell=True, capture_output=True, text=True
    ).stdout
    if "GPU " not in found:
        print(f"make gpu: no CUDA GPU on this host. It would run {', '.join(names)}.")
        return 0
    print(found, end="")
    folder = Path(os.environ.get("GPU_OUT") or ROOT / "build" / "gpu")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "results.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    scale = float(os.environ.get("GPU_LIMIT", "1"))
    for name in names:
        limit, arguments = all_parts[name]
        print(f"== {name}", flush=True)
        results[name] = run(name, limit * scale, arguments, folder)
        path.write_text(json.dumps(results, indent=1) + "\n")
        print(f"== {name}: {results[name]}", flush=True)
    for name in names:
        print(f"{name:10} {results[name]['seconds']:7.1f} s  {results[name]['state']}")
    return int(any(results[n]["state"] != "passed" for n in names))


if __name__ == "__main__":
    sys.exit(main())
