# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Reads MYCELYA_MACHINE. Go reads the other variables and refuses unknown names."""

from __future__ import annotations

import os

from mycelya_torch import _providers


def default_machine() -> tuple[str, str]:
    """The provider and the device of MYCELYA_MACHINE; "" is the best device of a host.

    The variable has the form provider or provider:device.

    Raises:
        ValueError: unknown provider; the message lists the valid names.
        NotImplementedError: a provider that this version does not serve.
    """
    value = os.environ.get("MYCELYA_MACHINE") or _providers.DEFAULT
    name, _, device = value.partition(":")
    try:
        return _providers.served(name).value, device
    except (NotImplementedError, ValueError) as error:
        raise type(error)(
            f"MYCELYA_MACHINE={value!r}: {error} Set it to 'local', 'local:cpu' "
            "or 'local:cuda:0', or unset it."
        ) from None
