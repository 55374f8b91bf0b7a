# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Large uploads over a slow link: what the worker has kept, and compression."""

import pytest
from helpers import run
from networks import TCP, Network

from mycelya_torch import _load

# Uploads tensors in turn, and prints for each: whether the values are right, and how
# many bytes were sent, deduped and compressed.
UPLOADS = """
import glob, time, torch, mycelya_torch
from mycelya_torch import _device, _load
paths = (_load.CLIENT, {worker!r}, _load.EXEC, _load.torch_lib())
_device.init(*map(str, paths), *mycelya_torch._default_machine)
torch.zeros(1, device="mycelya").item()
torch.manual_seed(0)
kinds = {{
    "noise": lambda n: torch.randint(-(2**62), 2**62, (n // 8,)),
    "tokens": lambda n: torch.randint(50_000, (n // 8,)),
    "weights": lambda n: torch.randn(n // 4),
}}
tensors = {{}}
for what in {uploads}:
    kind, n = what.split()
    x = tensors.setdefault(what, kinds[kind](int(n) << 20))
    torch.mycelya.reset_metrics()
    y = x.to("mycelya")
    small = torch.arange(10.0).to("mycelya") + 1  # beside the upload
    assert small.tolist() == list(range(1, 11))
    z = y + y
    assert torch.equal(z.cpu(), x + x), what
    m = torch.mycelya.metrics()
    names = "upload_bytes_deduped upload_bytes_compressed bytes_sent".split()
    print(*(m[name] for name in names), flush=True)
while glob.glob({state!r} + "/draft-*"):  # the worker is still writing one
    time.sleep(0.01)
"""


def upload(network, folder, *uploads, state=None):
    """Lines of deduped, compressed and sent MiB, and what was written to stderr."""
    code = UPLOADS.format(
        worker=str(network.worker), uploads=list(uploads), state=str(state)
    )
    machine = TCP["MYCELYA_MACHINE"] + (f"&state={state}" if state else "")
    status, out, err = run(code, folder, 240, MYCELYA_MACHINE=machine)
    assert status == 0, err[-4000:]
    return [[int(n) / 2**20 for n in line.split()] for line in out.splitlines()], err


@pytest.fixture
def slow(faults, tmp_path):
    """A worker behind a link of 10 MB/s."""
    return Network(faults, tmp_path, "--rate 10000")


def test_an_upload_that_the_worker_has(slow, tmp_path):
    state = tmp_path / "state"
    lines, _ = upload(slow, tmp_path, "noise 24", "noise 24", "noise 6", state=state)
    first, again, other = lines
    assert first[0] == 0 and first[2] > 24
    assert again[0] > 4 and 24 < again[0] + again[2] < 25
    assert other[0] == 0 and other[2] > 6
    (lines, _) = upload(slow, tmp_path, "noise 24", state=state)
    assert lines[0][0] > 4, "another process uploads the same bytes"
    kept = list((state / "upload").iterdir())
    assert {path.stat().st_size >> 20 for path in kept} == {24, 6}
    assert all(path.stat().st_mode & 0o077 == 0 for path in kept)


def test_a_kept_upload_that_is_damaged(slow, tmp_path):
    """A worker does not trust its disk, nor what another session has written."""
    state = tmp_path / "state"
    upload(slow, tmp_path, "noise 24", state=state)
    (path,) = (state / "upload").iterdir()
    with open(path, "r+b") as file:
        file.seek(20 << 20)
        file.write(b"damaged")
    (line,), err = upload(slow, tmp_path, "noise 24", state=state)
    assert line[0] == 0 and line[2] > 24
    (line,), _ = upload(slow, tmp_path, "noise 24", state=state)
    assert line[0] == 0, "the damaged file was removed, and not written again"
    (line,), _ = upload(slow, tmp_path, "noise 24", state=state)
    assert line[0] > 4


def test_compression(slow, tmp_path):
    lines, _ = upload(slow, tmp_path, "tokens 24", "tokens 8", "noise 8", "weights 8")
    first, tokens, noise, _ = lines
    assert first[1] > 4 and tokens[1] > 4 and tokens[2] < 4
    assert noise[1] == 0 and 8 < noise[2] < 8.1


def test_a_fast_link_sends_the_bytes_as_they_are(tmp_path):
    """On a host that is busy with other things, the loopback may be a slow link."""
    code = UPLOADS.format(worker=str(_load.WORKER), uploads=["tokens 24"], state="")
    for _ in range(8):
        status, out, err = run(code, tmp_path, 240, **TCP)
        assert status == 0, err[-4000:]
        deduped, compressed, sent = map(int, out.split())
        assert deduped == 0, "the worker is new"
        if compressed == 0 and sent > 24 << 20:
            return
    raise AssertionError("each time some bytes were compressed")
