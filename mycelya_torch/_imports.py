# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Hooks that run when another module is imported, without importing it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_hooks: dict[str, Callable[[ModuleType], None]] = {}


def when_imported(name: str, hook: Callable[[ModuleType], None]) -> None:
    """Calls hook(module) after the import of module `name`, or now if it is loaded."""
    if (module := sys.modules.get(name)) is not None:
        hook(module)
        return
    _hooks[name] = hook
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)


class _Finder(MetaPathFinder):
    """Wraps the loader that the other finders return; finds no module itself."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        hook = _hooks.pop(fullname, None)
        if hook is None:
            return None
        # This re-enters the method, which then finds no hook.
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            _hooks[fullname] = hook
            return None
        spec.loader = _Loader(spec.loader, hook)
        return spec


class _Loader(Loader):
    def __init__(self, loader: Loader, hook: Callable[[ModuleType], None]) -> None:
        self.loader = loader
        self.hook = hook

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # The module must look as if it were imported without the hook.
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self.loader
        try:
            self.loader.exec_module(module)
        except BaseException:
            _hooks[module.__name__] = self.hook
            raise
        self.hook(module)


_FINDER = _Finder()
