# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Processes end when they should, and leave no worker behind."""

import os
import re
import signal
import time

import pytest
from helpers import FREEZE, gone, is_running, run, start

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
    process.communicate(timeout=120)
    assert process.returncode == status
    assert gone(worker)


@pytest.mark.parametrize("read", ["loss.item()", "pass"], ids=["reading", "running on"])
def test_ctrl_c_ends_a_training(read, tmp_path):
    loop = "\n".join(TRAINING.format(read=read).split("\n    "))
    process = start(program(loop), tmp_path)
    worker = worker_of(process)
    time.sleep(1)
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert time.monotonic() - begin < 20
    assert "KeyboardInterrupt" in err
    assert process.returncode in (-signal.SIGINT, 130, 1)
    assert gone(worker)


def test_ctrl_c_ends_a_long_wait(tmp_path):
    """The worker is busy when Ctrl-C comes, for longer than the wait below."""
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
    out, err = process.communicate(timeout=120)
    assert time.monotonic() - begin < 20
    assert out == "interrupted\n"
    still = (
        "mycelya:0 still computes what was recorded before: the program that runs has"
    )
    assert re.search(rf"KeyboardInterrupt\n{still} taken \d+\.\d s so far", err)
    assert gone(worker)


STOPPED = """
import threading
from signal import SIGCONT, SIGINT
from mycelya_torch import RemoteMachine

pid = json.loads(_device.device_info(0))["pid"]
x.sum().item()

def interrupted(wait):
    # Whether Ctrl-C ends the wait. It comes from a thread that runs meanwhile.
    def interrupt():
        for _ in range(25):
            time.sleep(0.02)
        os.kill(os.getpid(), SIGINT)
    thread = threading.Thread(target=interrupt, daemon=True)
    try:
        thread.start()
        wait()
    except KeyboardInterrupt:
        return True
    return False
"""


def test_ctrl_c_ends_an_upload_to_a_stopped_worker(tmp_path):
    """The connection stays in order: the interrupted upload is sent to its end."""
    code = (
        FREEZE
        + STOPPED
        + """
freeze(pid)
big = torch.ones(16 << 20)
there = torch.empty(16 << 20, device="mycelya")
print(interrupted(lambda: big.to("mycelya")))
print(interrupted(lambda: there.copy_(big)))
print(interrupted(lambda: (x + 1).sum().item()))
print(interrupted(torch.mycelya.synchronize))
del big
os.kill(pid, SIGCONT)
print(there.sum().item() == 16 << 20, (x + 1).sum().item())
print(torch.arange(16 << 20).to("mycelya")[-1].item() == (16 << 20) - 1)
"""
    )
    status, out, err = run(program(code), tmp_path)
    assert status == 0, err
    words = out.split()[1:]
    assert words == ["True"] * 5 + ["8192.0", "True"], out


def test_ctrl_c_ends_the_start_of_a_machine(tmp_path):
    """A worker that never says hello: a program that sleeps."""
    slow = tmp_path / "worker"
    slow.write_text("#!/bin/sh\nexec sleep 300\n")
    slow.chmod(0o755)
    code = (
        STOPPED
        + f"""
from mycelya_torch import _load
_device.init(str(_load.CLIENT), {str(slow)!r}, str(_load.EXEC), str(_load.torch_lib()),
    "local", "cpu", "")
print(interrupted(lambda: RemoteMachine("local", device="cpu")))
print((x + 1).sum().item())
"""
    )
    status, out, err = run(program(code), tmp_path)
    assert status == 0, err
    assert out.split()[1:] == ["True", "8192.0"]


DAEMONS = {
    "reads": "(x @ x).sum().item()",
    "records": "y = (y @ x).tanh()",
    "uploads": "torch.ones(1000).to('mycelya') + 1",
    "futures": "(x + 1).cpu_future().result()",
    "long waits": "y = [y := (y @ x).tanh() for _ in range(50)][-1]; y.sum().item()",
}


@pytest.mark.parametrize("use", DAEMONS)
def test_the_interpreter_ends_while_daemons_use_the_device(use, tmp_path):
    """They print nothing and do not abort, and the worker ends."""
    code = f"""
import threading
def work():
    y = x
    while True:
        {DAEMONS[use]}
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.3)
print(time.monotonic())
"""
    process = start(program("x = x.detach()" + code), tmp_path)
    worker = worker_of(process)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "")
    assert time.monotonic() - float(out) < 30
    assert gone(worker)


def test_after_the_end_nothing_starts(tmp_path):
    """A handler that runs after ours gets an error, and no new worker."""
    code = """
        import atexit

        def late():
            try:
                torch.ones(2, device="mycelya") + 1
            except RuntimeError as error:
                print(error)
            print(len(torch.ones(2)))

        atexit.register(late)
        import torch
        import mycelya_torch
        assert torch.ones(2, device="mycelya").sum().item() == 2
    """
    status, out, err = run(code, tmp_path, fresh=True)
    assert (status, err) == (0, "")
    assert "the interpreter ends" in out and out.endswith("\n2\n")


def test_the_terminal_s_interrupt_does_not_reach_the_worker(tmp_path):
    process = start(program("x.sum().item(); time.sleep(60)"), tmp_path)
    worker = worker_of(process)
    assert os.getpgid(worker) != os.getpgid(process.pid)
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=120)
    assert gone(worker)


def test_a_client_that_is_killed_in_training(tmp_path):
    loop = "\n".join(TRAINING.format(read="pass").split("\n    "))
    process = start(program(loop), tmp_path)
    worker = worker_of(process)
    time.sleep(0.5)
    assert is_running(worker)
    process.kill()
    process.communicate(timeout=120)
    assert gone(worker)


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
    status, out, err = run(code, tmp_path)
    assert status == 0, err
    assert out == "fork,fork,fork,fork,fork,True,4.0\nok\n"


