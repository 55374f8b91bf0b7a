# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""torch.mycelya.FloatTensor, torch.mycelya.FloatStorage and the other legacy types.

Like torch.cuda.FloatTensor, each is a constructor on the current device, a class for
isinstance, and a type for Tensor.type(). New code uses `dtype=` and `device=`.
"""

from __future__ import annotations

import types
from typing import Any

import torch
from torch.storage import _LegacyStorage

_TENSORS = {
    "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64,
    "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16,
    "LongTensor": torch.int64,
    "IntTensor": torch.int32,
    "ShortTensor": torch.int16,
    "CharTensor": torch.int8,
    "ByteTensor": torch.uint8,
    "BoolTensor": torch.bool,
}
_STORAGES = {
    **{name.replace("Tensor", "Storage"): dtype for name, dtype in _TENSORS.items()},
    "ComplexDoubleStorage": torch.complex128,
    "ComplexFloatStorage": torch.complex64,
}
NAMES = (*_TENSORS, *_STORAGES)


class TensorType(type):
    """Instances are tensors of one dtype on a mycelya device, of any class."""

    dtype: torch.dtype

    @property
    def __name__(cls) -> str:  # type: ignore[override]
        return cls.__qualname__

    def __instancecheck__(cls, instance: Any) -> bool:
        return (
            isinstance(instance, torch.Tensor)
            and instance.device.type == "mycelya"
            and instance.dtype == cls.dtype
            and instance.layout == torch.strided
        )

    def __call__(cls, *args: Any, **kwargs: Any) -> torch.Tensor:
        empty = torch.empty(0, dtype=cls.dtype, device="mycelya")
        return empty.new(*args, **kwargs)

    def __getattr__(cls, name: str) -> Any:
        return getattr(torch.Tensor, name)


def _tensor_type(name: str) -> TensorType:
    names = {
        "__module__": "torch.mycelya",
        "__qualname__": name,
        "__doc__": f"{name}(*sizes), (sequence), (tensor), (storage): a {name} on the "
        "current mycelya device; uninitialised where only sizes are given.",
        "dtype": _TENSORS[name],
        "layout": torch.strided,
        "is_cuda": False,
        "is_sparse": False,
    }
    # Tensor.type() looks up the class's name in C, which is the name given here.
    return TensorType(f"torch.mycelya.{name}", (), names)


def _no_buffer(cls: type, *args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("from_buffer: only available on CPU, not for mycelya storages")


def _storage_type(name: str) -> type:
    dtype = _STORAGES[name]
    names = {
        "__module__": "torch.mycelya",
        "__doc__": f"{name}(size), (sequence): a storage of {dtype}.",
        "dtype": dtype,
        "_dtype": dtype,
        "from_buffer": classmethod(_no_buffer),
    }
    return types.new_class(name, (_LegacyStorage,), exec_body=lambda n: n.update(names))


def legacy_type(name: str) -> Any:
    """A new class of that name; AttributeError if there is none."""
    if name in _TENSORS:
        return _tensor_type(name)
    if name in _STORAGES:
        return _storage_type(name)
    raise AttributeError(f"module 'torch.mycelya' has no attribute {name!r}")
