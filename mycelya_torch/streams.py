# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""torch.mycelya.streams: streams and events.

A device has one queue, which runs in order, and all streams share it. Work that a
stream waits for was submitted before, so a wait between streams needs no code.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch

from mycelya_torch._current import Device
from mycelya_torch._current import index_of as _index

__all__ = [
    "Event",
    "Stream",
    "StreamContext",
    "current_stream",
    "default_stream",
    "set_stream",
    "stream",
]


class Stream(torch.Stream):
    """A stream of a device; see `torch.Stream`. `with` makes it current."""

    def __new__(cls, device: Device = None, priority: int = 0, **kwargs: Any) -> Stream:
        if "stream_id" not in kwargs:
            if isinstance(device, int) and device < 0:
                device = None  # as on CUDA
            kwargs["device"] = torch.device("mycelya", _index(device))
            kwargs["priority"] = priority
        return super().__new__(cls, **kwargs)


class _EventType(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Event) and instance.device.type == "mycelya"


class Event(metaclass=_EventType):
    """A point in a device's work. Making one gives a `torch.Event` of this device.

    Args:
        enable_timing: record the device's time, for `elapsed_time` in milliseconds.
        blocking: ignored; it exists for compatibility with CUDA's signature.
        interprocess: must be False, because an event belongs to one process.
        external: must be False, because there are no graphs of captured work.
    """

    # Not a subclass, because PyTorch's elapsed_time accepts only its own type.
    def __new__(  # type: ignore[misc]
        cls,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> torch.Event:
        if interprocess:
            raise NotImplementedError(
                "mycelya events cannot be shared between processes: each process has "
                "its own connection to the worker. Remove interprocess=True."
            )
        if external:
            raise NotImplementedError(
                "mycelya events are never nodes of a captured graph: the device "
                "captures none. Remove external=True."
            )
        return torch.Event(device="mycelya", enable_timing=enable_timing)


class StreamContext:
    """Context manager: a stream, and its device, are current inside.

    Args:
        stream: None changes nothing.
    """

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            self.stream.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.stream is not None:
            self.stream.__exit__(kind, error, trace)


def current_stream(device: Device = None) -> torch.Stream:
    """The stream that this thread records on."""
    return torch.accelerator.current_stream(_index(device))


def default_stream(device: Device = None) -> torch.Stream:
    """The stream that is current until another one is set."""
    kind = current_stream(device).device_type
    return torch.Stream(stream_id=0, device_index=_index(device), device_type=kind)


def set_stream(stream: torch.Stream | None) -> None:
    """Makes a stream, and its device, current in this thread; None changes nothing."""
    if stream is not None:
        torch.accelerator.set_stream(stream)


def stream(stream: torch.Stream | None) -> StreamContext:
    """Context manager: a stream is current inside. None changes nothing."""
    return StreamContext(stream)
