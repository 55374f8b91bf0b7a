# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Printing gives CUDA's text, with one read, or with none in a debugger.

testdata/printing.txt holds the text of every case. It was made on the CPU: CUDA's text
is the CPU's with the device as the first suffix. `python tests/e2e/test_printing.py`
regenerates it.
"""

import contextlib
import math
import os
import sys
import types
import warnings
from pathlib import Path

import pytest
import torch
import torch._tensor_str as tensor_str
from helpers import DEVICE, SOAK, run
from hypothesis import given, settings
from hypothesis import strategies as st

GOLDEN = Path(__file__).parent / "testdata" / "printing.txt"
MARK = "==== "
# The default print options show at most 6 elements in each of 5 dims.
MOST_BYTES = 32 << 10

inf, nan = math.inf, math.nan


class Sub(torch.Tensor):
    """A subclass that overrides nothing."""


def ramp(*shape, dtype=torch.float32, scale=1.0):
    """0, 1, 2, …, scaled: no random numbers, so that the text never changes."""
    return (torch.arange(math.prod(shape)) * scale).to(dtype).reshape(shape)


def waves(*shape, dtype=torch.float32):
    return torch.arange(math.prod(shape)).sin().to(dtype).reshape(shape)


def bits(*values, dtype=torch.float32):
    return torch.tensor(values, dtype=torch.int32).view(dtype)


def grad(tensor):
    return tensor.requires_grad_()


# Each case builds a tensor. `to` moves a tensor to the device under test.
CASES = {
    "scalar": lambda to: to(torch.tensor(1.5)),
    "scalar int": lambda to: to(torch.tensor(-7)),
    "scalar bool": lambda to: to(torch.tensor(True)),
    "scalar complex": lambda to: to(torch.tensor(1 - 2j)),
    "scalar nan": lambda to: to(torch.tensor(nan)),
    "vector": lambda to: to(torch.tensor([0.5, -1.25, 3.0])),
    "whole floats": lambda to: to(torch.tensor([1.0, -2.0, 300.0])),
    "whole floats, not finite": lambda to: to(torch.tensor([1.0, inf, -inf, nan])),
    "not finite only": lambda to: to(torch.tensor([nan, inf, -inf])),
    "negative zero": lambda to: to(torch.tensor([-0.0, 0.0, 1.5])),
    "zeros": lambda to: to(torch.zeros(2, 3)),
    "small, so scientific": lambda to: to(torch.tensor([1e-5, 1.0])),
    "large, so scientific": lambda to: to(torch.tensor([1.5, 1e9])),
    "wide range": lambda to: to(torch.tensor([0.001, 1234.5, nan, -0.0])),
    "whole and scientific": lambda to: to(torch.tensor([1.0, 2e9, inf])),
    "subnormal": lambda to: to(bits(1, 2, 3)),
    "greatest": lambda to: to(torch.tensor([3.4028234663852886e38])),
    "nan payloads": lambda to: to(bits(0x7FC00001, -1)),
    "float64": lambda to: to(waves(3, dtype=torch.float64)),
    "float64, tiny": lambda to: to(torch.tensor([1e-300, 1e300], dtype=torch.float64)),
    "float16": lambda to: to(waves(4, dtype=torch.float16)),
    "float16, greatest": lambda to: to(torch.tensor([65504.0, 6e-8]).half()),
    "bfloat16": lambda to: to(waves(2, 5, dtype=torch.bfloat16)),
    "float8_e4m3fn": lambda to: to(waves(7).to(torch.float8_e4m3fn)),
    "float8_e5m2": lambda to: to((waves(5) * 100).to(torch.float8_e5m2)),
    "uint8": lambda to: to(ramp(5, dtype=torch.uint8, scale=50)),
    "int8": lambda to: to(torch.tensor([-128, 0, 127], dtype=torch.int8)),
    "int16": lambda to: to(torch.tensor([[-32768], [32767]], dtype=torch.int16)),
    "int32": lambda to: to(ramp(2, 2, dtype=torch.int32, scale=-1000)),
    "int64": lambda to: to(torch.tensor([-(2**63), 2**63 - 1])),
    "uint16": lambda to: to(ramp(3, dtype=torch.int32).to(torch.uint16)),
    "uint64": lambda to: to(torch.tensor([0, 2**64 - 1], dtype=torch.uint64)),
    "bool": lambda to: to(torch.tensor([[True, False], [False, True]])),
    "complex64": lambda to: to(torch.complex(waves(4), -waves(4))),
    "complex128": lambda to: to(
        torch.tensor([1e-9 + 1j, nan * 1j, -0.0 - 0.0j]).cdouble()
    ),
    "empty": lambda to: to(torch.empty(0)),
    "empty, two dimensions": lambda to: to(torch.empty(0, 3)),
    "empty int": lambda to: to(torch.empty(3, 0, 2, dtype=torch.int64)),
    "empty, requires grad": lambda to: grad(to(torch.empty(0))),
    "matrix": lambda to: to(waves(3, 4)),
    "four dimensions": lambda to: to(ramp(2, 2, 2, 3, scale=0.5)),
    "long lines": lambda to: to(waves(40)),
    "just over the threshold": lambda to: to(ramp(7, 143)),
    "big vector": lambda to: to(waves(1001)),
    "big matrix": lambda to: to(waves(300, 200)),
    "big, one dimension to shorten": lambda to: to(ramp(6, 6, 300)),
    "big row": lambda to: to(ramp(1, 2000)),
    "big column": lambda to: to(ramp(2000, 1)),
    "big int": lambda to: to(ramp(2000, dtype=torch.int64)),
    "big bool": lambda to: to(ramp(2000, dtype=torch.int64) % 3 == 0),
    "big complex": lambda to: to(torch.complex(waves(1200), waves(1200) * 1e-6)),
    "big bfloat16": lambda to: to(waves(1200, dtype=torch.bfloat16)),
    "big float8": lambda to: to(waves(1200).to(torch.float8_e4m3fn)),
    "big, extreme element hidden": lambda to: to(hidden_peak()),
    "big, extreme element shown": lambda to: to(hidden_peak().flip(0)),
    "big, empty dimension": lambda to: to(torch.empty(2000, 0)),
    "requires grad": lambda to: grad(to(waves(2))),
    "grad_fn": lambda to: grad(to(waves(2))) * 2,
    "grad_fn of a view": lambda to: grad(to(waves(2, 2)))[0],
    "grad_fn of big": lambda to: grad(to(waves(1100))) + 1,
    "custom function": lambda to: Twice.apply(grad(to(waves(2)))),
    "parameter": lambda to: torch.nn.Parameter(to(waves(2, 3))),
    "big parameter": lambda to: torch.nn.Parameter(to(waves(40, 40))),
    "frozen parameter": lambda to: torch.nn.Parameter(to(waves(3)), False),
    "buffer": lambda to: torch.nn.Buffer(to(waves(3))),
    "subclass": lambda to: to(waves(3)).as_subclass(Sub),
    "big subclass": lambda to: to(waves(2000)).as_subclass(Sub),
    "transposed": lambda to: to(ramp(2, 3)).t(),
    "strided": lambda to: to(ramp(4, 6))[::2, 1::3],
    "expanded": lambda to: to(ramp(1, 3)).expand(4, 3),
    "big expanded": lambda to: to(torch.tensor(0.25)).expand(500, 500),
    "big transposed": lambda to: to(waves(100, 30)).t(),
    "overlapping": lambda to: to(ramp(6)).as_strided((3, 3), (1, 1), 1),
    "view of other dtype": lambda to: to(torch.ones(2)).view(torch.int32),
    "conjugate": lambda to: to(torch.complex(waves(3), waves(3))).conj(),
    "big conjugate": lambda to: to(torch.complex(waves(1500), waves(1500))).conj(),
    "negative view": lambda to: to(torch.complex(waves(3), waves(3))).conj().imag,
    "big negative view": lambda to: (
        to(torch.complex(waves(2000), waves(2000))).conj().imag
    ),
    "imaginary part": lambda to: to(torch.complex(waves(3), waves(3))).imag,
    "zero tensor": lambda to: torch._efficientzerotensor(
        (2, 2), device=to(ramp(1)).device
    ),
    "list of tensors": lambda to: [
        to(waves(2)),
        to(torch.empty(0, 2)),
        to(waves(1001)),
    ],
    # A dict, because the text of an OrderedDict depends on Python's release.
    "state dict": lambda to: dict(
        torch.nn.BatchNorm1d(2, device=to(ramp(1)).device).state_dict()
    ),
}
OPTIONS = {
    "precision": {"precision": 2},
    "scientific": {"sci_mode": True},
    "not scientific": {"sci_mode": False},
    "low threshold": {"threshold": 5, "edgeitems": 1},
    "threshold 0": {"threshold": 0},
    "narrow": {"linewidth": 30},
    "wide": {"linewidth": 200},
    "no edge": {"threshold": 5, "edgeitems": 0},
    "short": {"profile": "short"},
    "full": {"threshold": inf},
    "scientific, short": {"sci_mode": True, "threshold": 10, "edgeitems": 2},
}


def hidden_peak():
    """A tensor with a hidden element that would change the format if it were read."""
    tensor = waves(2000)
    tensor[1000], tensor[-1] = 1e12, 1e12
    return tensor[:-1]


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2


@contextlib.contextmanager
def suffix(name):
    """CPU tensors print like a device's tensors: its name is the first suffix."""
    original = tensor_str._add_suffixes

    def add(text, suffixes, indent, force_newline):
        return original(text, [f"device='{name}'", *suffixes], indent, force_newline)

    tensor_str._add_suffixes = add
    try:
        yield
    finally:
        tensor_str._add_suffixes = original


