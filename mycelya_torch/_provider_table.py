# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""The providers. Generated from runtime/provider/providers by 'make golden'."""
# ruff: noqa: E501

from __future__ import annotations

import enum
from typing import NamedTuple


class BackendProvider(enum.Enum):
    """The source of a machine."""

    LOCAL = "local"
    MODAL = "modal"
    SSH = "ssh"
    KUBERNETES = "kubernetes"


class Row(NamedTuple):
    """One provider; the fields are those of Row in Go."""

    served: bool
    aliases: tuple[str, ...] = ()
    devices: str = ""
    device_help: str = ""
    chooses_gpu: bool = False
    options: tuple[tuple[str, str, str], ...] = ()  # name, values, help


TABLE = {
    BackendProvider.LOCAL: Row(
        served=True,
        aliases=("mock",),
        devices=r"|cpu|cuda(:[0-9]+)?",
        device_help="'cpu', 'cuda:<index>' or '' (CUDA if the host has it, else the CPU)",
        chooses_gpu=False,
        options=(
            (
                "transport",
                r"unix|tcp",
                "'unix' (a socket of this user, the default) or 'tcp' (TLS on 127.0.0.1)",
            ),
            (
                "state",
                r".+",
                "a folder for what save() and checkpoint() keep (default: one that ends with the machine)",
            ),
            (
                "detached",
                r"[0-9]{1,9}",
                "the seconds without a client after which a worker that outlives its process ends",
            ),
            (
                "attach",
                r"yes",
                "RemoteMachine.attach(name)",
            ),
        ),
    ),
    BackendProvider.MODAL: Row(served=False),
    BackendProvider.SSH: Row(served=False),
    BackendProvider.KUBERNETES: Row(served=False),
}
