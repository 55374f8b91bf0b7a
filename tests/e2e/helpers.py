# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Comparisons with the CPU, and scripts that run in a process of their own."""

import contextlib
import importlib.metadata
import importlib.util
import inspect
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import preloaded
import torch
from torch.utils import _pytree as pytree

from mycelya_torch import _device, _tested

ROOT = Path(__file__).resolve().parents[2]
DEVICE = torch.device("mycelya")
# By what `make soak` multiplies the numbers of examples and their time limits.
SOAK = int(os.environ.get("MYCELYA_SOAK", "1"))


def on_cuda() -> bool:
    """Whether the worker of a bare "mycelya" computes with CUDA."""
    return json.loads(_device.device_info(0))["device"].startswith("cuda")


def needs(program: str = "", module: str = "") -> None:
    """Skips the test on a GPU machine that lacks a program or a Python module.

    CI installs what the tests need, so without a GPU a missing one is a failure.
    """
    if not os.environ.get("MYCELYA_MACHINE", "").startswith("local:cuda"):
        return
    import pytest

    if program and shutil.which(program) is None:
        pytest.skip(f"this GPU machine has no program {program}")
    if module and importlib.util.find_spec(module) is None:
        pytest.skip(f"this GPU machine has no Python module {module}")


def needs_tested(library: str) -> None:
    """Skips the test, or the module, if another release of a library is installed.

    CI installs the tested releases with the newest torch, so there it is a failure.
    """
    other_host = os.environ.get("MYCELYA_MACHINE", "").startswith("local:cuda")
    if not other_host and torch.__version__.startswith("2.15."):
        return
    import pytest

    try:
        version = importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        version = "(none)"
    if why := _tested.reason(_tested.CHOOSE, library, version):
        pytest.skip(why, allow_module_level=True)


def on_eager_cuda(fn, *tensors):
    """What fn gives on CUDA in this process, without autograd.

    None if the worker computes on a CPU, or if it is not on this host. It decides what
    differs between PyTorch's CPU and CUDA kernels: strides of some results, bits.
    """
    if not on_cuda() or not torch.cuda.is_available():
        return None

    def place(t: torch.Tensor) -> torch.Tensor:
        bytes_ = t.detach().untyped_storage().cuda()
        there = torch.empty(0, dtype=t.dtype, device="cuda")
        return there.set_(bytes_, t.storage_offset(), t.shape, t.stride())

    with torch.no_grad():
        return fn(*map(place, tensors))


def seed(number: int) -> None:
    """Seeds the CPU and the device as torch.manual_seed does.

    That function also queues calls for other accelerators, each with a stack trace,
    even if there are none. This takes longer than a small test.
    """
    torch.default_generator.manual_seed(number)
    torch.mycelya.manual_seed_all(number)


def to_device(tensor: torch.Tensor) -> torch.Tensor:
    """A leaf on the device with the tensor's content, strides and requires_grad."""
    there = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=DEVICE
    )
    there.copy_(tensor.detach())
    return there.requires_grad_(tensor.requires_grad)


def leaf(tensor: torch.Tensor) -> torch.Tensor:
    """A leaf on the CPU with the tensor's content, strides and requires_grad."""
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def same(ours, cpu, rtol=None, atol=None, strides=True) -> None:
    """Asserts that two pytrees agree: dtypes, shapes, strides and values of tensors."""
    ours, shape = pytree.tree_flatten(ours)
    cpu, cpu_shape = pytree.tree_flatten(cpu)
    assert shape == cpu_shape
    for a, b in zip(ours, cpu, strict=True):
        if not isinstance(b, torch.Tensor):
            assert a == b
            continue
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        if strides and a.device.type == "mycelya" != b.device.type:
            assert a.stride() == b.stride()
        close = {"rtol": rtol, "atol": atol}
        if rtol == CUDA_BOUNDS["rtol"] and a.dtype.itemsize == 2:
            close = CUDA_BOUNDS_16
        torch.testing.assert_close(
            a.detach().cpu(), b.detach().cpu(), equal_nan=True, **close
        )


