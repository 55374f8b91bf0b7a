# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""A machine behind TCP with TLS behaves like one behind a unix socket."""

import os
import signal
from pathlib import Path

import pyarrow.ipc
import pytest
import torch
from helpers import run
from test_machine_life import lose, parent_of, pid_of

from mycelya_torch import RemoteMachine

BODIES = Path(__file__).parents[2] / "proto/transport/testdata/v2/bodies.arrows"


@pytest.fixture
def machine():
    with RemoteMachine("local", transport="tcp", name="far") as machine:
        yield machine


def trained(device):
    """The losses and the weights of a short training."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)
    ).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    x, y = torch.randn(64, 16), torch.arange(64) % 4
    losses = []
    for i in range(20):
        batch = slice(i % 4 * 16, i % 4 * 16 + 16)
        loss = torch.nn.functional.cross_entropy(
            net(x[batch].to(device)), y[batch].to(device)
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item() if i % 3 == 0 else loss.detach())
    return [*map(float, losses), *(p.detach().cpu() for p in net.parameters())]


def test_a_training_has_the_same_bits(machine):
    far = trained(machine.device())
    for a, b in zip(far, trained("mycelya"), strict=True):
        assert torch.equal(torch.as_tensor(a), torch.as_tensor(b))


def test_large_uploads_and_downloads(machine):
    x = torch.arange(60_000_000, dtype=torch.float32)
    y = x.to(machine.device())
    z = x.pin_memory().to(machine.device(), non_blocking=True)
    assert torch.equal((y + z).cpu(), x + x)
    assert torch.equal(y.cpu(), x)
    link = torch.mycelya.metrics()["links"][str(machine.device().index)]
    assert 0 < link["rtt_seconds"] < 60
    assert link["bytes_per_second"] > 1e6
    assert link["connections"] == 1


@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_a_small_batch_travels_with_its_step(transport):
    with RemoteMachine("local", transport=transport) as machine:
        total = torch.zeros(64, device=machine.device())
        batches = [torch.full((16, 64), float(i)) for i in range(40)]

        def run(some):
            for batch in some:
                total.add_(batch.to(machine.device()).sum(0))

        run(batches[:20])
        torch.mycelya.synchronize(machine.device())
        before = torch.mycelya.metrics()
        run(batches[20:])
        torch.mycelya.synchronize(machine.device())
        after = torch.mycelya.metrics()
        assert after["program_misses"] == before["program_misses"]
        # At most one for each step and one for the wait: fast steps travel together.
        assert 1 <= after["messages_sent"] - before["messages_sent"] <= 21
        assert total.tolist() == [16.0 * sum(range(40))] * 64


def test_an_error_of_an_op_keeps_the_session(machine):
    table = torch.ones(3, 2, device=machine.device())
    with pytest.raises(IndexError, match="out of range"):
        torch.nn.functional.embedding(
            torch.tensor([7], device=machine.device()), table
        ).cpu()
    assert table.sum().item() == 6


def test_a_lost_process_is_explained_and_replaced(machine):
    torch.ones(2, device=machine.device()).cpu()
    text = lose(machine, signal.SIGSEGV)
    assert "machine far, is lost" in text
    assert "was ended by signal segmentation fault" in text
    machine.restart()
    assert torch.ones(2, device=machine.device()).tolist() == [1, 1]


def test_several_machines_of_both_kinds(machine):
    with (
        RemoteMachine("local", transport="tcp") as second,
        RemoteMachine("local", transport="unix") as third,
    ):
        machines = (machine, second, third)
        xs = [
            torch.full((3,), float(i), device=m.device())
            for i, m in enumerate(machines)
        ]
        assert [x.sum().item() for x in xs] == [0, 3, 6]
        assert xs[0].to(second.device()).tolist() == [0, 0, 0]


def test_no_secret_can_be_read_by_others(machine):
    """Neither in the arguments nor in the environment of the worker's processes."""
    session = pid_of(machine.remote_index)
    for pid in (session, parent_of(session)):
        for name in ("cmdline", "environ"):
            content = Path(f"/proc/{pid}/{name}").read_bytes()
            assert b"PRIVATE KEY" not in content and b"CERTIFICATE" not in content
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        assert b"127.0.0.1:0" in arguments
        assert not any(a.endswith(b"/s") for a in arguments)


def test_a_fork_keeps_the_session(machine):
    x = torch.ones(4, device=machine.device())
    x.cpu()
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert (x + 1).tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"transport": "udp"},
            "transport='udp' is not possible on the local machine; use 'unix' (a "
            "socket of this user, the default) or 'tcp' (TLS on 127.0.0.1).",
        ),
        (
            {"transprot": "tcp"},
            "transprot='tcp' is not an option of the local machine. "
            "Did you mean transport?",
        ),
        (
            {"zone": "b"},
            "zone='b' is not an option of the local machine. "
            "Its options are device, transport, state, rtt, rate.",
        ),
    ],
)
def test_wrong_options(options, text):
    with pytest.raises(ValueError) as error:
        RemoteMachine("local", **options)
    assert str(error.value) == text


SCRIPT = """
import json
from pathlib import Path

import torch

from mycelya_torch import _device

x = torch.ones(3, device="mycelya")
pid = json.loads(_device.device_info(0))["pid"]
print(x.sum().item(), b"--listen" in Path(f"/proc/{pid}/cmdline").read_bytes())
"""


@pytest.mark.parametrize(
    ("value", "listens"), [("local:cpu?transport=tcp", True), ("local:cpu", False)]
)
def test_the_machine_of_the_environment(tmp_path, value, listens):
    status, out, err = run(SCRIPT, tmp_path, MYCELYA_MACHINE=value)
    assert status == 0, err
    assert out.split() == ["3.0", str(listens)]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("local?transport=udp", "transport='udp' is not possible on the local machine"),
        ("local?zone=b", "zone='b' is not an option of the local machine"),
        ("local?tcp", "bad query field: 'tcp'"),
    ],
)
def test_a_wrong_machine_of_the_environment(tmp_path, value, text):
    status, _, err = run(SCRIPT, tmp_path, fresh=True, MYCELYA_MACHINE=value)
    assert status != 0
    assert f"MYCELYA_MACHINE={value!r}: {text}" in err


def test_bodies_are_a_stream_that_pyarrow_reads():
    """A test of proto/transport makes the file from the bodies of three frames."""

    def pattern(n):
        return bytes((i * 7 + (i >> 8)) & 0xFF for i in range(n))

    with pyarrow.ipc.open_stream(BODIES) as reader:
        field = pyarrow.field("data", pyarrow.uint8(), nullable=False)
        assert reader.schema == pyarrow.schema([field])
        batches = [bytes(batch.column(0).to_pylist()) for batch in reader]
    assert batches == [b"mycelya", pattern(64), pattern(1000)]
