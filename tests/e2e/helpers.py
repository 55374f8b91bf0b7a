# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Comparisons with the CPU, and scripts that run in a process of their own."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import preloaded
import torch
from torch.utils import _pytree as pytree

from mycelya_torch import _device

ROOT = Path(__file__).resolve().parents[2]
DEVICE = torch.device("mycelya")


def on_cuda() -> bool:
    """Whether the worker of a bare "mycelya" computes with CUDA."""
    return json.loads(_device.device_info(0))["device"].startswith("cuda")


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


def same(ours, cpu, rtol=None, atol=None) -> None:
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
        if b.device.type == "cpu" and a.device.type == "mycelya":
            assert a.stride() == b.stride()
        here = a.detach().cpu()
        torch.testing.assert_close(
            here, b.detach(), rtol=rtol, atol=atol, equal_nan=True
        )


def compare(fn, *tensors, rtol=None, atol=None):
    """Runs fn on the CPU and on the device and asserts that they agree.

    It compares the results, and the operands after the call. If a result requires
    grad, it also compares the gradients of a weighted sum of the results. Returns
    fn's result on the device.
    """
    if rtol is None and on_cuda():
        rtol, atol = 1e-3, 1e-4
    cpu = [leaf(t) for t in tensors]
    ours = [to_device(t) for t in tensors]
    expected, got = fn(*cpu), fn(*ours)
    same(got, expected, rtol, atol)
    same(ours, cpu, rtol, atol)
    if differentiable(expected):
        weighted_sum(expected).backward()
        weighted_sum(got).backward()
        for mine, theirs in zip(ours, cpu, strict=True):
            assert (mine.grad is None) == (theirs.grad is None)
            if theirs.grad is not None:
                same(mine.grad, theirs.grad, rtol, atol)
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
    code: str, folder: Path, timeout: float = 120, **options
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


def is_running(pid: int) -> bool:
    """Whether a process runs; a zombie does not count."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def gone(pid: int, within: float) -> bool:
    """Waits until a process has ended; False if it still runs after `within` s."""
    end = time.monotonic() + within
    while is_running(pid):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True
