# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""The time of the client per op, from Python and from C++, against other captures.

On the device an op is recorded, not run, so this is the time of capture. One process
with one thread measures everything in turns; a figure is the minimum over the repeats.
Each repeat ends with a wait that is not timed, so that neither the worker's work nor a
full queue is measured.

    python bench/capture.py [--repeats N] [--callgrind] [--markdown]

From Python the comparisons are eager CPU, which computes, and:

lazy: PyTorch's own capture, torch._lazy with the TorchScript backend. mark_step and the
    wait for its device are not timed.
Meta key: a lower bound for a remote device that asks the Meta key for the shape of each
    result. The time is that of the same call on existing operands on "meta", and of one
    torch.empty_strided on "meta" for the tensor that such a device makes. Views and
    in-place ops make none. No operand is converted and nothing is recorded or sent. In
    the training step only the ops are timed, all of them on "meta".

From C++ (capture.cpp): a loop over the op through the dispatcher, below the keys of
autograd. It is built on demand into build/bench. A loop is so short that no trace ends
within it.

--callgrind adds the number of instructions of these calls, which does not depend on
other processes. It needs valgrind and takes minutes. --markdown writes the tables
between the marks in bench/RESULTS.md.
"""

import argparse
import ctypes
import gc
import math
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import results
import torch
from torch.nn import functional as F  # noqa: N812 (the usual name)

import mycelya_torch  # noqa: F401 (registers the device)

ROOT = Path(__file__).resolve().parent.parent
SOURCE = Path(__file__).with_suffix(".cpp")
MANY = 50  # tensors of a foreach op

# Blocks of rows, and the goal for the geometric mean of each. The last block has none.
OPS, VIEWS, STEP, ELSE = "ops", "views", "training step", "other ops"
GOALS = {OPS: 0.75, VIEWS: 1.05, STEP: 0.70}

# Peers are slower by orders of magnitude, so their number of calls is divided by this.
PEERS = {"lazy": 5, "meta": 20}

# Rows of capture.cpp and their goals in ns. t() has none, because most of its time is
# PyTorch's: two calls through the dispatcher before the device's. A foreach op has
# none, because it stands for many ops.
NATIVE = {
    "a + b": 250,
    "a * 1.001": 250,
    "a @ b": 250,
    "a.view(16)": 150,
    "a.t()": None,
    "a.add_(b)": 150,
    "_foreach_add_": None,
}
NATIVE_CALLS = 200  # a trace of so few records is not cut

Call = Callable[[], Any]
Cells = Iterable[str | float | None]
Rows = list[tuple[str, str, dict[str, float]]]  # name, block, device -> µs


class Case(NamedTuple):
    """A row: what to call, how often in a repeat, and the block that it belongs to."""

    call: Call
    calls: int
    group: str
    fresh: bool = True  # its result is a new tensor


def cases(device: str) -> dict[str, Case]:
    """The rows by name. The tensors are tiny: 4 x 4."""
    torch.manual_seed(0)
    a, b = (torch.randn(4, 4).to(device) for _ in range(2))
    weight, bias = torch.ones(4).to(device), torch.zeros(4).to(device)
    many = [torch.randn(4, 4).to(device) for _ in range(MANY)]
    small, batch, target = training(device)

    def step() -> None:
        loss = F.mse_loss(small[0](batch), target)
        small[1].zero_grad()
        loss.backward()
        small[1].step()

    def foreach() -> None:
        torch._foreach_add_(many, 0.001)

    return {
        "a + b": Case(lambda: a + b, 1000, OPS),
        "a * 1.001": Case(lambda: a * 1.001, 1000, OPS),
        "a @ b": Case(lambda: a @ b, 1000, OPS),
        "a.add_(b)": Case(lambda: a.add_(b), 1000, OPS, fresh=False),
        f"_foreach_add_, {MANY} tensors": Case(foreach, 20, OPS, fresh=False),
        "layer_norm": Case(lambda: F.layer_norm(a, (4,), weight, bias), 1000, OPS),
        "softmax": Case(lambda: a.softmax(-1), 1000, OPS),
        "a.view(16)": Case(lambda: a.view(16), 1000, VIEWS, fresh=False),
        "a.t()": Case(lambda: a.t(), 1000, VIEWS, fresh=False),
        "training step": Case(step, 10, STEP, fresh=False),
        "sum": Case(lambda: a.sum(), 1000, ELSE),
        "cat": Case(lambda: torch.cat((a, b)), 1000, ELSE),
        "clone": Case(lambda: a.clone(), 1000, ELSE),
    }


def training(
    device: str,
) -> tuple[tuple[torch.nn.Module, torch.optim.Optimizer], torch.Tensor, torch.Tensor]:
    """6 x (Linear 32 + ReLU) with AdamW, a batch and its target: [16,32] each."""
    layers: list[torch.nn.Module] = []
    for _ in range(6):
        layers += [torch.nn.Linear(32, 32), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers).to(device)
    batch, target = (torch.randn(16, 32).to(device) for _ in range(2))
    return (model, torch.optim.AdamW(model.parameters())), batch, target


def with_result(call: Call) -> Call:
    """The call on "meta", followed by one more tensor like its result."""

    def both() -> None:
        t = call()
        torch.empty_strided(t.size(), t.stride(), dtype=t.dtype, device="meta")

    return both


def time_of(call: Call, n: int) -> float:
    """Seconds per call over n calls, after one call that warms up the caches."""
    call()
    start = time.perf_counter()
    for _ in range(n):
        call()
    return (time.perf_counter() - start) / n


def wait(device: str) -> None:
    """Waits until all captured ops have run."""
    if device == "mycelya":
        torch.mycelya.synchronize()
    elif device == "lazy":
        torch._lazy.mark_step()
        torch._lazy.wait_device_ops()


def start_lazy() -> None:
    import torch._lazy.ts_backend

    torch._lazy.ts_backend.init()


def measure(repeats: int) -> tuple[Rows, list[str]]:
    """The rows from Python, and for each missing figure of a peer the reason."""
    start_lazy()
    devices = ["mycelya", "cpu", *PEERS]
    all_cases = {device: cases(device) for device in devices}
    rows: Rows = []
    notes = []
    for name, case in all_cases["cpu"].items():
        calls = {device: all_cases[device][name].call for device in devices}
        if case.fresh:
            calls["meta"] = with_result(calls["meta"])
        best = dict.fromkeys(devices, math.inf)
        for repeat in range(repeats + 2):  # the first two warm up
            for device, call in list(calls.items()):
                try:
                    took = time_of(call, max(1, case.calls // PEERS.get(device, 1)))
                    wait(device)
                except Exception as error:
                    if device not in PEERS:
                        raise
                    del calls[device]
                    why = str(error).strip().split("\n")[0]
                    notes.append(f"No figure of {device} for {name}: {why}")
                    continue
                if repeat >= 2:
                    best[device] = min(best[device], took * 1e6)
        rows.append((name, case.group, best))
    return rows, notes


def geomean(ratios: Iterable[float]) -> float:
    logs = [math.log(ratio) for ratio in ratios]
    return math.exp(sum(logs) / len(logs))


def line(cells: Cells) -> str:
    """A line of a table; None and infinity become a dash."""

    def text(cell: str | float | None) -> str:
        if cell is None or cell == math.inf:
            return "–"
        return cell if isinstance(cell, str) else f"{cell:.2f}"

    return "| " + " | ".join(map(text, cells)) + " |"


def python_table(rows: Rows, notes: list[str]) -> str:
    """From Python: a block per goal, each with its geometric mean, as markdown.

    The mean of a peer leaves out the rows that the peer cannot run.
    """
    head = ["op, from Python", "mycelya µs", "cpu µs", "ratio", "goal"]
    head += ["lazy µs", "Meta key µs"]
    lines = [line(head), line(["---", *["---:"] * (len(head) - 1)])]
    for group in (OPS, VIEWS, STEP, ELSE):
        block = [(name, best) for name, of, best in rows if of == group]
        goal = GOALS.get(group)
        for name, best in block:
            mine = [best["mycelya"], best["cpu"], best["mycelya"] / best["cpu"]]
            own_goal = f"{goal:.2f}" if len(block) == 1 else ""
            lines.append(line([name, *mine, own_goal, *(best[p] for p in PEERS)]))
        if goal is None or len(block) == 1:
            continue
        means: list[str | None] = []
        for device in ("mycelya", *PEERS):
            ratios = [best[device] / best["cpu"] for _, best in block]
            known = [ratio for ratio in ratios if ratio != math.inf]
            means.append(f"**{geomean(known):.2f} ×**" if known else None)
        title = f"**geometric mean of {group}, × cpu**"
        lines.append(line([title, "", "", means[0], f"{goal:.2f}", *means[1:]]))
    return "\n".join([*lines, *([""] if notes else []), *notes])


def library() -> Path | None:
    """capture.cpp, built if it is not up to date; None without a compiler."""
    compiler = os.environ.get("CXX", "c++")
    if shutil.which(compiler) is None:
        return None
    from torch.utils import cpp_extension

    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    built = ROOT / "build" / "bench" / f"capture-{python}-torch{torch.__version__}.so"
    sources = [SOURCE, Path(__file__)]  # this file has the compiler's options
    if built.exists() and all(
        built.stat().st_mtime > source.stat().st_mtime for source in sources
    ):
        return built
    built.parent.mkdir(parents=True, exist_ok=True)
    includes = [*cpp_extension.include_paths()[:2], sysconfig.get_path("include")]
    command = [compiler, "-std=c++20", "-O2", "-shared", "-fPIC", str(SOURCE)]
    command += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"]
    command += [option for path in includes for option in ("-isystem", path)]
    # Link only; this process has already loaded the libraries.
    torch_lib = Path(torch.__file__).resolve().parent / "lib"
    command += [f"-L{torch_lib}", "-ltorch_python", "-ltorch_cpu", "-lc10"]
    subprocess.run([*command, "-o", str(built)], check=True)
    return built


class Native:
    """The loops of capture.cpp on the tensors of a device."""

    def __init__(self, built: Path) -> None:
        self.library = ctypes.PyDLL(str(built))
        self.library.capture_seconds.restype = ctypes.c_double
        self.library.capture_seconds.argtypes = [
            ctypes.c_char_p,
            ctypes.py_object,
            ctypes.c_int64,
        ]
        self.tensors = {
            device: [torch.randn(4, 4).to(device) for _ in range(2 + MANY)]
            for device in ("mycelya", "cpu")
        }

    def nanoseconds(self, name: str, device: str) -> float:
        """The time of one call; of a foreach op, the time per tensor. Waits after."""
        calls = NATIVE_CALLS // (MANY if "foreach" in name else 1)
        seconds = self.library.capture_seconds(
            name.encode(), self.tensors[device], calls
        )
        if seconds < 0:
            raise RuntimeError(f"capture.cpp could not run {name} on {device}")
        wait(device)
        return seconds / NATIVE_CALLS * 1e9


def native_table(repeats: int, instructions: dict[tuple[str, str], float]) -> str:
    """From C++: ns of each op, and its instructions if they are known, as markdown."""
    built = library()
    if built is None:
        return "No C++ compiler on this machine: the cost in C++ was not measured."
    native = Native(built)
    head = ["op, in C++ below autograd's keys", "mycelya ns", "goal", "cpu ns", "ratio"]
    if instructions:
        head += ["mycelya instructions", "cpu instructions"]
    lines = [line(head), line(["---", *["---:"] * (len(head) - 1)])]
    for name, goal in NATIVE.items():
        best = {"mycelya": math.inf, "cpu": math.inf}
        for repeat in range(10 * repeats + 2):  # these repeats are short
            for device, least in best.items():
                took = native.nanoseconds(name, device)
                if repeat >= 2:
                    best[device] = min(least, took)
        cells: list[str | float | None] = [
            f"{name}, per tensor" if "foreach" in name else name,
            f"{best['mycelya']:.0f}",
            None if goal is None else f"{goal}",
            f"{best['cpu']:.0f}",
            best["mycelya"] / best["cpu"],
        ]
        if instructions:
            cells += [f"{instructions[name, device]:.0f}" for device in best]
        lines.append(line(cells))
    return "\n".join(lines)


def count_here(built: Path) -> None:
    """Runs each loop four times under callgrind; count() uses the last."""
    native = Native(built)
    for name in NATIVE:
        for device in native.tensors:
            for _ in range(4):
                native.nanoseconds(name, device)


def count() -> dict[tuple[str, str], float]:
    """Instructions of a call by (name, device), under callgrind in another process."""
    built = library()
    if shutil.which("valgrind") is None or built is None:
        raise SystemExit("--callgrind needs valgrind and a C++ compiler.")
    if not ctypes.CDLL(str(built)).capture_has_callgrind():
        raise SystemExit(f"{built} was built without valgrind's headers: delete it.")
    found: dict[tuple[str, str], float] = {}
    with tempfile.TemporaryDirectory() as folder:
        command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", "-q"]
        command += ["--separate-threads=yes", f"--callgrind-out-file={folder}/out"]
        command += [sys.executable, __file__, "--under-callgrind", str(built)]
        # Callgrind may abort at a signal by which Go preempts a thread.
        env = os.environ | {"GODEBUG": "asyncpreemptoff=1"}
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(done.stderr)
        # There is a dump for each loop and thread; the thread with the most
        # instructions ran the loop. Each name has four dumps of the device and then
        # four of the CPU; the last of each four counts.
        dumps: dict[int, tuple[str, int]] = {}
        for path in Path(folder).glob("out.*-*"):
            text = path.read_text()
            trigger = re.search(r"^desc: Trigger: Client Request: (.*)$", text, re.M)
            total = re.search(r"^totals: (\d+)", text, re.M)
            if trigger is None or total is None:
                continue
            part = int(path.name.split(".")[1].split("-")[0])
            instructions = max(int(total[1]), dumps.get(part, ("", 0))[1])
            dumps[part] = (trigger[1], instructions)
    for name in NATIVE:
        of = [dumps[part][1] for part in sorted(dumps) if dumps[part][0] == name]
        found[name, "mycelya"] = of[3] / NATIVE_CALLS
        found[name, "cpu"] = of[7] / NATIVE_CALLS
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--callgrind", action="store_true")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--under-callgrind", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    gc.disable()  # a collection would disturb a single repeat
    if args.under_callgrind:
        return count_here(args.under_callgrind)
    instructions = count() if args.callgrind else {}
    tables = [python_table(*measure(args.repeats))]
    print(tables[0], "\n", flush=True)
    tables.append(native_table(args.repeats, instructions))
    print(tables[1])
    text = "\n\n".join(tables)
    if args.markdown:
        results.write("capture.py", f"minimum of {args.repeats} repeats", text)


if __name__ == "__main__":
    main()
