# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Steps per second of a training loop with its worker behind a slow network.

The training loops are those of examples/digits.py and examples/chargpt.py. Each example
runs briefly; then its model, optimizer and data are trained further. The worker is a
local machine behind an emulated network, with a round trip time and a rate in each
direction. The loss is logged in four ways:

    future  loss.cpu_future() in every step
    copy    a non-blocking copy to pinned memory in every step
    50      loss.item() in every 50th step
    item    loss.item() in every step

The loops of libraries.py log nothing of their own. They run in two ways:

    ahead   as they are
    waits   with MYCELYA_AHEAD=off and MYCELYA_GUESS=off: each read waits

Each link has its own client process and its own worker. The links of one model and one
way of logging take turns. A figure is the median over the rounds; a ratio is the median
of the ratios within each round. The worker has one thread and the last core for itself,
as if it ran on another machine. The client has the network and the other cores.

A measurement starts in the middle of the training, when no program was compiled for a
while and the credit is used up. It stops without a wait for the worker. It counts the
steps with a loss that arrived in that time. With blocking reads it starts and stops
right after a read. "busy" is the worker's processor time divided by the elapsed time;
for the remaining time the worker waited. If two links have different rates but equal
"busy", the machine was slower, not the link, because the two cores may be hyperthreads
of one. "late" is the largest number of steps between the client's step and the latest
step with a loss that has arrived. It must not grow with time. Messages, round trips and
blocking reads are per step. A step of generate is a token.

"of 0 ms" compares with a link of 0 ms without a limit and the same way of logging. The
bound for a read in every 50th step is T / (T + RTT); T is the time of 50 steps at 0 ms.

    python bench/rtt.py [--quick] [--repeats N] [--seconds S] [--models M ...]
                        [--records FILE] [--markdown]

