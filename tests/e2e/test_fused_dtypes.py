# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Fused operators treat each dtype as the operators do on the CPU.

They give the same values or raise the same type of error. This includes dtypes without
a kernel in PyTorch, and numbers that a dtype can't represent. Of the combinations of
operator, dtype and number every fourth is a case; in `make soak` each is.
"""

import itertools
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import DEVICE, SOAK, run_file
from torch.nn import functional as F

pytestmark = [pytest.mark.cpu_worker]  # CUDA has kernels for other dtypes

INTEGERS = [
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.bool, torch.uint16, torch.uint32),
]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
DTYPES = [*INTEGERS, torch.uint64, *FLOATS, torch.complex64]
ONE = """
-x; x.abs(); x.sign(); torch.relu(x); x.square(); x.sqrt(); x.rsqrt(); x.exp(); x.log()
x.sin(); x.cos(); x.tanh(); x.sigmoid(); x.reciprocal(); x.floor(); x.ceil(); x.erf()
x.exp2(); x.log2(); x.log1p(); x.expm1(); x.trunc(); x.round(); x.isnan(); ~x; x.sgn()
x.logical_not(); x.sum(); x.mean(); x.amax(); x.amin(); x.any(); x.all(); x.norm()
F.silu(x); F.gelu(x); F.gelu(x, approximate="tanh"); F.elu(x); F.softplus(x); x.frac()
F.leaky_relu(x); F.hardtanh(x); F.selu(x); F.mish(x); F.softmax(x, 0); x.logsumexp(0)
F.log_softmax(x, 0); F.layer_norm(x, x.shape); F.rms_norm(x, x.shape); F.softsign(x)
F.rms_norm(x, x.shape, None, 1e-5); x.zero_(); x.fill_(1); torch.zeros_like(x); x.var()
torch.ones_like(x); x.abs_(); x.neg_(); x.sqrt_(); x.pow(2); x.pow(3); x.pow(0.5); 2**x
x.masked_fill(x > 0, True); x.float(); x.bool(); x.byte(); x.bfloat16(); x.cumsum(0)
x.erfc(); torch._foreach_erfc([x])[0]
torch._foreach_sqrt([x])[0]; torch._foreach_mul([x], 2.5)[0]; torch._foreach_neg([x])[0]
torch._foreach_abs([x])[0]; torch._foreach_clamp_min([x], 1)[0]; x.nan_to_num()
"""
TWO = """
x + y; x - y; x * y; x / y; x // y; x % y; x == y; x != y; x < y
x <= y; x > y; x >= y; torch.maximum(x, y); torch.minimum(x, y); x & y; x | y; x ^ y
torch.where(x > 0, x, y); torch.where(x == y, x, y); torch.hypot(x, y)
torch.atan2(x, y); torch.fmod(x, y); torch.pow(x, y); torch.lerp(x, y, 0.3)
torch.div(x, y, rounding_mode="floor"); torch.div(x, y, rounding_mode="trunc")
torch.lerp(x, y, y); torch.addcmul(x, x, y); torch.addcdiv(x, x, y)
torch.add(x, y, alpha=2); torch.sub(x, y, alpha=2); F.mse_loss(x, y)
F.mse_loss(x, y, reduction="none"); torch.logical_and(x, y); torch.logical_xor(x, y)
x.clamp(y, y); x.clamp(min=y); torch.clamp_max(x, y); aten.threshold_backward(x, y, 0)
aten.sigmoid_backward(x, y); aten.tanh_backward(x, y); aten.silu_backward(x, y)
x.copy_(y); x.add_(y); x.mul_(y); aten.leaky_relu_backward(x, y, 0.1, False); x.sub_(y)
x.div_(y); x.lerp_(y, 0.3); x.masked_fill_(y > 0, 1); torch.isclose(x, y)
torch._foreach_add([x], [y], alpha=2)[0]; torch._foreach_lerp([x], [y], 0.5)[0]
torch._foreach_addcmul([x], [x], [y])[0]
"""
NUMBER = """
x.clamp(s, 1); x.clamp(1, s); x.clamp(min=s); x.clamp(max=s); x + s; x - s; x * s; s - x
x == s; x > s; x <= s; x != s; x.masked_fill(m, s); torch.where(m, x, s); x & 3 | s
torch.add(x, x, alpha=s); torch.sub(x, x, alpha=abs(s)); torch.full_like(x, s)
x.clone().fill_(s); F.threshold(x, s, 1); F.hardtanh(x, s, 1); x.clamp_min(s); x.pow(s)
x // s; x % s; torch.fmod(x, s); torch.div(x, s, rounding_mode="trunc"); s // x; s % x
x.clamp_max(s); torch.addcmul(x, x, x, value=s); F.leaky_relu(x, s); torch.rsub(x, s)
torch.where(m, s, x); x.masked_fill(m, torch.tensor(s, device=x.device)); x.clamp_(s)
"""
FLOAT = """
torch.lerp(x, x.flip(0), s); F.elu(x, s); F.softplus(x, s); F.softplus(x, 1, s); x / s
torch.addcdiv(x, x, x, value=s); torch._foreach_add([x], [x], alpha=s)[0]; x.fill_(s)
torch._foreach_clamp_max([x], s)[0]; aten.threshold_backward(x, x, s)
"""
NUMBERS = [
    *(-1, 0, 1, 3, 127, 128, 255, 256, -128, -129, 300, 65535, 65536, -40000, True),
    *(2**31 - 1, 2**31, -(2**31) - 1, 2**40, -(2**40), 2.5, -1.5, 1e10, -1e10),
    *(float("inf"), float("nan")),
]
LARGE = [-1, 0.3, -1.0, 65504, 65505.0, -(10**6), 1e6, 1e39, -1e290, float("-inf")]


def fourth(*choices: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """The combinations whose places in the choices have a sum that 4 divides."""
    for places in itertools.product(*map(range, map(len, choices))):
        if SOAK > 1 or sum(places) % 4 == 0:
            yield tuple(choice[i] for choice, i in zip(choices, places, strict=True))


def words(text: str) -> list[str]:
    return [w.strip() for line in text.strip().split("\n") for w in line.split(";")]


def before(x: torch.Tensor) -> torch.Tensor:
    """x as the result of an operator that kernels compute, so that others fuse."""
    if x.is_floating_point() or x.is_complex():
        return x * 1
    return x ^ (False if x.dtype == torch.bool else 0)


def outcome(expression: str, **tensors: Any) -> torch.Tensor | str:
    """The result of the expression, moved to the CPU, or the type of its error."""
    try:
        names = {"torch": torch, "F": F, "aten": torch.ops.aten, **tensors}
        return eval(expression, names).cpu()
    except (NameError, AttributeError, SyntaxError):
        raise  # a mistake in this file
    except Exception as error:
        return type(error).__name__


def differ(expression: str, make: Callable[[str], dict[str, Any]]) -> str:
    """How the outcome on the device differs from that on the CPU; "" if equal."""
    want = outcome(expression, **make("cpu"))
    got = outcome(expression, **make(str(DEVICE)))
    if isinstance(want, str) or isinstance(got, str):
        same = isinstance(want, str) and isinstance(got, str) and got == want
        return "" if same else f"got {got}, expected {want}"
    try:
        torch.testing.assert_close(got, want, equal_nan=True)
    except AssertionError as error:
        return str(error)
    return ""


def dtype_cases() -> Iterator[tuple[str, str, Callable[[str], dict[str, Any]]]]:
    base = torch.tensor([0, 1, 2, 3, 5, 7, 1, 4, 60, 3] * 3)

    def make(d: torch.dtype, e: torch.dtype) -> Callable[[str], dict[str, Any]]:
        def tensors(device: str) -> dict[str, Any]:
            x, y = (
                t.clone().to(dt) for t, dt in ((base, d), (base.flip(0) % 4 + 1, e))
            )
            return {"x": before(x.to(device)), "y": before(y.to(device))}

        return tensors

    for expression, d in itertools.product(words(ONE), DTYPES):
        yield expression, f"of {d}", make(d, d)
    pairs = [(d, d) for d in DTYPES]
    pairs += [(torch.float32, d) for d in DTYPES] + [(d, torch.float32) for d in DTYPES]
    for expression, (d, e) in fourth(words(TWO), pairs):
        yield expression, f"of {d} and {e}", make(d, e)


def number_cases() -> Iterator[tuple[str, str, Callable[[str], dict[str, Any]]]]:
    some = [0, 1, 5, 100, 127, 128, 200, 255, -1, -5, 2**24 + 1, 2**31 - 1]
    cases = [*fourth(words(NUMBER), INTEGERS, NUMBERS)]
    cases += fourth(words(NUMBER) + words(FLOAT), FLOATS, LARGE)
    for expression, d, s in cases:
        if d in FLOATS:
            x = torch.tensor([*some, float("inf"), float("nan")]).to(d)
        else:
            most = 1 if d == torch.bool else torch.iinfo(d).max
            x = torch.tensor(some).clamp(-5 if d.is_signed else 0, most).to(d)
        m = torch.arange(len(x)) % 2 == 0

        def tensors(device: str, x=x, m=m, s=s) -> dict[str, Any]:
            return {"x": before(x.to(device)), "m": m.to(device), "s": s}

        yield expression, f"of {d} and {s!r}", tensors


CASES = {"dtypes": dtype_cases, "numbers": number_cases}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("cases", CASES)
def test_dtypes(cases):
    """In a process of its own: it compiles more programs than the cache keeps."""
    run_file(Path(__file__), cases, timeout=600)


if __name__ == "__main__":
    import mycelya_torch  # noqa: F401

    warnings.simplefilter("ignore")
    count, found = 0, []
    for expression, operands, make in CASES[sys.argv[1]]():
        count += 1
        if how := differ(expression, make):
            found.append(f"{expression} {operands}: {how}")
    torch.mycelya.synchronize()
    fused = torch.mycelya.metrics()["kernels_launched"]
    print("\n".join(found), count, "cases,", fused, "kernels")
    sys.exit(1 if found or fused < count / 4 else 0)
