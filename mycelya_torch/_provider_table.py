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
    EXEC = "exec"


class Row(NamedTuple):
    """One provider; the fields are those of Row in Go."""

    aliases: tuple[str, ...] = ()
    devices: str = ""
    device_help: str = ""
    chooses_gpu: bool = False
    lease: int = 0  # seconds
    idle: int = 0  # seconds
    packages: bool = False
    detaches: bool = False
    target: str = "device"
    options: tuple[tuple[str, str, str], ...] = ()  # name, values, help


TABLE = {
    BackendProvider.LOCAL: Row(
        aliases=("mock",),
        devices=r"|cpu|cuda(:[0-9]+)?",
        device_help="'cpu', 'cuda:<index>' or '' (CUDA if the host has it, else the CPU)",
        chooses_gpu=False,
        lease=0,
        idle=0,
        packages=False,
        detaches=True,
        target="device",
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
                "rtt",
                r"[0-9]+([.][0-9]+)?(us|ms|s)",
                "the round trip time of an emulated network before the worker: '50ms'",
            ),
            (
                "rate",
                r"[0-9]+([.][0-9]+)?[kMG]?bit",
                "the rate of that network in each direction: '100Mbit'",
            ),
        ),
    ),
    BackendProvider.MODAL: Row(
        aliases=(),
        devices=r"|cpu|cuda(:[0-9]+)?",
        device_help="'cuda:<index>', 'cpu' (without a GPU unless gpu_type names one) or '' (the first GPU)",
        chooses_gpu=True,
        lease=3600,
        idle=600,
        packages=True,
        detaches=True,
        target="gpu_type",
        options=(
            (
                "gpu_fallback",
                r"[A-Za-z0-9+!-]+(,[A-Za-z0-9+!-]+)*",
                "GPU types to try in this order if gpu_type has no capacity, as 'A100-80GB,H100'",
            ),
            (
                "region",
                r"[a-z0-9-]+(,[a-z0-9-]+)*",
                "regions of Modal, as 'us-east' or 'us,eu' (default: any; a choice costs more)",
            ),
            (
                "volume",
                r"[A-Za-z0-9._-]{1,64}",
                "the name of a Modal volume for what save() and checkpoint() keep, compiled kernels and the worker's files (default: all of them end with the sandbox)",
            ),
            (
                "image",
                r"[A-Za-z0-9][A-Za-z0-9._:/@-]*",
                "an image of a registry with Python 3.11 or newer and pip (default: 'python:3.12-slim-trixie')",
            ),
            (
                "tunnel",
                r"tcp|tls",
                "'tcp' (a high port) or 'tls' (port 443) (default: the first that works)",
            ),
            (
                "start_timeout",
                r"[1-9][0-9]{0,4}",
                "seconds that a sandbox may wait for a GPU (default: 600)",
            ),
        ),
    ),
    BackendProvider.SSH: Row(
        aliases=(),
        devices=r"|cpu|cuda(:[0-9]+)?",
        device_help="'cpu', 'cuda:<index>' or '' (CUDA if the host has it, else the CPU)",
        chooses_gpu=False,
        lease=0,
        idle=600,
        packages=False,
        detaches=True,
        target="host",
        options=(
            (
                "host",
                r"(ssh://)?[A-Za-z0-9_.:][A-Za-z0-9_.@:%+-]*",
                "what you give to ssh: 'name', 'user@name' or a Host of ~/.ssh/config",
            ),
            (
                "python",
                r"[^-].*",
                "the interpreter on the host that has torch, as '~/venv/bin/python' (default 'python3')",
            ),
            (
                "ssh",
                r"[^-].*",
                "the ssh program here, with its options if it needs some, as 'ssh -F file' (default 'ssh')",
            ),
            (
                "folder",
                r"[/~].*",
                "a folder on the host for the worker program (default '~/.cache/mycelya')",
            ),
            (
                "state",
                r"[/~].*",
                "a folder on the host for what save() and checkpoint() keep (default: one that ends with the machine)",
            ),
            (
                "weights",
                r"[/~].*",
                "a folder on the host for weights from a hub (default '~/.cache/mycelya/weights')",
            ),
        ),
    ),
    BackendProvider.KUBERNETES: Row(
        aliases=(),
        devices=r"|cpu|cuda(:[0-9]+)?",
        device_help="'cpu', 'cuda:<index>' or '' (CUDA if gpu_type or gpu_count is given, else the CPU)",
        chooses_gpu=True,
        lease=3600,
        idle=600,
        packages=False,
        detaches=True,
        target="context",
        options=(
            (
                "context",
                r".+",
                "a context of the kubeconfig (default: its current one)",
            ),
            (
                "namespace",
                r"[a-z0-9]([-a-z0-9]*[a-z0-9])?",
                "a namespace of the cluster (default: the context's)",
            ),
            (
                "image",
                r"[^ ]+",
                "an image that has this build of mycelya-torch (default: 'docker.io/mycelya/worker:0.1.0')",
            ),
            (
                "pull_secret",
                r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?",
                "the name of a secret with the login to the image's registry",
            ),
            (
                "gpu_label",
                r"[^ ]+",
                "the label of nodes that names their GPU (default: 'nvidia.com/gpu.product')",
            ),
            (
                "gpu_product",
                r"[^ ]+",
                "a value of this label (default: those of gpu_type)",
            ),
            (
                "volume",
                r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?",
                "the name of a PersistentVolumeClaim for what save() and checkpoint() keep (default: it ends with the pod)",
            ),
            (
                "weights",
                r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?",
                "the name of a PersistentVolumeClaim for weights from a hub, which the pod may then fetch (default: it reaches no network)",
            ),
            (
                "cpu",
                r"[0-9.]+m?",
                "a number of cores, as '4' (default: the namespace's)",
            ),
            (
                "memory",
                r"[0-9.]+([kMGTPE]i?)?",
                "bytes, as '16Gi' (default: the namespace's)",
            ),
            (
                "user",
                r"[0-9]{1,9}",
                "the number of the user that the worker runs as (default: '10001')",
            ),
            (
                "direct",
                r"yes|no",
                "'yes' for a client in the same cluster, or 'no' (through the API server, the default)",
            ),
            (
                "wait",
                r"[0-9]{1,6}",
                "the seconds for which a pod waits for a node (default: '120')",
            ),
        ),
    ),
    BackendProvider.EXEC: Row(
        aliases=(),
        devices=r"",
        device_help="'' (the command chooses the device: mycelya-worker --stdio --device …)",
        chooses_gpu=False,
        lease=0,
        idle=0,
        packages=False,
        detaches=False,
        target="command",
        options=(
            (
                "command",
                r".+",
                "a command whose stdin and stdout are those of mycelya-worker --stdio",
            ),
        ),
    ),
}
