# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""A plugin of mypy: plugins = ["mycelya_types.mypy"] in its configuration.

PyTorch has no stubs that another package could extend, so this adds what the device
adds to PyTorch at run time: torch.mycelya, the methods of methods.pyi, and machines as
arguments of Tensor.to and Module.to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mypy.nodes import GDEF, MypyFile, SymbolTableNode, TypeInfo
from mypy.plugin import ClassDefContext, MethodSigContext, Plugin
from mypy.types import FunctionLike, Instance, UnionType

_METHODS = "mycelya_types.methods"
_MODULE = "mycelya_torch.device"
_MACHINE = "mycelya_torch.machine.RemoteMachine"
_TENSOR = "torch._tensor.Tensor"
_TORCH_MODULE = "torch.nn.modules.module.Module"

# Classes of PyTorch, by module and name, and what they inherit from.
_BASES = {
    ("torch._tensor", "Tensor"): "TensorMethods",
    ("torch.nn.modules.module", "Module"): "ModuleMethods",
    ("torch.nn.utils.rnn", "PackedSequence"): "PackedSequenceMethods",
    ("torch.storage", "TypedStorage"): "StorageMethods",
    ("torch.storage", "_StorageBase"): "StorageMethods",
}
_BASE_OF = {f"{module}.{name}": base for (module, name), base in _BASES.items()}
_OWNERS = {module for module, _ in _BASES}
# A class of torch/__init__.py, whose definition is the moment to add torch.mycelya.
_CLASS_OF_TORCH = "torch.SymInt"


class MycelyaPlugin(Plugin):
    """Adds what the device adds to PyTorch."""

    def get_additional_deps(self, file: MypyFile) -> list[tuple[int, str, int]]:
        if file.fullname == "torch":
            return [(10, _MODULE, -1)]
        return [(5, _METHODS, -1)] if file.fullname in _OWNERS else []

    def get_customize_class_mro_hook(
        self, fullname: str
    ) -> Callable[[ClassDefContext], None] | None:
        if fullname == _CLASS_OF_TORCH:
            return _add_module
        return _add_base if fullname in _BASE_OF else None

    def get_method_signature_hook(
        self, fullname: str
    ) -> Callable[[MethodSigContext], FunctionLike] | None:
        method = fullname.rpartition(".")[2]
        if method == "to":
            return self._accept_machine
        return _return_tensor if method in ("mycelya", "cpu_future") else None

    def _accept_machine(self, ctx: MethodSigContext) -> FunctionLike:
        """Lets the parameter `device` of Tensor.to and Module.to be a machine."""
        signature = ctx.default_signature
        ours = _base(ctx.type, _TENSOR) or _base(ctx.type, _TORCH_MODULE)
        machine = self.lookup_fully_qualified(_MACHINE)
        if (
            ours is None
            or "device" not in signature.arg_names
            or machine is None
            or not isinstance(machine.node, TypeInfo)
        ):
            return signature
        types = list(signature.arg_types)
        at = signature.arg_names.index("device")
        types[at] = UnionType.make_union([types[at], Instance(machine.node, [])])
        return signature.copy_modified(arg_types=types)


def _add_module(ctx: ClassDefContext) -> None:
    modules: dict[str, MypyFile] = ctx.api.modules
    torch, ours = modules.get("torch"), modules.get(_MODULE)
    if torch is not None and ours is not None:
        torch.names["mycelya"] = SymbolTableNode(GDEF, ours)


def _add_base(ctx: ClassDefContext) -> None:
    info = ctx.cls.info
    name = f"{_METHODS}.{_BASE_OF[info.fullname]}"
    found = ctx.api.lookup_fully_qualified_or_none(name)
    if found is None or not isinstance(found.node, TypeInfo):
        return
    if found.node not in info.mro:
        info.mro.insert(-1, found.node)  # before object


def _return_tensor(ctx: MethodSigContext) -> FunctionLike:
    """Makes the result a Tensor where `self` is of a subclass, as a Parameter."""
    signature = ctx.default_signature
    tensor = _base(ctx.type, _TENSOR)
    if tensor is None:
        return signature
    plain: Instance = Instance(tensor, [])
    result: Any = signature.ret_type
    if isinstance(result, Instance) and result.args:  # Future[Self]
        plain = result.copy_modified(args=[plain])
    return signature.copy_modified(ret_type=plain)


def _base(value: object, fullname: str) -> TypeInfo | None:
    """The class of this name among the classes of an instance; None: it has none."""
    if not isinstance(value, Instance):
        return None
    return next((info for info in value.type.mro if info.fullname == fullname), None)


def plugin(version: str) -> type[Plugin]:
    """Called by mypy with its version."""
    return MycelyaPlugin
