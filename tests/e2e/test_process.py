# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Processes end when they should, and leave no worker behind."""

import os
import signal
import time

import pytest
from helpers import gone, is_running, run, start

# Prints the worker's pid, then runs `then`.
PROGRAM = """
    import json, os, signal, sys, time
    import torch, mycelya_torch
    from mycelya_torch import _device

    x = torch.ones(64, 64, device="mycelya", requires_grad=True)
    print(json.loads(_device.device_info(0))["pid"])
    {then}
"""
TRAINING = """
    while True:
        loss = (x @ x).tanh().sum()
        loss.backward()
        {read}
"""


def program(then):
    return PROGRAM.format(then=then.replace("\n", "\n    ").strip())


def worker_of(process):
    return int(process.stdout.readline())


@pytest.mark.parametrize(
    "then, status",
    [
        ("pass", 0),
        ("sys.exit(3)", 3),
        ("raise ValueError('mine')", 1),
        ("os._exit(7)", 7),
        ("os.abort()", -signal.SIGABRT),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
        ("y = (x @ x).sum(); y.backward(); sys.exit(0)", 0),
    ],
)
def test_no_worker_remains(then, status, tmp_path):
    process = start(program(then), tmp_path)
    worker = worker_of(process)
    process.communicate(timeout=30)
    assert process.returncode == status
    assert gone(worker, within=5)


@pytest.mark.parametrize("read", ["loss.item()", "pass"], ids=["reading", "running on"])
def test_ctrl_c_returns_within_two_seconds(read, tmp_path):
    loop = "\n".join(TRAINING.format(read=read).split("\n    "))
    process = start(program(loop), tmp_path)
    worker = worker_of(process)
    time.sleep(1)
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert time.monotonic() - begin < 2
    assert "KeyboardInterrupt" in err
    assert process.returncode in (-signal.SIGINT, 130, 1)
    assert gone(worker, within=5)


def test_ctrl_c_ends_a_long_wait(tmp_path):
    """The worker is busy for far longer than two seconds when Ctrl-C comes."""
    long = """
y = torch.ones(2000, 2000, device="mycelya")
for _ in range(400):  # not so many that recording waits for the worker
    y = y @ y / 2000
try:
    print("waiting")
    y.sum().item()
except KeyboardInterrupt:
    print("interrupted")
    raise
"""
    process = start(program(long), tmp_path)
    worker = worker_of(process)
    assert process.stdout.readline() == "waiting\n"
    time.sleep(0.5)
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    assert time.monotonic() - begin < 2
    assert out == "interrupted\n"
    assert gone(worker, within=5)


def test_the_terminal_s_interrupt_does_not_reach_the_worker(tmp_path):
    process = start(program("x.sum().item(); time.sleep(60)"), tmp_path)
    worker = worker_of(process)
    assert os.getpgid(worker) != os.getpgid(process.pid)
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=10)
    assert gone(worker, within=5)


def test_a_client_that_is_killed_in_training(tmp_path):
    loop = "\n".join(TRAINING.format(read="pass").split("\n    "))
    process = start(program(loop), tmp_path)
    worker = worker_of(process)
    time.sleep(0.5)
    assert is_running(worker)
    process.kill()
    process.communicate(timeout=10)
    assert gone(worker, within=5)


def test_a_worker_that_is_not_needed_does_not_start(tmp_path):
    code = """
        import torch, mycelya_torch

        torch.manual_seed(3)
        assert torch.mycelya.is_available() and torch.mycelya.device_count() == 1
        assert not torch.mycelya.is_initialized()
        import os
        children = f"/proc/{os.getpid()}/task/{os.getpid()}/children"
        assert open(children).read() == "", open(children).read()
        x = torch.rand(3, device="mycelya")
        torch.manual_seed(3)
        assert torch.equal(x.cpu(), torch.rand(3))
        print("ok")
    """
    status, out, err = run(code, tmp_path)
    assert (status, out) == (0, "ok\n"), err


