# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""The time in which a worker fetches a model of 1 GiB from a hub, against curl.

The hub is that of the tests (tests/e2e/hub.py), in a process of its own, on this host.
curl takes the same files from it, one after another, and writes them to the same disk.
The worker also compares hashes and makes the tensors, and the time ends when they are
there. Before, it has had the model once, and has freed it: on a virtual machine, new
memory may take longer than everything else. "at N MB/s": the hub sends no faster, to
all connections together. "again": the files are on the worker's disk already. "cut":
the hub ends each connection after 2 MB. Each ratio is to curl at the same rate. The
last column has the bytes that crossed this process. Below the table is how much memory
the helper process of the worker had at most, from /proc.

    python bench/weights.py [--repeats N] [--mib N] [--markdown]

--markdown writes the table between the marks in bench/RESULTS.md.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import results
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "e2e"))
import hub as hubs

from mycelya_torch import RemoteMachine, load_huggingface_state_dicts

FILES = 2
CUT = 2_000_000  # bytes
RATES = 0, 500, 200  # MB/s of the hub; 0: no limit


def serve(mib: int, connection) -> None:
    """Serves a repository, at each rate, and with connections that are cut."""
    from safetensors.torch import save

    files = {}
    for i in range(FILES):
        torch.manual_seed(i)
        rows = mib * 2**20 // FILES // 8 // 4096
        parts = {f"w{i}.{k}": torch.randn(rows, 1024) for k in range(8)}
        files[f"model-{i}.safetensors"] = save(parts)
    repo = hubs.Repo(files)
    with hubs.running({"me/model": repo}) as hub:
        connection.send((hub.url(hub.api), hub.url(hub.bytes), list(files)))
        while (how := connection.recv()) is not None:
            hub.rate, hub.cut = how
            connection.send(how)


class Helper(threading.Thread):
    """Watches the memory of the processes that fetch for a worker."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most, self.ended = 0, threading.Event()

    def run(self) -> None:
        while not self.ended.wait(0.02):
            for entry in Path("/proc").glob("[0-9]*"):
                try:
                    if b"\0--fetch\0" not in (entry / "cmdline").read_bytes() + b"\0":
                        continue
                    status = (entry / "status").read_text()
                except OSError:
                    continue
                peak = status.partition("VmHWM:")[2].split()
                self.most = max(self.most, int(peak[0]) << 10 if peak else 0)


def curl(folder: str, address: str, files: list[str]) -> float:
    begin = time.perf_counter()
    for name in files:
        command = ["curl", "-sSf", "-o", f"{folder}/{name}", f"{address}/{name}"]
        subprocess.run(command, check=True)
    return time.perf_counter() - begin


def fetch(machine: RemoteMachine) -> tuple[float, int]:
    """The seconds of a fetch, and the bytes that crossed this process."""
    torch.mycelya.reset_metrics()
    begin = time.perf_counter()
    found = load_huggingface_state_dicts("me/model", machine)
    torch.mycelya.synchronize(machine.device())
    seconds = time.perf_counter() - begin
    m = torch.mycelya.metrics()
    assert len(found[""]) == 8 * FILES
    return seconds, m["bytes_sent"] + m["bytes_received"]


def table(seconds: dict[str, list[float]], crossed: dict[str, int], size: int) -> str:
    lines = [
        "| what | s | MB/s | of curl's rate | bytes through the client |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, times in seconds.items():
        s = statistics.median(times)
        base = statistics.median(seconds["curl" + "".join(name.partition(" at ")[1:])])
        line = f"| {name} | {s:.2f} | {size / s / 1e6:.0f} | {base / s:.2f} |"
        lines.append(f"{line} {crossed[name]} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args()
    RemoteMachine("local", device="cpu")  # the current one, which the table names
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    server = multiprocessing.get_context("spawn").Process(
        target=serve, args=(options.mib, theirs), daemon=True
    )
    server.start()
    api, address, files = ours.recv()
    os.environ["HF_ENDPOINT"] = api
    seconds: dict[str, list[float]] = {}
    crossed: dict[str, int] = {}

    def serves(rate: int, cut: int) -> None:
        ours.send((rate * 1_000_000, cut))
        ours.recv()

    def take(name: str, found: tuple[float, int]) -> None:
        seconds.setdefault(name, []).append(found[0])
        crossed[name] = found[1]

    watcher = Helper()
    watcher.start()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        cache = Path(folder, "mycelya", "weights")
        with RemoteMachine("local", device="cpu") as machine:
            fetch(machine)
            for _ in range(options.repeats):
                for rate in RATES:
                    at = f" at {rate} MB/s" if rate else ""
                    serves(rate, 0)
                    shutil.rmtree(cache)
                    with tempfile.TemporaryDirectory() as there:
                        took = curl(there, f"{address}/me/model", files)
                    take(f"curl{at}", (took, 0))
                    take(f"fetch{at}", fetch(machine))
                take("again", fetch(machine))
                serves(0, CUT)
                shutil.rmtree(cache)
                take("cut", fetch(machine))
    watcher.ended.set()
    ours.send(None)
    text = table(seconds, crossed, options.mib * 2**20)
    text += f"\n\nThe helper process had at most {watcher.most / 2**20:.0f} MiB."
    print(text)
    if options.markdown:
        how = f"a model of {options.mib} MiB in {FILES} files"
        results.write("weights.py", f"{how}, median of {options.repeats} runs", text)


if __name__ == "__main__":
    main()
