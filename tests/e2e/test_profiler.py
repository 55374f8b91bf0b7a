# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""torch.profiler and torch.mycelya.trace(): what workers compute, with its lines."""

import gzip
import inspect
import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from helpers import DEVICE, run
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, schedule

from mycelya_torch import RemoteMachine, _trace

pytestmark = pytest.mark.cpu_worker
BOTH = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]
HERE = Path(__file__).name
REGISTRY = "include/torch/csrc/profiler/standalone/privateuse1_profiler.h"
plugin = pytest.mark.skipif(
    not Path(torch.__file__).parent.joinpath(REGISTRY).exists(),
    reason="this PyTorch takes no profilers of other devices, as 2.11",
)


def line_of(text):
    """Where this file has a text: file:line, as traces show it."""
    lines = Path(__file__).read_text().splitlines()
    (found,) = [i for i, line in enumerate(lines, 1) if line.strip() == text]
    return f"{HERE}:{found}"


def exported(p, tmp_path):
    path = tmp_path / "trace.json"
    p.export_chrome_trace(str(path))
    return json.loads(path.read_text())["traceEvents"]


def compute(x, w):
    y = x @ w
    z = (y * 2 + 1).relu()
    return z.sum()


@plugin
def test_rows_of_the_device(tmp_path):
    x, w = torch.randn(64, 32), torch.randn(32, 16)
    expected = compute(x, w)
    x, w = x.to(DEVICE), w.to(DEVICE)
    with profile(activities=BOTH) as p:
        value = compute(x, w)
        torch.testing.assert_close(value.cpu(), expected)
    kernels = [
        e
        for e in p.events()
        if e.device_type == DeviceType.PrivateUse1 and not e.is_user_annotation
    ]
    names = [e.name for e in kernels]
    assert "mm" in names
    assert any("relu" in name for name in names)
    assert all(e.device_index == 0 and e.time_range.elapsed_us() >= 0 for e in kernels)
    # What the device has done is charged to the op that recorded it.
    ops = {e.key: e for e in p.key_averages() if e.device_type == DeviceType.CPU}
    assert ops["aten::mm"].device_time_total > 0
    table = p.key_averages().table(sort_by="self_device_time_total")
    assert "Self MYCELYA" in table and "MYCELYA time avg" in table

    trace = exported(p, tmp_path)
    rows = [e for e in trace if e.get("cat") == "kernel"]
    (mm,) = [e for e in rows if e["name"] == "mm"]
    assert mm["args"]["line"].endswith(line_of("y = x @ w"))
    assert mm["args"]["program"] >= 1
    cpu = [e for e in trace if e.get("cat") == "cpu_op"]
    (op,) = [e for e in cpu if e["name"] == "aten::mm"]
    assert op["ts"] <= mm["ts"]  # on one clock


@plugin
def test_backward_and_other_threads():
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)
    ).to(DEVICE)
    x = torch.randn(4, 8, device=DEVICE)

    def step():
        model(x).sum().backward()

    with profile(activities=BOTH) as p:
        step()
        thread = threading.Thread(target=step)
        thread.start()
        thread.join()
    names = {e.name for e in p.events() if e.device_type == DeviceType.PrivateUse1}
    assert "addmm" in names
    by = {e.key: e.device_time_total for e in p.key_averages()}
    assert by["autograd::engine::evaluate_function: AddmmBackward0"] > 0


@plugin
def test_a_schedule_profiles_some_steps():
    x = torch.randn(8, 8, device=DEVICE)
    found = []

    def ready(p):
        device = [e for e in p.events() if e.device_type == DeviceType.PrivateUse1]
        found.append(sum(e.name == "mm" for e in device))

    with profile(
        activities=BOTH,
        schedule=schedule(wait=1, warmup=1, active=2, repeat=2),
        on_trace_ready=ready,
    ) as p:
        for _ in range(8):
            x = x @ x / 8
            x.sum().item()
            p.step()
    assert found == [2, 2]


