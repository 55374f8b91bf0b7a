# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""torch.compile without a backend, in every mode; the backend "mycelya"; AOTInductor.

A compiled function on the device must equal the plain function on the CPU.
"""

import copy
import functools
import importlib.metadata

import pytest
import torch
from helpers import DEVICE, same
from torch._dynamo.exc import BackendCompilerFailed
from torch.utils.checkpoint import checkpoint

from mycelya_torch import RemoteMachine

MODES = ["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def pointwise(x, y):
    return (x * 2 + y).relu().sin() / (1 + x * x)


@pytest.mark.parametrize(
    "options",
    [
        *({"mode": mode} for mode in MODES),
        *({"mode": mode, "backend": "mycelya"} for mode in MODES),
        {"backend": "inductor", "fullgraph": True},
        {"dynamic": True},
        {"dynamic": False},
        {"options": {"epilogue_fusion": True, "max_autotune": True}},
    ],
    ids=str,
)
def test_options(options):
    fast = torch.compile(pointwise, **options)
    for n in (3, 5):
        x, y = torch.randn(n, 4), torch.randn(n, 4)
        same(fast(x.to(DEVICE), y.to(DEVICE)), pointwise(x, y))


def test_unknown_options():
    x = torch.randn(3).to(DEVICE)
    with pytest.raises(RuntimeError, match="Unexpected optimization option no_such"):
        torch.compile(pointwise, options={"no_such": 1})
    fast = torch.compile(pointwise, backend="mycelya", mode="no-such")
    with pytest.raises(BackendCompilerFailed, match="has no mode 'no-such'. Leave mod"):
        fast(x, x)
    torch._dynamo.reset()
    fast = torch.compile(pointwise, backend="mycelya", options={"epilogue_fusion": 1})
    with pytest.raises(BackendCompilerFailed, match="but got epilogue_fusion. Leave"):
        fast(x, x)


def test_the_entry_point():
    """The backend of the entry point is the one that the import registers."""
    from torch._dynamo.backends.registry import list_backends, lookup_backend

    assert "mycelya" in list_backends()
    lookup_backend("mycelya")
    found = importlib.metadata.EntryPoint(
        "mycelya", "mycelya_torch._compile:backend", "torch_dynamo_backends"
    ).load()
    x, y = torch.randn(3), torch.randn(3)
    fast = torch.compile(pointwise, backend=found)
    same(fast(x.to(DEVICE), y.to(DEVICE)), pointwise(x, y))


def test_a_module_compiles_itself():
    here = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU())
    there = copy.deepcopy(here).to(DEVICE)
    there.compile()
    x = torch.randn(2, 3)
    same(there(x.to(DEVICE)), here(x), 1e-4, 1e-5)


def test_graphs_without_dynamo():
    """torch._inductor.compile takes a graph whose result is no tuple."""
    x, y = torch.randn(3), torch.randn(3)
    graph = torch.fx.symbolic_trace(pointwise)
    fast = torch._inductor.compile(graph, [x.to(DEVICE), y.to(DEVICE)])
    same(fast(x.to(DEVICE), y.to(DEVICE)), pointwise(x, y))


def test_only_intermediates_are_on_the_device():
    """A graph with values on the CPU and on the device runs as a whole."""

    def inside(x):
        return (x + 1).to("mycelya").sum().cpu() * 2

    def made_inside():
        return torch.ones(3, device="mycelya").cpu() + 1

    x = torch.randn(3)
    same(torch.compile(inside, fullgraph=True)(x), (x + 1).sum() * 2)
    same(torch.compile(made_inside, fullgraph=True)(), torch.ones(3) + 1)


@pytest.mark.slow
def test_inductor_still_works_on_the_cpu():
    x, y = torch.randn(3), torch.randn(3)
    same(torch.compile(pointwise)(x, y), pointwise(x, y))


# ---- AOTInductor ----


def test_aot_inductor_is_refused(tmp_path):
    model = torch.nn.Linear(3, 2).to(DEVICE)
    x = torch.randn(2, 3).to(DEVICE)
    program = torch.export.export(model, (x,))
    with pytest.raises(NotImplementedError, match="AOTInductor writes a library") as e:
        torch._inductor.aoti_compile_and_package(
            program, package_path=str(tmp_path / "model.pt2")
        )
    assert "torch.export.save" in str(e.value)
    with pytest.raises(NotImplementedError, match="AOTInductor writes a library"):
        torch._inductor.aot_compile(program.module(), (x,))
    torch.export.save(program, tmp_path / "program.pt2")  # what the text says
    loaded = torch.export.load(tmp_path / "program.pt2").module()
    same(loaded(x).cpu(), model(x).cpu())


# ---- Writes and aliases ----


def test_a_cache_is_written_in_place():
    """A write to a part of a buffer stays one, and copies nothing else."""

    class Cache(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("keys", torch.zeros(1, 2, 64, 4))

        def forward(self, at, new):
            self.keys.index_copy_(2, at, new)
            return self.keys.sum(2)

    here = Cache()
    there = copy.deepcopy(here).to(DEVICE)
    fast = torch.compile(there, fullgraph=True)
    torch.mycelya.reset_metrics()
    with torch.no_grad():
        for i in range(4):
            at, new = torch.tensor([i]), torch.randn(1, 2, 1, 4)
            same(fast(at.to(DEVICE), new.to(DEVICE)), here(at, new))
    same(there.keys, here.keys)
    # Per step the two operators of the module; a copy of the cache would be a third.
    assert torch.mycelya.metrics()["ops_recorded"] <= 4 * 2 + 2


def test_results_that_alias_operands():
    def views(x):
        y = x * 2
        return x, x[1:], x.t(), y, y.view(-1)

    def write_through(function, x):
        results = function(x)
        x[1, 1] = 100
        results[4][0] = 50
        return results

    for grad in (True, False):
        x = torch.randn(3, 3)
        fast = torch.compile(views)
        with torch.set_grad_enabled(grad):
            got = write_through(fast, x.to(DEVICE))
        same(got, write_through(views, x))


def test_operands_that_overlap():
    def write(x, y):
        x.add_(1)
        return y * 2

    base = torch.zeros(4)
    there = base.to(DEVICE)
    fast = torch.compile(write)
    same(fast(there[:3], there[1:]), write(base[:3], base[1:]))
    same(there, base)


def test_metadata_of_an_operand_changes():
    def transpose(x):
        x.t_()
        return x + 1

    here, there = torch.randn(2, 3), None
    there = here.to(DEVICE)
    same(torch.compile(transpose)(there), transpose(here))
    same(there, here)


def test_a_buffer_takes_part_in_a_gradient():
    """A write makes an operand require grad, so that the graph has a backward."""

    def write(buffer, weight):
        buffer.copy_(weight * 2)

    here, there = torch.ones(3, requires_grad=True), torch.ones(3).to(DEVICE)
    there.requires_grad_()
    for function, weight in ((write, here), (torch.compile(write), there)):
        buffer = torch.zeros(3, device=weight.device)
        function(buffer, weight)
        buffer.square().sum().backward()
    same(there.grad, here.grad)


# ---- Training ----


class Net(torch.nn.Module):
    def __init__(self, again=None):
        super().__init__()
        self.first = torch.nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.norm = torch.nn.BatchNorm2d(4, track_running_stats=again is None)
        self.drop = torch.nn.Dropout(0.3)
        self.last = torch.nn.Linear(4 * 36, 5)
        self.again = again

    def hidden(self, x):
        return self.drop(torch.relu(self.norm(self.first(x))))

    def forward(self, x):
        x = self.again(self.hidden, x) if self.again else self.hidden(x)
        return self.last(x.flatten(1))


def train(model, call, step_of, steps=3):
    """The losses and the state after some steps with fixed data and seeds."""
    torch.manual_seed(5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=True)
    step = step_of(optimizer.step)
    losses = []
    data = torch.Generator().manual_seed(1)
    for _ in range(steps):
        x = torch.randn(4, 3, 6, 6, generator=data).to(DEVICE)
        target = torch.randint(5, (4,), generator=data).to(DEVICE)
        loss = torch.nn.functional.cross_entropy(call(x), target)
        optimizer.zero_grad()
        loss.backward()
        step()
        losses.append(loss.detach().cpu())
    return losses, {k: v.cpu() for k, v in model.state_dict().items()}


def plain(function):
    return function


@pytest.mark.parametrize("again", [False, True], ids=["", "checkpoint"])
def test_training_draws_the_same_numbers(again):
    """Dropout, batch norm and a compiled optimizer step: as without torch.compile.

    A compiled checkpoint computes its part again in the backward, with the same random
    numbers. It has no running statistics, because a plain checkpoint updates them
    twice and a compiled one does not.
    """
    rerun = functools.partial(checkpoint, use_reentrant=False) if again else None
    torch.manual_seed(2)
    model = Net(rerun).to(DEVICE)
    other = copy.deepcopy(model)
    expected = train(model, model, plain)
    got = train(other, torch.compile(other, fullgraph=True), torch.compile)
    same(got, expected, 1e-4, 1e-5)


def test_a_compiled_optimizer_writes_in_place():
    """The foreach operators stay in place: as many records as without torch.compile."""
    records = []
    for step_of in (plain, torch.compile):
        torch.manual_seed(2)
        model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(8)))
        model.to(DEVICE)
        optimizer = torch.optim.SGD(
            model.parameters(), lr=0.1, momentum=0.9, foreach=True
        )
        step = step_of(optimizer.step)
        for _ in range(3):
            model(torch.ones(2, 4, device=DEVICE)).sum().backward()
            torch.mycelya.reset_metrics()
            step()
            count = torch.mycelya.metrics()["ops_recorded"]
            optimizer.zero_grad()
        records.append(count)
    assert records[1] <= records[0]


# ---- Control flow ----


def test_cond():
    def branch(x):
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x * 3, (x,))

    fast = torch.compile(branch, fullgraph=True)
    for x in (torch.ones(3), -torch.ones(3)):
        same(fast(x.to(DEVICE)), branch(x))


def test_cond_under_autocast():
    def branch(x):
        return torch.cond(x.sum() > 0, lambda x: x @ x, lambda x: x @ x.t(), (x,))

    x = torch.ones(3, 3)
    with torch.autocast("mycelya", dtype=torch.bfloat16):
        got = torch.compile(branch)(x.to(DEVICE))
    same(got.float(), branch(x), 0.05, 0.05)


def test_graph_breaks():
    def broken(x):
        y = x + 1
        torch._dynamo.graph_break()
        if y.sum().item() > 0:
            y = y * 2
        return y - 1

    fast = torch.compile(broken)
    for x in (torch.ones(3), -3 * torch.ones(3)):
        same(fast(x.to(DEVICE)), broken(x))


def test_sizes_in_arithmetic():
    """Sizes that only the call knows: slices, reshapes, products and remainders."""

    def sized(x):
        n, m = x.shape
        y = x[: n // 2, (m % 3) :].reshape(-1)
        return y * n + m, x.new_zeros(n * 2 - 1), x.view(m, n), x.expand(2, n, m)

    fast = torch.compile(sized, dynamic=True, fullgraph=True)
    for n, m in ((5, 7), (6, 4), (9, 8)):
        x = torch.randn(n, m)
        same(fast(x.to(DEVICE)), sized(x))


def test_floats_made_of_sizes():
    def scaled(x):
        return x * (x.shape[0] / 2 + 1), x + x.shape[0]

    fast = torch.compile(scaled, dynamic=True, fullgraph=True)
    for n in (3, 4, 8):
        x = torch.randn(n)
        same(fast(x.to(DEVICE)), scaled(x))


# ---- Places ----


def test_an_error_names_the_users_line():
    """An operator that fails on the worker is told with its line within the graph."""

    def gather(x, i):
        y = x * 2
        return torch.gather(y, 0, i)  # the line

    line = gather.__code__.co_firstlineno + 2
    x, i = torch.randn(3).to(DEVICE), torch.tensor([7]).to(DEVICE)
    # A CUDA worker checks the indices, which is an IndexError.
    place = f"test_compile_modes.py:{line}"
    with pytest.raises((RuntimeError, IndexError), match=place):
        torch.compile(gather)(x, i).cpu()


def test_records_have_the_users_lines():
    """Also in graphs that run as Python code, and in their backward."""

    def plain(x):
        y = x.sin() * x
        return y.cos()

    def with_cond(x):
        y = x.sin() * x
        return torch.cond(x.sum() > -1, lambda y: y.cos(), lambda y: y.exp(), (y,))

    for function in (plain, with_cond):
        first = function.__code__.co_firstlineno
        x = torch.ones(3, device=DEVICE, requires_grad=True)
        y = torch.compile(function)(x)
        text = torch.mycelya.explain(y) if function is plain else ""
        y.sum().backward()
        text += torch.mycelya.explain(x.grad)
        for line in (first + 1, first + 2):
            assert f"test_compile_modes.py:{line}" in text, text
        assert "eval_with_key" not in text
        same(x.grad.cpu(), gradient_of(function, torch.ones(3)), 1e-4, 1e-5)


def gradient_of(function, x):
    x.requires_grad_()
    (g,) = torch.autograd.grad(function(x).sum(), x)
    return g


def test_two_machines():
    def over(x, y):
        return x * 2, y + 1

    with RemoteMachine("local") as machine:
        x, y = torch.randn(3), torch.randn(3)
        fast = torch.compile(over, fullgraph=True)
        got = fast(x.to(DEVICE), y.to(machine.device()))
        same(got[0], x * 2)
        same(got[1], y + 1)
        assert got[1].device == machine.device()

        def wrong(x, y):
            return x + y

        with pytest.raises(RuntimeError, match="mycelya:"):
            torch.compile(wrong)(x.to(DEVICE), y.to(machine.device()))
