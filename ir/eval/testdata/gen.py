# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Writes cases.json: what PyTorch on the CPU computes for the own ops.

    python ir/eval/testdata/gen.py

Operands are named arrays; a case names its operands and holds the result, or the
message if PyTorch refuses. Bytes are base64. Kernels that PyTorch only happens to lack
("not implemented") make no case.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import torch

aten = torch.ops.aten

DTYPES = {
    "b8": torch.bool, "u8": torch.uint8, "i8": torch.int8, "i16": torch.int16,
    "i32": torch.int32, "i64": torch.int64, "u16": torch.uint16,
    "u32": torch.uint32, "u64": torch.uint64, "f16": torch.float16,
    "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64,
    "c64": torch.complex64, "c128": torch.complex128,
}  # fmt: skip
NAMES = {v: k for k, v in DTYPES.items()}
UNARY: dict[str, Any] = {
    "neg": aten.neg, "abs": aten.abs, "sqrt": aten.sqrt, "rsqrt": aten.rsqrt,
    "exp": aten.exp, "log": aten.log, "sin": aten.sin, "cos": aten.cos,
    "tanh": aten.tanh, "sigmoid": aten.sigmoid, "relu": aten.relu,
    "reciprocal": aten.reciprocal, "floor": aten.floor, "ceil": aten.ceil,
    "sign": aten.sign, "erf": aten.erf, "erfc": aten.erfc, "exp2": aten.exp2,
    "log2": aten.log2, "log1p": aten.log1p, "expm1": aten.expm1, "trunc": aten.trunc,
    "round": aten.round, "isnan": aten.isnan, "logical_not": aten.logical_not,
    "bit_not": aten.bitwise_not,
}  # fmt: skip
BINARY: dict[str, Any] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div,
    "pow": torch.pow, "maximum": torch.maximum, "minimum": torch.minimum,
    "eq": torch.eq, "ne": torch.ne, "lt": torch.lt, "le": torch.le, "gt": torch.gt,
    "ge": torch.ge, "logical_and": torch.logical_and,
    "logical_or": torch.logical_or, "logical_xor": torch.logical_xor,
    "bit_and": torch.bitwise_and, "bit_or": torch.bitwise_or,
    "bit_xor": torch.bitwise_xor, "atan2": torch.atan2, "fmod": torch.fmod,
    "remainder": torch.remainder, "floor_divide": torch.floor_divide,
}  # fmt: skip
NUMBERED = "add sub mul div pow eq ne lt le gt ge bit_and fmod remainder".split()
INF, NAN = float("inf"), float("nan")

arrays: dict[str, Any] = {}
cases: list[dict[str, Any]] = []


def whole(*names: str) -> bool:
    """Whether all these dtypes are of integers, which floor_divide takes."""
    return all(n[0] in "ui" for n in names)


def encode(t: torch.Tensor) -> str:
    flat = t.contiguous().reshape(-1).view(torch.uint8)
    return base64.b64encode(bytes(flat.tolist())).decode()


def array(name: str, t: torch.Tensor) -> str:
    """Notes the tensor as a window on its storage, and returns its name."""
    whole = torch.empty(0, dtype=t.dtype).set_(t.untyped_storage())
    arrays[name] = {
        "dtype": NAMES[t.dtype], "sizes": list(t.shape), "strides": list(t.stride()),
        "offset": t.storage_offset(), "data": encode(whole),
    }  # fmt: skip
    return name


def number(v: Any) -> str:
    """Notes a Python number."""
    kinds = {float: torch.float64, int: torch.int64, bool: torch.bool}
    t = torch.tensor(v, dtype=kinds.get(type(v), torch.complex128))
    name = array(f"#{v}", t)
    arrays[name]["number"] = True
    return name


def case(op: str, names: list[str], f: Any, dims: Any = None, keep: Any = None) -> None:
    c: dict[str, Any] = {"op": op, "args": names}
    if dims is not None:
        c |= {"dims": dims, "keep": keep}
    try:
        out = f()
    except (RuntimeError, IndexError, TypeError, ZeroDivisionError) as e:
        if "not implemented" in str(e) or "not supported" in str(e):
            return
        c["error"] = str(e).splitlines()[0]
    else:
        if out.dtype not in NAMES:  # complex32, in which nothing computes
            return
        c |= {"dtype": NAMES[out.dtype], "sizes": list(out.shape)}
        c["data"] = encode(out)
    cases.append(c)


