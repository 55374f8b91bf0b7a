# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Replay: few programs are compiled, and results have the bits of a run without it.

All tests set MYCELYA_CHECK=2. It compiles the trace of each hit again and raises an
error if the call differs from the one that is sent. The last tests also compare whole
processes.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import threading
import time
from pathlib import Path

import pytest
import torch
import zoo
from helpers import DEVICE, SOAK, freeze, on_cuda, run, same
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from mycelya_torch import _device

pytestmark = [pytest.mark.fast, pytest.mark.usefixtures("used")]


def misses() -> int:
    """The number of programs compiled so far for this device alone."""
    first = _device.explain(DEVICE.index or 0).split("\n")[0]
    return int(re.search(r"has compiled (\d+) program", first)[1])


# ---- The number of programs ----


def recipe(
    device: torch.device, steps: int, begin=lambda i: None
) -> list[torch.Tensor]:
    """Trains with all that may vary between steps. Calls begin(i) before each."""
    torch.manual_seed(5)
    net = zoo.dropout_mlp(12, 24, 4).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    scaler = torch.amp.GradScaler(device.type)
    xs, ys = torch.randn(100, 12), torch.randint(0, 4, (100,))
    torch.manual_seed(6)
    for i in range(steps):
        begin(i)
        batch = slice(i % 7 * 16, i % 7 * 16 + 16)  # the seventh has 4 rows
        loss = F.cross_entropy(net(xs[batch].to(device)), ys[batch].to(device)) / 4
        scaler.scale(loss).backward()
        if i % 4 == 3:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            schedule.step()
    return [p.detach() for p in net.parameters()]


def test_a_thousand_training_steps():
    before, seen = misses(), []
    ours = recipe(DEVICE, 1000, lambda i: seen.append(misses()))
    # Two bodies: steps that only accumulate gradients, and steps of the optimizer.
    assert misses() - before <= 3 * 2, torch.mycelya.explain()
    assert misses() == seen[12], torch.mycelya.explain()
    same(ours, recipe(torch.device("cpu"), 1000), rtol=1e-3, atol=1e-4)


@torch.no_grad()
def generate(device, see=lambda: None) -> torch.Tensor:
    """Samples 200 tokens. Calls see() before each one is drawn."""
    torch.manual_seed(7)
    net = zoo.llama(100, 32, 2, (4, 2), 48, 512).eval().to(device)
    prompt = torch.arange(5)[None].to(device)

    def processor(ids, scores):
        see()
        return scores

    torch.manual_seed(8)
    return net.generate(
        prompt,
        max_new_tokens=200,
        min_new_tokens=200,
        do_sample=True,
        temperature=0.8,
        top_k=50,
        top_p=0.95,
        logits_processor=[processor],
    )


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_generate(counters):
    pytest.importorskip("transformers", reason="make venv installs it")
    seen = []
    ours = generate(DEVICE, lambda: seen.append(counters()))
    here = generate("cpu")
    if on_cuda():  # which draws other numbers after the prompt
        assert ours.shape == here.shape and torch.equal(ours[:, :5].cpu(), here[:, :5])
    else:
        torch.testing.assert_close(ours.cpu(), here, rtol=0, atol=0)
    m = counters()
    missed = m["program_misses"] - seen[2]["program_misses"]
    assert missed <= 1, torch.mycelya.explain()
    stalls = [b["stalls"] - a["stalls"] for a, b in zip(seen, seen[1:], strict=False)]
    assert len(stalls) == 199 and max(stalls) <= 1


def test_a_client_a_thousand_steps_ahead(counters):
    """It waits for credit, on a line that the network bill names. No step is lost."""
    weight = torch.linspace(-1, 1, 36).reshape(6, 6)
    w, grad = weight.to(DEVICE), torch.full((6, 6), 0.5).to(DEVICE)
    pid = json.loads(_device.device_info(0))["pid"]
    torch.mycelya.synchronize()
    torch.mycelya.reset_metrics()
    before = resident()
    steps = 0

    def go_on():
        """Lets the worker go on when the client has waited for a second."""
        seen, same_for = 0, 0
        while same_for < 100:
            time.sleep(0.01)
            same_for = same_for + 1 if steps == seen else 0
            seen = steps
        os.kill(pid, signal.SIGCONT)

    freeze(pid)
    goes_on = threading.Thread(target=go_on)
    goes_on.start()
    try:
        for _ in range(1000):
            w.sub_(grad * 0.01).mul_(0.999)
            torch.mycelya.flush()
            steps += 1
    finally:
        goes_on.join()
    assert resident() - before < 64 << 20
    m = counters()
    assert m["stalls"] >= 1 and m["stall_seconds"] > 0.5
    here = [x for x in torch.mycelya.network_bill() if x.stall_seconds > 0.5]
    assert here and all(x.file == __file__ for x in here)
    expected = weight
    for _ in range(1000):
        expected.sub_(torch.full((6, 6), 0.5) * 0.01).mul_(0.999)
    same(w, expected)


