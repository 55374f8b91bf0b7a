# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Random programs of several ranks, each with its own delays, end and compute right.

A program is a list of statements that all ranks know. Each rank runs its part of it on
the device, and all parts with plain integers, so that it knows what it has to find. A
deadlock is an error after the timeout of the groups.
"""

import datetime
import itertools
import random
import sys
import time

import torch
import torch.distributed as dist

VALUES, VARIABLES, MODULUS = 4, 3, 1009

dist.init_process_group("mycelya", timeout=datetime.timedelta(seconds=60))
RANK, SIZE = dist.get_rank(), dist.get_world_size()
RANKS = list(range(SIZE))
GROUPS = [RANKS, *map(list, itertools.combinations(RANKS, 2)), RANKS[1:]]
HANDLES = [dist.new_group(members) for members in GROUPS]


class Program:
    """The variables of all ranks as integers, and those of this rank on the device."""

    def __init__(self, seed: int) -> None:
        self.choice = random.Random(seed)  # the same on all ranks
        self.delay = random.Random(f"{seed} {RANK}")
        self.known = [
            [
                [self.choice.randrange(MODULUS) for _ in range(VALUES)]
                for _ in range(VARIABLES)
            ]
            for _ in RANKS
        ]
        self.mine = [torch.tensor(v, device="mycelya") for v in self.known[RANK]]
        self.begun = []  # works, with what remains to be done after their wait

    def run(self) -> None:
        statements = [
            self.compute, self.compute, self.all_reduce, self.all_reduce_later,
            self.finish, self.broadcast, self.all_gather, self.all_to_all, self.ring,
            self.pass_on, self.read, self.future, self.event, self.on_the_cpu,
            self.objects, self.barrier,
        ]  # fmt: skip
        for _ in range(self.choice.randrange(4, 16)):
            self.choice.choice(statements)()
            if self.delay.random() < 0.2:
                time.sleep(self.delay.choice((0, 0.001, 0.003, 0.06)))
        self.finish()
        for variable in range(VARIABLES):
            self.check(variable)

    def check(self, variable: int) -> None:
        found = self.mine[variable].tolist()
        assert found == self.known[RANK][variable], (RANK, found, self.known)

    def a_variable(self) -> int:
        """One that no collective in progress writes."""
        free = set(range(VARIABLES)) - {variable for variable, *_ in self.begun}
        return self.choice.choice(sorted(free) or [self.finish() or 0])

    def a_group(self) -> tuple[list[int], dist.ProcessGroup]:
        return self.choice.choice(list(zip(GROUPS, HANDLES, strict=True)))

    # ---- Statements ----

    def compute(self) -> None:
        variable, factor = self.a_variable(), self.choice.randrange(1, 9)
        for rank in RANKS:
            self.known[rank][variable] = [
                (x * factor + i) % MODULUS
                for i, x in enumerate(self.known[rank][variable])
            ]
        x = self.mine[variable]
        self.mine[variable] = (x * factor + torch.arange(VALUES, device="mycelya")) % (
            MODULUS
        )

    def sum_up(self, members: list[int], variable: int) -> None:
        total = [
            sum(column) % MODULUS
            for column in zip(*(self.known[r][variable] for r in members), strict=True)
        ]
        for rank in members:
            self.known[rank][variable] = total

    def all_reduce(self) -> None:
        variable, (members, group) = self.a_variable(), self.a_group()
        self.sum_up(members, variable)
        if RANK in members:
            dist.all_reduce(self.mine[variable], group=group)
            self.mine[variable].remainder_(MODULUS)

    def all_reduce_later(self) -> None:
        variable, (members, group) = self.a_variable(), self.a_group()
        self.sum_up(members, variable)
        work = None
        if RANK in members:
            work = dist.all_reduce(self.mine[variable], group=group, async_op=True)
        self.begun.append((variable, work))

    def finish(self) -> None:
        for variable, work in self.begun:
            if work is not None:
                work.wait()
                self.mine[variable].remainder_(MODULUS)
        self.begun.clear()

    def broadcast(self) -> None:
        variable, (members, group) = self.a_variable(), self.a_group()
        root = self.choice.choice(members)
        for rank in members:
            self.known[rank][variable] = list(self.known[root][variable])
        if RANK in members:
            dist.broadcast(self.mine[variable], root, group=group)

    def all_gather(self) -> None:
        variable, (members, group) = self.a_variable(), self.a_group()
        rows = [self.known[rank][variable] for rank in members]
        mixed = [
            sum((i + 1) * x for i, x in enumerate(column)) % MODULUS
            for column in zip(*rows, strict=True)
        ]
        for rank in members:
            self.known[rank][variable] = mixed
        if RANK in members:
            parts = [torch.empty_like(self.mine[variable]) for _ in members]
            dist.all_gather(parts, self.mine[variable], group=group)
            total = sum((i + 1) * part for i, part in enumerate(parts))
            self.mine[variable] = total % MODULUS

    def all_to_all(self) -> None:
        variable = self.a_variable()
        rows = [list(self.known[rank][variable]) for rank in RANKS]
        for rank in RANKS:
            self.known[rank][variable] = [
                rows[i % SIZE][rank % VALUES] for i in range(VALUES)
            ]
        mine = self.mine[variable]
        sent = mine[torch.arange(SIZE, device="mycelya") % VALUES]
        got = torch.empty_like(sent)
        dist.all_to_all_single(got, sent)
        self.mine[variable] = got[torch.arange(VALUES, device="mycelya") % SIZE]

    def ring(self) -> None:
        """Receives begin before the sends, in one call or in several."""
        variable, together = self.a_variable(), self.choice.random() < 0.5
        rows = [self.known[rank][variable] for rank in RANKS]
        for rank in RANKS:
            self.known[rank][variable] = list(rows[rank - 1])
        sent, got = self.mine[variable], torch.empty_like(self.mine[variable])
        ahead, behind = (RANK + 1) % SIZE, (RANK - 1) % SIZE
        if together:
            works = dist.batch_isend_irecv(
                [
                    dist.P2POp(dist.irecv, got, behind),
                    dist.P2POp(dist.isend, sent, ahead),
                ]
            )
        else:
            works = [dist.irecv(got, behind), dist.isend(sent, ahead)]
        for work in works:
            work.wait()
        self.mine[variable] = got

    def pass_on(self) -> None:
        variable = self.a_variable()
        source, target = self.choice.sample(RANKS, 2)
        self.known[target][variable] = list(self.known[source][variable])
        if RANK == source:
            dist.send(self.mine[variable], target)
        elif RANK == target:
            dist.recv(self.mine[variable], source)

    def read(self) -> None:
        variable, reader = self.a_variable(), self.choice.choice(RANKS)
        if reader == RANK:
            self.check(variable)

    def future(self) -> None:
        variable, reader = self.a_variable(), self.choice.choice(RANKS)
        if reader == RANK:
            want = self.known[RANK][variable]
            assert self.mine[variable].cpu_future().result(60).tolist() == want

    def event(self) -> None:
        asks, waits = self.delay.random() < 0.5, self.delay.random() < 0.3
        event = torch.Event(device="mycelya")
        event.record()
        if asks:
            event.query()
        if waits:
            event.synchronize()

    def on_the_cpu(self) -> None:
        total = torch.tensor([RANK])
        dist.all_reduce(total)
        assert total.item() == sum(RANKS)

    def objects(self) -> None:
        found = [None] * SIZE
        dist.all_gather_object(found, RANK)
        assert found == RANKS

    def barrier(self) -> None:
        dist.barrier()


first, count = map(int, sys.argv[1:])
for seed in range(first, first + count):
    try:
        Program(seed).run()
    except BaseException:
        print("seed", seed, flush=True)
        raise
dist.destroy_process_group()
print("done")
