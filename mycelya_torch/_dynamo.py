# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Registers the device with torch.compile when its modules are imported."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch

from mycelya_torch import _device
from mycelya_torch import device as mycelya

REFUSAL = (
    'torch.compile(backend="inductor") makes kernels for the hardware of this machine. '
    "The mycelya device is a compiler already: it records operators and compiles them "
    "for its worker. Leave torch.compile away, or use "
    'torch.compile(backend="aot_eager").'
)


def register_interface(module: ModuleType) -> None:
    """Registers the device's functions in torch._dynamo.device_interface."""
    base: Any = module.DeviceInterface

    class MycelyaInterface(base):
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


def refuse_inductor(module: ModuleType) -> None:
    """Makes compile_fx refuse a graph with a value on the device."""
    original: Any = module.compile_fx

    @functools.wraps(original)
    def compile_fx(graph: Any, example_inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if _on_device(graph, example_inputs):
            raise NotImplementedError(REFUSAL)
        return original(graph, example_inputs, *args, **kwargs)

    module.compile_fx = compile_fx  # type: ignore[attr-defined]


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