def cpu_text(tensor, name="mycelya:0"):
    with suffix(name):
        return str(tensor)


def option_cases(to):
    for name, options in OPTIONS.items():
        for kind, tensor in (
            ("vector", to(waves(40) * 10)),
            ("matrix", to(waves(8, 9))),
            ("ints", to(ramp(3, 3, 3, dtype=torch.int64))),
            ("complex", to(torch.complex(waves(11), waves(11)))),
        ):
            yield f"{name}: {kind}", options, tensor


def golden():
    """{name of a case: its text}"""
    parts = GOLDEN.read_text().split(MARK)[1:]
    return {name: text[:-1] for name, _, text in (p.partition("\n") for p in parts)}


def there(tensor):
    return tensor.to(DEVICE)


@pytest.mark.parametrize("name", CASES)
def test_text(name, counters):
    tensor = CASES[name](there)
    torch.mycelya.synchronize()
    before = counters()
    text = str(tensor)
    after = counters()
    assert text == golden()[name]
    tensors = 1
    if not isinstance(tensor, torch.Tensor):
        tensors = len(tensor)
    cuts = sum(after["cuts"].values()) - sum(before["cuts"].values())
    assert cuts <= tensors
    assert after["round_trips"] - before["round_trips"] <= tensors
    received = after["bytes_received"] - before["bytes_received"]
    assert received <= MOST_BYTES * tensors
    assert repr(tensor) == text