# How far results of CUDA's kernels may be from those of the CPU's, which sum in another
# order and compute functions in another way.
CUDA_BOUNDS = {"rtol": 1e-3, "atol": 1e-4}
CUDA_BOUNDS_16 = {"rtol": 2e-2, "atol": 2e-2}


def compare(fn, *tensors, rtol=None, atol=None, strides=True, device_decides=False):
    """Runs fn on the CPU and on the device and asserts that they agree.

    It compares the results, and the operands after the call. If a result requires
    grad, it also compares the gradients of a weighted sum of the results. Returns
    fn's result on the device.

    strides: whether the results must have the strides of the CPU's. device_decides: the
    results depend on the kernels. If the worker computes with CUDA on this host, the
    results must be those of CUDA in this process; gradients are not compared.
    """
    if rtol is None and on_cuda():
        rtol, atol = CUDA_BOUNDS["rtol"], CUDA_BOUNDS["atol"]
    if device_decides and on_cuda():
        return compare_with_cuda(fn, *tensors, rtol=rtol, atol=atol)
    cpu = [leaf(t) for t in tensors]
    ours = [to_device(t) for t in tensors]
    expected, got = fn(*cpu), fn(*ours)
    same(got, expected, rtol, atol, strides)
    same(ours, cpu, rtol, atol)
    if differentiable(expected):
        weighted_sum(expected).backward()
        weighted_sum(got).backward()
        for mine, theirs in zip(ours, cpu, strict=True):
            assert (mine.grad is None) == (theirs.grad is None)
            if theirs.grad is not None:
                same(mine.grad, theirs.grad, rtol, atol, strides)
    return got


def compare_with_cuda(fn, *tensors, rtol=None, atol=None):
    """Asserts that a CUDA worker gives what CUDA gives in this process."""
    import pytest

    expected = on_eager_cuda(fn, *tensors)
    if expected is None:
        pytest.skip("the results depend on the GPU, and the worker's is not here")
    got = fn(*map(to_device, tensors))
    same(got, expected, rtol, atol)
    return got


@contextlib.contextmanager
def named(what) -> Iterator[None]:
    """Adds a note to an error that names the failing case of a test."""
    try:
        yield
    except Exception as error:
        error.add_note(f"with {what}")
        raise


def pairs(ours, cpu) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The pairs of tensors of two pytrees; asserts equal layouts, dtypes and shapes.

    For sparse tensors, which have no strides. The caller compares the elements.
    """
    ours, shape = pytree.tree_flatten(ours)
    cpu, cpu_shape = pytree.tree_flatten(cpu)
    assert shape == cpu_shape
    for a, b in zip(ours, cpu, strict=True):
        if not isinstance(b, torch.Tensor):
            assert a == b
            continue
        assert a.device.type == "mycelya"
        assert (a.layout, a.dtype, a.shape) == (b.layout, b.dtype, b.shape)
        yield a.detach(), b.detach()


def moved(tensor: torch.Tensor) -> torch.Tensor:
    """A leaf on the device with the tensor's content, of any layout."""
    return tensor.detach().to(DEVICE).requires_grad_(tensor.requires_grad)


def differentiable(results) -> list[torch.Tensor]:
    """The results that require grad."""
    leaves = pytree.tree_leaves(results)
    return [t for t in leaves if isinstance(t, torch.Tensor) and t.requires_grad]


def weighted_sum(results) -> torch.Tensor:
    """The sum of all results that require grad, each element with its own weight."""
    total = 0
    for t in differentiable(results):
        t = torch.view_as_real(t.resolve_conj()) if t.is_complex() else t
        weight = torch.arange(1, t.numel() + 1, dtype=torch.float64)
        weight = (weight.sin() + 1.5).reshape(t.shape).to(t.dtype)
        term = (t * weight.to(t.device)).sum()
        total = total + (term.real if term.is_complex() else term)
    return total


# ---- Whole processes ----


# Processes of start(); conftest.py kills those that a test leaves running.
started: list[subprocess.Popen | preloaded.Process] = []


