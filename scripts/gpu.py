# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Measures the device on a GPU, in parts with a time limit each.

    python scripts/gpu.py                    all parts, or what `make gpu` runs
    PART=load,smoke python scripts/gpu.py    some parts
    OUT=folder python scripts/gpu.py         where results.jsonl and log.txt go
    GPU_LIMIT=0.5 python scripts/gpu.py      half of each part's time
    python scripts/gpu.py --dry              each part here, on a CPU worker, small

A part is a group of processes. One that fails or runs out of time ends alone, and the
next one starts. Each result is a line of results.jsonl as soon as it exists. A table
comes last, with what has failed first. The folder is build/gpu unless OUT names one.

The host needs a GPU, and a Python with a CUDA build of torch, numpy, pytest and
hypothesis. Everything else comes from .kit/mycelya.tar.xz (`make kit`), if its
artefacts are not in the checkout. The libraries are built there only if they do not
load, which needs a C++ compiler, cmake and ninja.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KIT = ROOT / ".kit" / "mycelya.tar.xz"
# Seconds that an interrupted part has to print its results.
LAST_WORDS = 15
PYTEST = ["-m", "pytest", "-p", "no:cacheprovider", "-q", "--tb=short", "-W", "ignore"]


@dataclass(frozen=True)
class Part:
    limit: float  # seconds
    arguments: list[str]  # of Python
    environment: dict[str, str] = field(default_factory=dict)


def card(name: str, *arguments: str, limit: float, **environment: str) -> Part:
    return Part(limit, [f"bench/card/{name}.py", *arguments], environment)


def parts(dry: bool) -> dict[str, Part]:
    many = ["-n", str(2 if dry else max(1, (os.cpu_count() or 1) // 2))]
    files = ["tests/e2e", "--ignore=tests/e2e/test_package.py", "tests/gpu"]
    if dry:  # the tests of a GPU need one
        files = ["tests/e2e", "-m", "critical"]
    tests = [*PYTEST, *files, *many, "--dist", "worksteal"]
    return {
        "load": card("load", limit=40),
        "smoke": card("smoke", limit=40),
        "ops": card("ops", limit=150, MYCELYA_KERNELS="off"),
        "kernels": card("kernels", limit=90),
        "bandwidth": card("bandwidth", limit=40),
        "step": card("step", limit=100),
        "link": card("link", limit=40),
        "tests": Part(300, tests),
    }


def gpus() -> int:
    """The number of GPUs, by CUDA's driver: nvidia-smi may be missing."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return 0
    return count.value


def unpack() -> None:
    """Takes what the checkout lacks from the kit."""
    if not KIT.exists():
        return
    with tarfile.open(KIT) as archive:
        for member in archive:
            made = member.name.startswith(
                ("mycelya_torch/lib/", "mycelya_torch/bin/", "build/kit/")
            )
            if made and not (ROOT / member.name).exists():
                archive.extract(member, ROOT, filter="tar")


class Run:
    """Runs parts and notes their results in a folder."""

    def __init__(self, folder: Path, dry: bool, scale: float) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.rows = folder / "results.jsonl"
        self.rows.touch()
        self.before = len(self.rows.read_text().splitlines())  # of earlier calls
        self.log = (folder / "log.txt").open("a")
        self.dry, self.scale = dry, scale
        self.states: dict[str, str] = {}

    def say(self, text: str) -> None:
        print(text, flush=True)
        self.log.write(text + "\n")
        self.log.flush()

    def environment(self, name: str, part: Part) -> dict[str, str]:
        found = [str(ROOT), str(ROOT / "build" / "kit" / "site")]
        found += filter(None, [os.environ.get("PYTHONPATH")])
        # Where the package is not installed, `import torch` loads no device. Parts of
        # eager CUDA need that; the others import the package.
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(found),
            "PYTHONUNBUFFERED": "1",
            "MYCELYA_MACHINE": "local:cpu" if self.dry else "local:cuda:0",
            "CARD_ROWS": str(self.rows),
            "CARD_PART": name,
            "CARD_DRY": str(int(self.dry)),
            **part.environment,
        }

    def part(self, name: str, part: Part) -> bool:
        """Runs a part; returns whether it has passed."""
        limit = part.limit * self.scale
        self.say(f"== {name}: at most {limit:.0f} s")
        began = time.monotonic()
        late = threading.Event()
        process = subprocess.Popen(
            [sys.executable, *part.arguments],
            cwd=ROOT,
            env=self.environment(name, part),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )

        def end(number: int) -> None:
            late.set()
            try:
                os.killpg(process.pid, number)
            except ProcessLookupError:
                pass

        # An interrupt makes pytest print its results so far. What the part has started
        # must not hold the pipe.
        clocks = [
            threading.Timer(limit, process.send_signal, (signal.SIGINT,)),
            threading.Timer(limit + LAST_WORDS, end, (signal.SIGKILL,)),
        ]
        for clock in clocks:
            clock.start()
        assert process.stdout
        failures = []
        for line in process.stdout:
            self.say(line.rstrip("\n"))
            if line.startswith(("FAILED ", "ERROR ")):
                failures.append(line.strip()[:300])
        code = process.wait()
        for clock in clocks:
            clock.cancel()
        seconds = round(time.monotonic() - began, 1)
        state = "passed" if code == 0 else f"failed ({code})"
        if late.is_set() or seconds > limit:
            state = "late"
        self.states[name] = state
        line = {"part": name, "row": "part", "state": state, "seconds": seconds}
        if failures:
            line["failures"] = failures
        with self.rows.open("a") as file:
            file.write(json.dumps(line) + "\n")
        self.say(f"== {name}: {state}, {seconds} s")
        return code == 0

    def summary(self) -> None:
        """The results, those that failed first."""
        lines = self.rows.read_text().splitlines()[self.before :]
        rows = [json.loads(line) for line in lines]
        bad = [r for r in rows if r.get("ok") is False or "difference" in r]
        bad += [r for r in rows if r["row"] == "part" and r["state"] != "passed"]
        self.say("")
        for title, chosen in (
            ("Failed", bad),
            ("Results", [r for r in rows if r not in bad]),
        ):
            self.say(f"== {title}: {len(chosen)}")
            for r in chosen:
                values = (f"{k}={v}" for k, v in r.items() if k not in ("part", "row"))
                self.say(f"{r['part']:9} {r['row']:24} {' '.join(values)}"[:400])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dry", action="store_true", help="without a GPU, small")
    dry = parser.parse_args().dry
    known = parts(dry)
    wanted = os.environ.get("PART", "")
    names = wanted.split(",") if wanted else list(known)
    if unknown := [n for n in names if n not in known]:
        print(f"gpu: there is no part {unknown[0]!r}; there are {', '.join(known)}")
        return 2
    if not dry and gpus() == 0:
        print("gpu: this host has no GPU that CUDA's driver can use. Use --dry here.")
        return 1
    unpack()
    scale = float(os.environ.get("GPU_LIMIT", "10" if dry else "1"))
    run = Run(Path(os.environ.get("OUT") or ROOT / "build" / "gpu"), dry, scale)
    for name in names:
        if run.part(name, known[name]) or name != "load":
            continue
        cores = str(os.cpu_count() or 1)
        build = Part(200, ["scripts/build.py", "--jobs", cores])
        if run.part("build", build):
            run.part(name, known[name])
    run.summary()
    return int(any(state != "passed" for state in run.states.values()))


if __name__ == "__main__":
    sys.exit(main())