@pytest.mark.parametrize("name", CASES)
def test_the_golden_text_is_pytorch_s(name):
    assert cpu_text(CASES[name](lambda t: t)) == golden()[name]


def test_text_under_print_options(counters):
    expected = golden()
    for name, options, tensor in option_cases(there):
        torch.mycelya.synchronize()
        before = counters()["round_trips"]
        with tensor_str.printoptions(**options):
            assert str(tensor) == expected[name], name
        assert counters()["round_trips"] - before <= 1, name
    assert len(expected) >= 50


def test_print_options_are_left_alone():
    options = {"precision": 3, "threshold": 7, "edgeitems": 2, "linewidth": 70}
    options["sci_mode"] = True
    with tensor_str.printoptions(**options):
        str(waves(100).to(DEVICE))
        assert tensor_str.get_printoptions() == options


@pytest.mark.parametrize(
    "shape",
    [(8, 7, 6, 9, 10), (6, 6, 6, 6, 6), (10, 100), (1000,), (6, 6, 6, 5)],
    ids=str,
)
def test_text_of_large_tensors(shape, counters):
    x = waves(*shape).to(DEVICE)
    torch.mycelya.synchronize()
    before = counters()
    text = str(x)
    after = counters()
    assert text == cpu_text(waves(*shape))
    assert after["round_trips"] - before["round_trips"] == 1
    assert after["bytes_received"] - before["bytes_received"] <= MOST_BYTES


ELEMENTS = st.one_of(
    st.sampled_from([0.0, -0.0, inf, -inf, nan, 1.0, 1e-8, 1e9]),
    st.floats(width=32),
    st.integers(-5, 5).map(float),
)


