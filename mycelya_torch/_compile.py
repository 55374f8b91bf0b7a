# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""The backend of torch.compile: graphs of ATen operators, recorded as usual.

AOTAutograd makes a forward and a backward graph of ATen operators. Calling a graph
records its operators, so that the device compiles them with what surrounds the graph.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")

AHEAD = (
    "AOTInductor writes a library with kernels for the hardware of this machine, but "
    "the tensors are on a mycelya device, whose worker compiles its own kernels. Use "
    "torch.compile(model), or save the program with torch.export.save and call "
    "torch.export.load(file).module()."
)


class _Differentiates(Exception):
    """The graph has a backward, which compile_graph did not expect."""


def backend(
    graph: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    name: str | None = None,
) -> Callable[..., Any]:
    """torch.compile(backend="mycelya").

    Args:
        graph: What Dynamo has traced.
        example_inputs: Fake tensors and symbolic sizes.
        mode: One of Inductor's modes. None changes anything here.
        options: None, because this backend has no options.
        name: The name of the compiled region, which nothing here needs.

    Raises:
        ValueError: an unknown mode, or an option.
    """
    if mode is not None and mode not in MODES:
        raise ValueError(
            f'torch.compile(backend="mycelya") has no mode {mode!r}. Leave mode away, '
            f"or use one of {', '.join(MODES)}."
        )
    if options:
        raise ValueError(
            'torch.compile(backend="mycelya") has no options, but got '
            f"{', '.join(sorted(options))}. Leave options away."
        )
    return compile_graph(graph, example_inputs)


def instead_of_inductor(
    module: Any, graph: Any, example_inputs: Sequence[Any]
) -> Callable[..., Any]:
    """What compile_fx does with a graph that has a value on a mycelya device.

    Options and modes of Inductor choose kernels and CUDA graphs. They change no result,
    and so nothing here.

    Args:
        module: torch._inductor.compile_fx.

    Raises:
        NotImplementedError: AOTInductor asks for a library.
    """
    if module.V.aot_compilation:
        raise NotImplementedError(AHEAD)
    # Graphs of Dynamo take and return flat tuples. Those that were made by hand or by
    # torch.export may not; these functions call back with one that does.
    again = functools.partial(instead_of_inductor, module)
    wrap: Callable[..., Callable[..., Any]]
    if not module.graph_returns_tuple(graph):
        wrap = module.make_graph_return_tuple
        return wrap(graph, example_inputs, again)
    if isinstance(graph, torch.fx.GraphModule) and isinstance(
        graph.graph._codegen, torch.fx.graph._PyTreeCodeGen
    ):
        wrap = module.handle_dynamo_export_graph
        return wrap(graph, example_inputs, again)
    return compile_graph(graph, example_inputs)


def compile_graph(graph: Any, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Makes graphs of ATen operators, and the function that calls them.

    Without a backward the graph keeps its writes in place, as the user wrote them: a
    write to a part of a cache is not a copy of the whole cache. AOTAutograd can split
    only a graph without writes into forward and backward.
    """
    if not _may_differentiate(graph, example_inputs):
        try:
            return _aot(graph, example_inputs, in_place=True)
        except _Differentiates:
            pass
    return _aot(graph, example_inputs, in_place=False)


def _may_differentiate(graph: Any, example_inputs: Sequence[Any]) -> bool:
    """Whether a backward is likely; _Differentiates corrects a wrong False."""
    if any(
        torch.utils._python_dispatch.is_traceable_wrapper_subclass(x)
        for x in example_inputs
        if isinstance(x, torch.Tensor)
    ):
        return True
    if not torch.is_grad_enabled():
        return False
    values = list(example_inputs)
    if isinstance(graph, torch.fx.GraphModule):
        results = graph.graph.output_node().all_input_nodes
        known = [n.meta.get("example_value", n.meta.get("val")) for n in results]
        if all(value is not None for value in known):
            values = known
    leaves = pytree.tree_leaves(values)
    return any(isinstance(x, torch.Tensor) and x.requires_grad for x in leaves)


def _aot(
    graph: Any, example_inputs: Sequence[Any], *, in_place: bool
) -> Callable[..., Any]:
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch import aot_autograd as aot
    from torch._functorch.partitioners import default_partition

    from mycelya_torch._graphs import compile_aten

    options: dict[str, Any] = {}
    # An older PyTorch lacks this argument.
    known = inspect.signature(aot.aot_module_simplified).parameters
    if in_place and "disable_functionalization" in known:
        options["disable_functionalization"] = True

    def partition(*args: Any, **kwargs: Any) -> Any:
        if options:
            raise _Differentiates
        return default_partition(*args, **kwargs)

    made: Callable[..., Any] = aot_autograd(
        fw_compiler=compile_aten,
        bw_compiler=compile_aten,
        inference_compiler=compile_aten,
        partition_fn=partition,
        keep_inference_input_mutations=True,
        **options,
    )(graph, example_inputs)
    return made
