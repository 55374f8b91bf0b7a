# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""explain() gives the reasons of cuts and programs, network_bill() their costs."""

from __future__ import annotations

import inspect
import json
import re

import pytest
import torch
from helpers import DEVICE, run, same, to_device
from torch import nn

import mycelya_torch
from mycelya_torch import _device

pytestmark = [pytest.mark.fast, pytest.mark.usefixtures("used")]


def line(offset: int = 0) -> str:
    """ "file.py:line" of the caller, or of a line with an offset from it."""
    frame = inspect.currentframe().f_back
    return f"test_explain.py:{frame.f_lineno + offset}"


def explained() -> str:
    """explain() about mycelya:0; other tests may have opened other devices."""
    return re.split(r"\nmycelya:\d+ ", torch.mycelya.explain())[0].strip()


def last_program() -> str:
    """The paragraph of explain() about the program that was compiled last."""
    return explained().split("\n\n")[-1]


def bill_of(place: str):
    """The row of the bill for a line of this file."""
    lines = [x for x in torch.mycelya.network_bill() if x.place.endswith("/" + place)]
    assert len(lines) == 1, (place, str(torch.mycelya.network_bill()))
    return lines[0]


def test_the_record_that_differs_is_named():
    x, y = to_device(torch.ones(4, 3)), to_device(torch.ones(1, 3))

    def step(t: torch.Tensor) -> torch.Tensor:
        t = t * 2
        return (t.exp() + 1).cpu()

    step(x)
    first = line(-4)
    step(y)
    text = last_program()
    assert "a value was read" in text
    assert f"here:  aten::mul.Tensor(f32[1,3], 2) at {first}" in text, text
    assert "argument 0 has 1, not 4, as its dim 0" in text
    torch.mycelya.reset_metrics()
    step(to_device(torch.ones(9, 3)))
    assert torch.mycelya.metrics()["program_misses"] == 0


def test_a_held_result_is_named():
    x = to_device(torch.arange(5.0))

    def step(keep: bool):
        middle = x * 3.25
        result = middle.sin() - 7
        kept = middle if keep else None
        del middle
        return result.cpu(), kept

    step(False)
    _, middle = step(True)
    text = last_program()
    assert "does not keep what is still held here" in text, text
    assert re.search(r"the result of aten::mul.Tensor at test_explain.py:\d+", text)
    same(middle, torch.arange(5.0) * 3.25)


def behaviours(device: str):
    """Runs a loop that changes; yields results, and text that explain() must have."""
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4)).to(device)
    seen = []

    def step(x, net, branch=False):
        y = net(x.to(device))
        if branch:
            y = y.tanh()  # new branch
        seen.append(y.sum(1).detach().cpu())

    x = torch.randn(8, 6)
    for _ in range(3):
        step(x, net)
    yield seen[-1], None
    step(x, net, branch=True)
    yield seen[-1], "tanh"
    step(x[:1], net)
    yield seen[-1], "whether a dim is 0, 1 or more"
    net.double()
    torch.mycelya.synchronize()  # the conversion is not a part of the next program
    step(x.double(), net)
    yield seen[-1], "f64"
    surgery = nn.Sequential(net[0], nn.GELU(), net[2])
    step(x.double(), surgery)
    yield seen[-1], "gelu"
    step(x[:5].double(), surgery)
    yield seen[-1], None  # only another size


