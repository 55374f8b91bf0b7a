# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Steps that write tensors, or change their metadata or storages in place."""

from __future__ import annotations

import torch
from view_programs_draft import (
    DTYPES,
    MAX_DIMS,
    Draft,
    Lines,
    Menu,
    broadcasts,
    copies,
    dense,
    index,
    last,
    lazy,
    ramp,
    shared,
    step,
    sums,
    window,
)

WRITES: Menu = []

# Writes


@step(WRITES, 12)
def written(s: Draft) -> Lines:
    x = s.tensor()
    how = s.one("add_", "mul_", "copy_", "sub_", "fill_", "zero_", "copy_", "add_")
    if how == "zero_":
        return f"{x}.zero_()"
    if how == "fill_":
        value = s.number(x)
        scalars = s.tensor(lambda t: t.dim() == 0)
        return f"{x}.fill_({s.one(value, value, scalars or value)})"
    if how == "copy_":
        shape, to = s[x].shape, s[x]
        source = s.tensor(lambda t: broadcasts(t.shape, shape) and copies(t, to))
        turned = source if lazy(to) else f"{x}.mT"
        return f"{x}.copy_({s.one(source, source, turned, f'{source}.flip(0)')})"
    return f"{x}.{how}({s.like(x)})"


@step(WRITES, 3)
def overlapping(s: Draft) -> Lines:
    """Writes that also read the storage they write to."""
    x = s.tensor(lambda t: t.dim() > 0 and t.shape[0] > 1 and not lazy(t))
    if not x:
        return None
    how = s.one(
        "{x}[1:].copy_({x}[:-1])",
        "{x}[:-1].add_({x}[1:])",
        "{x}[1:].mul_({x}[0])",
        "{x}.add_({x})",
        "{x}[0] = {x}[-1]",
        "{x}.copy_({x}.clone())",
        "{x}[::2].copy_({x}[:({x}.shape[0] + 1) // 2])",
        "{x}.copy_({x}.flip(0))",
        "{x}.sub_({x}.view_as({x}))",
        "{x}.mT.copy_({x})",
        "torch.add({x}[:-1], {x}[1:], out={x}[1:])",
        "torch.mul({x}, 2, out={x})",
    )
    return how.format(x=x)


@step(WRITES, 5)
def pointwise(s: Draft) -> Lines:
    x = s.tensor()
    how = s.one(
        "neg_()",
        "clamp_(min=0)",
        "masked_fill_({x} == {x}.flip(0), {n})" if s[x].dim() else "neg_()",
        "abs_()",
        "relu_()",
        "square_()",
        "tril_()" if dense(s[x]) else "add_(1)",
        "conj_physical_()",
        "resolve_conj().add_(1)",
        "addcmul_({x}, {x}, value=1)",
        "lerp_({x}, 0.5)",
        "logical_not_()",
        "cumsum_(0)",
        "addmm_({x}, {x})",
        "clamp_(max=2)",
        "fill_diagonal_(1)",
        "eq_(2)",
        "pow_(2)",
    )
    return f"{x}.{how.format(x=x, n=s.number(x))}"


@step(WRITES, 6)
def set_item(s: Draft) -> Lines:
    x = s.tensor()
    t = s[x]
    kind = s.pick(5)
    if kind < 3:
        where = index(s, t)
        fits = s.tensor()
        try:
            shape = eval(f"x[{where}]", {"x": t}).shape
            fits = s.tensor(
                lambda v: (
                    broadcasts(v.shape, shape)
                    and copies(v, t)
                    # With a 0-dim CPU source, assignment fills instead of copying.
                    and (v.dim() > 0 or not (v.requires_grad or t.requires_grad))
                    and (v.dim() > 0 or not shared(v, t))
                    # Such a fill accepts a negated source for bools, a copy does not.
                    and (v.dim() > 0 or t.dtype != torch.bool or not v.is_neg())
                )
            )
        except (IndexError, RuntimeError):  # the line will raise the same error
            pass
        return f"{x}[{where}] = {s.one(s.number(x), fits or '1')}"
    if kind == 3:
        mask = s.one("{x} == {x}", "{x} != 2", "~({x} == 2)", "{x}.isfinite()")
        return f"{x}[{mask.format(x=x)}] = {s.number(x)}"
    part = s.one("real", "imag") if t.is_complex() else "data"
    return (
        f"{x}.{part}[...] = {s.number(x)}" if s.pick(2) else f"{x}.{part} = {x}.neg()"
    )


