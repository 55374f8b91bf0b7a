# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Reads that are sent before the program asks for them."""

import random
import threading

import pytest
import torch
from helpers import DEVICE, run, same, seed


def training(device):
    """A step that returns five values, which are computed before it changes weights."""
    seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)
    )
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.Generator().manual_seed(1)
    loss_of = torch.nn.CrossEntropyLoss()

    def step():
        x = torch.randn(32, 8, generator=data).to(device)
        y = torch.randint(4, (32,), generator=data).to(device)
        logits = model(x)
        loss = loss_of(logits, y)
        optimizer.zero_grad()
        loss.backward()
        right = (logits.argmax(1) == y).float()
        norms = torch.stack([p.grad.norm() for p in model.parameters()])
        mean, total = right.mean(), right.sum()
        optimizer.step()
        return loss, mean, total, norms, model[0].bias

    return step


def values(step):
    loss, mean, total, norms, bias = step()
    read = [loss.item(), mean.item(), int(total), norms.tolist(), bias[3:5].tolist()]
    return [torch.tensor(value) for value in read]


def test_five_values_of_a_step_wait_once(counters):
    step, there = training(DEVICE), training("cpu")
    for _ in range(4):
        same(values(step), values(there))
    before = counters()
    for _ in range(10):
        same(values(step), values(there))
    after = counters()
    assert after["round_trips"] - before["round_trips"] == 10
    assert after["reads_answered"] - before["reads_answered"] == 40
    assert after["reads_guessed"] - before["reads_guessed"] == 40
    cuts = sum(after["cuts"].values()) - sum(before["cuts"].values())
    assert cuts == 10


def test_a_loop_that_prints_in_every_fifth_step(counters):
    step, there = training(DEVICE), training("cpu")
    for i in range(40):
        if i == 20:
            before = counters()
        if i % 5:
            step(), there()
        else:
            same(values(step), values(there))
    after = counters()
    assert after["round_trips"] - before["round_trips"] == 4
    assert after["reads_answered"] - before["reads_answered"] == 16


def test_a_value_that_is_not_read_any_more_is_not_guessed_for_long(counters):
    step = training(DEVICE)
    for _ in range(4):
        values(step)
    before = counters()
    for _ in range(20):
        step()[0].item()
    after = counters()
    assert after["reads_guessed"] - before["reads_guessed"] <= 3 * 4
    assert after["reads_answered"] == before["reads_answered"]


def test_a_write_between_two_reads(counters):
    """Each read has the value that it would have on the CPU, also if a guess of it is
    under way when the write is recorded."""
    a, b = torch.zeros(3, device=DEVICE), torch.zeros(3, device=DEVICE)
    for i in range(10):
        a += 1
        b += 2
        assert a.tolist() == [i + 1.0] * 3
        assert b.tolist() == [2.0 * i + 2] * 3
        if i % 2:
            b.mul_(1)
            b.sub_(1)
            assert b.tolist() == [2.0 * i + 1] * 3
            b += 1
    assert counters()["reads_answered"] > 0


@pytest.mark.parametrize("number", range(8))
def test_random_loops_equal_the_cpu(number, counters):
    """Loops of writes and reads that repeat, with changes now and then."""
    pick = random.Random(number)
    ours = [torch.zeros(4, device=DEVICE) for _ in range(4)]
    cpu = [torch.zeros(4) for _ in range(4)]

    def an_action():
        i, j, n = pick.randrange(4), pick.randrange(4), pick.randrange(1, 9)
        kind = pick.choice(["write", "write", "add", "read", "read", "part", "new"])
        return kind, i, j, n

    def act(tensors, kind, i, j, n):
        if kind == "write":
            tensors[i].add_(n)
        elif kind == "add":
            tensors[i] = (tensors[i] + tensors[j]).remainder(1000)
        elif kind == "new":
            tensors[i] = torch.full((4,), float(n), device=tensors[i].device)
        elif kind == "part":
            return tensors[i][j:].tolist()
        else:
            return tensors[i].tolist()

    body = [an_action() for _ in range(12)]
    for _ in range(30):
        for action in body:
            assert act(ours, *action) == act(cpu, *action), (number, body)
        if pick.random() < 0.2:
            body[pick.randrange(12)] = an_action()
    assert counters()["reads_answered"] > 0


def test_futures_and_threads(counters):
    """Reads that nobody waits for at once, and reads of two threads."""
    wrong = []

    def loop(n):
        x = torch.zeros(2, device=DEVICE)
        y = torch.zeros(2, device=DEVICE)
        for i in range(60):
            x += n
            y -= n
            futures = [x.cpu_future(), y.cpu_future(), x.sum().cpu_future()]
            got = [f.result(120).tolist() for f in futures]
            if got != [[n * (i + 1.0)] * 2, [-n * (i + 1.0)] * 2, n * (i + 1.0) * 2]:
                wrong.append((n, i, got))

    threads = [threading.Thread(target=loop, args=(n,)) for n in (1, 3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


def test_an_error_of_a_guessed_value_is_raised_where_it_is_read():
    table = torch.arange(6.0, device=DEVICE).reshape(3, 2)
    good, bad = torch.tensor([1]), torch.tensor([7])

    def both(index):
        first = table.sum()
        second = table.index_select(0, index.to(DEVICE)).sum()
        return first, second

    for _ in range(4):
        first, second = both(good)
        assert (first.item(), second.item()) == (15.0, 5.0)
    first, second = both(bad)
    with pytest.raises((IndexError, RuntimeError), match="index"):
        first.item()
        second.item()
    first, second = both(good)
    assert (first.item(), second.item()) == (15.0, 5.0)


@pytest.mark.parametrize("value, said", [("off", "0 0"), ("on", "8 8")])
def test_the_switch(value, said, tmp_path):
    code = """
        import torch

        x = torch.zeros(2, device="mycelya")
        y = torch.zeros(2, device="mycelya")
        for _ in range(9):
            x += 1
            y += 2
            assert (x.tolist(), y.sum().item() >= 0) != (None, None)
        for i in range(9):
            x += 1
            y += 2
            assert x.tolist() == [10 + i] * 2 and y.tolist() == [20 + 2 * i] * 2
            if i == 0:
                torch.mycelya.reset_metrics()
        m = torch.mycelya.metrics()
        print(m["reads_guessed"], m["reads_answered"])
    """
    status, out, err = run(code, tmp_path, MYCELYA_GUESS=value)
    assert (status, out) == (0, said + "\n"), err


def test_a_wrong_switch(tmp_path):
    code = 'import torch; torch.ones(1, device="mycelya").tolist()'
    status, _, err = run(code, tmp_path, MYCELYA_GUESS="maybe")
    assert status != 0
    assert 'MYCELYA_GUESS is "maybe"; it is on (if not set: ' in err
