# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Uploads, downloads, round trips and slow networks, against TCP, TLS 1.3 and gRPC.

bench/transport has the peers: a client and a server process, each with memory that is
mapped already. A gRPC transfer is a call with messages of 1 MiB. "proto/link" is the
stream that a machine over TCP uses, without tensors. All peers and both machines, on a
unix socket and over TCP with TLS, take turns on this host.

Bulk: an upload ends when the other end has all bytes, a download when this end has
them. clone() and cpu() return fresh memory, copy_() writes to memory that is
mapped. CPU s/GB counts all processes of both ends, with the kernel's time for them.
GB/s and CPU s/GB are each the best of the repeats.

Round trips: 64 bytes and as many back; item() of a tensor with one element. A round
trip of gRPC is two messages of an open call, or a call of its own (unary).

Slow networks: a process between the two ends sends bytes at a rate and lets each arrive
a delay later. It has a queue of 10 ms in each direction. It simulates neither loss nor
TCP's windows. MB/s includes the round trip in which the other end says that it has all
bytes. A peer that does not reach the rate shows that this host is too slow for the
rate. The last two columns are what metrics()["links"] says after the upload.

Latency: item() and a training step of a tiny net whose loss is read, each on a machine
that receives an upload from another thread meanwhile. The peers send 64 bytes and wait
for as many: TCP on a second connection, gRPC on the same one.

    python bench/transport.py [--quick] [--repeats N] [--mib N] [--markdown]

--quick has fewer repeats and networks. --markdown writes the tables between the marks
in bench/RESULTS.md. The whole run takes some minutes.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import results
import torch
from child import Child, serve

from mycelya_torch import RemoteMachine, _load

ROOT = Path(__file__).resolve().parent.parent
PEERS = {
    "raw": "raw TCP",
    "tls": "TLS 1.3",
    "grpc": "gRPC",
    "grpc-tls": "gRPC over TLS",
    "link": "proto/link over TLS",
}
TRIPS = {**PEERS, "grpc-unary": "gRPC, unary"}
RTTS = (1, 10, 40, 100)  # ms
# Bits per second: its name, MiB of an upload that takes about a second, repeats.
RATES = {
    10**8: ("100 Mb/s", 12, 2),
    10**9: ("1 Gb/s", 64, 2),
    10**10: ("10 Gb/s", 256, 3),
}
CLONE, COPY = "memory, clone()", "memory, copy_()"
PAUSE = 0.005  # seconds between two measurements of a latency


class Sample(NamedTuple):
    seconds: float
    cpu: float  # seconds, of all processes


# ---- Processes ----


def cpu_time(pids: list[int]) -> float:
    """CPU seconds that processes have used, those of ended threads too."""
    # The clock of a process has a number that the kernel derives from the process id.
    return sum(time.clock_gettime(~pid << 3 | 2) for pid in pids)