@plugin
def test_the_cpu_alone_costs_the_device_nothing():
    x = torch.randn(8, 8, device=DEVICE)
    with profile(activities=[ProfilerActivity.CPU]) as p:
        (x @ x).cpu()
    assert not [e for e in p.events() if e.device_type == DeviceType.PrivateUse1]
    with torch.mycelya.trace("/dev/null"):  # no profile is left
        pass


@plugin
def test_one_profile_at_a_time(tmp_path):
    x = torch.ones(4, device=DEVICE)
    with torch.mycelya.trace(tmp_path / "a.json"):
        with pytest.raises(RuntimeError, match="A profile of this process runs"):
            with torch.mycelya.trace(tmp_path / "b.json"):
                pass
        with profile(activities=BOTH) as p:  # has the rows of the CPU alone
            (x + 1).cpu()
    assert not [e for e in p.events() if e.device_type == DeviceType.PrivateUse1]
    assert json.loads((tmp_path / "a.json").read_text())["traceEvents"]


# ---- torch.mycelya.trace ----


def spans(path):
    """The spans of a trace by category, after checks that hold for each trace."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt") as file:
        events = json.load(file)["traceEvents"]
    rows, found = {}, {}
    starts, ends = set(), set()
    for e in events:
        if e["ph"] == "X":
            assert e["dur"] >= 0 and e["ts"] >= 0
            rows.setdefault((e["pid"], e["tid"]), []).append((e["ts"], e["dur"]))
            found.setdefault(e["cat"], []).append(e)
        elif e["ph"] in "sf":
            (starts if e["ph"] == "s" else ends).add(e["id"])
    assert starts == ends  # each program that was recorded has run
    for spans_of_row in rows.values():  # nothing overlaps in a row
        spans_of_row.sort()
        for (a, took), (b, _) in zip(spans_of_row, spans_of_row[1:], strict=False):
            assert a + took <= b + 0.01
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert named == rows.keys()
    return found


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_timeline(tmp_path, name):
    x, w = torch.randn(64, 32, device=DEVICE), torch.randn(32, 16, device=DEVICE)
    path = tmp_path / name
    with torch.mycelya.trace(path):
        for _ in range(3):
            compute(x, w).item()
        compute(x, w)  # nothing has waited for it
    found = spans(path)
    assert len([e for e in found["op"] if e["name"] == "mm"]) == 4
    assert len(found["worker"]) == len(found["record"]) == len(found["compile"])
    assert len(found["wait"]) >= 3
    waits = [e["args"].get("line", "") for e in found["wait"]]
    here = inspect.currentframe().f_code.co_firstlineno
    assert sum(HERE in line and int(line.split(":")[-1]) > here for line in waits) >= 3
    lines = {e["args"]["line"] for e in found["op"]}
    assert any(line.endswith(line_of("y = x @ w")) for line in lines)
    assert any(e["name"].startswith("Call of ") for e in found["send"])
    assert any(e["name"].startswith("ReadReply of 4 bytes") for e in found["receive"])
    for kind in ("worker", "op"):  # causes come before effects
        assert min(e["ts"] for e in found[kind]) > min(e["ts"] for e in found["record"])
    values = [compute(x, w).item() for _ in range(2)]
    assert values[0] == values[1]


def test_times_add_up(tmp_path):
    x = torch.randn(768, 768, device=DEVICE)
    (x @ x).sum().item()
    path = tmp_path / "trace.json"
    with torch.mycelya.trace(path):
        for _ in range(4):
            (x @ x).sum().item()
    found = spans(path)
    products = sum(e["dur"] for e in found["op"] if e["name"] == "mm")
    ops = sum(e["dur"] for e in found["op"])
    programs = sum(e["dur"] for e in found["worker"])
    waits = sum(e["dur"] for e in found["wait"])
    assert 0 < products <= ops <= programs
    assert products > ops / 2
    assert waits > products  # this process did nothing else


def test_results_are_the_same_and_errors_are_raised_once(tmp_path):
    x = torch.randn(32, 32, device=DEVICE)
    plain = compute(x, x).item()
    with torch.mycelya.trace(tmp_path / "a.json"):
        assert compute(x, x).item() == plain
    weight = torch.zeros(3, 2, device=DEVICE)
    with pytest.raises(IndexError, match="out of range"):
        with torch.mycelya.trace(tmp_path / "b.json"):
            index = torch.tensor([7]).to(DEVICE)
            torch.nn.functional.embedding(index, weight).cpu()
    assert compute(x, x).item() == plain
    assert "traceEvents" in json.loads((tmp_path / "b.json").read_text())
    with pytest.raises(ValueError, match="mine"):
        with torch.mycelya.trace(tmp_path / "c.json"):
            raise ValueError("mine")
    with pytest.raises(FileNotFoundError):
        with torch.mycelya.trace(tmp_path / "missing" / "d.json"):
            raise AssertionError("the body must not run")


def test_two_machines_have_their_rows(tmp_path):
    path = tmp_path / "trace.json"
    with RemoteMachine("local", device="cpu", name="another") as far:
        x, y = torch.ones(8, device=DEVICE), torch.ones(8, device=far.device())
        with torch.mycelya.trace(path):
            (x + 1).tolist(), (y * 3).tolist()
            y = y * 5
        index = far.device().index
    found = spans(path)
    workers = {e["pid"] for e in found["op"]}
    assert len(workers) == 2
    assert max(workers) - min(workers) == index
    assert sum("mul" in e["name"] for e in found["op"]) == 2


def test_a_remote_machine_is_on_the_same_clock(tmp_path):
    path = tmp_path / "trace.json"
    with RemoteMachine("local", device="cpu", transport="tcp") as far:
        x = torch.ones(8, device=far.device())
        (x + 1).tolist()
        with torch.mycelya.trace(path):
            (x + 2).tolist()
    found = spans(path)
    (record,), (worker,), wait = found["record"], found["worker"], found["wait"][-1]
    assert record["ts"] < worker["ts"]
    assert worker["ts"] + worker["dur"] < wait["ts"] + wait["dur"]


def test_parallel_events_have_rows_of_their_own(tmp_path, capsys):
    lines = [
        f"wait\t-1\t{100 + i}\t{200 + i}\t0\t0\t0\twait\ta.py:{i}" for i in range(30)
    ]
    lines += [f"op\t{i}\t0\t150\t0\t0\t0\tmm\t" for i in range(30)]
    path = tmp_path / "t.json"
    _trace.write("\n".join([*lines, "dropped\t7"]) + "\n", str(path))
    found = spans(path)
    assert len({(e["pid"], e["tid"]) for e in found["wait"]}) == 30
    assert len({(e["pid"], e["tid"]) for e in found["op"]}) == 30
    assert "7 events of the trace" in capsys.readouterr().err
    _trace.write("dropped\t0\n", str(path))
    assert spans(path) == {}


# ---- mycelya trace ----

SCRIPT = """
import sys, torch
x = torch.ones(100, device="mycelya")
for i in range(int(sys.argv[1])):
    x = x * 2 + 1
