# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Runs a script in which a device's type compared with "cuda" counts as "cuda".

`x.device.type` is an attribute of a class in C and stays "mycelya". Where the script,
or a module of its folder, compares an attribute `type` with "cuda", the comparison
reads "cuda" for "mycelya". No other line is changed.
"""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import os
import sys
import types
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from typing import Any

from mycelya_torch import _redirected

_NAME = "__mycelya_type__"  # in the globals of rewritten modules


def _type(value: Any) -> Any:
    if value.__class__ is str and value == "mycelya":
        _redirected.count('device.type compared with "cuda"')
        return "cuda"
    return value


class _Comparisons(ast.NodeTransformer):
    """Wraps the attribute `type` in comparisons with "cuda"."""

    def visit_Compare(self, node: ast.Compare) -> ast.AST:  # noqa: N802 (ast's name)
        self.generic_visit(node)
        sides = [node.left, *node.comparators]
        if any(_has_cuda(side) for side in sides):
            sides = [_wrapped(side) for side in sides]
            node.left, node.comparators = sides[0], sides[1:]
        return node


def _has_cuda(node: ast.expr) -> bool:
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        return any(_has_cuda(item) for item in node.elts)
    return isinstance(node, ast.Constant) and node.value == "cuda"


def _wrapped(node: ast.expr) -> ast.expr:
    if not isinstance(node, ast.Attribute) or node.attr != "type":
        return node
    name = ast.copy_location(ast.Name(_NAME, ast.Load()), node)
    return ast.copy_location(ast.Call(name, [node], []), node)


def _compiled(source: bytes | str, file: str) -> types.CodeType:
    """The code of a source; a SyntaxError is Python's own."""
    tree = _Comparisons().visit(ast.parse(source, file))
    code: types.CodeType = compile(tree, file, "exec", dont_inherit=True)
    return code


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads a module of the script's folder."""

    def get_code(self, fullname: str) -> types.CodeType:
        path = self.get_filename(fullname)
        return _compiled(self.get_data(path), path)

    def exec_module(self, module: types.ModuleType) -> None:
        vars(module)[_NAME] = _type
        super().exec_module(module)


class _Finder(MetaPathFinder):
    """Finds the modules of the script's folder."""

    def __init__(self, folder: str) -> None:
        self._prefix = os.path.join(folder, "")

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if (
            spec is None
            or type(spec.loader) is not importlib.machinery.SourceFileLoader
        ):
            return None
        file = spec.loader.path
        inside = os.path.abspath(file).startswith(self._prefix)
        if not inside or "site-packages" in file:
            return None
        spec.loader = _Loader(fullname, file)
        return spec


def run(argv: list[str]) -> None:
    """Runs a script as `python script args` does.

    Args:
        argv: the script's path, and its arguments
    """
    script = argv[0]
    folder = os.path.dirname(os.path.abspath(script))
    sys.argv = list(argv)
    sys.path.insert(0, folder)
    sys.meta_path.insert(0, _Finder(folder))
    module = types.ModuleType("__main__")
    module.__file__ = script
    vars(module)[_NAME] = _type
    sys.modules["__main__"] = module
    with open(script, "rb") as file:
        source = file.read()
    _hide_own_frames()
    exec(_compiled(source, script), vars(module))


def _hide_own_frames() -> None:
    """Makes a traceback begin in the script."""
    original = sys.excepthook

    def hook(kind: Any, error: Any, trace: Any) -> None:
        first = trace
        while first is not None and first.tb_frame.f_globals.get(_NAME) is None:
            first = first.tb_next
        if first is not None:
            error.__traceback__ = trace = first  # Python prints that of the error
        original(kind, error, trace)

    sys.excepthook = hook
