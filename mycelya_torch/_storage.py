# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Methods of storages that would read the storage's address in this process.

Each function replaces a method for storages on mycelya devices, which have no such
address. Its first parameter is the original method.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch
from torch import TypedStorage, UntypedStorage

_CPU = 1  # DLPack's number for the CPU


def _on_cpu(storage: Any) -> Any:
    """A copy of a storage on the CPU."""
    return storage.cpu()


def iter(  # noqa: A001 (stands in for __iter__)
    original: Callable[..., Any], self: UntypedStorage | TypedStorage
) -> Iterator[Any]:
    """Iterates over one download; PyTorch would read element by element."""
    items: Iterator[Any] = original(_on_cpu(self))
    return items


def repr(  # noqa: A001 (stands in for __repr__)
    original: Callable[..., str], self: UntypedStorage | TypedStorage
) -> str:
    """Downloads the storage once, or not at all for a debugger."""
    from mycelya_torch import _print

    if _print.debugger_asks():
        kind = f"{torch.typename(self)}(device={self.device})"
        return f"...\n[{kind} of size {len(self)}, pending]"
    body, newline, info = original(_on_cpu(self)).rpartition("\n")
    return body + newline + info.replace("device=cpu)", f"device={self.device})")


def getitem(original: Callable[..., Any], self: UntypedStorage, index: Any) -> Any:
    if isinstance(index, slice):
        raise NotImplementedError(
            f"A part of a storage on {self.device} cannot be a storage of its own. Use "
            "a tensor: torch.empty(0, dtype=torch.uint8, device=storage.device)"
            ".set_(storage)[start:stop]."
        )
    return original(self, index)


def byteswap(
    original: Callable[..., None], self: UntypedStorage, dtype: torch.dtype
) -> None:
    here = self.cpu()
    original(here, dtype)
    self.copy_(here)


def write_file(original: Callable[..., None], self: UntypedStorage, *args: Any) -> None:
    """Implements torch.save without zip, which pickle uses too."""
    original(self.cpu(), *args)


def set_from_file(
    original: Callable[..., Any], self: UntypedStorage, *args: Any
) -> UntypedStorage:
    """Implements torch.load of a file without zip, which pickle uses too."""
    here = UntypedStorage(self.nbytes())
    original(here, *args)
    return self.copy_(here)


def is_shared(original: Callable[..., bool], self: UntypedStorage) -> bool:
    """False: another process cannot use the storage."""
    return False


def share_memory(original: Callable[..., Any], self: UntypedStorage) -> NoReturn:
    raise RuntimeError(
        f"A storage on {self.device} cannot be put into shared memory: its bytes are "
        "on the worker. Share a copy: tensor.cpu().share_memory_()."
    )


def refuse_sending(storage: UntypedStorage) -> tuple[Any, ...]:
    """Raises the error, or sends it where nobody could catch it here.

    A queue pickles in a thread of its own, which would only print the error, and the
    receiver would wait for ever. So does the queue of a DataLoader's workers. There the
    result is a pickled call that raises the error in the receiver.

    Raises:
        RuntimeError: always, in other threads.
    """
    text = (
        f"A tensor on {storage.device} cannot be sent to another process, which is "
        "only available on CPU: its worker belongs to this process. Send tensor.cpu(), "
        "and move it to the device there. In a DataLoader with num_workers, let the "
        "dataset return CPU tensors, and move the batches."
    )
    if threading.current_thread().name == "QueueFeederThread":
        return _raise, (text,)
    _raise(text)


def _raise(text: str) -> NoReturn:
    raise RuntimeError(text)


def dlpack(
    original: Callable[..., Any],
    self: torch.Tensor,
    *,
    dl_device: tuple[Any, int] | None = None,
    **options: Any,
) -> Any:
    """A capsule of a CPU copy if the consumer requests the CPU, else an error."""
    if dl_device is not None and int(dl_device[0]) == _CPU:
        if options.get("copy") is not False:
            return original(self.cpu(), **{**options, "copy": None})
    raise BufferError(
        f"can't export a tensor on {self.device} with DLPack: its bytes have no "
        "address in this process. Use Tensor.cpu() to copy the tensor to host memory "
        "first."
    )