def test_a_read_of_an_older_value_does_not_cut(counters):
    """A read waits for the traces that it needs, not for ops recorded since."""

    def loop(device):
        x = torch.linspace(-1, 1, 12).reshape(3, 4).to(device)
        losses, reads, before = [], [], None
        for _ in range(6):
            loss = x.square().mean()
            if before is not None:
                reads.append(before.item())
            x = x * 0.9 + loss
            torch.mycelya.flush()
            before = loss
            losses.append(loss)
        return reads, losses

    reads, losses = loop(DEVICE)
    assert counters()["cuts"] == {"flush": 6}
    cpu_reads, cpu_losses = loop("cpu")
    assert reads == pytest.approx(cpu_reads)
    same(losses, cpu_losses)


def test_reads_see_what_the_open_trace_writes(counters):
    x = torch.zeros(2, 3, device=DEVICE)
    torch.mycelya.flush()
    y = x[1]
    assert y.tolist() == [0, 0, 0]
    other = torch.ones(4, device=DEVICE) * 2
    assert x.tolist() == [[0] * 3] * 2
    x.add_(1)
    assert y.tolist() == [1, 1, 1]
    z = x * 3
    assert (other.tolist(), z.tolist()) == ([2] * 4, [[3] * 3] * 2)
    x.data = z
    assert x.tolist() == [[3] * 3] * 2
    assert counters()["cuts"] == {"flush": 1, "read": 2}


def test_a_read_cuts_a_finished_step():
    """The worker need not wait for the next record, which would cut it too."""
    net = nn.Linear(3, 1).to(DEVICE)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    old = torch.ones(2, device=DEVICE) * 3
    torch.mycelya.synchronize()
    torch.mycelya.reset_metrics()
    net(torch.ones(2, 3, device=DEVICE)).sum().backward()
    optimizer.step()
    assert torch.mycelya.metrics()["cuts"] == {}
    assert old.tolist() == [3, 3]
    assert torch.mycelya.metrics()["cuts"] == {"step": 1}


def resident() -> int:
    """Bytes of this process that are in memory."""
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGESIZE")


# ---- Other sizes and numbers of one skeleton ----

DIM = st.integers(2, 9)
NUMBER = st.floats(-4, 4, allow_nan=False).filter(lambda v: abs(v) > 1e-3)


@st.composite
def programs(draw):
    """A list of op numbers, and three choices of sizes and constants."""
    ops = draw(st.lists(st.integers(0, 13), min_size=1, max_size=8))
    choices = [(draw(DIM), draw(DIM), draw(DIM), draw(NUMBER)) for _ in range(3)]
    return ops, choices