def specials(d: torch.dtype, huge: bool = True) -> torch.Tensor:
    if d == torch.bool:
        v: list[Any] = [False, True]
    elif d.is_complex:
        v = [0, 1, 1j, -1 + 2j, 0.5 - 0.25j, 3 + 4j, -2 - 0.125j]
    elif d.is_floating_point:
        f = torch.finfo(d)
        v = [0.0, -0.0, 1.0, -1.0, 0.1, 2.5, -2.5, 3.0, f.tiny / 4, INF, -INF, NAN]
        v += [-0.7, f.max if huge else 1.5]
    else:
        i = torch.iinfo(d)
        v = [0, 1, 2, 3, 7, 100, i.max] + ([] if i.min == 0 else [-1, -3, -7, i.min])
    return torch.tensor(v, dtype=d)


def tame(d: torch.dtype) -> torch.Tensor:
    """No zero, and nothing that leaves the range of an int8."""
    if d == torch.bool:
        return torch.tensor([True, True])
    if d in (torch.uint8, torch.uint16, torch.uint32, torch.uint64):
        return torch.tensor([1, 2, 3, 7, 100], dtype=d)
    return torch.tensor([1, -1, 2.5, -3, 7, 100], dtype=torch.float64).to(d)


def elementwise() -> None:
    full = {n: specials(d) for n, d in DTYPES.items()}
    safe = {n: tame(d) for n, d in DTYPES.items()}
    for n in DTYPES:
        array(n, full[n])
        array(n + ":row", full[n][None, :])
        array(n + ":col", full[n][:, None])
        array(n + ":fewcol", specials(DTYPES[n], False)[:, None])
        array(n + ":safe", safe[n])
        array(n + ":one", safe[n][-1])
    for op, f in UNARY.items():
        for n in DTYPES:
            case(op, [n], lambda f=f, n=n: f(full[n]))
    pairs = [(n, n) for n in DTYPES]
    pairs += [
        ("i64", "f32"), ("u8", "i8"), ("b8", "f32"), ("b8", "u8"), ("f16", "bf16"),
        ("f32", "f64"), ("i32", "c64"), ("f16", "i64"), ("u16", "i32"),
        ("f64", "c64"), ("u8", "i64"),
    ]  # fmt: skip
    divides = ("fmod", "remainder", "floor_divide")
    for op, f in BINARY.items():
        for a, b in pairs:
            if (op, a, b) == ("pow", "f64", "c64"):  # the phase of a subnormal's log
                continue
            if op == "floor_divide" and not whole(a, b):
                continue
            x, y = full[a][:, None], full[b][None, :]
            by, col = b + ":row", a + ":col"
            if op in divides:  # PyTorch is off where the quotient is huge
                x, col = specials(DTYPES[a], False)[:, None], a + ":fewcol"
                if not y.dtype.is_floating_point:
                    y, by = safe[b], b + ":safe"
            case(op, [col, by], lambda f=f, x=x, y=y: f(x, y))
        for a, b in [("f32", "f64"), ("i64", "f32"), ("u8", "i64"), ("bf16", "f32")]:
            if op == "floor_divide" and not whole(a, b):
                continue
            x, y = full[a], safe[b][-1]
            case(op, [a, b + ":one"], lambda f=f, x=x, y=y: f(x, y))
            case(op, [b + ":one", a], lambda f=f, x=x, y=y: f(y, x))
    case("fmod", ["i32", "i32"], lambda: torch.fmod(full["i32"], full["i32"]))


def numbers() -> None:
    for op in NUMBERED:
        f = BINARY[op]
        for n in ("b8", "u8", "i64", "f16", "bf16", "f32", "f64", "c64"):
            if (op, n) == ("pow", "b8"):  # only some powers have a kernel
                continue
            x = specials(DTYPES[n])
            for v in (1.001, 2, True, -3, 0.3 + 1j):
                if n == "bf16" and isinstance(v, complex):  # bcomplex32
                    continue
                case(op, [n, number(v)], lambda f=f, x=x, v=v: f(x, v))
    for n in ("i64", "u8", "f16", "bf16", "f32", "f64"):
        x = specials(DTYPES[n])
        for v in (0, 1, 2, 3, 0.5, -0.5, -1, -2, 2.5, 0.0, 2.0, -3.0):
            case("pow", [n, number(v)], lambda x=x, v=v: torch.pow(x, v))
        for v in (2, 0.5, -1.5, 1, 0.0):
            case("pow", [number(v), n], lambda x=x, v=v: torch.pow(v, x))
        for v in (1, 2.5):
            case("sub", [number(v), n], lambda x=x, v=v: torch.rsub(x, v))
            case("remainder", [number(v), n + ":safe"],
                 lambda n=n, v=v: torch.remainder(v, tame(DTYPES[n])))  # fmt: skip
    for n, d in DTYPES.items():
        x = specials(d)
        for v in (0, 1.5, 300, -1, 1e300, INF, NAN, True, -200, 70000, 0.3 + 1j):
            case("fill", [n, number(v)], lambda x=x, v=v: torch.full_like(x, v))