--quick measures 0 and 100 ms only, without limits. --records keeps the measurements in
a file, and measures only what the file lacks. --markdown writes the table between the
marks in bench/RESULTS.md, and the plot bench/rtt.svg, which needs matplotlib.
"""

import argparse
import collections
import contextlib
import io
import itertools
import json
import os
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import libraries

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ("digits", "chargpt")
LIBRARIES = ("generate", "trainer", "lightning", "five")
MODELS = EXAMPLES + LIBRARIES
RTTS = (0, 1, 10, 50, 100)  # ms
RATES = {0: "none", 10**9: "1 Gb/s", 10**8: "100 Mb/s"}
WAYS = ("future", "copy", "50", "item")
LIBRARY_WAYS = ("ahead", "waits")
LIMITED = ("future",)  # the ways that are also measured with rate limits
EVERY = 50
# The warm-up ends after this many steps without a new program, 30 if not named. An
# epoch of digits has fewer steps; a step of generate is a call.
QUIET = {"generate": 2}
# Steps until the credit is used up: 64 traces, or 256 of fast steps.
FILL = {"digits": 300, "chargpt": 100}


class Point(NamedTuple):
    """What one run measures: rtt in ms, rate in bits per second."""

    model: str
    way: str
    rate: int
    rtt: int

    def base(self) -> "Point":
        return self._replace(rate=0, rtt=0)


Runs = dict[Point, list[dict[str, Any]]]  # by round


# ---- One run, in its own process ----


def use_worker(worker: str) -> None:
    """Makes the device start this program as its worker. Call it before any op."""
    import mycelya_torch
    from mycelya_torch import _device, _load

    paths = (_load.CLIENT, worker, _load.EXEC, _load.torch_lib())
    _device.init(*map(str, paths), *mycelya_torch._default_machine)


def example(name: str, *arguments: str) -> dict[str, Any]:
    """Runs an example and returns its global names."""
    before = sys.argv
    sys.argv = [name, *arguments]
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return runpy.run_path(str(ROOT / "examples" / f"{name}.py"))
    finally:
        sys.argv = before


def digits() -> Iterator[Any]:
    """Trains as examples/digits.py does; yields the loss of each step."""
    import torch

    e = example("digits", "--epochs", "1")
    model, optimizer, loss_of = e["model"], e["optimizer"], e["loss_of"]
    # This schedule is too long to end; the example's own has ended.
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=10**7)
    while True:
        for image, label in e["loader"]:
            image, label = image.to(e["device"]), label.to(e["device"])
            loss = loss_of(model(image), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            yield loss


def chargpt() -> Iterator[Any]:
    """Trains as examples/chargpt.py does; yields the loss of each step."""
    import torch
    from torch.nn import functional as F

    e = example("chargpt", "--steps", "1", "--sample", "0")
    model, optimizer, ids, context = e["model"], e["optimizer"], e["ids"], e["CONTEXT"]
    last, batch = len(ids) - context - 1, e["args"].batch
    while True:
        begin = torch.randint(last, (batch, 1), generator=e["batches"])
        window = ids[begin + torch.arange(context + 1)].to(e["device"])
        logits = model(window[:, :-1]).flatten(0, 1)
        loss = F.cross_entropy(logits, window[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss


LOOPS: dict[str, Callable[[], Iterator[Any]]] = {
    "digits": digits,
    "chargpt": chargpt,
    "generate": libraries.generate,
    "trainer": libraries.trainer,
    "lightning": libraries.lightning,
    "five": libraries.five,
}


class Log:
    """The losses of a training, logged in one of the ways."""

    KEPT = 1 << 16  # losses that pinned memory holds

    def __init__(self, way: str) -> None:
        import torch

        self.waiting: collections.deque[Any] = collections.deque()
        self.steps, self.arrived, self.late = 0, 0, 0
        self.pinned = torch.zeros(self.KEPT, pin_memory=True) if way == "copy" else None
        # Every so many steps end with a blocking read; 0: no step does.
        self.waits = 0 if way in ("future", "copy") else EVERY if way == "50" else 1
        self.add: Callable[[Any], None] = getattr(self, f"_{way}")

    def done(self) -> int:
        """The number of steps with a loss that has arrived.

        After a blocking read, that is every step.
        """
        if self.waits:
            return self.steps
        while self.waiting and self.waiting[0][0]():
            assert self.waiting.popleft()[1]().isfinite()
            self.arrived += 1
        return self.arrived

    def _future(self, loss: Any) -> None:
        future = loss.cpu_future()
        self.waiting.append((future.done, future.result))
        self._count()

    def _copy(self, loss: Any) -> None:
        import torch

        assert self.pinned is not None
        place = self.pinned[self.steps % self.KEPT]
        place.copy_(loss.detach(), non_blocking=True)
        event = torch.Event("mycelya")
        event.record()
        self.waiting.append((event.query, lambda: place))
        self._count()

    def _50(self, loss: Any) -> None:
        if self.steps % EVERY == EVERY - 1:
            loss.item()
        self.steps += 1

    def _item(self, loss: Any) -> None:
        loss.item()
        self.steps += 1

    def _ahead(self, steps: int) -> None:
        self.steps += steps

    _waits = _ahead

    def _count(self) -> None:
        self.steps += 1
        self.late = max(self.late, self.steps - self.done())


def serve(point: Point, worker: str) -> None:
    """Trains until nothing new is compiled; then measures once for each line of stdin.

    A line is the number of seconds; the answer is a line of JSON. What libraries print
    goes to stderr.
    """
    import torch

    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[:-1] or cores)
    for name in ("MYCELYA_AHEAD", "MYCELYA_GUESS"):
        os.environ[name] = "off" if point.way == "waits" else "on"
    use_worker(worker)
    torch.set_num_threads(1)
    losses = LOOPS[point.model]()
    log = Log(point.way)
    quiet, misses = 0, -1
    while quiet < QUIET.get(point.model, 30):
        log.add(next(losses))
        before, misses = misses, torch.mycelya.metrics()["program_misses"]
        quiet = quiet + 1 if misses == before else 0
    torch.mycelya.synchronize()
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        found = json.dumps(measure(point, log, losses, float(line)))
        print(found, file=answers, flush=True)


def worker_time(device: int = 0) -> float:
    """CPU seconds of a device's worker."""
    from mycelya_torch import _device

    pid = json.loads(_device.device_info(device))["pid"]
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(
    point: Point, log: Log, losses: Iterator[Any], seconds: float
) -> dict[str, Any]:
    """Steps per second, counters per step, and the round trip time of the link."""
    import torch

    fill = FILL[point.model] if log.waits == 0 else log.waits
    for _ in range(fill - log.steps % log.waits if log.waits else fill):
        log.add(next(losses))
    torch.mycelya.reset_metrics()
    log.late, steps, recorded = 0, log.done(), log.steps
    busy, start = worker_time(), time.perf_counter()
    while time.perf_counter() - start < seconds or (
        log.waits != 0 and log.steps % log.waits
    ):
        log.add(next(losses))
    took, steps = time.perf_counter() - start, log.done() - steps
    busy, recorded = worker_time() - busy, log.steps - recorded
    m = torch.mycelya.metrics()
    torch.mycelya.synchronize()
    start = time.perf_counter()
    torch.mycelya.synchronize()
    trip = time.perf_counter() - start
    counted = ("messages_sent", "bytes_sent", "upload_bytes", "round_trips", "stalls")
    counted += ("blocking_reads",)
    return {
        "steps": steps,
        "rate": steps / took,
        "busy": busy / took,
        "late": log.late,
        "compiled": m["program_misses"],
        "stalled": m["stall_seconds"] / took,
        "trip_ms": trip * 1e3,
        "cuts": {k: n / recorded for k, n in m["cuts"].items()},
        **{k: m[k] / recorded for k in counted},
    }