@step(WRITES, 6)
def indexed(s: Draft) -> Lines:
    """Writes at positions from an index tensor or mask, each position once."""
    x = s.tensor(lambda t: t.dim() > 0)
    if not x:
        return None
    d = s.pick(s[x].dim() + 1) % s[x].dim()
    n = s[x].shape[d]
    rows = s.one([0], [n - 1, 0] if n > 1 else [0], list(range(n))[::-1], [])
    rows = rows if n else []
    i = f"torch.tensor({rows}, dtype=torch.int64, device=d)"
    source = f"{x}.index_select({d}, {i})"
    source = s.one(
        source,
        f"{source}.neg()",
        f"{source}.clone()",
        f"{x}.narrow({d}, 0, {len(rows)})",
    )
    v = s.number(x)
    first = f"{x}.transpose(0, {d})" if d else x
    return s.one(
        f"{x}.index_fill_({d}, {i}, {v})",
        f"{x}.index_copy_({d}, {i}, {source})",
        f"{x}.index_add_({d}, {i}, {source})",
        f"{first}.index_put_(({i},), torch.tensor({v}, device=d).to({x}.dtype))",
        f"{first}[{i}] = {v}",
        f"{x}.scatter_({d}, {i}.reshape({[-1] + [1] * (s[x].dim() - 1 - d)}), {v})",
        f"{x}.index_put_(({x} != 1,), torch.tensor({v}, device=d).to({x}.dtype))",
        f"{x}.masked_scatter_({x} == {x}, {x}.neg())",
        f"{first}[{i}] = {first}[{i}].neg()",
        f"{first}.index_put_(({i},), {first}[:1], accumulate=True)",
    )


@step(WRITES, 6)
def given_out(s: Draft) -> Lines:
    out = s.tensor()
    shape, dtype = s[out].shape, str(s[out].dtype)
    where = s.one(out, out, f"{out}.mT", f"{out}[...]", f"{out}.detach()")
    kind = s.pick(4)
    if kind:  # operands may share out's storage, as out is not resized
        a = s.tensor(lambda t: t.shape == shape)
        b = s.tensor(lambda t: broadcasts(t.shape, shape))
        b = s.one(s.number(a), b)
        if where.endswith("mT"):
            a, b = f"{a}.mT", s.number(a)
    else:
        data = s[out].untyped_storage()._cdata
        a = s.tensor(lambda t: t.untyped_storage()._cdata != data)
        if not a:
            return None
        shape = s[a].shape
        b = s.tensor(
            lambda t: broadcasts(t.shape, shape) and t.untyped_storage()._cdata != data
        )
    how = s.one(
        f"torch.add({a}, {b}, out={where})",
        f"torch.mul({a}, {b}, out={where})",
        f"torch.neg({a}, out={where})",
        f"torch.sub({a}, {b}, out={where})",
        f"torch.add({a}, {a}, out={where})",
        f"torch.eq({a}, {b}, out={where})",
        f"torch.clamp({a}, min=0, out={where})",
        f"torch.abs({a}, out={where})",
        *(
            [
                f"torch.sum({a}, 0, out={where})"
                if sums(s[a])
                else f"torch.neg({a}, out={where})",
                f"torch.cat([{a}, {a}], out={where})",
                f"torch.stack([{a}], out={where})",
                f"torch.arange(3, dtype={dtype}, out={where})"
                if dtype not in ("torch.bool", "torch.complex64")
                else f"torch.zeros([2], out={where})",
            ]
            if kind == 0
            else []
        ),
    )
    return f"with torch.no_grad(): {how}" if s.pick(2) else how