def processes(pid: int) -> list[int]:
    """A process, those that it has started, and those that they have started."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:  # it has ended
            continue
        parents[int(stat.parent.name)] = int(fields[1])
    found = [pid]
    for parent in found:
        found += [child for child, p in parents.items() if p == parent]
    return found


def build(folder: str) -> str:
    """Builds bench/transport."""
    out = str(Path(folder) / "transport")
    go = ["go", "build", "-p", "1", "-o", out, "./bench/transport"]
    subprocess.run(go, cwd=ROOT, check=True)
    return out


class Network(NamedTuple):
    """A round trip time in ms and a rate in bits per second; 0: no limit."""

    rtt: int
    rate: int

    def flags(self) -> list[str]:
        return ["--delay", f"{self.rtt * 500}us", "--rate", str(self.rate)]


class Peers:
    """The peers' client, which does one task at a time, with a network or without."""

    def __init__(self, program: str, network: Network | None = None) -> None:
        self.process = subprocess.Popen(
            [program, "drive", *(network.flags() if network else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pids: list[int] = self._line()["pids"]

    def _line(self) -> dict[str, Any]:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("bench/transport has ended")
        return json.loads(line)

    def ask(self, do: str, peer: str, **numbers: int) -> dict[str, Any]:
        """The result of a task; see task and result in bench/transport."""
        assert self.process.stdin
        print(json.dumps({"do": do, "peer": peer, **numbers}), file=self.process.stdin)
        self.process.stdin.flush()
        result = self._line()
        if "error" in result:
            raise SystemExit(result["error"])
        return result

    def sample(self, do: str, peer: str, n: int) -> Sample:
        """A transfer of n bytes."""
        before = cpu_time(self.pids)
        seconds = self.ask(do, peer, bytes=n)["seconds"]
        return Sample(seconds, cpu_time(self.pids) - before)

    def end(self) -> None:
        self.process.communicate()


# ---- Transfers ----


def timed(call: Callable[[], object], device: torch.device | None = None) -> float:
    """Seconds of a call, and of its work on the device."""
    if device is not None:
        torch.mycelya.synchronize(device)
    start = time.perf_counter()
    kept = call()  # memory is given back after the measurement
    if device is not None:
        torch.mycelya.synchronize(device)
    took = time.perf_counter() - start
    del kept
    return took


def machine_cases(
    name: str, machine: RemoteMachine, x: torch.Tensor, out: torch.Tensor, peers: Peers
) -> dict[str, dict[str, Callable[[], Sample]]]:
    """The transfers of a machine by direction and name."""
    device = machine.device()
    pinned, pinned_out = x.pin_memory(), out.pin_memory()
    there = x.to(device) + 1  # computed there
    torch.mycelya.synchronize(device)
    pids = [p for p in processes(os.getpid()) if p not in peers.pids]

    def case(call: Callable[[], object]) -> Callable[[], Sample]:
        def sample() -> Sample:
            for source in (x, pinned):  # or the worker may have the bytes
                source.view(-1)[:8].random_()
            before = cpu_time(pids)
            return Sample(timed(call, device), cpu_time(pids) - before)

        return sample

    up = {
        "pageable": lambda: x.to(device),
        "pinned": lambda: pinned.to(device),
        "pinned, non_blocking": lambda: pinned.to(device, non_blocking=True),
    }
    down = {
        "cpu()": lambda: there.cpu(),
        "copy_()": lambda: out.copy_(there),
        "copy_() to pinned": lambda: pinned_out.copy_(there),
    }
    return {
        "upload": {f"{name}, {what}": case(call) for what, call in up.items()},
        "download": {f"{name}, {what}": case(call) for what, call in down.items()},
    }


def measure_bulk(
    machines: dict[str, RemoteMachine], peers: Peers, n: int, repeats: int
) -> dict[tuple[str, str], list[Sample]]:
    """Samples by direction and name."""
    x = torch.zeros(n, dtype=torch.uint8).random_()
    out = torch.ones_like(x)

    def on_cpu(call: Callable[[], object]) -> Callable[[], Sample]:
        def sample() -> Sample:
            before = cpu_time([os.getpid()])
            return Sample(timed(call), cpu_time([os.getpid()]) - before)

        return sample

    def of_peer(do: str, peer: str) -> Callable[[], Sample]:
        return lambda: peers.sample(do, peer, n)

    cases = {
        ("", CLONE): on_cpu(x.clone),
        ("", COPY): on_cpu(lambda: out.copy_(x)),
    }
    ours = {
        name: machine_cases(name, machine, x, out, peers)
        for name, machine in machines.items()
    }
    for direction, do in {"upload": "up", "download": "down"}.items():
        for peer, name in PEERS.items():
            cases[direction, name] = of_peer(do, peer)
        for name in machines:
            for what, call in ours[name][direction].items():
                cases[direction, what] = call
    samples: dict[tuple[str, str], list[Sample]] = {case: [] for case in cases}
    for repeat in range(repeats + 1):  # the first warms up
        for case, measure in cases.items():
            sample = measure()
            if repeat > 0:
                samples[case].append(sample)
    if torch.mycelya.metrics()["upload_bytes_deduped"] > 0:
        raise SystemExit("An upload sent no bytes, because the worker had them.")
    return samples


def bulk_table(samples: dict[tuple[str, str], list[Sample]], n: int) -> str:
    """The rates of the transfers as markdown."""
    best = {case: min(s.seconds for s in kept) for case, kept in samples.items()}
    lines = [
        "| direction | what | GB/s | of clone() | of raw TCP | of TLS | goal "
        "| CPU s/GB |",
        "|---|---|---:|---:|---:|---:|---|---:|",
    ]
    for (direction, name), seconds in best.items():
        others = [("", CLONE)]
        if direction:
            others += [(direction, PEERS["raw"]), (direction, PEERS["tls"])]
        ratios = [f"{best[other] / seconds:.2f}" for other in others]
        ratios += [""] * (3 - len(ratios))
        goal = ""
        if name.startswith("unix"):
            goal = "0.95 of clone()"
        elif name.startswith("TCP"):
            goal = "0.85 of raw TCP, 0.90 of TLS"
        cpu = min(s.cpu for s in samples[direction, name])
        lines.append(
            f"| {direction} | {name} | {n / seconds / 1e9:.2f} | {' | '.join(ratios)} "
            f"| {goal} | {cpu / n * 1e9:.2f} |"
        )
    return "\n".join(lines)


# ---- Round trips ----


def measure_trips(
    machines: dict[str, RemoteMachine], peers: Peers, count: int
) -> dict[str, list[float]]:
    """Times of round trips in µs by name."""

    def item(x: torch.Tensor) -> None:
        x.item()

    def op_and_item(x: torch.Tensor) -> None:
        x.add_(1).item()

    def of_machine(call: Callable[[], None]) -> list[float]:
        for _ in range(20):
            call()
        before = torch.mycelya.metrics()["round_trips"]
        micros = [timed(call) * 1e6 for _ in range(count)]
        trips = torch.mycelya.metrics()["round_trips"] - before
        if trips < count:
            raise SystemExit(f"{count} reads made only {trips} round trips.")
        return micros

    micros: dict[str, list[float]] = {}
    for _ in range(3):  # in turns
        for peer, name in TRIPS.items():
            peers.ask("trips", peer, count=20)
            micros.setdefault(name, [])
            micros[name] += peers.ask("trips", peer, count=count)["micros"]
        for name, machine in machines.items():
            x = torch.ones(1).to(machine.device()) + 1
            for what, call in (("item()", item), ("add_(1).item()", op_and_item)):
                micros.setdefault(f"{name}, {what}", [])
                micros[f"{name}, {what}"] += of_machine(partial(call, x))
    return micros


def trips_table(micros: dict[str, list[float]]) -> str:
    raw = statistics.median(micros[PEERS["raw"]])
    lines = [
        "| round trip | median µs | minimum µs | of raw TCP's median |",
        "|---|---:|---:|---:|",
    ]
    for name, times in micros.items():
        median = statistics.median(times)
        lines.append(
            f"| {name} | {median:.1f} | {min(times):.1f} | {median / raw:.2f} |"
        )
    return "\n".join(lines)


# ---- Slow networks ----


def latency(device: torch.device, n: int, what: str, uploads: int) -> dict[str, Any]:
    """Times in ms of item() or a step, without and during uploads of n bytes."""
    x = torch.zeros(n, dtype=torch.uint8).random_()
    work = item_on(device) if what == "item()" else step_on(device)
    for _ in range(20):
        work()

    def upload() -> None:
        for _ in range(uploads):
            x[:8].random_()  # or the worker may have the bytes
            timed(lambda: x.to(device), device)

    alone = min(timed(upload) for _ in range(2))
    idle, busy = [], []
    for _ in range(100):
        idle.append(timed(work) * 1e3)
        time.sleep(PAUSE)
    thread = threading.Thread(target=upload)
    start = time.perf_counter()
    thread.start()
    while thread.is_alive():
        busy.append(timed(work) * 1e3)
        time.sleep(PAUSE)
    thread.join()
    both = time.perf_counter() - start
    return {"idle": idle, "busy": busy, "alone": alone, "both": both}


def item_on(device: torch.device) -> Callable[[], object]:
    x = torch.zeros(1, device=device)
    return lambda: x.add_(1).item()


def step_on(device: torch.device) -> Callable[[], object]:
    net = torch.nn.Sequential(
        torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
    ).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    x, y = torch.randn(32, 64).to(device), torch.randint(10, (32,)).to(device)

    def step() -> object:
        loss = torch.nn.functional.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


class Behind:
    """A machine behind a network, in a child process."""

    def __init__(self, program: str, folder: str) -> None:
        from rtt import use_worker

        self.program = program
        # A script, because the client passes no arguments of ours to the worker.
        self.script = Path(folder) / "worker"
        self.script.touch(0o700)
        use_worker(str(self.script))
        self.machine = RemoteMachine(
            "local", device="cpu", transport="tcp", start=False
        )
        self.x = torch.zeros(max(r[1] for r in RATES.values()) << 20, dtype=torch.uint8)
        self.x.random_()

    def connect(self, rtt: int, rate: int) -> None:
        """Starts a worker; its link has measured nothing yet."""
        self.script.write_text(
            f'#!/bin/sh\nexec "{self.program}" worker --worker "{_load.WORKER}" '
            f'{" ".join(Network(rtt, rate).flags())} -- "$@" --uploads-bytes 0\n'
        )
        self.device = self.machine.restart().device()
        torch.zeros(1, device=self.device).add(1).item()

    def upload(self, n: int) -> float:
        """Seconds."""
        x = self.x[:n]
        return timed(lambda: x.to(self.device), self.device)

    def link(self) -> dict[str, float]:
        """What the machine's link has measured."""
        return torch.mycelya.metrics()["links"][str(self.device.index)]

    def latency(self, n: int, what: str) -> dict[str, Any]:
        return latency(self.device, n, what, 1)


def measure_network(
    program: str, child: Child, network: Network, mib: int, repeats: int
) -> dict[str, Any]:
    """Seconds of an upload by peer, and "ours"; "link" is what metrics() says."""
    peers = Peers(program, network)
    child.ask("connect", *network)
    n, best = mib << 20, {"raw": 1e9, "tls": 1e9, "ours": 1e9}
    for peer in ("raw", "tls"):
        peers.ask("trips", peer, count=3)
    for _ in range(repeats):
        for peer in ("raw", "tls"):
            seconds = peers.ask("up", peer, bytes=n)["seconds"]
            best[peer] = min(best[peer], seconds)
        best["ours"] = min(best["ours"], child.ask("upload", n))
    peers.end()
    return {**best, "link": child.ask("link")}


def networks_table(program: str, child: Child, quick: bool) -> str:
    """Uploads through slow networks, as markdown."""
    lines = [
        "| rate | RTT ms | MiB | raw TCP MB/s | TLS MB/s | ours MB/s | of raw TCP "
        "| of TLS | of the rate | metrics: MB/s | RTT ms |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for rate, rtt in itertools.product(RATES, RTTS):
        if quick and (rate != 10**9 or rtt not in (1, 100)):
            continue
        name, mib, repeats = RATES[rate]
        got = measure_network(program, child, Network(rtt, rate), mib, repeats)
        raw, tls, ours = ((mib << 20) / got[p] / 1e6 for p in ("raw", "tls", "ours"))
        link = got["link"]
        known, trip = link["bytes_per_second"] / 1e6, link["rtt_seconds"] * 1e3
        lines.append(
            f"| {name} | {rtt} | {mib} | {raw:.1f} | {tls:.1f} | {ours:.1f} "
            f"| {ours / raw:.2f} | {ours / tls:.2f} | {ours * 8e6 / rate:.2f} "
            f"| {known:.1f} | {trip:.1f} |"
        )
    return "\n".join(lines)


def peer_latency(peers: Peers, peer: str, n: int) -> dict[str, Any]:
    """The same as latency(), of a peer, with round trips of 64 bytes."""
    idle = peers.ask("trips", peer, count=100)["micros"]
    alone = peers.ask("up", peer, bytes=n)["seconds"]
    both = peers.ask("busy", peer, bytes=n)
    return {
        "idle": [t / 1e3 for t in idle],
        "busy": [t / 1e3 for t in both["micros"]],
        "alone": alone,
        "both": both["seconds"],
    }


def latency_table(
    program: str,
    child: Child,
    machines: dict[str, RemoteMachine],
    direct: Peers,
    quick: bool,
) -> str:
    """Latencies during uploads, as markdown."""
    n, network = 256 << 20, Network(10, 10**9)
    lines = [
        "| network | what | alone: median ms | during an upload: median ms "
        "| longest ms | samples | upload alone s | upload meanwhile s |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]

    def add(where: str, what: str, got: dict[str, Any]) -> None:
        lines.append(
            f"| {where} | {what} | {statistics.median(got['idle']):.3f} "
            f"| {statistics.median(got['busy']):.3f} | {max(got['busy']):.1f} "
            f"| {len(got['busy'])} | {got['alone']:.2f} | {got['both']:.2f} |"
        )

    slow = Peers(program, network)
    child.ask("connect", *network)
    where = f"{RATES[network.rate][0]}, {network.rtt} ms"
    for peer in ("raw", "grpc"):
        add(where, PEERS[peer], peer_latency(slow, peer, n))
    slow.end()
    for what in ("item()",) if quick else ("item()", "training step"):
        add(where, f"TCP, {what}", child.ask("latency", n, what))
    if not quick:
        for peer in ("raw", "grpc"):
            add("none", PEERS[peer], peer_latency(direct, peer, n))
        for name, machine in machines.items():
            for what in ("item()", "training step"):
                got = latency(machine.device(), n, what, 8)
                add("none", f"{name}, {what}, 8 uploads", got)
    return "\n".join(lines)


# ---- All of it ----


def child_main(program: str, folder: str) -> None:
    behind = Behind(program, folder)
    serve(lambda name, *arguments: getattr(behind, name)(*arguments))


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        torch.set_num_threads(1)
        gc.disable()
        return child_main(*sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--markdown", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    gc.disable()  # a collection would disturb a single repeat
    repeats = min(args.repeats, 3) if args.quick else args.repeats
    tables = []

    def show(title: str, table: str) -> None:
        tables.append(f"{title}\n\n{table}")
        print(tables[-1] + "\n", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        program = build(folder)
        machines = {
            "unix": RemoteMachine("local", device="cpu"),
            "TCP": RemoteMachine("local", device="cpu", transport="tcp"),
        }
        peers, n = Peers(program), args.mib << 20
        bulk = bulk_table(measure_bulk(machines, peers, n, repeats), n)
        show(f"Transfers of {args.mib} MiB, best of {repeats} repeats.", bulk)
        count = 200 if args.quick else 1000
        trips = trips_table(measure_trips(machines, peers, count))
        show(f"Round trips, 3 times {count} in turns.", trips)
        child = Child(program, folder)
        slow = networks_table(program, child, args.quick)
        show("Uploads through slow networks.", slow)
        during = latency_table(program, child, machines, peers, args.quick)
        show("Latency during an upload of 256 MiB.", during)
        peers.end()
        if args.markdown:
            how = f"{args.mib} MiB, best of {repeats} repeats"
            results.write("transport.py", how, "\n\n".join(tables))
        child.process.communicate()


if __name__ == "__main__":
    main()