@settings(max_examples=60 * SOAK, deadline=None)
@given(data=st.data())
def test_any_tensor_prints_as_on_the_cpu(data):
    shape = data.draw(st.lists(st.integers(0, 8), max_size=4))
    dtypes = [torch.float32, torch.float64, torch.int32, torch.bool, torch.complex64]
    dtype = data.draw(st.sampled_from([*dtypes, torch.bfloat16, torch.float8_e5m2]))
    n = math.prod(shape)
    values = data.draw(st.lists(ELEMENTS, min_size=1, max_size=max(n, 1)))
    values = torch.tensor((values * n)[:n], dtype=torch.float64)
    if not (dtype.is_floating_point or dtype.is_complex):
        values = values.nan_to_num(0, 3, -3).clamp(-1e6, 1e6)
    tensor = values.to(dtype).reshape(shape)
    options = {
        "threshold": data.draw(st.sampled_from([0, 3, 20, 1000])),
        "edgeitems": data.draw(st.integers(0, 3)),
        "linewidth": data.draw(st.integers(10, 100)),
        "precision": data.draw(st.integers(0, 6)),
        "sci_mode": data.draw(st.sampled_from([None, True, False])),
    }
    with tensor_str.printoptions(**options):
        assert str(tensor.to(DEVICE)) == cpu_text(tensor)


def test_a_subclass_with_a_repr_of_its_own():
    class Named(torch.Tensor):
        def __repr__(self, *, tensor_contents=None):
            return f"Named of {self.numel()}"

    tensor = waves(3).to(DEVICE).as_subclass(Named)
    assert str(tensor) == repr(tensor) == f"{tensor}" == "Named of 3"


def test_transformed_tensors():
    seen = []

    def look(x):
        seen.append(repr(x))
        return x.sum()

    torch.func.vmap(look)(ramp(2, 3).to(DEVICE))
    torch.func.grad(look)(ramp(3).to(DEVICE))
    assert [text.partition("(")[0] for text in seen] == [
        "BatchedTensor",
        "GradTrackingTensor",
    ]
    inner = str(ramp(2, 3).to(DEVICE)).replace("\n", "\n    ")
    assert inner in seen[0]


def test_a_model_s_repr_reads_nothing(counters):
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    model = model.to(DEVICE)
    torch.mycelya.synchronize()
    before = counters()["round_trips"]
    assert "Linear(in_features=3, out_features=4, bias=True)" in repr(model)
    assert counters()["round_trips"] == before


def test_other_conversions_to_text(counters):
    x = torch.tensor([1.25, -2.0]).to(DEVICE)
    assert f"{x[0]}" == "1.25" and f"{x[0]:.3f}" == "1.250" and f"{x[1]:>5}" == " -2.0"
    assert f"{x}" == str(x) and format(x) == str(x)
    with pytest.raises(TypeError):
        format(x, ".3f")
    storage = x.untyped_storage()
    torch.mycelya.synchronize()
    before = counters()["round_trips"]
    lines = str(storage).splitlines()
    assert lines[:4] == [" 0", " 0", " 160", " 63"] and len(lines) == 9
    assert lines[8] == "[torch.storage.UntypedStorage(device=mycelya:0) of size 8]"
    assert counters()["round_trips"] - before == 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TypedStorage is deprecated
        text = str(x._typed_storage())
    assert text.splitlines() == [
        " 1.25",
        " -2.0",
        "[torch.storage.TypedStorage(dtype=torch.float32, device=mycelya:0) of size 2]",
    ]


# ---- Debuggers ----


@pytest.fixture
def unread(counters):
    """A tensor that is not computed, and a check that nothing was sent since."""
    x = torch.ones(3, 4, dtype=torch.float16, device=DEVICE) + 1
    before = counters()

    def untouched():
        after = counters()
        names = ("cuts", "round_trips")
        assert {n: after[n] for n in names} == {n: before[n] for n in names}
        return True

    return x, untouched


PENDING = "tensor(..., device='mycelya:0', size=(3, 4), dtype=torch.float16, pending)"


@contextlib.contextmanager
def traced(function):
    before = sys.gettrace()
    sys.settrace(function)
    try:
        yield
    finally:
        sys.settrace(before)


def test_under_a_trace_function(unread):
    x, untouched = unread
    parameter = torch.nn.Parameter(x)
    with traced(lambda *_: None):
        text, inner, of_parameter = repr(x), str([x]), repr(parameter)
        storage = repr(x.untyped_storage())
    assert text == PENDING and inner == f"[{PENDING}]"
    assert of_parameter == "Parameter containing:\n" + PENDING.replace(
        "pending", "requires_grad=True, pending"
    )
    assert storage == (
        "...\n[torch.storage.UntypedStorage(device=mycelya:0) of size 24, pending]"
    )
    assert untouched()