@step(WRITES, 2)
def foreach(s: Draft) -> Lines:
    # A kernel may write some elements before it finds an error. Which ones it writes
    # differs from kernel to kernel.
    x = s.tensor(lambda t: dense(t) and not t.is_inference())
    if not x:
        return None
    dtype = s[x].dtype
    y = s.tensor(lambda t: t.dtype == dtype and dense(t) and not t.is_inference())
    how = s.one(
        f"torch._foreach_add_([{x}], 1)",
        f"torch._foreach_mul_([{x}, {y}], 2)",
        f"torch._foreach_copy_([{x}], [{y}])",
        f"torch._foreach_zero_([{x}])",
    )
    return f"with torch.no_grad(): {how}" if s.pick(4) else how


# Metadata in place, storages


@step(WRITES, 5)
def turned(s: Draft) -> Lines:
    x = s.tensor()
    a, b = s.dim(x), s.dim(x)
    grown = s[x].dim() == MAX_DIMS
    swap = s.one("swapaxes_", "swapdims_")
    if lazy(s[x]):  # in inference mode, swapaxes_ works on a clone
        swap = "transpose_"
    return s.one(
        f"{x}.t_()",
        f"{x}.transpose_({a}, {b})",
        f"{x}.squeeze_()" if grown else f"{x}.unsqueeze_({a})",
        f"{x}.squeeze_()",
        f"{x}.squeeze_({a})",
        f"{x}.detach_()",
        f"{x}.{swap}({a}, {b})",
    )


@step(WRITES, 2)
def restrided_in_place(s: Draft) -> Lines:
    x = s.tensor()
    shape, stride, offset = window(
        s, s[x].untyped_storage().nbytes(), s[x].element_size()
    )
    return f"{x}.as_strided_({shape}, {stride}, {offset})"


@step(WRITES, 5)
def sized(s: Draft) -> Lines:
    x = s.tensor(lambda t: not lazy(t))  # of a lazy view, a clone is resized
    if not x:
        return None
    shape = s.one([2, 2], [1], [8], [3, 4], [], [0], [2, 0, 3], [17])
    return s.one(
        f"{x}.resize_({shape})",
        f"{x}.resize_as_({s.tensor()})",
        f"{x}.resize_({shape})",
        f"{x}.data.resize_({shape})",
        f"{x}.resize_([1, 2, 2, 2], memory_format=torch.channels_last)"
        if s[x].shape != (1, 2, 2, 2)  # else only the strides would change
        else f"{x}.resize_([2, 2, 2, 1])",
    )


