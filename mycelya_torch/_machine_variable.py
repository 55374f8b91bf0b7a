# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""The machine of a bare "mycelya": the value of MYCELYA_MACHINE."""

from __future__ import annotations

import os
import re
import urllib.parse
from typing import Any

from mycelya_torch import _gpus, _providers
from mycelya_torch._provider_table import TABLE


def of(value: str) -> tuple[str, str, str]:
    """The provider, the device and the options of a value of MYCELYA_MACHINE.

    The device "" is the best one of a host. The value has the form provider,
    provider:target, or one of them with options after it, as in a URL:
    local:cpu?transport=tcp. A provider's row says what the target is: the device of
    "local", the GPU type of "modal", the host of "ssh". The names gpu_count, timeout
    and idle_timeout are those of `RemoteMachine`.

    A list has one machine for each rank of a program, with commas between them. One
    machine is each rank's.

    Raises:
        ValueError: unknown provider, device or option; the message lists the valid
            ones. Or a list of another length than the number of ranks.
    """
    try:
        options = machine_arguments(_of_this_rank(value))
        provider = _providers.find(options.pop("provider"))
        device = _providers.device_option(provider, options.pop("device", ""))
        request = _providers.Request(
            gpu=_gpus.find(options.pop("gpu_type", "")),
            gpus=options.pop("gpu_count", 1),
            lease=options.pop("timeout", None),
            idle=options.pop("idle_timeout", None),
        )
        return provider.value, device, request.options(provider, options)
    except ValueError as error:
        raise ValueError(
            f"MYCELYA_MACHINE={value!r}: {error} Set it to 'local', 'local:cpu' "
            "or 'local:cuda:0', or unset it."
        ) from None


def machines(value: str) -> list[str]:
    """The machines of a list. A comma belongs to one if no provider follows it."""
    names = "|".join(
        name
        for provider, row in TABLE.items()
        for name in (provider.value, *row.aliases)
    )
    return re.split(rf"\s*,\s*(?=(?:{names})(?:[:?,\s]|$))", value.strip())


def _of_this_rank(value: str) -> str:
    listed = machines(value)
    rank, ranks = (os.environ.get(name) for name in ("RANK", "WORLD_SIZE"))
    if len(listed) == 1 or rank is None or ranks is None:
        return listed[0]
    if len(listed) != int(ranks):
        raise ValueError(
            f"it lists {len(listed)} machines, and this program has {ranks} ranks."
        )
    return listed[int(rank)]


def machine_arguments(text: str) -> dict[str, Any]:
    """The arguments of `RemoteMachine` for a machine as in MYCELYA_MACHINE.

    Raises:
        ValueError: unknown provider, or a value of another type than its argument's.
    """
    machine, _, query = text.partition("?")
    name, _, target = machine.partition(":")
    provider = _providers.find(name)
    options: dict[str, Any] = dict(
        urllib.parse.parse_qsl(query, strict_parsing=bool(query))
    )
    if target:
        options[TABLE[provider].target] = target
    for key, convert in (
        ("gpu_count", int),
        ("timeout", float),
        ("idle_timeout", float),
    ):
        if key in options:
            options[key] = convert(options[key])
    return {"provider": provider.value, **options}