def interpret(ops, choice, device):
    """Runs the ops on a matrix [n, m]. Each op leaves a matrix for the next one."""
    n, m, k, number = choice
    a = torch.linspace(-1, 1, n * m).reshape(n, m).to(device)
    b = torch.linspace(2, 3, m).to(device)
    kept = []
    for op in ops:
        rows, columns = a.shape
        if op == 0:
            a = a * number
        elif op == 1:
            a = a + b[:1]
        elif op == 2:
            a = a.t()
        elif op == 3:
            a = a @ torch.full((columns, k), 0.25).to(device)
        elif op == 4:
            a = a.softmax(-1)
        elif op == 5:
            a = torch.cat((a, a.flip(0)), 0)
        elif op == 6:
            kept.append(a[1:].sum(0))
        elif op == 7:
            a = a.clone()
            a[:, 1:].mul_(number)
        elif op == 8:
            a = a.reshape(-1)[: rows * columns // 2 * 2].view(2, -1).contiguous()
        elif op == 9:
            a = F.pad(a, (1, k), value=number)
        elif op == 10:
            a = a.expand(k, rows, columns).mean(0)
        elif op == 11:
            # Continuous: rounding may decide the comparison.
            a = torch.where(a > number, a, 2 * number - a)
        elif op == 12:
            a = F.layer_norm(a, (columns,), eps=abs(number))
        elif op == 13:
            kept.append(torch.arange(0, k, device=device) * 2)
        if a.numel() > 4000:
            break
    return [a, *kept]


@settings(
    max_examples=200 * SOAK,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(programs())
def test_sizes_and_constants_within_a_skeleton(program):
    ops, choices = program
    for choice in choices:
        ours = interpret(ops, choice, DEVICE)
        same(ours, interpret(ops, choice, "cpu"), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("op", range(14))
def test_other_sizes_hit(op):
    for choice in [(3, 4, 5, 0.5), (7, 5, 3, 1.5), (4, 9, 8, -2.5)]:
        before = misses()
        results = interpret([op, op], choice, DEVICE)
        torch.mycelya.flush()
        torch.mycelya.synchronize()
        del results
        if choice[0] != 3:
            assert misses() == before, torch.mycelya.explain()


# ---- With and without replay ----

TRAINING = """
    import hashlib, torch
    from torch import nn
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(),
                        nn.Flatten(), nn.LazyLinear(5))
    net(torch.zeros(2, 1, 8, 8))
    net = net.to("mycelya")
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    digest = hashlib.sha256()
    for i in range(20):
        x = torch.randn(8 - i % 3, 1, 8, 8).to("mycelya")
        loss = net(x).square().mean() * (1 + i / 10)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if i % 5 == 0:
            digest.update(loss.cpu().detach().numpy().tobytes())
    for t in net.state_dict().values():
        digest.update(t.cpu().numpy().tobytes())
    m = torch.mycelya.metrics()
    print(digest.hexdigest(), m["program_hits"])
"""


def test_the_same_bits_without_replay(tmp_path):
    words = []
    for value in ("on", "off"):
        status, out, err = run(TRAINING, tmp_path, MYCELYA_REPLAY=value)
        assert status == 0, err
        words.append(out.split())
    assert words[0][0] == words[1][0]
    assert int(words[0][1]) > 10 and words[1][1] == "0"


def test_keys_are_the_same_in_every_process(tmp_path):
    """A key does not depend on the process, so programs can be stored by key."""
    names = []
    for seed in ("1", "2"):
        folder = tmp_path / seed
        status, _, err = run(
            TRAINING, tmp_path, MYCELYA_DUMP=str(folder), PYTHONHASHSEED=seed
        )
        assert status == 0, err
        names.append(sorted(p.name for p in folder.iterdir()))
    assert names[0] == names[1] and len(names[0]) >= 3


def test_sizes_that_a_program_relies_on():
    """A slice of all elements has another variant than a slice of some. Both hit."""

    def last(x: torch.Tensor, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        y = x.exp()
        return (y.view(-1)[:n] * 2).relu(), y

    torch.mycelya.synchronize()
    before = misses()
    torch.mycelya.reset_metrics()
    sizes = [((2, 3), 6), ((2, 3), 4), ((4, 5), 20), ((4, 5), 3), ((2, 3), 6)]
    for size, n in sizes:
        x = torch.randn(size)
        got = [t.cpu() for t in last(x.to(DEVICE), n)]
        torch.testing.assert_close(got, list(last(x, n)))
    assert misses() - before == 2
    assert torch.mycelya.metrics()["size_misses"] == 1
    assert "but that program requires s" in torch.mycelya.explain()


def test_views_that_had_equal_sizes():
    """Views of equal sizes are one. Sizes equal by chance cost few variants."""

    def views(x: torch.Tensor, *rows: int) -> torch.Tensor:
        x = x.exp()
        a, b, c = (x.view(n, -1) for n in rows)
        return a.cos().view(-1) + b.neg().view(-1) * c.abs().view(-1)

    torch.mycelya.synchronize()
    before = misses()
    x = torch.randn(120)
    on_device = x.to(DEVICE)
    for rows in itertools.product((2, 3, 4, 5), repeat=3):
        torch.testing.assert_close(views(on_device, *rows).cpu(), views(x, *rows))
    assert 2 <= misses() - before <= 6


def test_writes_of_all_of_a_storage():
    """A write of all elements in other sizes may be of a part in a later call."""

    def write(x: torch.Tensor, n: int) -> torch.Tensor:
        x = x.exp()
        part = x.view(-1)[:n]
        part.view(2, -1).mul_(3)
        part.view(-1, 4).relu_().add_(1)
        return x

    for n in (24, 16, 24, 8, 0):
        x = torch.randn(6, 4)
        torch.testing.assert_close(write(x.to(DEVICE), n).cpu(), write(x, n))


def test_transposed_weights_are_written():
    """Training reads a weight transposed, and writes it as it lies."""

    def steps(device: str | torch.device) -> list[torch.Tensor]:
        torch.manual_seed(3)
        layer, x = nn.Linear(6, 4), torch.randn(5, 6)
        layer, x = layer.to(device), x.to(device)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
        out = []
        for _ in range(3):
            optimizer.zero_grad()
            layer(x).square().sum().backward()
            optimizer.step()
            with torch.no_grad():
                layer.weight.t().mul_(0.5)
                layer.weight.view(-1)[1:].add_(0.25)
            out.append(layer.weight.detach().t().clone().cpu())
        return out

    same(steps(DEVICE), steps("cpu"), rtol=1e-5, atol=1e-6)


def test_numbers_on_which_rules_rely():
    """A program relies on a number of the text. One that changes costs one program."""

    def divided(x: torch.Tensor, n: float) -> torch.Tensor:
        return (x.exp() / n).sin()

    def scaled(x: torch.Tensor, n: float) -> torch.Tensor:
        return (x.cos() * n).exp()

    x = torch.randn(7)
    on_device = x.to(DEVICE)
    torch.mycelya.synchronize()
    for f, numbers, programs in (
        (divided, (4.0, 4.0, 3.0, 2.0, -8.0, 4.0), 2),
        (scaled, (0.5, 0.25, 3.0, 1.0, 0.1), 1),
        (scaled, (-1.0, 1.0), 0),
    ):
        before = misses()
        for n in numbers:
            torch.testing.assert_close(
                f(on_device, n).cpu(), f(x, n), rtol=1e-6, atol=0
            )
        assert misses() - before == programs, f