def restore_sigint() -> None:
    """A background job of a shell ignores SIGINT, and its children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start(
    code: str, folder: Path, fresh: bool = False, **env: str
) -> subprocess.Popen | preloaded.Process:
    """Writes a script to folder/prog.py and starts it in its own process group.

    The process is forked from one that has imported torch, unless `fresh` asks for a
    new one or `env` has variables that are not ours, which torch may read.
    """
    script = folder / "prog.py"
    script.write_text(textwrap.dedent(code))
    return start_file(script, fresh=fresh, **env)


def start_file(
    script: Path, *arguments: str, fresh: bool = False, **env: str
) -> subprocess.Popen | preloaded.Process:
    """Starts a script with arguments, as `start` does."""
    command = [str(script), *arguments]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    whole = {**os.environ, "PYTHONPATH": path, **env}
    if not fresh and all(name.startswith("MYCELYA_") for name in env):
        process = preloaded.start(command, whole)
    else:
        process = subprocess.Popen(
            [sys.executable, "-u", "-X", "faulthandler", *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=whole,
            start_new_session=True,
            preexec_fn=restore_sigint,
        )
    started.append(process)
    return process


def run(
    code: str, folder: Path, timeout: float = 240, **options
) -> tuple[int, str, str]:
    """Runs a script with options of `start`; returns (exit status, stdout, stderr)."""
    return finish(start(code, folder, **options), timeout)


def finish(
    process: subprocess.Popen | preloaded.Process, timeout: float
) -> tuple[int, str, str]:
    """Waits for a process; returns (exit status, stdout, stderr)."""
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        # faulthandler prints the stacks of the threads and ends the process.
        os.killpg(process.pid, signal.SIGABRT)
        try:
            out, err = process.communicate(timeout=5)
        except subprocess.TimeoutExpired:  # a child that has the pipes is left
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
        raise AssertionError(f"still running after {timeout} s\n{out}\n{err}") from None
    return process.returncode, out, err


def run_file(script: Path, *arguments: str, timeout: float = 300, **options):
    """Runs a script that must succeed; returns (stdout, stderr)."""
    status, out, err = finish(start_file(script, *arguments, **options), timeout)
    assert status == 0, out[-6000:] + err[-6000:]
    return out, err


def processes() -> list[tuple[int, bytes, bytes]]:
    """Number, environment and arguments of the processes of this user."""
    out = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                environment = (entry / "environ").read_bytes()
                arguments = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            out.append((int(entry.name), environment, arguments))
    return out


def is_running(pid: int) -> bool:
    """Whether a process runs; a zombie does not count."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def freeze(pid: int) -> None:
    """Stops a process, and returns when no thread of it runs any more.

    SIGSTOP is taken by one thread, and the others run on until it has had its turn.
    """
    import os
    import pathlib
    import signal
    import time

    os.kill(pid, signal.SIGSTOP)
    before = None
    while True:
        states = {}  # by thread
        for stat in pathlib.Path(f"/proc/{pid}/task").glob("*/stat"):
            try:
                text = stat.read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue  # the thread has ended
            states[stat] = text.rpartition(")")[2].split()[0]
        # Twice the same: a thread may have begun another one while they were read.
        if states == before and set(states.values()) <= {"T", "Z", "X"}:
            return
        before = states
        time.sleep(0.001)


FREEZE = inspect.getsource(freeze)  # for scripts


def raised(kind: type[BaseException], use: Callable[[], object]) -> str:
    """Repeats a use until it raises an error of a kind; returns the error's text.

    For what ends at another time than the call that ends it: a process that has got a
    signal other than SIGKILL still answers, until the thread with the signal has run.
    """
    end = time.monotonic() + 120
    while time.monotonic() < end:
        try:
            use()
        except kind as error:
            return str(error)
        time.sleep(0.01)
    raise AssertionError(f"no {kind.__name__} within two minutes")


def gone(pid: int) -> bool:
    """Waits until a process has ended; False if it still runs after a minute."""
    end = time.monotonic() + 60
    while is_running(pid):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True