def test_a_debugged_program_prints_values(unread, capsys):
    x, _ = unread
    with traced(lambda *_: None):
        print(x)
        text = f"{x}"
    assert text.startswith("tensor([[2., 2., 2., 2.],") and "pending" not in text
    assert capsys.readouterr().out == text + "\n"


def test_coverage_tools_are_not_debuggers():
    x = torch.ones(2, device=DEVICE)
    for module in ("coverage.pytracer", "trace", "hypothesis.internal.scrutineer"):
        code = (lambda *_: None).__code__
        with traced(types.FunctionType(code, {"__name__": module})):
            text = repr(x)
        assert text == "tensor([1., 1.], device='mycelya:0')"


def test_under_sys_monitoring(unread, monkeypatch):
    """From Python 3.12 on, a debugger needs no trace function."""
    x, untouched = unread
    monitoring = getattr(sys, "monitoring", None)
    if monitoring is not None and monitoring.get_tool(monitoring.DEBUGGER_ID) is None:
        monitoring.use_tool_id(monitoring.DEBUGGER_ID, "test")
        text = repr(x)
        monitoring.free_tool_id(monitoring.DEBUGGER_ID)
    else:
        fake = types.SimpleNamespace(DEBUGGER_ID=0, get_tool={0: "debugger"}.get)
        monkeypatch.setattr(sys, "monitoring", fake, raising=False)
        text = repr(x)
    assert text == PENDING and untouched()


def test_called_by_pydevd(unread, monkeypatch):
    """pydevd is loaded in Jupyter kernels. Only texts for pydevd stay pending."""
    x, untouched = unread
    name = "_pydevd_bundle"
    monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    names = {"__name__": "_pydevd_bundle.pydevd_xml", "x": x}
    assert eval("repr({'x': x})", names) == f"{{'x': {PENDING}}}"
    assert eval("'%s: %s' % ('Tensor', x)", names) == f"Tensor: {PENDING}"
    assert untouched()
    assert repr(x).startswith("tensor([[2.")


def test_in_pdb(tmp_path):
    code = """
        import io, pdb, sys
        import torch
        import mycelya_torch

        x = torch.ones(2, device="mycelya") + 1
        mycelya_torch.device.reset_metrics()
        commands = io.StringIO({commands!r})
        pdb.Pdb(stdin=commands, stdout=sys.stdout, nosigint=True).set_trace()
        print("sent", mycelya_torch.device.metrics()["round_trips"])
    """
    typed = ["p x", "x", "pp [x]", "p str(x)", "n"]
    code = code.format(commands="\n".join(["display x", *typed, "c", ""]))
    status, out, err = run(code, tmp_path)
    assert status == 0, err
    text = "tensor([2., 2.], device='mycelya:0')"
    assert out.count(text) == 4 and out.count(f"[{text}]") == 1
    # What pdb shows by itself at each stop costs nothing.
    pending = "tensor(..., device='mycelya:0', size=(2,), dtype=torch.float32, pending)"
    assert f"display x: {pending}" in out
    assert "sent 4\n" in out


def test_in_pdb_after_an_exception(tmp_path):
    """After an exception no trace function is set, but pdb is among the callers."""
    code = """
        import io, pdb, sys
        import torch, mycelya_torch

        x = torch.ones(2, device="mycelya") + 1
        def fail(y):
            raise KeyError("no")
        try:
            fail([x])
        except KeyError:
            commands = io.StringIO("p y\\np str(y[0])\\nq\\n")
            prompt = pdb.Pdb(stdin=commands, stdout=sys.stdout, nosigint=True)
            prompt.reset()
            prompt.interaction(None, sys.exc_info()[2])
        print(repr(x))
    """
    status, out, err = run(code, tmp_path)
    assert status == 0, err
    assert "[tensor([2., 2.], device='mycelya:0')]" in out
    assert "\"tensor([2., 2.], device='mycelya:0')\"" in out
    assert out.endswith("(Pdb) tensor([2., 2.], device='mycelya:0')\n")


def make_golden():
    texts = {name: cpu_text(case(lambda t: t)) for name, case in CASES.items()}
    for name, options, tensor in option_cases(lambda t: t):
        with tensor_str.printoptions(**options):
            texts[name] = cpu_text(tensor)
    GOLDEN.write_text("".join(f"{MARK}{n}\n{text}\n" for n, text in texts.items()))


if __name__ == "__main__":
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    make_golden()
