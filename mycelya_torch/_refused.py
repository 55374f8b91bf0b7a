# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Names of torch.cuda that have no meaning on this device.

They exist, so that a program which uses one gets a sentence that says why, and what to
do instead. Names that only exist as a refusal are in no `__all__` and no `dir()`.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any, NoReturn

_GRAPHS = (
    "the device finds the repeated parts of a program and replays them by itself, so "
    "it captures no graphs. Call the function directly."
)
_ALLOCATOR = (
    "the worker has one allocator, which a client can neither divide nor replace. "
    "torch.mycelya.empty_cache() frees what it keeps for reuse."
)
_ADDRESS = (
    "the memory of the device has no address in this process. Make a tensor: "
    'torch.empty(size, dtype=torch.uint8, device="mycelya").'
)
_RUNTIME = (
    "CUDA's runtime runs in the worker, if at all. Use torch.mycelya.synchronize() to "
    "wait and to get the errors of ops."
)
_HANDLE = (
    "the libraries run in the worker, so they have no handle in this process. Use the "
    "functions of torch and torch.linalg."
)
_STREAM = (
    "a device has one queue, in its worker, which a stream of another library cannot "
    "join. Use torch.mycelya.Stream()."
)
_PINNED = (
    "pinned memory is memory of this process that workers map, and is not counted. "
    "The memory of this process includes it."
)
_PROFILER = (
    "CUDA's profiler runs on the worker's host. torch.profiler and "
    "torch.mycelya.trace() show what the worker computes, and when."
)
_KERNELS = (
    "a worker takes programs and no code. Write the function with operators of torch; "
    "the device makes kernels of them."
)
_TUNING = (
    "a worker chooses the kernels of matrix products by itself. "
    "torch.backends.cudnn.benchmark is passed on to it."
)
_NCCL = (
    "devices of different machines have no common network of GPUs. "
    "tensor.to(machine.device(...)) copies between the devices of one machine."
)
_FILES = (
    "GPUDirect Storage reads files of the GPU's host. machine.save() and "
    "machine.load() use the disk of the machine."
)
_SPARSE = (
    "there are no legacy types of sparse tensors. Use tensor.to_sparse(), or "
    'torch.sparse_coo_tensor(..., device="mycelya").'
)

_ROWS: tuple[tuple[str, str], ...] = (
    ("CUDAGraph graph graph_pool_handle make_graphed_callables", _GRAPHS),
    ("export_dot export_graph_data", _GRAPHS),
    (
        "MemPool use_mem_pool CUDAPluggableAllocator change_current_allocator",
        _ALLOCATOR,
    ),
    ("caching_allocator_disabled", _ALLOCATOR),
    ("caching_allocator_alloc caching_allocator_delete", _ADDRESS),
    ("cudart check_error", _RUNTIME),
    ("current_blas_handle current_solver_handle", _HANDLE),
    ("ExternalStream GreenContext get_stream_from_external", _STREAM),
    ("host_memory_stats host_memory_stats_as_nested_dict", _PINNED),
    ("reset_accumulated_host_memory_stats reset_peak_host_memory_stats", _PINNED),
)
_MODULES = {
    "gds": _FILES,
    "graph_annotations": _GRAPHS,
    "graphs": _GRAPHS,
    "green_contexts": _STREAM,
    "jiterator": _KERNELS,
    "nccl": _NCCL,
    "profiler": _PROFILER,
    "sparse": _SPARSE,
    "tunable": _TUNING,
}
# Functions of these modules whose answer is known.
_FALSE = frozenset(
    """
    graph_annotations.is_available nccl.is_available tunable.is_enabled
    tunable.tuning_is_enabled tunable.record_untuned_is_enabled
    """.split()
)
# Those of torch.cuda.memory.
MEMORY = frozenset(
    name
    for names, why in _ROWS
    if why in (_ALLOCATOR, _ADDRESS, _PINNED)
    for name in names.split()
)


class CudaError(RuntimeError):
    """The error of torch.cuda.check_error; no function of this device raises it."""


class DeferredCudaCallError(Exception):
    """An error of a call that waited for CUDA's start; nothing here raises it."""


class cudaStatus:  # noqa: N801 (PyTorch's name)
    """CUDA's numbers for success and for unfinished work."""

    SUCCESS: int = 0
    ERROR_NOT_READY: int = 34


_CLASSES = {c.__name__: c for c in (CudaError, DeferredCudaCallError, cudaStatus)}


def _refuse(name: str, why: str) -> NoReturn:
    raise NotImplementedError(f"torch.mycelya has no {name}: {why}")


def _function(name: str, why: str) -> Any:
    """A function, or for a class's name a class, that raises when it is called."""

    def refused(*args: Any, **kwargs: Any) -> NoReturn:
        _refuse(name, why)

    doc = f"Refused: {why}"
    last = name.rpartition(".")[2]
    if last[0].isupper():
        members = {"__new__": refused, "__doc__": doc, "__module__": "torch.mycelya"}
        return type(last, (), members)
    refused.__name__ = refused.__qualname__ = last
    refused.__doc__, refused.__module__ = doc, "torch.mycelya"
    return refused


def _never(*args: Any, **kwargs: Any) -> bool:
    """False, whatever is asked about."""
    return False


class _Module(ModuleType):
    """A module of torch.cuda whose functions have no meaning here."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"torch.mycelya.{name}", f"Refused: {why}")
        self._why = why

    def __getattr__(self, name: str) -> Any:
        short = self.__name__.rpartition(".")[2]
        cuda: Any = importlib.import_module(f"torch.cuda.{short}")
        if name.startswith("_") or not hasattr(cuda, name):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        ours: Any = sys.modules["mycelya_torch.device"]
        same = getattr(sys.modules["torch.cuda"], name, None) is getattr(cuda, name)
        if same and name in ours.__all__:
            return getattr(ours, name)
        if f"{short}.{name}" in _FALSE:
            return _never
        return _function(f"{short}.{name}", self._why)


def named(name: str) -> Any:
    """What stands for a name of torch.cuda; None if nothing does."""
    if name in _CLASSES:
        return _CLASSES[name]
    if name in _MODULES:
        return _Module(name, _MODULES[name])
    for names, why in _ROWS:
        if name in names.split():
            return _function(name, why)
    return None