@step(WRITES, 5)
def reset(s: Draft) -> Lines:
    """set_ to nothing, a tensor, a storage, or a window of a storage."""
    x = s.tensor(lambda t: not lazy(t))  # of a lazy view, a clone is set
    if not x:
        return None
    dtype = s[x].dtype
    y = s.tensor(lambda t: t.dtype == dtype) if s.pick(8) < 7 else s.tensor()
    how = s.pick(6)
    if how < 2:
        return f"{x}.set_({y})"
    if how == 2:
        if s[x].dim() == 1 and s[x].stride() != (1,):
            # If the size stays, set_ keeps the strides and reaches past the end.
            return None
        return f"{x}.set_({y}.untyped_storage())"
    if how == 3:
        return f"{x}.set_()"
    if how == 4:
        return f"{x}.data.set_({y})"
    nbytes = s[y].untyped_storage().nbytes()
    shape, stride, offset = window(s, nbytes, s[x].element_size())
    offset = s.one(offset, offset, offset, nbytes // s[x].element_size())
    return f"{x}.set_({y}.untyped_storage(), {offset}, {shape}, {stride})"


@step(WRITES, 2)
def storage_kept(s: Draft) -> Lines:
    """Keeps a storage without a tensor, and later makes a tensor on it."""
    x = s.tensor()
    name = f"s{s.pick(2)}"
    if name not in s.cpu.names:
        return [f"{name} = {x}.untyped_storage()", f"del {x}"]
    of = s[name].nbytes()
    sizes, strides, offset = window(s, of, 4)
    into = f"torch.empty(0, device=d).set_({name}, {offset}, {sizes}, {strides})"
    return [f"{s.new()} = {into}", f"del {name}"]


@step(WRITES, 2)
def copied_deeply(s: Draft) -> Lines:
    """The copies of two tensors share a storage if the tensors do."""
    a, b = s.new(), s.new()
    return f"{a}, {b} = copy.deepcopy([{s.tensor()}, {s.tensor()}])"


@step(WRITES, 4)
def to_and_from_the_cpu(s: Draft) -> Lines:
    x = s.tensor(lambda t: not t.is_inference())
    if not x:
        return None
    shape, dtype = s[x].shape, s.one(str(s[x].dtype)[6:], "float32", "int64")
    shape = tuple(shape[s.pick(2) :])
    if dtype not in DTYPES:
        return None
    if not copies(torch.zeros(shape, dtype=getattr(torch, dtype)), s[x]):
        return None
    there = ramp(shape, dtype, s.pick(3)).replace(", device=d", "")
    copy = f"{x}.to('cpu', copy=True)"
    # The device fills from a 0-dim CPU tensor, as CUDA does. The CPU copies it, and
    # refuses to copy into elements that share memory.
    number = not shape and not dense(s[x])
    return s.one(
        f"{x}.copy_({there})",
        f"{x}.copy_({there})" if number else f"{x}[...] = {there}",
        f"{s.new()} = {there}.clone().to(d)",
        f"seen.append(torch.zeros(2).copy_({copy}.sum()).tolist())",
        f"seen.append({copy}.neg().mT.tolist())",
        f"{x}.data = {there}.clone().to(d)",
        f"seen.append(torch.zeros({list(reversed(shape))}).mT.copy_({x}).tolist())",
    )


@step(WRITES, 4)
def data_assigned(s: Draft) -> Lines:
    x = s.tensor(lambda t: not t.is_inference())
    if not x:
        return None
    dtype = s[x].dtype
    y = s.tensor(lambda t: t.dtype == dtype) if s.pick(8) < 7 else s.tensor()
    value = s.one("{y}", "{y} * 2", "{y}.clone()", "{y}[...]", "{y}.mT", "{y}.detach()")
    return f"{x}.data = {value.format(y=y)}"


@step(WRITES, 3)
def storage(s: Draft) -> Lines:
    x = s.tensor()
    nbytes = s[x].untyped_storage().nbytes()
    bytes = f"{x}.untyped_storage()"
    kind = s.pick(4)
    if kind == 0:
        return f"{bytes}.resize_({nbytes + s.one(8, 16, 0, 4)})"
    if kind == 1 and not any(t.requires_grad for t in s.cpu.tensors().values()):
        # Keep the bytes of every tensor: past the end, it would read foreign memory.
        data = s[x].untyped_storage()._cdata
        need = max(
            reach(b)
            for t in s.cpu.tensors().values()
            for b in (t, t._base)
            if b is not None and b.untyped_storage()._cdata == data
        )
        return f"{bytes}.resize_({need})"
    if kind == 2:
        return f"{bytes}.fill_({s.one(0, 1)})"
    y = s.tensor(lambda t: t.untyped_storage().nbytes() == nbytes)
    return f"{bytes}.copy_({y}.untyped_storage())"


def reach(t: torch.Tensor) -> int:
    """The offset of the byte after t's last element, within its storage."""
    if t.numel() == 0:
        return 0
    end = t.storage_offset() + last(t.shape, t.stride()) + 1
    return end * t.element_size()
