# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later

# What the device adds to classes of PyTorch. The plugin (mypy.py) makes these base
# classes of them. Nothing here imports torch, so that torch can depend on it.

from concurrent.futures import Future
from typing import Any, Protocol, Self

class _Device(Protocol):
    """torch.device"""

    @property
    def type(self) -> str: ...
    @property
    def index(self) -> Any: ...

class TensorMethods:
    @property
    def is_mycelya(self) -> bool: ...
    # The plugin makes the results of subclasses tensors.
    def mycelya(
        self,
        device: int | str | _Device | None = None,
        non_blocking: bool = False,
        *,
        memory_format: Any = ...,
    ) -> Self: ...
    def cpu_future(self) -> Future[Self]: ...

class ModuleMethods:
    def mycelya(self, device: int | str | _Device | None = None) -> Self: ...

class StorageMethods:
    @property
    def is_mycelya(self) -> bool: ...
    def mycelya(
        self, device: int | str | _Device | None = None, non_blocking: bool = False
    ) -> Self: ...

class PackedSequenceMethods:
    @property
    def is_mycelya(self) -> bool: ...
    def mycelya(self, *args: Any, **kwargs: Any) -> Self: ...