def test_a_forked_child_may_not_use_the_device(tmp_path):
    code = """
        import os, sys, torch, mycelya_torch

        x = torch.ones(3, device="mycelya")
        assert x.sum().item() == 3
        read, write = os.pipe()
        if os.fork() == 0:
            words = []
            for use in (
                lambda: x + 1,
                lambda: x.cpu(),
                lambda: torch.zeros(1, device="mycelya"),
                lambda: torch.ones(2).to("mycelya"),
                lambda: torch.mycelya.synchronize(),
            ):
                try:
                    use()
                    words.append("no error")
                except RuntimeError as error:
                    words.append("fork" if "fork" in str(error) else str(error))
            words.append(str(torch.mycelya._is_in_bad_fork()))
            words.append(str((torch.ones(2) + 1).sum().item()))
            del x
            os.write(write, ",".join(words).encode())
            sys.exit(0)
        os.close(write)
        print(os.fdopen(read).read())
        os.wait()
        assert (x + 1).sum().item() == 6
        print("ok")
    """
    status, out, err = run(code, tmp_path, timeout=60)
    assert status == 0, err
    assert out == "fork,fork,fork,fork,fork,True,4.0\nok\n"


def test_a_forked_child_does_not_hold_the_worker(tmp_path):
    code = """
        import json, os, time, torch, mycelya_torch
        from mycelya_torch import _device

        torch.ones(3, device="mycelya").sum().item()
        if os.fork() == 0:
            time.sleep(30)
            os._exit(0)
        print(json.loads(_device.device_info(0))["pid"])
        os._exit(0)
    """
    process = start(code, tmp_path)
    worker = worker_of(process)
    process.wait(timeout=30)
    try:
        assert gone(worker, within=5)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.parametrize("workers", [1, 2])
def test_data_loaders_fork(workers, tmp_path):
    code = f"""
        import torch, mycelya_torch
        from torch.utils.data import DataLoader, TensorDataset

        total = torch.zeros((), device="mycelya")
        data = TensorDataset(torch.arange(64.0))
        for epoch in range(2):
            for (batch,) in DataLoader(
                data, 8, num_workers={workers}, multiprocessing_context="fork"
            ):
                total += batch.to("mycelya").sum()
        print(total.item())
    """
    status, out, err = run(code, tmp_path, timeout=60)
    assert (status, out) == (0, "4032.0\n"), err


def test_a_spawned_child_has_its_own_worker(tmp_path):
    code = """
        import json
        import torch, mycelya_torch
        import torch.multiprocessing as mp
        from mycelya_torch import _device

        def child(queue):
            pid = json.loads(_device.device_info(0))["pid"]
            queue.put((torch.ones(3, device="mycelya").sum().item(), pid))

        if __name__ == "__main__":
            mine = json.loads(_device.device_info(0))["pid"]
            context = mp.get_context("spawn")
            queue = context.Queue()
            process = context.Process(target=child, args=(queue,))
            process.start()
            value, pid = queue.get(timeout=60)
            process.join()
            print(value, pid != mine, process.exitcode)
    """
    status, out, err = run(code, tmp_path, timeout=90)
    assert (status, out) == (0, "3.0 True 0\n"), err


def test_a_closed_pipe_ends_quietly(tmp_path):
    """`python program | head -1` ends with an exception, as without the device."""
    process = start(program("while True: print(x.sum().item())"), tmp_path)
    worker = worker_of(process)
    process.stdout.close()
    process.wait(timeout=20)
    process.stderr.close()
    assert gone(worker, within=5)


@pytest.mark.slow
def test_many_short_processes_in_a_row(tmp_path):
    script = "import torch, mycelya_torch; print(torch.ones(1).to('mycelya').item())"
    for _ in range(3):
        status, out, err = run(script, tmp_path, timeout=60)
        assert (status, out) == (0, "1.0\n"), err


def test_no_folders_are_left(tmp_path):
    run(program("pass"), tmp_path, TMPDIR=str(tmp_path))
    process = start(program("os._exit(0)"), tmp_path, TMPDIR=str(tmp_path))
    worker = worker_of(process)
    process.communicate(timeout=30)
    assert gone(worker, within=5)
    assert [p.name for p in tmp_path.iterdir() if p.is_dir()] == []