def test_each_change_of_a_script_is_explained():
    ours, cpu = behaviours("mycelya"), behaviours("cpu")
    for (a, what), (b, _) in zip(ours, cpu, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
        if what is not None:
            assert what in explained(), what


def test_explain_counts_what_metrics_count():
    torch.mycelya.synchronize()
    head = torch.mycelya.explain().splitlines()[0]
    number = r"mycelya:0 has compiled (\d+) .* and called them (\d+)"
    compiled, called = map(int, re.match(number, head).groups())
    torch.mycelya.reset_metrics()
    x = to_device(torch.ones(3))
    for _ in range(5):
        (x * 1.125).cos().cpu()
    m = torch.mycelya.metrics()
    head = torch.mycelya.explain().splitlines()[0]
    assert list(map(int, re.match(number, head).groups())) == [
        compiled + m["program_misses"],
        called + m["program_misses"] + m["program_hits"],
    ]


def test_pending_graph():
    x = to_device(torch.ones(2, 3))
    torch.mycelya.synchronize()
    torch.mycelya.reset_metrics()
    y = x * 2.5
    place = line(-1)
    other = x.exp()
    y[0].add_(1)
    text = torch.mycelya.explain(y)
    assert f"storage {mycelya_torch.get_storage_id(y)} of mycelya:0 is pending:" in text
    assert re.search(rf"%\d+: f32\[a,b\] += mul .*# .*{place}", text), text
    assert "aten.add_.Tensor" in text and "update" in text
    assert "= exp" not in text  # not needed for y
    assert "= exp" in torch.mycelya.explain(other)
    assert torch.mycelya.metrics()["messages_sent"] == 0
    same(y, torch.tensor([[3.5] * 3, [2.5] * 3]))
    assert "Nothing is pending" in torch.mycelya.explain(y)
    assert "Nothing is pending" in torch.mycelya.explain(x)


def pending_ops(tensor: torch.Tensor) -> list[str]:
    """The ops of the pending graph of a tensor."""
    text = torch.mycelya.explain(tensor)
    lines = [line.split("#")[0] for line in text.splitlines()]
    ops = [line.split(" = ")[-1].split()[0] for line in lines if line[:3] == "  %"]
    ops += [line.split()[0] for line in lines if line.startswith("  mycelya.")]
    return [op for op in ops if op not in ("input", "param", "const", "empty")]


def test_pending_graph_has_what_is_needed_only():
    x, i = to_device(torch.ones(3, 3)), to_device(torch.tensor([1]))
    torch.mycelya.synchronize()
    torch.mycelya.manual_seed(1)
    noise = torch.rand(3, 3, device=DEVICE)
    y = x * noise
    after = y.cos()
    other = torch.zeros(3, 3, device=DEVICE)
    other.add_(after)
    picked = torch.nn.functional.embedding(i, other)  # may fail
    torch.rand(3, device=DEVICE)
    z = x.exp()
    largest, where = x.max(0)
    assert pending_ops(z) == ["exp"]
    assert pending_ops(y) == ["aten.uniform_", "mul", "mycelya.manual_seed"]
    assert pending_ops(largest) == pending_ops(where) == ["aten.max.dim"]
    # The second draw continues the first one.
    assert pending_ops(torch.rand(3, device=DEVICE)).count("aten.uniform_") == 3
    assert "aten.embedding" in pending_ops(picked)
    assert "exp" not in pending_ops(picked)
    same(z, torch.ones(3, 3).exp())
    same(picked, (torch.ones(3, 3) * noise.cpu()).cos()[1:2])


@pytest.mark.parametrize("bad", [torch.ones(2), 7, None])
def test_explain_refuses(bad):
    if bad is None:
        bad = torch.ones(2, 2).to_sparse().to(DEVICE)
    with pytest.raises(TypeError, match="Expected a (dense )?tensor"):
        torch.mycelya.explain(bad)


def test_explain_before_use(tmp_path):
    code = """
        import torch
        print(torch.mycelya.explain())
        print(len(torch.mycelya.network_bill()), torch.mycelya.is_initialized())
        """
    status, out, err = run(code, tmp_path)
    assert status == 0, err
    assert out == "The mycelya device has not been used yet.\n0 False\n"


def test_bill_of_a_read():
    x = to_device(torch.ones(64))
    torch.mycelya.synchronize()
    torch.mycelya.reset_metrics()
    y = x * 2
    y.cpu()
    read = bill_of(line(-1))
    assert read.cuts == {"read": 1} and read.round_trips == 1 and read.upload_bytes == 0
    assert read.bytes_received >= 256 and read.bytes_sent > 0
    assert read.stalls <= 1 and 0 <= read.stall_seconds < 60
    z = torch.ones(1000).to(DEVICE)
    upload = line(-1)
    z.add_(1)
    torch.mycelya.synchronize()
    waited = bill_of(line(-1))
    sent = bill_of(upload)
    assert sent.upload_bytes == 4000 and sent.bytes_sent > 4000
    assert sent.round_trips == 0
    assert waited.cuts == {"sync": 1} and waited.round_trips == 1


def test_bill_adds_up():
    torch.mycelya.synchronize()
    torch.mycelya.reset_metrics()
    net = nn.Linear(8, 8).to(DEVICE)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for i in range(12):
        loss = net(torch.randn(4, 8).to(DEVICE)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if i % 4 == 3:
            losses.append(loss.item())
    torch.mycelya.synchronize()
    bill, m = torch.mycelya.network_bill(), torch.mycelya.metrics()
    total = lambda name: sum(getattr(x, name) for x in bill)  # noqa: E731
    cuts: dict[str, int] = {}
    for x in bill:
        for reason, n in x.cuts.items():
            cuts[reason] = cuts.get(reason, 0) + n
    assert cuts == m["cuts"]
    assert total("programs_compiled") == m["program_misses"]
    assert total("round_trips") == m["round_trips"] == 4
    assert sum(sum(x.trips_made.values()) for x in bill) == 4
    assert total("bytes_sent") == m["bytes_sent"]
    assert total("upload_bytes") == m["upload_bytes"]
    assert total("bytes_received") == m["bytes_received"]
    assert total("stalls") == m["stalls"]
    assert abs(total("stall_seconds") - m["stall_seconds"]) < 1e-3
    text = str(bill)
    titles = ["line", "cuts", "programs", "trips", "for", "sent", "received", "stalled"]
    assert text.splitlines()[0].split() == titles
    assert "3 read" in text and " step" in text
    _, legend = text.split("\n\n")
    assert [line.split()[0] for line in legend.splitlines()] == titles
    torch.mycelya.reset_metrics()
    assert torch.mycelya.network_bill() == []


def test_trips_made_and_saved():
    """Each line says why its reads made trips, and why others made none."""
    x, net = to_device(torch.rand(20_000)), nn.Sequential(*map(nn.BatchNorm1d, [3] * 4))
    net.to(DEVICE)
    known = to_device(torch.tensor([1, 2]))
    torch.mycelya.synchronize()
    torch.mycelya.reset_metrics()
    for i in range(4):
        y = x + i
        a, b = y.sum(), y.max()
        a.item()
        first = line(-1)
        b.item()
        second = line(-1)
        y.cpu()
        large = line(-1)
    mode = _device.set_local_reads(_device.LocalReads.ON)
    known.sum().item()
    here = line(-1)
    _device.set_local_reads(mode)
    (x * 2).cpu_future().result(60)
    later = line(-1)
    torch.mycelya.synchronize()
    waits = line(-1)
    for buffer in net.state_dict().values():
        buffer.cpu()
    save = line(-1)

    def trips(place):
        found = bill_of(place)
        assert sum(found.trips_made.values()) == found.round_trips
        return found.trips_made, found.trips_saved

    assert trips(first) == ({"new": 4}, {})
    assert trips(second) == ({"unforeseen": 1}, {"foreseen": 3})
    assert trips(large) == ({"large": 4}, {})
    assert trips(here) == ({}, {"known": 1})
    assert trips(later) == ({"new": 1}, {"later": 1})
    assert trips(waits) == ({"wait": 1}, {})
    made, saved = trips(save)
    assert sum(made.values()) <= 3 and saved["ahead"] >= 4 * 5 - 3
    text = str(torch.mycelya.network_bill())
    assert "1 unforeseen" in text and "3 foreseen" in text and " saved " in text
    torch.mycelya.reset_metrics()
    assert torch.mycelya.network_bill() == []


def test_worker_time_of_each_line(tmp_path):
    x = to_device(torch.ones(64, 64))

    def step() -> float:
        y = x @ x
        return y.cos().sum().item()

    product = line(-3)
    torch.mycelya.synchronize()
    torch.mycelya.reset_metrics()
    step()
    assert not any(x.worker_seconds for x in torch.mycelya.network_bill())
    assert " worker" not in str(torch.mycelya.network_bill()).splitlines()[0]
    with torch.mycelya.trace(tmp_path / "trace.json"):
        step()
        step()
    step()  # not timed
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    spans: dict[str, float] = {}
    for e in events:
        if e.get("cat") == "op":
            place = e["args"]["line"]
            spans[place] = spans.get(place, 0) + e["dur"] / 1e6
    bill = torch.mycelya.network_bill()
    times = {x.place: x.worker_seconds for x in bill if x.worker_seconds}
    assert times == pytest.approx(spans)
    assert len(spans) == 2 and bill_of(product).worker_seconds > 0
    titles, text = str(bill).splitlines()[0], bill._repr_html_()
    assert titles.split()[-1] == "from" and "stalled    worker" in titles
    assert "<b>worker</b>: " in text
    torch.mycelya.reset_metrics()
    assert torch.mycelya.network_bill() == []


LIBRARY = """
def metric(x):
    return x.sum().item()


def both(x):
    return [metric(t) for t in (x, x + 1)]
"""


def test_lines_that_lead_to_a_library(tmp_path, monkeypatch):
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "some_library_of_metrics.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(folder)
    import some_library_of_metrics as library

    x = to_device(torch.ones(8))
    torch.mycelya.synchronize()
    torch.mycelya.reset_metrics()
    library.metric(x + 1)
    first = line(-1)
    for _ in range(2):
        library.both(x)
    second = line(-1)
    x.exp().sum().item()
    own = line(-1)
    bill = torch.mycelya.network_bill()
    (waits,) = (b for b in bill if b.place.endswith("some_library_of_metrics.py:3"))
    assert [p.split("/")[-1] for p in waits.callers] == [first, second]
    assert sum(waits.callers.values()) == pytest.approx(waits.stall_seconds)
    assert waits.cuts == {"read": 5} and waits.round_trips == 5
    assert bill_of(own).callers == {}
    assert f"{second}" in str(bill) and str(bill).splitlines()[0].endswith(
        "called from"
    )
    assert f"{second.split(':')[0]}" in bill._repr_html_()