def test_a_child_never_calls_the_client(tmp_path):
    """Each child records at a line that is new to the client, which it must not tell.

    The threads of the client, one of which may be stopping the others, are the
    parent's. So a call that the client does not expect hung once in about fifty forks.
    """
    code = """
        import os, torch, mycelya_torch

        x = torch.ones(3, device="mycelya")
        for i in range(300):
            x.sum().item()
            pid = os.fork()
            if pid == 0:
                for use in (
                    "x.cpu_future()", "x + 1", "torch.zeros(2, device='mycelya')",
                    "torch.mycelya.metrics()", "torch.mycelya.synchronize()",
                ):
                    try:
                        exec(compile(use, f"line{i}.py", "exec"))
                    except RuntimeError as error:
                        assert "forked child" in str(error), error
                    else:
                        os._exit(3)
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        print(x.tolist())
    """
    status, out, err = run(code, tmp_path)
    assert (status, out) == (0, "[1.0, 1.0, 1.0]\n"), err


def test_a_fork_beside_several_machines(tmp_path):
    """The child uses none of them and holds no worker; the parent goes on."""
    code = """
        import json, os, sys, torch, mycelya_torch
        from mycelya_torch import RemoteMachine, _device

        machines = [RemoteMachine("local", device="cpu") for _ in range(3)]
        tensors = [torch.ones(3).to(m.device()) for m in machines]
        torch.mycelya.synchronize()
        pids = [json.loads(_device.device_info(i))["pid"] for i in range(3)]
        read, write = os.pipe()
        if os.fork() == 0:
            words = []
            for x in tensors:
                try:
                    x.add_(1)
                    words.append("no error")
                except RuntimeError as error:
                    words.append("fork" if "fork" in str(error) else str(error))
            try:
                RemoteMachine("local", device="cpu")
            except RuntimeError as error:
                words.append("fork" if "fork" in str(error) else str(error))
            del tensors, x
            fds = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
            links = [os.readlink(fd) for fd in fds if os.path.islink(fd)]
            words.append(str(sum("socket" in link for link in links)))
            os.write(write, ",".join(words).encode())
            sys.exit(0)
        os.close(write)
        print(os.fdopen(read).read())
        os.wait()
        print([(x + 1).sum().item() for x in tensors], len(set(pids)))
        for m in machines:
            m.stop()
    """
    status, out, err = run(code, tmp_path, fresh=True)
    assert status == 0, err
    assert out == "fork,fork,fork,fork,0\n[6.0, 6.0, 6.0] 3\n"


def test_a_forked_child_does_not_hold_the_worker(tmp_path):
    code = """
        import json, os, time, torch, mycelya_torch
        from mycelya_torch import _device

        torch.ones(3, device="mycelya").sum().item()
        if os.fork() == 0:
            time.sleep(600)  # longer than gone() waits
            os._exit(0)
        print(json.loads(_device.device_info(0))["pid"])
        os._exit(0)
    """
    process = start(code, tmp_path)
    worker = worker_of(process)
    process.wait(timeout=120)
    try:
        assert gone(worker)
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
    status, out, err = run(code, tmp_path)
    assert (status, out) == (0, "4032.0\n"), err


LOADER = """
    import torch, mycelya_torch
    from torch.utils.data import DataLoader, Dataset

    class Data(Dataset):
        def __len__(self):
            return 8
        def __getitem__(self, i):
            return torch.full((2,), float(i), device="mycelya")

    if __name__ == "__main__":
        {before}
        loader = DataLoader(Data(), 4, num_workers=1, multiprocessing_context={how!r})
        try:
            for batch in loader:
                print(batch)
        except RuntimeError as error:
            print(error)
"""


@pytest.mark.parametrize("how", ["spawn", "fork"])
def test_data_loaders_refuse_device_tensors_of_workers(how, tmp_path):
    """The loop gets the error; without it the loop would wait for ever."""
    code = LOADER.format(how=how, before="torch.ones(1, device='mycelya').item()")
    status, out, err = run(code, tmp_path)
    assert status == 0, err
    wanted = "let the dataset return CPU tensors" if how == "spawn" else "forked child"
    assert wanted in out, out + err


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
            value, pid = queue.get(timeout=200)
            process.join()
            print(value, pid != mine, process.exitcode)
    """
    status, out, err = run(code, tmp_path)
    assert (status, out) == (0, "3.0 True 0\n"), err


def test_a_closed_pipe_ends_quietly(tmp_path):
    """`python program | head -1` ends with an exception, as without the device."""
    process = start(program("while True: print(x.sum().item())"), tmp_path)
    worker = worker_of(process)
    process.stdout.close()
    process.wait(timeout=120)
    process.stderr.close()
    assert gone(worker)


@pytest.mark.slow
def test_many_short_processes_in_a_row(tmp_path):
    script = "import torch, mycelya_torch; print(torch.ones(1).to('mycelya').item())"
    for _ in range(3):
        status, out, err = run(script, tmp_path)
        assert (status, out) == (0, "1.0\n"), err


def test_no_folders_are_left(tmp_path):
    run(program("pass"), tmp_path, TMPDIR=str(tmp_path))
    process = start(program("os._exit(0)"), tmp_path, TMPDIR=str(tmp_path))
    worker = worker_of(process)
    process.communicate(timeout=120)
    assert gone(worker)
    end = time.monotonic() + 60  # the supervisor ends after the process of the session
    while folders := [p.name for p in tmp_path.iterdir() if p.is_dir()]:
        assert time.monotonic() < end, folders
        time.sleep(0.02)
