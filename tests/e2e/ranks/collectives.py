# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Each collective on the device has the bits that Gloo computes on the CPU."""

import torch
import torch.distributed as dist

dist.init_process_group("mycelya")
RANK, SIZE = dist.get_rank(), dist.get_world_size()


def values(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Other elements on each rank."""
    numbers = torch.Generator().manual_seed(RANK)
    return torch.randn(*shape, generator=numbers).mul(10).to(dtype)


def same(name: str, run) -> None:
    """run(move) returns tensors; move puts a tensor to a device."""
    here = run(lambda t: t.clone())
    there = run(lambda t: t.to("mycelya"))
    assert all(t.device.type == "mycelya" for t in there), name
    for want, got in zip(here, there, strict=True):
        assert torch.equal(got.cpu(), want), (name, RANK, got.cpu(), want)


def reduce_all(op, dtype=torch.float32, source=lambda t: t):
    def run(move):
        t = source(move(values(4, 6, dtype=dtype)))
        dist.all_reduce(t, op)
        return [t]

    return run


def broadcast(move):
    out = []
    for root in range(SIZE):
        t = move(values(5))
        dist.broadcast(t, root)
        out.append(t)
    return out


def reduce(move):
    t = move(values(3, 2))
    dist.reduce(t, SIZE - 1)
    return [t] if RANK == SIZE - 1 else []


def gather_all(move):
    parts = [move(torch.zeros(3, 2)) for _ in range(SIZE)]
    dist.all_gather(parts, move(values(3, 2)))
    whole = move(torch.zeros(SIZE * 3, 2))
    dist.all_gather_into_tensor(whole, move(values(3, 2)))
    return [*parts, whole]


def gather(move):
    parts = [move(torch.zeros(4)) for _ in range(SIZE)] if RANK == 0 else None
    dist.gather(move(values(4)), parts, dst=0)
    return parts or []


def scatter(move):
    parts = [move(values(4) + i) for i in range(SIZE)] if RANK == 1 else None
    out = move(torch.zeros(4))
    dist.scatter(out, parts, src=1)
    return [out]


def scatter_sums(move):
    out = move(torch.zeros(4))
    dist.reduce_scatter_tensor(out, move(values(SIZE * 4)))
    parts = move(torch.zeros(2, 2))
    dist.reduce_scatter(parts, [move(values(2, 2) + i) for i in range(SIZE)])
    return [out, parts]


def all_to_all(move):
    out = move(torch.zeros(SIZE * 2, 3))
    dist.all_to_all_single(out, move(values(SIZE * 2, 3)))
    # Rank r sends r + 1 rows to each rank.
    rows = sum(range(1, SIZE + 1))
    uneven = move(torch.zeros(rows, 2))
    mine = move(values(SIZE * (RANK + 1), 2))
    dist.all_to_all_single(uneven, mine, list(range(1, SIZE + 1)), [RANK + 1] * SIZE)
    return [out, uneven]


def to_the_next(move):
    t, got = move(values(3)), move(torch.zeros(3))
    ahead, behind = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    if RANK % 2 == 0:
        dist.send(t, ahead)
        dist.recv(got, behind)
    else:
        dist.recv(got, behind)
        dist.send(t, ahead)
    return [got]


def both_ways(move):
    """Receives that begin before the sends, on all ranks."""
    ahead, behind = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    first, second = move(torch.zeros(3)), move(torch.zeros(2, 4))
    works = [dist.irecv(first, behind)]
    works.append(dist.isend(move(values(3)), ahead))
    t = move(values(2, 4))
    works += dist.batch_isend_irecv(
        [dist.P2POp(dist.irecv, second, behind), dist.P2POp(dist.isend, t, ahead)]
    )
    for work in works:
        work.wait()
    return [first, second]


def later(move):
    """Work that is waited for after other operators."""
    t = move(values(8))
    work = dist.all_reduce(t, async_op=True)
    other = move(values(8)).exp()
    work.wait()
    return [t + other, t]


def groups(move):
    """Groups of each pair of neighbours, in one order on all ranks."""
    out = []
    for first in range(SIZE - 1):
        pair = dist.new_group([first, first + 1])
        if RANK in (first, first + 1):
            t = move(values(6))
            dist.all_reduce(t, group=pair)
            out.append(t)
    return out


for operation in ("SUM", "MIN", "MAX", "PRODUCT"):
    op = getattr(dist.ReduceOp, operation)
    for kind in (torch.float32, torch.float64, torch.int32, torch.int64):
        same(f"{operation} {kind}", reduce_all(op, kind))
same("bfloat16", reduce_all(dist.ReduceOp.SUM, torch.bfloat16))
same("transposed", reduce_all(dist.ReduceOp.SUM, source=lambda t: t.t()))
for function in (
    broadcast, reduce, gather_all, gather, scatter, scatter_sums, all_to_all,
    to_the_next, both_ways, later, groups,
):  # fmt: skip
    same(function.__name__, function)

# Gloo takes the memory of such a tensor to be that of its elements.
whole, want = values(4, 6).to("mycelya"), values(4, 6)[1:3, ::2].contiguous()
dist.all_reduce(whole[1:3, ::2])
dist.all_reduce(want)
assert torch.equal(whole[1:3, ::2].cpu(), want)
assert torch.equal(whole[0].cpu(), values(4, 6)[0])

mean = values(4).to("mycelya")
dist.all_reduce(mean, dist.ReduceOp.AVG)
total = values(4)
dist.all_reduce(total)
assert torch.equal(mean.cpu(), total / SIZE)

found = [None] * SIZE
dist.all_gather_object(found, {"rank": RANK})
assert found == [{"rank": r} for r in range(SIZE)]
dist.barrier()
dist.destroy_process_group()
print("done")
