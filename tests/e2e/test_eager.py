# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""torch.mycelya.eager() and MYCELYA_EAGER: bits, lines of errors, times, debuggers."""

import inspect
import json
import re
import sys
import threading
import traceback
from pathlib import Path

import pytest
import torch
from helpers import DEVICE, run, run_file

from mycelya_torch import RemoteMachine

pytestmark = pytest.mark.timeout(1500)  # some tests run several processes

CASES = Path(__file__).with_name("eager_cases.py")
# PyTorch's backward of these has another formula for tensors of subclasses and in any
# dispatch mode, which eager() is.
OTHER_FORMULAS = {"prod backward"}


def results_of(*arguments, **env):
    """Hashes of the results, and the number of kernels and of ops in them."""
    out, _ = run_file(CASES, *arguments, timeout=700, MYCELYA_CHECK="0", **env)
    found = json.loads(out)
    return found["results"], found["kernels"]


# ---- Bits ----


@pytest.fixture(scope="module")
def without_kernels():
    return results_of(MYCELYA_KERNELS="off")[0]


@pytest.mark.slow
@pytest.mark.cpu_worker
@pytest.mark.parametrize(
    ("arguments", "env"),
    [((), {"MYCELYA_EAGER": "1"}), (("eager",), {"MYCELYA_KERNELS": "on"})],
)
def test_eager_has_the_bits_of_programs_without_kernels(
    without_kernels, arguments, env
):
    found, kernels = results_of(*arguments, **env)
    assert found.keys() == without_kernels.keys() and len(found) > 200
    differ = {name for name, bits in found.items() if bits != without_kernels[name]}
    assert differ <= OTHER_FORMULAS
    assert kernels == 0


@pytest.mark.slow
@pytest.mark.cpu_worker
def test_the_bits_of_kernels_are_others(without_kernels):
    """Otherwise the test above could not fail."""
    found, kernels = results_of()
    assert found.keys() == without_kernels.keys()
    assert any(bits != without_kernels[name] for name, bits in found.items())
    assert kernels > 100


@pytest.mark.cpu_worker
def test_programs_have_kernels_again_after_eager(counters):
    def fused(before):
        return counters()["fused_ops"] - before["fused_ops"]

    def step():
        out = ((x * 1.5 + 0.25).tanh() * x).exp()
        torch.mycelya.synchronize()
        return out

    x = torch.linspace(-1, 1, 1000, device=DEVICE)
    step()
    before = counters()
    step()
    assert fused(before) > 0
    before = counters()
    with torch.mycelya.eager():
        step()
        with torch.mycelya.eager():
            step()
        step()
    assert fused(before) == 0
    step()
    assert fused(before) > 0


@pytest.mark.cpu_worker
def test_explain_tells_programs_of_eager_apart():
    with RemoteMachine("local", device="cpu", name="apart") as machine:
        x = torch.ones(7, device=machine.device())
        torch.mycelya.synchronize(machine)
        y = x * 3
        torch.mycelya.synchronize(machine)
        with torch.mycelya.eager():
            z = x * 3
        text = torch.mycelya.explain()
        assert "which has kernels, and eager() has none" in text
        assert y.tolist() == z.tolist() == 7 * [3]


# ---- Errors ----


def raised_at(function):
    """The line of this file at which a function raises."""
    with pytest.raises((IndexError, RuntimeError)) as caught:
        function()
    frames = traceback.extract_tb(caught.value.__traceback__)
    return [frame.lineno for frame in frames if frame.filename == __file__][-1]


def test_errors_are_raised_at_their_lines():
    table = torch.ones(3, 2, device=DEVICE)
    index = torch.tensor([5], device=DEVICE)
    first = inspect.currentframe().f_lineno

    def program():
        found = table[index]
        other = found + 1
        return other.sum().item()

    assert raised_at(program) > first + 3  # where the value is read
    with torch.mycelya.eager():
        assert raised_at(program) == first + 3
    assert table.sum().item() == 6


