# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Finds providers in `_provider_table` and checks their options."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping

from mycelya_torch._provider_table import TABLE, BackendProvider

DEFAULT = next(iter(TABLE)).value


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


def served(name: str | BackendProvider) -> BackendProvider:
    """The provider with this name or alias, if this version serves it.

    Raises:
        ValueError: unknown name; the message lists the valid names.
        NotImplementedError: a provider that this version does not serve.
    """
    provider = find(name)
    if not TABLE[provider].served:
        names = [p.value for p, row in TABLE.items() if row.served]
        exist = "provider exists" if len(names) == 1 else "providers exist"
        raise NotImplementedError(
            f"The provider {provider.value!r} is not part of this version; "
            f"only the {', '.join(names)} {exist}."
        )
    return provider


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


def other_options(provider: BackendProvider, given: Mapping[str, str]) -> str:
    """A provider's other options as a JSON object; "" if there are none.

    Raises:
        ValueError: not an option of the provider, or not a value of it; the message
            lists the valid ones.
    """
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
    return json.dumps(dict(given), sort_keys=True) if given else ""
