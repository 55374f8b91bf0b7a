# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""What a user sees when something is used up; tests/exhausted has the worker's part."""

from pathlib import Path

import pytest
from helpers import run


def through(folder: Path, script: str) -> str:
    """The first lines of a program whose worker starts through a shell script."""
    from mycelya_torch import _load

    path = folder / "worker"
    path.write_text(f"#!/bin/sh\n{script}".replace("WORKER", f'"{_load.WORKER}"'))
    path.chmod(0o700)
    return f"""
import torch, mycelya_torch
from mycelya_torch import _device, _load
paths = (_load.CLIENT, {str(path)!r}, _load.EXEC, _load.torch_lib())
_device.init(*map(str, paths), *mycelya_torch._default_machine)
"""


@pytest.mark.cpu_worker
@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_the_memory_limit_of_a_worker(transport, tmp_path):
    """Too much is PyTorch's error, and the session goes on with what it has."""
    code = through(tmp_path, 'exec WORKER --memory 2000000000 "$@"')
    code += """
kept = torch.arange(1000.0, device="mycelya")
for make in (lambda **on: torch.ones(1 << 30, **on), torch.empty(1 << 30).to):
    try:
        print(make(device="mycelya").sum().item())
    except torch.OutOfMemoryError as error:
        print(str(error).splitlines()[0])
    print(kept.sum().item(), torch.ones(1 << 20, device="mycelya").sum().item())
"""
    machine = f"local:cpu?transport={transport}"
    status, out, err = run(code, tmp_path, MYCELYA_MACHINE=machine)
    assert status == 0, err
    of_an_op, values, of_an_upload, same = out.splitlines()
    for line in (of_an_op, of_an_upload):
        assert line.startswith("Out of memory: 4.0 GiB wanted on cpu.")
    assert values == same == "499500.0 1048576.0"


@pytest.mark.cpu_worker
@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_a_worker_without_descriptors_for_a_session(transport, tmp_path):
    # It accepts a connection with 10, and starts a process with 15.
    code = through(tmp_path, 'ulimit -n 12; exec WORKER "$@"')
    code += """
try:
    torch.ones(2, device="mycelya").cpu()
except RuntimeError as error:
    print(error)
"""
    machine = f"local:cpu?transport={transport}"
    status, out, err = run(code, tmp_path, MYCELYA_MACHINE=machine)
    assert status == 0, err
    assert out.startswith("mycelya:0 could not")
    assert "too many open files" in out or "cannot start another session" in out
    assert "BUG" not in out and "einstall" not in out


# No file may become larger than a MiB, as on a full disk or a full /dev/shm.
SMALL_FILES = """
    import resource, torch, mycelya_torch

    most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, most))
"""


def test_no_room_for_shared_memory(tmp_path):
    """Pinned tensors are ordinary memory then, and uploads send their bytes."""
    code = (
        SMALL_FILES
        + """
    hosts = [torch.full((2 << 20,), float(i)).pin_memory() for i in range(8)]
    assert all(h.is_pinned() for h in hosts)
    there = [h.to("mycelya", non_blocking=True) for h in hosts]
    print([t.sum().item() / (2 << 20) for t in there])
    m = torch.mycelya.metrics()
    print(m["upload_bytes_shared"], m["upload_bytes"] >> 20)
    """
    )
    status, out, err = run(code, tmp_path)
    assert status == 0, err
    assert out == f"{[float(i) for i in range(8)]}\n0 64\n"


def test_a_dump_on_a_full_disk_is_one_warning(tmp_path):
    code = (
        SMALL_FILES.replace("1 << 20", "4096")
        + """
    x = torch.ones(64, device="mycelya")
    for i in range(4):
        x = (x * 2).tanh()
        print(x.sum().item() > 48)
    """
    )
    status, out, err = run(code, tmp_path, MYCELYA_DUMP=str(tmp_path / "dump") + ",all")
    assert (status, out) == (0, "True\n" * 4), err
    assert err.count("MYCELYA_DUMP can't be written") == 1
    assert "file too large" in err
