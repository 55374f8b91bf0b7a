# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Clients that are killed at random moments of a launch, a training and a stop."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from helpers import ROOT, finish, processes, start

# How many clients are killed. The moments depend on nothing but a seed.
KILLS = int(os.environ.get("KILLED_CLIENTS", "2"))
LEASE = 10  # seconds, of the machine of a killed client
PATIENCE = 120  # seconds

CLIENT = """
    import torch
    from mycelya_torch import RemoteMachine

    print("begin", flush=True)
    m = RemoteMachine(PROVIDER, timeout=LEASE, **OPTIONS)
    w = torch.zeros(64, 64, device=m.device(), requires_grad=True)
    x = torch.ones(8, 64, device=m.device())
    for _ in range(200):
        loss = ((x @ w - 1) ** 2).mean()
        (grad,) = torch.autograd.grad(loss, w)
        with torch.no_grad():
            w -= 0.1 * grad
    loss.item()
    m.stop()
    print("end", flush=True)
"""


def command_line(*arguments: str) -> dict:
    """What the command `mycelya` prints with --json."""
    done = subprocess.run(
        [sys.executable, "-m", "mycelya_cli", *arguments, "--json"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def workers(mark: bytes) -> list[int]:
    """The workers of this host with a mark in their environment."""
    return [
        pid
        for pid, environment, arguments in processes()
        if mark in environment and b"mycelya-worker" in arguments
    ]


def listed(provider: str) -> list[dict]:
    """The machines that `mycelya machines` prints; the provider has answered."""
    answer = command_line("machines")
    assert provider not in [error["provider"] for error in answer["errors"]], answer
    return answer["machines"]


def check_killed_clients(
    folder: Path,
    provider: str,
    choices: Sequence[dict],
    running: Callable[[], object],
) -> None:
    """Nothing runs after the lease of a killed client, and `sweep` finds the rest.

    A client has the options of one of the choices. `running()` is what costs money,
    falsy if there is nothing.
    """

    def client(lease: int, options: dict):
        code = CLIENT.replace("PROVIDER", repr(provider))
        code = code.replace("LEASE", str(lease)).replace("OPTIONS", repr(options))
        process = start(code, folder, fresh=True)
        assert process.stdout.readline() == "begin\n"
        return process, time.monotonic()

    process, began = client(3600, choices[0])
    seen = False
    while process.poll() is None and time.monotonic() < began + PATIENCE:
        seen = seen or bool(running())
        time.sleep(0.05)
    assert seen, "running() does not see a machine"
    status, out, err = finish(process, PATIENCE)
    assert (status, out) == (0, "end\n"), err
    whole = time.monotonic() - began
    moments = random.Random(1)
    for kill in range(KILLS):
        process, _ = client(LEASE, choices[kill % len(choices)])
        time.sleep(moments.uniform(0, whole))
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        end = time.monotonic() + PATIENCE
        while kill % 2 == 0 and running():  # every second one is swept while it runs
            assert time.monotonic() < end, (kill, running())
            time.sleep(0.1)
        while there := listed(provider):
            assert time.monotonic() < end, (kill, there)
            command_line("sweep", "--yes")
        while running():
            assert time.monotonic() < end, (kill, running())
            time.sleep(0.1)
