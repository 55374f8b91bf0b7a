# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Registers the device with torch.compile when its modules are imported.

The backend itself is in _compile.py, which is imported at the first graph.
"""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import Any

import torch

from mycelya_torch import _device
from mycelya_torch import device as mycelya


def register_interface(module: ModuleType) -> None:
    """Registers the device's functions in torch._dynamo.device_interface."""
    base: Any = module.DeviceInterface

    class MycelyaInterface(base):  # type: ignore[misc]
        device = mycelya.device
        Event = torch.Event
        Stream = mycelya.Stream
        current_device = staticmethod(mycelya.current_device)
        set_device = staticmethod(mycelya.set_device)
        exchange_device = staticmethod(_device.exchange_device)
        device_count = staticmethod(mycelya.device_count)
        is_available = staticmethod(mycelya.is_available)
        stream = staticmethod(mycelya.stream)
        current_stream = staticmethod(mycelya.current_stream)
        set_stream = staticmethod(mycelya.set_stream)
        synchronize = staticmethod(mycelya.synchronize)
        get_device_properties = staticmethod(mycelya.get_device_properties)
        memory_allocated = staticmethod(mycelya.memory_allocated)

        @staticmethod
        def maybe_exchange_device(device: int) -> int:
            if device < 0:
                return mycelya.current_device()
            return _device.exchange_device(device)

        @staticmethod
        def is_bf16_supported(including_emulation: bool = False) -> bool:
            return mycelya.is_bf16_supported()

    module.device_interfaces["mycelya"] = MycelyaInterface


def know_is_mycelya(module: ModuleType) -> None:
    """Makes Tensor.is_mycelya a constant in torch.compile's graphs, like is_cuda."""

    def is_mycelya(self: Any, tx: Any) -> Any:
        if self.device is None:
            return None
        return module.ConstantVariable.create(self.device.type == "mycelya")

    module.TensorVariable.method_attr_is_mycelya = is_mycelya


def register_backend(module: ModuleType) -> None:
    """Makes torch.compile(backend="mycelya") known without an installed entry point."""
    if "mycelya" in module._BACKENDS:  # the entry point, which is being loaded
        return

    def backend(graph: Any, example_inputs: Any, **options: Any) -> Any:
        from mycelya_torch import _compile

        return _compile.backend(graph, example_inputs, **options)

    module.register_backend(backend, name="mycelya")


def redirect_inductor(module: ModuleType) -> None:
    """Makes compile_fx record the graphs that have a value on the device.

    Inductor makes kernels for the hardware of this machine. A graph that also has
    values on the CPU is recorded as a whole: its CPU operators run one by one.
    """
    original: Any = module.compile_fx

    @functools.wraps(original)
    def compile_fx(graph: Any, example_inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if not _on_device(graph, example_inputs):
            return original(graph, example_inputs, *args, **kwargs)
        from mycelya_torch import _compile

        return _compile.instead_of_inductor(module, graph, example_inputs)

    module.compile_fx = compile_fx  # type: ignore[attr-defined]


def know_rng(partitioners: ModuleType) -> None:
    """Makes recomputed random operators of compiled checkpoints draw the same numbers.

    AOTAutograd has the forward save the generator's state before such an operator, and
    the backward run the operator with that state. Only its partitioners make use of
    these two operators, whose module `import torch` imports already.
    """
    from torch._prims import rng_prims as module

    def index_of(args: Any, kwargs: Any) -> int:
        for value in torch.utils._pytree.tree_leaves((args, kwargs)):
            device = value.device if isinstance(value, torch.Tensor) else value
            if isinstance(device, torch.device) and device.type == "mycelya":
                return (
                    mycelya.current_device() if device.index is None else device.index
                )
        raise AssertionError("BUG: no argument is on a mycelya device")

    def save(op: Any, *args: Any, **kwargs: Any) -> Any:
        state = mycelya.get_rng_state(index_of(args, kwargs))
        return state, op(*args, **kwargs)

    def restore(state: torch.Tensor, op: Any, *args: Any, **kwargs: Any) -> Any:
        index = index_of(args, kwargs)
        now = mycelya.get_rng_state(index)
        mycelya.set_rng_state(state, index)
        result = op(*args, **kwargs)
        mycelya.set_rng_state(now, index)
        return result

    _run_on_device(module, module.run_and_save_rng_state, save, 1)
    _run_on_device(module, module.run_with_rng_state, restore, 2)


def _run_on_device(module: ModuleType, hop: Any, ours: Any, head: int) -> None:
    """Makes a higher-order operator call `ours`; the operands follow `head` values."""
    key = torch._C.DispatchKey
    hop.py_impl(key.PrivateUse1)(ours)
    select = hop.py_kernels[key.BackendSelect]  # for an operator without an operand

    @functools.wraps(select)
    def choose(*args: Any, **kwargs: Any) -> Any:
        # Before 2.15, get_device only finds operands on devices that PyTorch knows.
        leaves = torch.utils._pytree.tree_leaves((args[head:], kwargs))
        tensors = [v for v in leaves if isinstance(v, torch.Tensor)]
        on_device = any(t.device.type == "mycelya" for t in tensors)
        if not tensors:
            on_device = module.get_device(args[head:], kwargs) == "mycelya"
        return (ours if on_device else select)(*args, **kwargs)

    hop.py_kernels[key.BackendSelect] = choose


def allow_flex_attention(module: ModuleType) -> None:
    """Lets flex_attention take tensors on the device."""
    original: Any = module._validate_device

    def validate_device(query: Any, key: Any, value: Any) -> None:
        if query.device.type != "mycelya":
            original(query, key, value)

    module._validate_device = validate_device  # type: ignore[attr-defined]
    _cast_flex_attention(sys.modules["torch._higher_order_ops.flex_attention"])


def _cast_flex_attention(module: ModuleType) -> None:
    """Registers what flex_attention does under torch.autocast("mycelya")."""
    names: Any = torch._C.DispatchKey
    key = names.AutocastPrivateUse1
    if not hasattr(module, "_autocast_cast"):  # an older PyTorch
        return

    def autocast(query: Any, key_: Any, value: Any, *rest: Any) -> Any:
        dtype = torch.get_autocast_dtype("mycelya")
        operands = [
            module._autocast_cast(x, "mycelya", dtype) for x in (query, key_, value)
        ]
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(key)):
            return module.flex_attention(*operands, *rest)

    module.flex_attention.py_impl(key)(autocast)


def _on_device(graph: Any, example_inputs: Any) -> bool:
    """Whether an input or any value within the graph is on a mycelya device."""
    values = list(example_inputs or ())
    for sub in graph.modules() if isinstance(graph, torch.fx.GraphModule) else ():
        if isinstance(sub, torch.fx.GraphModule):
            for node in sub.graph.nodes:
                values.append(node.meta.get("example_value", node.meta.get("val")))
    if isinstance(graph, torch.nn.Module):
        values += [*graph.parameters(), *graph.buffers()]
    leaves = torch.utils._pytree.tree_leaves(values)
    return any(
        isinstance(leaf, torch.Tensor) and leaf.device.type == "mycelya"
        for leaf in leaves
    )
