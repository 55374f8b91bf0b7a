# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Weights that a worker fetches from a hub: load_huggingface_state_dicts.

The worker downloads the files, checks their hashes, and makes the tensors. This process
gets the names and shapes.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from mycelya_torch import _device
from mycelya_torch._kept import _ask

if TYPE_CHECKING:
    from mycelya_torch.machine import RemoteMachine

_LOG = logging.getLogger("mycelya.weights")
_LOG_SECONDS = 10.0
# The bytes of the tensors that one request makes. The worker does nothing else then.
_AT_ONCE = 256 << 20
# torch's name of a dtype by its name in the IR's text.
_DTYPES = {
    "u8": "uint8",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "u16": "uint16",
    "u32": "uint32",
    "u64": "uint64",
    "f16": "float16",
    "bf16": "bfloat16",
    "f32": "float32",
    "f64": "float64",
    "c32": "complex32",
    "c64": "complex64",
    "c128": "complex128",
    "b8": "bool",
    "f8e5m2": "float8_e5m2",
    "f8e4m3fn": "float8_e4m3fn",
    "f8e5m2fnuz": "float8_e5m2fnuz",
    "f8e4m3fnuz": "float8_e4m3fnuz",
}


def load_huggingface_state_dicts(
    repo_id: str,
    device: torch.device | str | int | RemoteMachine,
    path: str = "",
    revision: str | None = None,
    token: str | bool | None = None,
) -> dict[str, dict[str, torch.Tensor]]:
    """The weights of a model on a hub, as tensors on a machine.

    The machine's worker fetches the safetensors files itself, verifies their hashes,
    and keeps them on its disk, so that it need not fetch them again. The weights do not
    pass through this process. Of each folder these files are read: the one of the usual
    name (model.safetensors, diffusion_pytorch_model.safetensors), else the shards of an
    index, else all that are not variants of another.

    Args:
        repo_id: the repository, as "openai-community/gpt2".
        device: a machine or its device; "mycelya" is the current one.
        path: a folder or a file of the repository; "" is all of it.
        revision: a branch, a tag or a commit; None is the branch "main".
        token: a token of the hub, for repositories that are private or gated. True is
            that of HF_TOKEN, or of `hf auth login`. By default none is sent to the
            worker.

    Returns:
        A dict of each folder's tensors by name. The keys are folders of the repository;
        "" is the repository itself. The tensors are contiguous and need no gradient:
        `model.load_state_dict(dicts[""], assign=True)` also fills a model on "meta".

    Raises:
        ValueError: no such repository, revision or path, or one without safetensors.
        RuntimeError: the worker could not fetch the files; the message says what to do.
    """
    where = _device_of(device)
    fetch = _ask(
        where.index,
        "fetch",
        Endpoint=os.environ.get("HF_ENDPOINT") or "",
        Repo=repo_id,
        Revision=revision or "",
        Path=path,
        Token=_token(token),
    )["fetch"]
    try:
        with _shown(repo_id) as bar:
            return _load(where, fetch, bar)
    finally:
        if _device.state(where.index) == "running":
            _ask(where.index, "unfetch", Fetch=fetch)


def _device_of(device: Any) -> torch.device:
    """A mycelya device with an index.

    Raises:
        ValueError: another device.
    """
    to = getattr(device, "device", None)
    if callable(to):  # a RemoteMachine
        device = to()
    if isinstance(device, int):
        device = torch.device("mycelya", device)
    found = torch.device(device)
    if found.type != "mycelya":
        raise ValueError(
            f"load_huggingface_state_dicts loads to a mycelya device, not to {found}. "
            "For the CPU use huggingface_hub and safetensors."
        )
    if found.index is None:
        return torch.device("mycelya", _device.current_device())
    return found


def _token(token: str | bool | None) -> str:
    if isinstance(token, str):
        return token
    if not token:
        return ""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        if os.environ.get(name):
            return os.environ[name].strip()
    home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
    file = Path(os.environ.get("HF_TOKEN_PATH") or f"{home}/token").expanduser()
    if file.exists():
        return file.read_text().strip()
    raise ValueError(
        "token=True needs a token of this user, and there is none: set HF_TOKEN, or "
        "log in with `hf auth login`."
    )


def _load(
    where: torch.device, fetch: int, bar: _Bar
) -> dict[str, dict[str, torch.Tensor]]:
    """Loads the tensors of each file when it has come, and shows the news."""
    out: dict[str, dict[str, torch.Tensor]] = {}
    storages: list[int] = []  # of each tensor that was found; 0: it is loaded
    seen = new = 0

    def load(found: int) -> None:
        nonlocal storages, new
        if new:
            _ask(where.index, "load", Found=found, Storages=storages)
        storages, new = [0] * len(storages), 0

    while True:
        news = _ask(where.index, "news", Fetch=fetch, Seen=seen, Have=len(storages))
        seen, waiting = news["news"], 0
        bar.show(news["done"], news["total"])
        for weight in news["weights"]:
            dtype = getattr(torch, _DTYPES[weight["dtype"]])
            tensor = torch.empty(weight["sizes"], dtype=dtype, device=where)
            _device.set_defined(tensor)
            out.setdefault(weight["folder"], {})[weight["name"]] = tensor
            storages.append(_device.storage_id(tensor))
            new, waiting = new + 1, waiting + weight["bytes"]
            if waiting >= _AT_ONCE:
                load(news["found"])
                waiting = 0
        load(news["found"])
        if news["end"]:
            return out


# ---- Progress ----


class _Bar(Protocol):
    def show(self, done: int, total: int) -> None:
        """Shows how many of all bytes are on the worker's disk; total 0: unknown."""


@contextmanager
def _shown(repo: str) -> Iterator[_Bar]:
    """A bar of tqdm on a terminal, if it is installed, and otherwise log messages."""
    if sys.stderr is not None and sys.stderr.isatty():
        try:
            bars = importlib.import_module("tqdm.auto")
        except ImportError:
            pass
        else:
            with bars.tqdm(
                desc=f"{repo} to the worker", unit="B", unit_scale=True, leave=False
            ) as bar:
                yield _Terminal(bar)
            return
    yield _Messages(repo)


class _Terminal:
    def __init__(self, bar: Any) -> None:
        self.bar = bar

    def show(self, done: int, total: int) -> None:
        self.bar.total = total or None
        self.bar.n = done
        self.bar.refresh()


class _Messages:
    def __init__(self, repo: str) -> None:
        self.repo = repo
        self.next = time.monotonic() + _LOG_SECONDS

    def show(self, done: int, total: int) -> None:
        if total and time.monotonic() >= self.next:
            self.next = time.monotonic() + _LOG_SECONDS
            percent = 100 * done // total
            _LOG.info("%s: the worker has %d %% of %d bytes", self.repo, percent, total)