def moves() -> None:
    for a in DTYPES:
        for d in DTYPES.values():
            src = a + ":safe"
            if DTYPES[a].is_floating_point and (d.is_floating_point or d.is_complex):
                src = a
            x = specials(DTYPES[a]) if src == a else tame(DTYPES[a])
            case("cast", [src], lambda x=x, d=d: x.to(d, copy=True))
    c = torch.tensor([True, False, True])
    array("cond", c)
    for a, b in [("f32", "f64"), ("i64", "f32"), ("bf16", "bf16"), ("u8", "i8")]:
        x, y = specials(DTYPES[a])[:3], specials(DTYPES[b])[:3][:, None]
        array(a + ":3", x)
        array(b + ":31", y)
        case("where", ["cond", a + ":3", b + ":31"],
             lambda x=x, y=y: torch.where(c, x, y))  # fmt: skip
        case("where", ["cond", a + ":3", number(2.5)],
             lambda x=x: torch.where(c, x, 2.5))  # fmt: skip
    for a, b in [("f32", "f32"), ("f64", "f64"), ("bf16", "bf16"), ("f16", "f16"),
                 ("f32", "f64"), ("i64", "f32")]:  # fmt: skip
        x, y = specials(DTYPES[a]), specials(DTYPES[b])
        case("fma", [a + ":col", b + ":row", b],
             lambda x=x, y=y: torch.addcmul(y, x[:, None], y))  # fmt: skip
    base = torch.arange(24, dtype=torch.float32)
    views = {
        "transposed": base.view(4, 6).t(), "every second": base[1::2],
        "expanded": base[3].expand(6, 4), "window": base.as_strided((6, 4), (2, 1), 3),
        "reversed roles": base.view(2, 3, 4).permute(2, 0, 1),
    }  # fmt: skip
    for name, v in views.items():
        array(name, v)
        case("copy", [name], lambda v=v: v.clone())
        case("exp", [name], lambda v=v: torch.exp(v))
    for a in ("transposed", "expanded", "window"):
        for b in ("transposed", "expanded", "window"):
            case("sub", [a, b], lambda a=a, b=b: views[a] - views[b])


def reductions() -> None:
    torch.manual_seed(1)
    fs = {
        "sum": aten.sum.dim_IntList, "amax": aten.amax, "amin": aten.amin,
        "mean": aten.mean.dim,
    }  # fmt: skip
    shapes = {"cube": (2, 3, 4), "none": (2, 0, 3)}
    for n in ("b8", "u8", "i32", "i64", "f16", "bf16", "f32", "f64", "c64"):
        d = DTYPES[n]
        inputs = {k: (torch.randn(s) * 5).to(d) for k, s in shapes.items()}
        inputs["turned"] = (torch.randn(3, 4) * 5).to(d).t()
        if d.is_floating_point:
            inputs["nan"] = inputs["turned"].clone()
            inputs["nan"][1, 2] = NAN
            inputs["nan"][2, 2] = INF
        for k, x in inputs.items():
            array(f"{n}:{k}", x)
            for op, f in fs.items():
                if n == "c64" and op in (
                    "amax",
                    "amin",
                ):  # only of no elements
                    continue
                for dims in ([], [0], [1], [0, 1], [x.dim() - 1]):
                    for keep in (False, True):
                        case(op, [f"{n}:{k}"], lambda f=f, x=x, q=dims, w=keep:
                             f(x, q, w), dims, keep)  # fmt: skip


def main() -> None:
    torch.set_num_threads(1)
    elementwise()
    numbers()
    moves()
    reductions()
    used = {a for c in cases for a in c["args"]}
    lines = [json.dumps({"name": k, **v}) for k, v in arrays.items() if k in used]
    lines += [json.dumps(c) for c in cases]
    Path(__file__).with_name("cases.json").write_text("\n".join(lines) + "\n")
    print(torch.__version__, len(lines), "lines")


if __name__ == "__main__":
    main()
