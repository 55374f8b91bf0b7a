# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Makes a function of a graph of ATen operators, for mycelya_torch/_compile.py.

A graph of operators of ATen, sizes and integers runs in C++ (csrc/device/graph). Any
other graph, such as one with a higher-order operator, runs as the Python code that
torch.fx writes for it. Both give each record the user's line of its node.
"""

from __future__ import annotations

import operator
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx._lazy_graph_module import _LazyGraphModule

from mycelya_torch import _device
from mycelya_torch._device import Slot

Place = tuple[str, str, int]  # a file, a function, a line

_FRAME = re.compile(r'^\s*File "(.+)", line (\d+), in (.+)$', re.MULTILINE)
_INTERNAL = tuple(
    os.path.join(os.path.dirname(os.path.abspath(file)), "")
    for file in (torch.__file__, __file__)
) + ("<",)


def compile_aten(graph: GraphModule, example_inputs: Sequence[Any]) -> Any:
    """A function of one list of inputs, which it clears; it returns the results.

    AOTAutograd calls it for each graph that it has made, with fake inputs.
    """
    graph = _without_flex_attention(graph, example_inputs)
    try:
        run: Callable[[list[Any]], Any] = _Program(graph).finish().run
    except _NotInterpreted:
        run = _python(graph)

    def call(args: list[Any]) -> Any:
        return run(args)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def _without_flex_attention(
    graph: GraphModule, example_inputs: Sequence[Any]
) -> GraphModule:
    """The graph with flex_attention as operators of ATen.

    The operator's implementation for devices without a kernel vectorises the user's
    functions over four dimensions, which would take milliseconds in each call.
    """
    module: Any = sys.modules.get("torch._higher_order_ops.flex_attention")
    if module is None:
        return graph
    nodes = [
        node
        for node in graph.graph.nodes
        if node.target in (module.flex_attention, module.flex_attention_backward)
    ]
    constants = [node for node in graph.graph.nodes if node.op == "get_attr"]
    values = [operator.attrgetter(str(node.target))(graph) for node in constants]
    # A tensor that the graph holds would meet fake ones.
    if not nodes or any(isinstance(value, torch.Tensor) for value in values):
        return graph
    from torch._dispatch.python import enable_python_dispatcher
    from torch._guards import detect_fake_mode
    from torch.fx.experimental.proxy_tensor import make_fx

    mode = detect_fake_mode(example_inputs)
    if mode is None:
        return graph
    for node in nodes:
        forward = node.target is module.flex_attention
        dense = module.sdpa_dense if forward else module.sdpa_dense_backward
        node.target = dense
    # The interpreter keeps the metadata of nodes, with their lines.
    with mode, torch.fx.traceback.preserve_node_meta(), enable_python_dispatcher():
        run = torch.fx.Interpreter(graph).run
        return make_fx(lambda *args: run(*args))(*example_inputs)


def _place(node: Node) -> Place | None:
    """The innermost line of the user's program that made the node."""
    for file, line, function in reversed(_FRAME.findall(node.stack_trace or "")):
        if not file.startswith(_INTERNAL):
            return file, function, int(line)
    return None