class Broken(torch.autograd.Function):
    """Its backward reads a row that is not there."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad[torch.tensor([9], device=DEVICE)]


def test_an_error_in_backward_is_raised_by_backward():
    x = torch.ones(3, device=DEVICE, requires_grad=True)
    with torch.mycelya.eager():
        y = Broken.apply(x).sum()
        with pytest.raises((IndexError, RuntimeError), match="9"):
            y.backward()
        z = x + 1
    assert z.tolist() == [2, 2, 2]


def test_an_exception_leaves_eager(counters):
    x = torch.ones(3, device=DEVICE)
    with pytest.raises(ZeroDivisionError), torch.mycelya.eager():
        1 / 0  # noqa: B018
    before = counters()["round_trips"]
    x = x + 1
    assert counters()["round_trips"] == before
    assert x.tolist() == [2, 2, 2]


# ---- Times ----


def test_each_op_has_its_time():
    torch.mycelya.reset_metrics()
    assert torch.mycelya.op_times() == []
    a = torch.ones(200, 200, device=DEVICE)
    with torch.mycelya.eager() as times:
        line = inspect.currentframe().f_lineno + 2
        for _ in range(3):
            b = a @ a
        c = b + 1
    found = {(t.op, t.line): t for t in times if t.file == __file__}
    product = found["aten.mm.default", line]
    total = found["aten.add.Tensor", line + 1]
    assert (product.calls, total.calls) == (3, 1)
    assert product.seconds > 0 and total.seconds > 0
    assert product.place == f"{__file__}:{line}"
    assert [t.seconds for t in times] == sorted(t.seconds for t in times)[::-1]
    assert torch.mycelya.op_times() == times
    text = str(times).splitlines()
    assert text[0].split() == ["op", "line", "calls", "seconds", "each"]
    pattern = rf"aten\.mm\.default +{re.escape(product.place)} +3 +[\d.]+ +[\d.]+ ms"
    assert any(re.fullmatch(pattern, row) for row in text), text
    assert len(text) == 1 + len(times)
    torch.mycelya.reset_metrics()
    assert torch.mycelya.op_times() == [] and c[0, 0].item() == 201


def test_ops_of_backward_and_optimizers_have_times():
    model = torch.nn.Linear(4, 2).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    x = torch.ones(3, 4, device=DEVICE)
    with torch.mycelya.eager() as times:
        model(x).sum().backward()
        optimizer.step()
        optimizer.step()
    ops = {t.op for t in times}
    assert "aten.mm.default" in ops and "aten.addmm.default" in ops
    assert any("_foreach_" in op or "add_" in op for op in ops)
    assert all(t.calls > 0 and t.seconds > 0 for t in times)
    assert all(Path(t.file).name == "test_eager.py" for t in times if t.file)


def test_nested_blocks_count_an_op_once_in_all():
    torch.mycelya.reset_metrics()
    x = torch.ones(3, device=DEVICE)
    with torch.mycelya.eager() as outer:
        with torch.mycelya.eager() as inner:
            x * 2  # noqa: B018
        x * 3  # noqa: B018
    calls = [sum(t.calls for t in times) for times in (outer, inner)]
    assert calls == [2, 1]
    assert sum(t.calls for t in torch.mycelya.op_times()) == 2


def test_threads_have_blocks_of_their_own(counters):
    x = torch.ones(3, device=DEVICE)
    entered, leave = threading.Event(), threading.Event()

    def other():
        with torch.mycelya.eager():
            entered.set()
            assert leave.wait(60)

    thread = threading.Thread(target=other)
    thread.start()
    assert entered.wait(60)
    before = counters()["round_trips"]
    x = x + 1
    assert counters()["round_trips"] == before
    leave.set()
    thread.join()
    assert x.tolist() == [2, 2, 2]


# ---- The environment, and debuggers ----


@pytest.mark.parametrize("value", ["on", "1"])
def test_words_of_the_environment(tmp_path, value):
    code = """
        import torch

        x = torch.ones(3, device="mycelya")
        before = torch.mycelya.metrics()["round_trips"]
        x = x + 1
        x = x + 1
        print(torch.mycelya.metrics()["round_trips"] - before >= 2, x.tolist())
        (time,) = [t for t in torch.mycelya.op_times() if t.op == "aten.add.Tensor"][:1]
        print(time.file.endswith("prog.py"), time.line in (6, 7))
    """
    status, out, err = run(code, tmp_path, timeout=280, MYCELYA_EAGER=value)
    assert (status, out) == (0, "True [3.0, 3.0, 3.0]\nTrue True\n"), err


@pytest.mark.parametrize("value", ["off", "0"])
def test_words_that_switch_it_off(tmp_path, value):
    code = """
        import torch

        x = torch.ones(3, device="mycelya") + 1
        print(x.tolist(), len(torch.mycelya.op_times()))
    """
    status, out, err = run(code, tmp_path, timeout=280, MYCELYA_EAGER=value)
    assert (status, out) == (0, "[2.0, 2.0, 2.0] 0\n"), err


def watching(frame, event, argument):
    """A trace function, as that of a debugger."""


def test_a_debugger_sees_values_in_eager():
    x = torch.arange(3.0, device=DEVICE)
    y = x * 2
    before = sys.gettrace()
    sys.settrace(watching)
    try:
        outside = repr(y)
        with torch.mycelya.eager():
            inside = repr(x * 3)
    finally:
        sys.settrace(before)
    assert "pending" in outside
    assert inside == "tensor([0., 3., 6.], device='mycelya:0')"


def test_pdb_steps_through_values(tmp_path):
    code = """
        import io, pdb, sys
        import torch

        def program():
            x = torch.arange(3.0, device="mycelya")
            y = x + 1
            z = y * y
            return z.sum()

        commands = io.StringIO("n\\nn\\nargs\\np y\\nn\\nn\\nretval\\nc\\n")
        debugger = pdb.Pdb(stdin=commands, stdout=sys.stdout, nosigint=True)
        debugger.prompt = ""
        print(debugger.runcall(program))
    """
    status, out, err = run(code, tmp_path, timeout=280, MYCELYA_EAGER="1")
    assert status == 0, out + err
    assert "tensor([1., 2., 3.], device='mycelya:0')" in out
    # What pdb shows by itself when a function returns.
    assert "->tensor(14., d" in out and "pending" not in out
