# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Finds providers in `_provider_table` and checks their options."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mycelya_torch._gpus import GPUType
from mycelya_torch._provider_table import TABLE, BackendProvider

DEFAULT = next(iter(TABLE)).value
_IDLE = 600  # seconds that a detached worker lives without a client


def find(name: str | BackendProvider) -> BackendProvider:
    """The provider with this name or alias.

    Raises:
        ValueError: unknown name; the message lists the valid names.
    """
    if isinstance(name, BackendProvider):
        return name
    for provider, row in TABLE.items():
        if name == provider.value or name in row.aliases:
            return provider
    valid = ", ".join(repr(p.value) for p in TABLE)
    raise ValueError(f"{name!r} is not a provider; the providers are {valid}.")


def no_packages(provider: BackendProvider, packages: Sequence[str]) -> str:
    """Why a provider installs no Python packages, for an error."""
    return (
        f"The worker of a {provider.value} machine runs no Python, so "
        f"packages={list(packages)!r} would have no effect there. Leave them out; "
        "install what programs of your own on that host need with its own pip."
    )


def device_option(provider: BackendProvider, value: str) -> str:
    """A provider's device option; "cuda" is "cuda:0".

    Raises:
        ValueError: not a device of the provider; the message lists the valid ones.
    """
    row = TABLE[provider]
    if re.fullmatch(row.devices, value) is None:
        raise ValueError(
            f"device={value!r} is not a device of the {provider.value} machine; use "
            f"{row.device_help}."
        )
    return "cuda:0" if value == "cuda" else value


class Request(NamedTuple):
    """What a machine asks of its provider; the fields are those of Request in Go."""

    gpu: GPUType | None = None
    gpus: int = 1
    lease: float | None = None  # seconds; None is the provider's default
    idle: float | None = None  # seconds; None is the provider's default
    packages: Sequence[str] = ()
    detached: bool = False
    attach: bool = False

    def options(self, provider: BackendProvider, own: Mapping[str, str]) -> str:
        """The request and the provider's own options as a JSON object; "" if all are
        defaults.

        Raises:
            ValueError: not an option of the provider, or not a value of it; the message
                lists the valid ones.
        """
        row = TABLE[provider]
        _check_own(provider, own)
        out = {**own, **self._gpu(provider)}
        if self.detached and not row.detaches:
            raise ValueError(
                f"A {provider.value} machine ends with its process; detached=True is "
                "not possible."
            )
        if self.packages and not row.packages:
            raise ValueError(no_packages(provider, self.packages))
        if self.packages:
            out[".packages"] = ",".join(self.packages)
        idle = self.idle
        if idle is None and self.detached:
            idle = row.idle or _IDLE
        for name, value, default in (
            ("timeout", self.lease, row.lease),
            ("idle_timeout", idle, row.idle),
        ):
            seconds = default if value is None else value
            if value is not None and not 1 <= seconds < 1e9:
                raise ValueError(f"{name}={value!r} is not a number of seconds.")
            if seconds:
                key = ".lease" if name == "timeout" else ".idle"
                out[key] = str(int(seconds))
        if self.detached:
            out[".detached"] = "yes"
        if self.attach:
            out[".attach"] = "yes"
        return json.dumps(out, sort_keys=True) if out else ""

    def _gpu(self, provider: BackendProvider) -> dict[str, str]:
        if not isinstance(self.gpus, int) or not 1 <= self.gpus <= 16:
            raise ValueError(
                f"gpu_count={self.gpus!r} is not a number of GPUs; use 1 to 16."
            )
        if not TABLE[provider].chooses_gpu and self.gpu is not None:
            raise ValueError(
                f"The {provider.value} machine uses the GPU that the host has; "
                f"gpu_type={self.gpu.value!r} cannot be chosen. Leave it out, or "
                "give device='cuda:<index>'."
            )
        if not TABLE[provider].chooses_gpu and self.gpus != 1:
            raise ValueError(
                f"The {provider.value} machine uses the GPU that the host has; "
                f"gpu_count={self.gpus!r} cannot be chosen."
            )
        if self.gpu is None and self.gpus == 1:
            return {}
        gpu = {".gpu": self.gpu.value} if self.gpu else {}
        return {**gpu, ".gpus": str(self.gpus)}


def _check_own(provider: BackendProvider, given: Mapping[str, str]) -> None:
    row = TABLE[provider]
    valid = {name: (values, text) for name, values, text in row.options}
    for name, value in given.items():
        if name not in valid:
            near = difflib.get_close_matches(name, [*valid, "device"], 1)
            names = ", ".join(["device", *valid])
            meant = f"Did you mean {near[0]}?" if near else f"Its options are {names}."
            raise ValueError(
                f"{name}={value!r} is not an option of the {provider.value} machine. "
                f"{meant}"
            )
        values, text = valid[name]
        if not isinstance(value, str) or re.fullmatch(values, value) is None:
            raise ValueError(
                f"{name}={value!r} is not possible on the {provider.value} machine; "
                f"use {text}."
            )