x.tolist()
print(__name__, sys.argv[1:], flush=True)
sys.exit(7)
"""


def test_the_command(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    path = tmp_path / "out.json.gz"
    command = [sys.executable, "-m", "mycelya_cli", "trace", "-o", str(path)]
    done = subprocess.run(
        [*command, str(script), "3", "-o", "x"],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
    )
    assert done.returncode == 7, done.stderr
    assert done.stdout == "__main__ ['3', '-o', 'x']\n"
    assert f"the trace is in {path}" in done.stderr
    found = spans(path)
    assert any("mul" in e["name"] for e in found["op"])
    assert {e["args"]["line"] for e in found["op"]} >= {f"{script}:5"}


def test_the_signature():
    assert list(inspect.signature(torch.mycelya.trace).parameters) == ["path"]


ALONE = """
import torch
from torch.profiler import ProfilerActivity, profile, supported_activities
import mycelya_torch
with profile(activities=[ProfilerActivity.CPU]):
    torch.ones(3) + 1
assert ProfilerActivity.PrivateUse1 in supported_activities()
print("libmycelya_go" in open("/proc/self/maps").read())
"""


@plugin
def test_the_profiler_of_pytorch_does_not_start_the_client(tmp_path):
    status, out, err = run(ALONE, tmp_path)
    assert (status, out) == (0, "False\n"), err
