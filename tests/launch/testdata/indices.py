# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Operators that take indices, on the emulated device, whose memory is its own.

    python indices.py <worker>

Prints a JSON object for each case: whether its values are the CPU's, the first line of
its error, and how many calls had to read their indices from the device.
"""

import json
import re
import sys

import emulated  # noqa: F401 (registers the device)
import torch
from torch.nn import functional as F

torch.manual_seed(0)
TABLE, PLACES, OUT = torch.randn(10, 4), torch.randn(3, 4), torch.randn(4, 10)
IDS = torch.tensor([[1, 2, 3, 4], [5, 9, 0, 7]])
kept = {d: IDS.to(d) for d in ("cpu", "mycelya")}


def training(d):
    """A batch that is uploaded, views of it, and positions that are made there."""
    table = TABLE.to(d).clone().requires_grad_()
    ids = IDS.to(d)
    places = F.embedding(torch.arange(3, device=d), PLACES.to(d))
    x = (F.embedding(ids[:, :-1], table) + places).tanh() @ OUT.to(d)
    loss = F.cross_entropy(x.flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    return loss.detach(), table.grad


def later(d):
    """A batch of an earlier call."""
    return TABLE.to(d)[kept[d]], TABLE.to(d).gather(0, kept[d])


def derived(d):
    ids = torch.cat([IDS.to(d), IDS.to(d) + 1], 1).clamp(max=9)
    rows = torch.stack([ids, torch.where(ids > 3, ids - 3, 0)])
    return (F.embedding(rows, TABLE.to(d)),)


def computed(d):
    """The values of floats decide the indices."""
    return (F.embedding((TABLE.to(d) * 2).argmax(0), TABLE.to(d)),)


def large(d):
    ids = torch.arange(200_000).remainder(10).to(d)
    return (F.embedding(ids, TABLE.to(d)).sum(0),)


def changed(d):
    """The kept batch gets other values, in a call of its own and beside its use."""
    kept[d].sub_(1).abs_()
    first = kept[d].sum().cpu()
    kept[d].add_(1)
    return first, F.embedding(kept[d].remainder(10), TABLE.to(d))


def wrong(d):
    """An upload, one that is made wrong in place, and a computed index."""
    texts = []
    for make in (
        lambda: IDS.to(d) + 1,
        lambda: kept[d].mul_(1).add_(10),
        lambda: (TABLE.to(d).sum() * 0 + 10).long(),
    ):
        try:
            F.embedding(make(), TABLE.to(d)).cpu()
        except IndexError as error:
            texts += re.findall(r"index \d+ is out of range", str(error))
    return texts


for case in (training, later, derived, computed, large, changed):
    want = case("cpu")
    torch.mycelya.reset_metrics()
    got = [t.cpu() for t in case("mycelya")]
    same = all(torch.allclose(a, b) for a, b in zip(got, want, strict=True))
    waits = torch.mycelya.metrics()["index_waits"]
    print(json.dumps({"case": case.__name__, "same": same, "waits": waits}))
torch.mycelya.reset_metrics()
texts = wrong("mycelya")
still = torch.equal((TABLE.to("mycelya") + 1).cpu(), TABLE + 1)
waits = torch.mycelya.metrics()["index_waits"]
print(json.dumps({"case": "wrong", "same": still, "waits": waits, "texts": texts}))
sys.stdout.flush()