def _python(graph: GraphModule) -> Callable[[list[Any]], Any]:
    """The graph as Python code, whose lines stand for those of the user."""
    graph.graph.set_codegen(torch.fx.graph._BoxedCodeGen())
    graph.recompile()
    _LazyGraphModule.force_recompile(graph)
    forward: Any = graph.forward
    code = forward.__code__
    places = [_place(node) for node in graph.graph.nodes]
    node_of_line = graph._lineno_map or {}
    # One entry per instruction of two bytes.
    by_instruction: list[Place | None] = [None] * (len(code.co_code) // 2)
    for start, end, line in code.co_lines():
        index = None
        if line is not None:
            index = node_of_line.get(line - code.co_firstlineno)
        if index is not None:
            for i in range(start // 2, end // 2):
                by_instruction[i] = places[index]
    _device.set_places(code, by_instruction)
    return forward  # type: ignore[no-any-return]


class _NotInterpreted(Exception):
    """The graph has a node that only Python can run."""


# What the graph computes with symbolic sizes; csrc/device/graph/Graph.h has the codes.
_INTEGERS: dict[Any, str] = {
    operator.add: "add",
    operator.sub: "sub",
    operator.mul: "mul",
    operator.floordiv: "floordiv",
    operator.mod: "mod",
    operator.neg: "neg",
    torch.sym_max: "max",
    torch.sym_min: "min",
    torch.ops.aten.sym_size.int: "size",
    torch.ops.aten.sym_stride.int: "stride",
    torch.ops.aten.sym_numel.default: "numel",
    torch.ops.aten.sym_storage_offset.default: "offset",
}


class _Program:
    """Translates the nodes of a graph into steps over numbered slots."""

    def __init__(self, graph: GraphModule) -> None:
        self.graph = graph
        self.values: dict[Node, Any] = {}  # a Slot, or a constant
        self.several: dict[Node, list[Slot]] = {}  # of operators with several results
        self.inputs = 0
        self.slots = 0
        self.steps: list[tuple[str, Any, list[Any], list[Slot], Place | None]] = []
        self.outputs: list[Any] = []
        for node in graph.graph.nodes:
            getattr(self, f"_{node.op}", self._unknown)(node)

    def finish(self) -> _device.Graph:
        """Marks the last use of each slot, and builds the program."""
        seen: set[int] = set()

        def visit(value: Any) -> None:
            if isinstance(value, Slot):
                value.last = value.index not in seen
                seen.add(value.index)
            elif isinstance(value, list | tuple):
                for item in reversed(value):
                    visit(item)

        visit(self.outputs)
        for _, _, args, results, _ in reversed(self.steps):
            for result in results:
                result.last = result.index not in seen  # nothing uses it
            visit(args)
        unused = [i for i in range(self.inputs) if i not in seen]
        return _device.Graph(self.inputs, self.slots, self.steps, self.outputs, unused)

    def _unknown(self, node: Node) -> None:
        raise _NotInterpreted

    def _fresh(self) -> Slot:
        self.slots += 1
        return Slot(self.slots - 1)

    def _placeholder(self, node: Node) -> None:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor | torch.SymInt | int):
            raise _NotInterpreted
        self.inputs += 1
        self.values[node] = self._fresh()

    def _get_attr(self, node: Node) -> None:
        value = operator.attrgetter(str(node.target))(self.graph)
        if not isinstance(value, torch.Tensor):
            raise _NotInterpreted
        self.values[node] = value

    def _output(self, node: Node) -> None:
        (results,) = node.args
        if not isinstance(results, list | tuple):
            raise _NotInterpreted
        self.outputs = [self._argument(result) for result in results]
        for result in self.outputs:
            if isinstance(result, list):
                raise _NotInterpreted

    def _call_function(self, node: Node) -> None:
        target: Any = node.target
        if target is operator.getitem:
            self._item(node)
        elif target in _INTEGERS:
            if not isinstance(node.meta.get("val"), int | torch.SymInt):
                raise _NotInterpreted  # a float
            args = [self._argument(a) for a in node.args]
            self._step(node, _INTEGERS[target], None, args, 1)
        elif isinstance(target, torch._ops.OpOverload) and target.namespace == "aten":
            self._operator(node, target)
        else:
            raise _NotInterpreted

    def _item(self, node: Node) -> None:
        whole, index = node.args
        assert isinstance(whole, Node)
        if whole in self.several:
            assert isinstance(index, int)
            self.values[node] = self.several[whole][index]
        else:  # an element of a list of tensors
            self._step(node, "item", None, [self._argument(whole), index], 1)

    def _operator(self, node: Node, target: Any) -> None:
        schema = target._schema
        given = dict(zip((a.name for a in schema.arguments), node.args, strict=False))
        given.update(node.kwargs)
        if not {a.name for a in schema.arguments} >= given.keys():
            raise _NotInterpreted
        args = []
        for argument in schema.arguments:
            if argument.name in given:
                kind = str(argument.type)
                value = _typed(self._argument(given[argument.name]), kind)
                if kind == "Tensor" and self._is_number(given[argument.name]):
                    value = ("number", [value])
                args.append(value)
            elif argument.has_default_value():
                args.append(argument.default_value)
            else:
                raise _NotInterpreted
        name = (schema.name, schema.overload_name)
        self._step(node, "call", name, args, len(schema.returns))

    def _is_number(self, value: Any) -> bool:
        if not isinstance(value, Node):
            return False
        return isinstance(
            value.meta.get("val"), int | float | torch.SymInt | torch.SymFloat
        )

    def _step(
        self, node: Node, code: str, name: Any, args: list[Any], results: int
    ) -> None:
        fresh = [self._fresh() for _ in range(results)]
        self.steps.append((code, name, args, fresh, _place(node)))
        if results == 1:
            self.values[node] = fresh[0]
        else:
            self.several[node] = fresh

    def _argument(self, value: Any) -> Any:
        """The value with a new Slot in place of each node."""
        if isinstance(value, Node):
            if value not in self.values:
                raise _NotInterpreted  # several results at once
            known = self.values[value]
            return Slot(known.index) if isinstance(known, Slot) else known
        if isinstance(value, list | tuple):
            return [self._argument(item) for item in value]
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool | slice):
            raise _NotInterpreted
        return value


# The forms of lists with slots in them, by the type in the schema.
_LISTS = {
    "List[Tensor]": "tensors",
    "List[Optional[Tensor]]": "optional_tensors",
    "List[int]": "ints",
    "List[SymInt]": "ints",
}


def _typed(value: Any, kind: str) -> Any:
    """An argument of this type of a schema; a list with slots becomes a tuple."""
    if isinstance(value, Slot):
        if "float" in kind or "bool" in kind:  # the slot may have an integer
            raise _NotInterpreted
        return value
    if not isinstance(value, list):
        return value
    if not any(isinstance(item, Slot | torch.Tensor) for item in value):
        return value
    form = _LISTS.get(kind.removeprefix("Optional[").removesuffix("]"))
    form = _LISTS.get(kind) or form
    if form is None:
        raise _NotInterpreted
    return form, value
