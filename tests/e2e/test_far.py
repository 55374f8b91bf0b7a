# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""A local machine behind an emulated network."""

import contextlib
import os
import pty
import re
import subprocess
import sys
import termios
import textwrap
import time

import pytest
import torch
from helpers import run
from test_transport import trained

from mycelya_torch import RemoteMachine


def test_a_read_takes_the_round_trip():
    with RemoteMachine("local", device="cpu", rtt="60ms") as machine:
        x = torch.rand(9, device=machine.device())
        began = time.perf_counter()
        x.sum().item()
        assert time.perf_counter() - began >= 0.06
        link = torch.mycelya.metrics()["links"][str(machine.device().index)]
        assert link["rtt_seconds"] >= 0.06


def test_an_upload_keeps_to_the_rate():
    with RemoteMachine("local", device="cpu", rate="80Mbit") as machine:
        torch.ones(1, device=machine.device()).cpu()
        x = torch.randint(256, (5_000_000,), dtype=torch.uint8)
        began = time.perf_counter()
        y = x.to(machine.device())
        torch.mycelya.synchronize(machine.device())
        assert time.perf_counter() - began >= 0.49
        assert torch.equal(y.cpu(), x)


def test_a_training_has_the_same_bits():
    with RemoteMachine("local", device="cpu", rtt="3ms", rate="1Gbit") as machine:
        far = trained(machine.device())
    for a, b in zip(far, trained("mycelya"), strict=True):
        assert torch.equal(torch.as_tensor(a), torch.as_tensor(b))


def test_the_variable(tmp_path):
    code = """
        import time, torch
        x = torch.rand(3, device="mycelya")
        torch.mycelya.synchronize()
        began = time.perf_counter()
        x.sum().item()
        print(time.perf_counter() - began >= 0.03)
    """
    machine = {"MYCELYA_MACHINE": "local:cpu?rtt=30ms&rate=100Mbit"}
    assert run(code, tmp_path, **machine)[:2] == (0, "True\n")


TRANSFERS = """
    import sys
    import torch, mycelya_torch
    x = torch.randint(256, (6_000_000,), dtype=torch.uint8)
    y = x.to("mycelya")
    torch.mycelya.synchronize()
    print("after", file=sys.stderr)
    here = y.cpu()
    print("after", file=sys.stderr)
    print(torch.equal(here, x))
"""

SMALL_TENSORS = """
    import io, sys
    import torch, mycelya_torch
    layers = [torch.nn.Linear(250, 250, bias=False) for _ in range(24)]
    model = torch.nn.Sequential(*layers)
    state = {name: x.clone() for name, x in model.state_dict().items()}
    model.to("mycelya")
    torch.mycelya.synchronize()
    print("after", file=sys.stderr)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    print("after", file=sys.stderr)
    file.seek(0)
    saved = torch.load(file, map_location="cpu")
    print(all(torch.equal(saved[name], x) for name, x in state.items()))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("transfers", "terminal"),
    [(TRANSFERS, True), (TRANSFERS, False), (SMALL_TENSORS, True)],
    ids=["terminal", "pipe", "small tensors"],
)
def test_bars_for_long_transfers(tmp_path, transfers, terminal):
    """Three seconds up and down; nothing is shown where stderr is no terminal.

    The first small tensor is read alone, the others are read ahead.
    """
    pytest.importorskip("tqdm")
    reader, writer = pty.openpty() if terminal else os.pipe()
    if terminal:
        termios.tcsetwinsize(writer, (24, 80))
    script = tmp_path / "transfers.py"
    script.write_text(textwrap.dedent(transfers))
    with subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=writer,
        text=True,
        env={**os.environ, "MYCELYA_MACHINE": "local:cpu?rate=16Mbit"},
    ) as process:
        os.close(writer)
        shown = b""
        with contextlib.suppress(OSError):  # the end of a terminal
            while part := os.read(reader, 4096):
                shown += part
        assert process.stdout.read() == "True\n"
    os.close(reader)
    assert process.returncode == 0, shown
    upload, download, end = re.split(rb"after\r?\n", shown)
    assert end == b""
    for what, bar in (b"upload", upload), (b"download", download):
        if terminal:
            assert re.search(what + rb": +\d+%.*/(6\.00|5\.75)M", bar), shown
            assert bar.endswith(b" \r")  # it is cleared
        else:
            assert bar == b""


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"rtt": "50"}, ValueError, "'50ms'"),
        ({"rate": "100MB"}, ValueError, "'100Mbit'"),
        ({"rtt": "99s"}, RuntimeError, "no round trip time up to a minute"),
        ({"rate": "1bit"}, RuntimeError, 'from "8kbit"'),
        ({"rtt": "5ms", "transport": "unix"}, RuntimeError, 'transport="tcp"'),
        ({"rtt": "5ms", "detached": True, "name": "n"}, RuntimeError, "outlives"),
    ],
)
def test_wrong_values(options, error, text):
    with pytest.raises(error, match=text):
        RemoteMachine("local", device="cpu", **options)
