# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Hooks that run when another module is imported, without importing it."""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_hooks: dict[str, list[Callable[[ModuleType], None]]] = {}

# (thread, module) of each search for a module that the finder below has begun.
_asked: set[tuple[int, str]] = set()


def when_imported(name: str, hook: Callable[[ModuleType], None]) -> None:
    """Calls hook(module) after the import of module `name`, or now if it is loaded.

    A module that imports torch may itself be half imported when this is called.
    """
    if (module := sys.modules.get(name)) is not None:
        spec = module.__spec__
        if type(spec) is ModuleSpec and getattr(spec, "_initializing", False):
            spec.__class__ = _Initializing
            _hooks.setdefault(name, []).append(hook)
        elif type(spec) is _Initializing:
            _hooks[name].append(hook)
        else:
            hook(module)
        return
    _hooks.setdefault(name, []).append(hook)
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)


class _Initializing(ModuleSpec):
    """The spec of a module whose import has begun before the hook was there.

    Python's import sets `_initializing` to False when it ends. If it has failed, the
    module is not in sys.modules any more.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "_initializing" and not value:
            self.__class__ = ModuleSpec  # type: ignore[assignment]
            hooks = _hooks.pop(self.name)
            for hook in hooks:
                when_imported(self.name, hook)


class _Finder(MetaPathFinder):
    """Wraps the loader that the other finders return; finds no module itself."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        asked = (threading.get_ident(), fullname)
        if fullname not in _hooks or asked in _asked:
            return None
        _asked.add(asked)
        try:
            spec = importlib.util.find_spec(fullname)  # it calls this method again
        finally:
            _asked.discard(asked)
        if spec is None or spec.loader is None:
            return None
        spec.loader = _Loader(spec.loader)
        return spec


class _Loader(Loader):
    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # The module must look as if it were imported without the hook.
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        for hook in _hooks.pop(module.__name__, ()):
            hook(module)


_FINDER = _Finder()
