# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Tensors that a machine keeps under names: RemoteMachine.save and load.

The worker writes the elements to its disk and never sends them here. What holds the
tensors, as a state_dict(), travels beside them as JSON:

    tree   = number | string | true | false | null | node
    node   = {"dict": [[key, tree], …]} | {"list": [tree, …]} | {"tuple": [tree, …]}
           | {"float": "inf" | "-inf" | "nan"}
           | {"tensor": index, "dtype": "float32", "cpu": true | false}
"""

from __future__ import annotations

import json
import math
from typing import Any

import torch

from mycelya_torch import _device

_KEYS = (str, int, float, bool, type(None))


class _Writer:
    """Turns what holds tensors into a tree, and collects views of the tensors."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.views: list[dict[str, Any]] = []
        self.alive: list[torch.Tensor] = []  # until the worker has read them
        self.known: dict[Any, int] = {}

    def tree(self, value: Any, where: str) -> Any:
        if isinstance(value, torch.Tensor):
            return self.tensor(value, where)
        if isinstance(value, dict):
            for key in value:
                if not isinstance(key, _KEYS):
                    raise TypeError(f"{where} has the key {key!r}, {_expected(key)}")
            pairs = [[k, self.tree(v, f"{where}[{k!r}]")] for k, v in value.items()]
            return {"dict": pairs}
        if isinstance(value, (list, tuple)):
            items = [self.tree(v, f"{where}[{i}]") for i, v in enumerate(value)]
            return {"tuple" if isinstance(value, tuple) else "list": items}
        if isinstance(value, float) and not math.isfinite(value):
            return {"float": str(value)}
        if isinstance(value, _KEYS):
            return value
        raise TypeError(f"{where} is {_expected(value)}")

    def tensor(self, tensor: torch.Tensor, where: str) -> Any:
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
            raise TypeError(f"{where} is no dense tensor with elements; convert it.")
        cpu = tensor.device.type == "cpu"
        here = tensor.detach().to(self.device).resolve_conj().resolve_neg()
        storage, dtype, sizes, strides, offset = _device.view_of(here)
        key = storage, dtype, *sizes, None, *strides, offset, cpu
        if key not in self.known:
            self.known[key] = len(self.views)
            self.alive.append(here)
            view = {"Storage": storage, "DType": dtype, "Sizes": sizes}
            self.views.append(view | {"Strides": strides, "Offset": offset})
        name = str(tensor.dtype).removeprefix("torch.")
        return {"tensor": self.known[key], "dtype": name, "cpu": cpu}


def _expected(value: object) -> str:
    return (
        f"a {type(value).__name__}. save() keeps tensors, numbers, strings and None, "
        "and dicts, lists and tuples of these."
    )


def _ask(index: int, what: str, **fields: Any) -> dict[str, Any]:
    answer = _device.ask(index, json.dumps({"What": what, **fields}))
    out: dict[str, Any] = json.loads(answer)
    return out


def save(device: torch.device, name: str, tensors: Any) -> None:
    writer = _Writer(device)
    tree = json.dumps(writer.tree(tensors, "tensors"))
    _ask(device.index, "save", Name=name, Tree=tree, Views=writer.views)


def load(device: torch.device, name: str) -> Any:
    found = _ask(device.index, "find", Name=name)
    tree = json.loads(found["tree"])
    dtypes: dict[int, str] = {}
    _dtypes_of(tree, dtypes)
    tensors = []
    for i, kept in enumerate(found["tensors"]):
        dtype = getattr(torch, dtypes[i])
        tensor = torch.empty(kept["sizes"], dtype=dtype, device=device)
        _device.set_defined(tensor)
        tensors.append(tensor)
    storages = [_device.storage_id(tensor) for tensor in tensors]
    _ask(device.index, "load", Found=found["found"], Storages=storages)
    return _value(tree, tensors)


def _dtypes_of(tree: Any, out: dict[int, str]) -> None:
    if not isinstance(tree, dict):
        return
    if "tensor" in tree:
        out[tree["tensor"]] = tree["dtype"]
    for _, item in tree.get("dict", ()):
        _dtypes_of(item, out)
    for item in (*tree.get("list", ()), *tree.get("tuple", ())):
        _dtypes_of(item, out)


def _value(tree: Any, tensors: list[torch.Tensor]) -> Any:
    if not isinstance(tree, dict):
        return tree
    if "tensor" in tree:
        tensor = tensors[tree["tensor"]]
        return tensor.cpu() if tree["cpu"] else tensor
    if "float" in tree:
        return float(tree["float"])
    if "dict" in tree:
        return {key: _value(item, tensors) for key, item in tree["dict"]}
    if "list" in tree:
        return [_value(item, tensors) for item in tree["list"]]
    return tuple(_value(item, tensors) for item in tree["tuple"])


def names(index: int) -> list[str]:
    out: list[str] = _ask(index, "names")["names"] or []
    return out


def drop(index: int, name: str) -> None:
    _ask(index, "drop", Name=name)


def checkpoint(index: int, every: float | None) -> None:
    if every is not None and not every > 0:
        raise ValueError(f"every={every!r} is not a number of seconds above 0.")
    _ask(index, "checkpoint", Every=every or 0)


def _ask_session(index: int, what: str, **fields: Any) -> dict[str, Any]:
    """Asks the session itself, which may be paused or lost."""
    answer = _device.ask_session(index, json.dumps({"What": what, **fields}))
    out: dict[str, Any] = json.loads(answer)
    return out


def logs(index: int) -> str:
    out: str = _ask_session(index, "logs")["log"]
    return out


def install(index: int, packages: tuple[str, ...]) -> str:
    out: str = _ask_session(index, "install", Packages=packages)["log"]
    return out


def kill(index: int) -> None:
    """Ends a worker at once."""
    _ask_session(index, "kill")


def end(index: int) -> None:
    """Has a worker that outlives this process end with its session."""
    _ask_session(index, "end")
