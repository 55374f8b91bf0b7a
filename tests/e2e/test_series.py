# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""A state dict is read at the cost of three round trips, and never a stale value."""

import copy
import io
import random

import pytest
import torch
from helpers import DEVICE, run, to_device
from safetensors.torch import load_file, save_file
from torch import nn

pytestmark = pytest.mark.usefixtures("used")

LAYERS = 40


def trained():
    """A model and its optimizer after a step, with a copy of each on the CPU."""
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Linear(24, 24) for _ in range(LAYERS)))
    net.append(nn.Sequential(nn.BatchNorm1d(24), nn.Linear(24, 2)))
    net.to(DEVICE)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    net(to_device(torch.randn(8, 24))).square().mean().backward()
    optimizer.step()
    there = net.state_dict(), optimizer.state_dict()
    return net, optimizer, tuple(map(on_cpu, there))


def on_cpu(value):
    """Copies tensors one by one with reads that nothing can have begun before."""
    if isinstance(value, torch.Tensor):
        return value.cpu_future().result(60)
    if isinstance(value, dict):
        return {k: on_cpu(v) for k, v in value.items()}
    return copy.deepcopy(value)


def check(found, want):
    assert type(found) is type(want) or isinstance(found, dict)
    if isinstance(want, torch.Tensor):
        assert torch.equal(found, want)
    elif isinstance(want, dict):
        assert found.keys() == want.keys()
        for key in want:
            check(found[key], want[key])
    else:
        assert found == want


def test_torch_save(counters):
    net, optimizer, (model, state) = trained()
    tensors = len(model) + 2 * len(state["state"])  # the steps are on the CPU
    file = io.BytesIO()
    torch.mycelya.reset_metrics()
    torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, file)
    m = counters()
    assert m["blocking_reads"] <= 3 and m["round_trips"] <= 3
    assert m["reads_ahead"] == tensors - m["blocking_reads"]
    file.seek(0)
    found = torch.load(file, map_location="cpu")
    check(found["net"], model)
    check(found["optimizer"]["state"], state["state"])


def test_other_ways_to_save(counters, tmp_path):
    net, optimizer, (model, state) = trained()
    here = copy.deepcopy(net).cpu()
    ways = {
        "safetensors": lambda: save_file(net.state_dict(), tmp_path / "m.safetensors"),
        "cpu": lambda: {k: v.cpu() for k, v in net.state_dict().items()},
        "to": lambda: {k: v.to("cpu") for k, v in net.state_dict().items()},
        "load_state_dict": lambda: here.load_state_dict(net.state_dict()),
        "module": lambda: net.cpu().state_dict(),
    }
    for name, save in ways.items():
        torch.mycelya.reset_metrics()
        found = save()
        assert counters()["round_trips"] <= 3, name
        if isinstance(found, dict):
            check(found, model)
    check(load_file(tmp_path / "m.safetensors"), model)
    torch.mycelya.reset_metrics()
    found = {
        i: {k: v.cpu() for k, v in s.items()}
        for i, s in optimizer.state_dict()["state"].items()
    }
    assert counters()["round_trips"] <= 3
    check(found, state["state"])


class Parts(nn.Module):
    def __init__(self, *tensors):
        super().__init__()
        for i, tensor in enumerate(tensors):
            self.register_buffer(f"x{i}", tensor)


def test_values_are_those_of_now(counters):
    """What is written after a read ahead is read again."""
    net = Parts(*(torch.full((8,), float(i)) for i in range(30))).to(DEVICE)
    for buffer in net.buffers():
        buffer += 1
    state = net.state_dict()
    read = [state[f"x{i}"].cpu()[0].item() for i in range(5)]
    assert counters()["reads_ahead"] > 0
    state["x10"].mul_(-1)
    net.x11.copy_(torch.zeros(8))
    net.x12.data = torch.full((8,), 70.0, device=DEVICE)
    read += [state[f"x{i}"].cpu()[0].item() for i in range(5, 30)]
    want = [i + 1.0 for i in range(30)]
    want[10], want[11] = -11.0, 0.0
    assert read == want and net.x12.tolist() == [70.0] * 8


@pytest.mark.parametrize("seed", range(4))
def test_reads_and_writes_at_random(seed, counters):
    chosen = random.Random(seed)
    torch.manual_seed(seed)
    here = [torch.randn(chosen.randrange(1, 40)) for _ in range(40)]
    net = Parts(*(x.clone() for x in here)).to(DEVICE)
    for x, buffer in zip(here, net.buffers(), strict=True):
        x += 1
        buffer += 1
    there, at = list(net.state_dict().values()), 0
    for _ in range(2000):
        kind = chosen.randrange(60)
        if kind == 0:
            at = chosen.randrange(40)
        if kind == 1:
            i, value = chosen.randrange(40), chosen.random()
            here[i].mul_(value)
            there[i].mul_(value)
        elif kind == 2:
            i = chosen.randrange(40)
            fresh = torch.randn(here[i].shape)
            here[i].copy_(fresh)
            there[i].copy_(fresh)
        elif kind == 3:
            there = list(net.state_dict().values())
        elif kind == 4:
            setattr(net, f"x{at}", there[at].clone())
            there[at] = getattr(net, f"x{at}")
        else:
            got = there[at][1:].cpu() if kind == 5 else there[at].cpu()
            assert torch.equal(got, here[at][1:] if kind == 5 else here[at])
            at = (at + chosen.choice((1, 1, 1, 1, 1, 2))) % 40
    assert counters()["reads_ahead"] > 200


def test_all_kinds_of_tensors(counters):
    """A series may have tensors that are not read ahead."""
    tied = torch.randn(3)
    tensors = [
        torch.randn(3, 4), torch.empty(0), torch.randn(4, 5).t(), tied, tied,
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.eye(3).to_sparse(), torch.randn(10)[2:5], torch.tensor(3),
        torch.tensor(True), torch.randn(3, dtype=torch.cfloat), torch.randn(6).half(),
    ]  # fmt: skip
    net = Parts(*tensors).to(DEVICE)
    for _ in range(2):
        for i, value in enumerate(net.state_dict().values()):
            got, want = value.cpu(), tensors[i]
            assert got.layout == want.layout and got.dtype == want.dtype
            assert torch.equal(got.to_dense(), want.to_dense())
    Parts(torch.ones(2, device="meta")).state_dict()


def test_nothing_is_kept_alive():
    net = Parts(*(torch.randn(1000) for _ in range(20))).to(DEVICE)
    before = torch.mycelya.memory_allocated()
    for i, value in enumerate(net.state_dict().values()):
        if i < 4:
            value.cpu()
    del net, value
    assert torch.mycelya.memory_allocated() <= before - 20 * 4000


def test_a_fake_state_dict():
    with torch._subclasses.FakeTensorMode():
        net = Parts(torch.ones(2, device=DEVICE), torch.ones(3, device=DEVICE))
        assert list(net.state_dict()) == ["x0", "x1"]


def test_it_can_be_switched_off(tmp_path):
    code = """
        import torch
        net = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(9)))
        net.to("mycelya")
        with torch.no_grad():
            for p in net.parameters():
                p += 1
        torch.mycelya.reset_metrics()
        [p.cpu() for p in net.state_dict().values()]
        m = torch.mycelya.metrics()
        print(m["round_trips"], m["reads_ahead"])
    """
    status, out, err = run(code, tmp_path, MYCELYA_GUESS="off")
    assert (status, out) == (0, "18 0\n"), err
    status, out, err = run(code, tmp_path)
    assert (status, out) == (0, "2 16\n"), err
