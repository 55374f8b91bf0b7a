# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Reads MYCELYA_MACHINE and MYCELYA_LOG. Go reads the other variables."""

from __future__ import annotations

import logging
import os
import urllib.parse
import warnings

from mycelya_torch import _providers

# The words of MYCELYA_LOG; Go reads it too, with the same words (runtime/settings.go).
_LEVELS = {
    "debug": logging.DEBUG,
    "verbose": logging.DEBUG,
    "trace": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.ERROR,
}


def default_machine() -> tuple[str, str, str]:
    """The provider, the device and the options of MYCELYA_MACHINE.

    The device "" is the best one of a host. The variable has the form provider,
    provider:device, or one of them with options after it, as in a URL:
    local:cpu?transport=tcp.

    Raises:
        ValueError: unknown provider, device or option; the message lists the valid
            ones.
        NotImplementedError: a provider that this version does not serve.
    """
    value = os.environ.get("MYCELYA_MACHINE") or _providers.DEFAULT
    machine, _, query = value.partition("?")
    name, _, device = machine.partition(":")
    try:
        provider = _providers.served(name)
        device = _providers.device_option(provider, device)
        options = dict(urllib.parse.parse_qsl(query, strict_parsing=bool(query)))
        return provider.value, device, _providers.other_options(provider, options)
    except (NotImplementedError, ValueError) as error:
        raise type(error)(
            f"MYCELYA_MACHINE={value!r}: {error} Set it to 'local', 'local:cpu' "
            "or 'local:cuda:0', or unset it."
        ) from None


def log_level() -> int | None:
    """The level of MYCELYA_LOG, None if it is not set.

    An unknown word is a warning: what is only about messages must not stop a program.
    """
    value = os.environ.get("MYCELYA_LOG", "").strip()
    if not value:
        return None
    level = _LEVELS.get(value.lower())
    if level is None:
        warnings.warn(
            f"MYCELYA_LOG={value!r} is not a level and has no effect; the levels are "
            "debug (or verbose), info, warn and error.",
            RuntimeWarning,
            stacklevel=2,
        )
    return level