# ---- All runs ----


def points(models: list[str], quick: bool) -> list[Point]:
    """The points to measure, in the order of a round."""
    rtts = (0, 100) if quick else RTTS
    wanted = (
        Point(*p)
        for m in models
        for p in itertools.product(
            *([m], LIBRARY_WAYS if m in LIBRARIES else WAYS, RATES, rtts)
        )
    )
    return [p for p in wanted if p.rate == 0 or (p.way in LIMITED and not quick)]


class Run:
    """A training loop in a child process, which measures on request."""

    def __init__(self, point: Point, folder: Path) -> None:
        from mycelya_torch import _load

        self.point = point
        last = max(os.sched_getaffinity(0))
        worker = folder / "worker"
        worker.write_text(f'#!/bin/sh\nexec taskset -c {last} "{_load.WORKER}" "$@"\n')
        worker.chmod(0o700)
        self.errors = (folder / f"{point.rate}-{point.rtt}.log").open("w+")
        network = f"transport=tcp&rtt={point.rtt}ms"
        if point.rate:
            network += f"&rate={point.rate}bit"
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--run", json.dumps([point, str(worker)])],
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "MYCELYA_MACHINE": f"local?{network}",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
        )
        self.line()  # "ready"

    def line(self) -> str:
        assert self.process.stdout is not None
        if line := self.process.stdout.readline():
            return line
        self.errors.seek(0)
        raise SystemExit(f"{self.point} failed:\n{self.errors.read()}")

    def measure(self, seconds: float) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()
        return json.loads(self.line())

    def end(self) -> None:
        self.process.communicate()
        self.errors.close()


def measure_group(group: list[Point], repeats: int, seconds: float) -> Runs:
    """Measures points in turns. All their processes wait while one trains."""
    runs: Runs = {p: [] for p in group}
    with tempfile.TemporaryDirectory() as folder:
        processes = [Run(p, Path(folder)) for p in group]
        for _ in range(repeats):
            for process in processes:
                runs[process.point].append(process.measure(seconds))
        for process in processes:
            process.end()
    return runs


def measure_all(todo: list[Point], repeats: int, seconds: float, records: str) -> Runs:
    """Measures the points that the records lack."""
    runs: Runs = {}
    if records and Path(records).exists():
        for line in Path(records).read_text().splitlines():
            point, found = json.loads(line)
            runs[Point(*point)] = found
    for _, points_of in itertools.groupby(todo, key=lambda p: (p.model, p.way)):
        group = list(points_of)
        # Ratios are within a round, so a group is measured as a whole or not at all.
        if all(p in runs for p in group):
            continue
        found = measure_group(group, repeats, seconds)
        runs |= found
        print(table(found, group), file=sys.stderr, flush=True)
        if records:
            with Path(records).open("a") as file:
                file.writelines(json.dumps([p, r]) + "\n" for p, r in found.items())
    return {p: runs[p] for p in todo}


def median(runs: list[dict[str, Any]], name: str) -> float:
    return statistics.median(r[name] for r in runs)


def relative(runs: Runs, point: Point) -> float:
    """The ratio to the rate at 0 ms without a limit in the same round."""
    pairs = zip(runs[point], runs[point.base()], strict=True)
    return statistics.median(r["rate"] / b["rate"] for r, b in pairs)


def bound(runs: Runs, point: Point) -> float:
    """The highest possible ratio to the rate at 0 ms with a read in every 50th step."""
    times = [EVERY / b["rate"] for b in runs[point.base()]]
    return statistics.median(t / (t + point.rtt / 1e3) for t in times)


def of_bound(runs: Runs, point: Point) -> float:
    """The ratio to the bound in the same round."""
    pairs = zip(runs[point], runs[point.base()], strict=True)
    rtt = point.rtt / 1e3
    return statistics.median(
        r["rate"] * (EVERY / b["rate"] + rtt) / EVERY for r, b in pairs
    )


def table(runs: Runs, rows: list[Point]) -> str:
    """A markdown table with a row for each of these points."""
    lines = [
        "| model | loss | limit | RTT ms | steps/s | of 0 ms | of the bound | busy "
        "| late | messages | round trips | blocking reads |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for p in rows:
        r, part = runs[p], relative(runs, p)
        good = f"{of_bound(runs, p):.2f}" if p.way == str(EVERY) else ""
        late = f"{median(r, 'late'):.0f}" if p.way in ("future", "copy") else ""
        lines.append(
            f"| {p.model} | {p.way} | {RATES[p.rate]} | {p.rtt} "
            f"| {median(r, 'rate'):.1f} | {part:.2f} | {good} "
            f"| {median(r, 'busy'):.2f} | {late} "
            f"| {median(r, 'messages_sent'):.2f} | {median(r, 'round_trips'):.2f} "
            f"| {median(r, 'blocking_reads'):.2f} |"
        )
    return "\n".join(lines)


def plot(runs: Runs, path: Path) -> None:
    """The rates over the round trip time, a line for each limit and way."""
    import matplotlib

    matplotlib.use("svg")
    # A fixed salt makes the file reproducible; "none" keeps text as text.
    matplotlib.rcParams.update({"svg.hashsalt": "rtt", "svg.fonttype": "none"})
    from matplotlib import pyplot

    models = [m for m in EXAMPLES if any(p.model == m for p in runs)]
    figure, axes = pyplot.subplots(
        *(1, len(models)),
        figsize=(5 * len(models), 4.8),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    names = {"future": "cpu_future()", "copy": "non-blocking copy"}
    names |= {"50": "item() in every 50th step", "item": "item() in every step"}
    styles = dict(zip(RATES, ("-", "--", ":"), strict=True))
    for model, ax in zip(models, axes[0], strict=True):
        for (i, way), rate in itertools.product(enumerate(WAYS), RATES):
            line = sorted(
                p for p in runs if (p.model, p.way, p.rate) == (model, way, rate)
            )
            if not line:
                continue
            label = names[way] + (f", {RATES[rate]}" if rate else "")
            x, y = [p.rtt for p in line], [relative(runs, p) for p in line]
            ax.plot(x, y, f"o{styles[rate]}", color=f"C{i}", label=label, markersize=3)
            if way == str(EVERY) and rate == 0:
                y = [bound(runs, p) for p in line]
                ax.plot(x, y, "-", color="0.6", linewidth=4, zorder=0, label="bound")
        ax.set(title=model, xlabel="round trip time, ms", ylim=(0, None))
        ax.grid(alpha=0.3)
    axes[0][0].set_ylabel("steps per second, relative to 0 ms")
    lines, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(
        *(lines, labels),
        loc="outside lower center",
        ncols=3,
        fontsize=8,
        handlelength=3,
    )
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--records", default="")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        point, worker = json.loads(args.run)
        return serve(Point(*point), worker)
    todo = points(args.models, args.quick)
    runs = measure_all(todo, args.repeats, args.seconds, args.records)
    text = table(runs, todo)
    print(text)
    if args.markdown:
        import results

        how = f"median of {args.repeats} rounds of {args.seconds:g} s"
        results.write("rtt.py", how, text)
        plot(runs, ROOT / "bench" / "rtt.svg")


if __name__ == "__main__":
    main()
