# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Bad input raises an error with the op, the line and a remedy; nothing hangs."""

import inspect
import io
import json
import os
import re
import shutil
import subprocess
import sys
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
from helpers import DEVICE, ROOT, is_running, run, same, to_device

import mycelya_torch
from mycelya_torch import _device


def here(offset=0):
    """ "file.py:line" of the caller, as error messages have it."""
    frame = inspect.stack()[1]
    return f"{os.path.basename(frame.filename)}:{frame.lineno + offset}"


# ---- Refused when called ----


REFUSED = {
    "aten::quantize_per_tensor": lambda x: torch.quantize_per_tensor(
        x, 1.0, 0, torch.qint8
    ),
    "aten::_slow_conv2d_backward.grad_input": lambda x: (
        torch.ops.aten._slow_conv2d_backward.grad_input(
            x, x, x, [1, 1], [1, 1], [0, 0], grad_input=x, grad_weight=x, grad_bias=x
        )
    ),
    "aten::norm": lambda x: x.to_sparse_csr().norm(),
}


@pytest.mark.parametrize("op", REFUSED)
def test_an_op_that_the_device_refuses(op):
    """The error names the op, says why, and says what to do instead."""
    x = torch.zeros(3, 3, device=DEVICE)
    with pytest.raises(NotImplementedError, match="mycelya") as error:
        REFUSED[op](x)
    text = str(error.value)
    assert op in text and ".cpu()" in text


def test_memory_is_not_exported():
    x = torch.zeros(3, device=DEVICE)
    for export in (torch.from_dlpack, torch.Tensor.numpy, torch.Tensor.pin_memory):
        with pytest.raises((RuntimeError, TypeError, ValueError), match="mycelya"):
            export(x)
    with pytest.raises(RuntimeError, match="only available on CPU"):
        ForkingPickler(io.BytesIO()).dump(x)  # as a multiprocessing queue does
    assert x.untyped_storage().tolist() == [0] * 12  # a read like any other


def test_a_cpu_tensor_among_device_tensors():
    x, y = torch.zeros(3, device=DEVICE), torch.zeros(3)
    for fn in (
        lambda: x + y,
        lambda: y + x,
        lambda: x.add_(y),
        lambda: torch.cat((x, y)),
        lambda: x[None] @ y,
        lambda: torch.where(x > 0, x, y),
        lambda: torch.add(y, y, out=x),
        lambda: torch._foreach_add([x, x], [y, y]),
        lambda: torch.nn.functional.linear(x, y[None]),
    ):
        with pytest.raises(RuntimeError, match="cpu") as error:
            fn()
        assert "mycelya" in str(error.value)


def test_cpu_operands_that_cuda_accepts_too():
    x = torch.arange(6.0).reshape(2, 3).to(DEVICE)
    index = torch.tensor([1, 0])
    same(x + torch.tensor(1.0), x.cpu() + 1)
    same(torch.tensor(2.0) * x, x.cpu() * 2)
    same(x[index], x.cpu()[index])
    x[index] = torch.tensor(5.0)
    assert x.sum().item() == 30.0
    x[x.cpu() > 0] = 1.0
    same(torch.where(x > 0, x, torch.tensor(0.0)), x.cpu())


def test_a_wrong_device_index():
    index = torch.mycelya.device_count()  # other tests may have opened devices
    with pytest.raises(RuntimeError, match=f"mycelya:{index}"):
        torch.zeros(1, device=f"mycelya:{index}")
    with pytest.raises(RuntimeError, match=f"mycelya:{index}"):
        torch.mycelya.set_device(index)
    with pytest.raises(ValueError, match="cpu"):
        torch.mycelya.synchronize("cpu")


# ---- Errors of the worker. On CUDA a wrong index breaks the CUDA context ----


@pytest.mark.cpu_worker
def test_a_wrong_index_names_op_and_line():
    x = to_device(torch.arange(3.0))
    index = torch.tensor([0, 99]).to(DEVICE)
    bad, where = x.index_select(0, index), here()
    with pytest.raises((IndexError, RuntimeError)) as error:
        bad.cpu()
    text = str(error.value)
    assert "index_select" in text and where in text and "index out of range" in text


@pytest.mark.cpu_worker
def test_an_error_affects_only_what_comes_after_it():
    x = torch.ones(3, device=DEVICE)
    good = x * 3
    bad, where = x.gather(0, torch.tensor([5]).to(DEVICE)), here()
    worse, later = bad * 2, x * 4
    with pytest.raises(RuntimeError, match="gather"):
        good.cpu()
    assert good.cpu().tolist() == [3.0] * 3
    for value in (worse, bad, later):
        with pytest.raises(RuntimeError, match="gather") as error:
            value.cpu()
        assert where in str(error.value)
    torch.mycelya.synchronize()  # the error was raised before, and the session goes on
    assert (x + 1).sum().item() == 6.0


@pytest.mark.cpu_worker
def test_an_unread_error_is_raised_by_synchronize():
    x = torch.ones(3, device=DEVICE)
    bad = x.gather(0, torch.tensor([5]).to(DEVICE))
    with pytest.raises(RuntimeError, match="gather"):
        torch.mycelya.synchronize()
    torch.mycelya.synchronize()  # the error is raised only once
    del bad


@pytest.mark.cpu_worker
def test_an_error_in_backward_names_the_forward_line():
    x = torch.randn(2, 2, device=DEVICE, requires_grad=True)

    class Bad(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            return g.gather(1, torch.full((2, 2), 9).to(DEVICE))

    Bad.apply(x).sum().backward()
    with pytest.raises(RuntimeError, match="gather") as error:
        x.grad.cpu()
    assert "test_errors.py:" in str(error.value)


@pytest.mark.cpu_worker
def test_a_failed_write_has_no_effect():
    x, y = torch.zeros(3, device=DEVICE), torch.zeros(3, device=DEVICE)
    x.scatter_(0, torch.tensor([7]).to(DEVICE), 1.0)
    y.add_(1)
    with pytest.raises(RuntimeError, match="scatter"):
        x.tolist()
    assert x.tolist() == y.tolist() == [0.0] * 3
    assert y.add_(1).tolist() == [1.0] * 3


@pytest.mark.cpu_worker
def test_out_of_memory_is_an_error_of_the_op():
    huge, where = torch.ones(1 << 50, dtype=torch.uint8, device=DEVICE), here()
    with pytest.raises(torch.OutOfMemoryError) as error:
        huge[:1].cpu()
    assert where in str(error.value)
    assert "It takes at most 1.0 PiB of its own at once" in str(error.value)
    del huge
    assert torch.ones(2, device=DEVICE).sum().item() == 2


# ---- Worker and libraries ----

# A script with one path or name replaced; each line of its output is one error.
OTHER_PATHS = """
    import torch, mycelya_torch
    from mycelya_torch import _device, _load

    paths = [_load.CLIENT, _load.WORKER, _load.EXEC, _load.torch_lib()]
    paths += ["local", "cpu", ""]
    paths[{which}] = {path!r}
    _device.init(*map(str, paths))
    for attempt in range(2):
        try:
            torch.ones(2, device="mycelya").sum().item()
        except RuntimeError as error:
            print("RuntimeError:", " ".join(str(error).split()))
    """


def errors_with(which, path, folder):
    code = OTHER_PATHS.format(which=which, path=str(path))
    status, out, err = run(code, folder)
    assert status == 0, err
    lines = out.splitlines()
    assert len(lines) == 2 and all(line.startswith("RuntimeError:") for line in lines)
    return lines[0]


LIBRARIES = {"client library": 0, "worker": 1, "executor": 2}


@pytest.mark.parametrize("what", LIBRARIES)
def test_a_missing_file_is_named(what, tmp_path):
    text = errors_with(LIBRARIES[what], "/nowhere/at-all", tmp_path)
    assert what in text and "/nowhere/at-all" in text and "einstall" in text


def test_a_missing_torch_is_named(tmp_path):
    text = errors_with(3, "/nowhere/at-all", tmp_path)
    assert "/nowhere/at-all" in text and "torch" in text


def library(folder, prefix):
    """A shared library with every function of the header, and ABI version 999."""
    header = (ROOT / "csrc" / "abi" / "mycelya.h").read_text()
    names = re.findall(rf"\(\*{prefix}fn_(\w+)\)", header)
    assert "abi_version" in names
    source = folder / "fake.c"
    source.write_text(
        "".join(f"unsigned {prefix}{name}(void) {{ return 999; }}\n" for name in names)
    )
    path = folder / "libother.so"
    compiler = shutil.which("cc") or shutil.which("g++")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", path, source], check=True)
    return path


def test_a_client_library_of_another_version(tmp_path):
    path = library(tmp_path, "myc_")
    text = errors_with(0, path, tmp_path)
    assert str(path) in text and "999" in text and "einstall" in text


def test_an_executor_of_another_version(tmp_path):
    path = library(tmp_path, "myc_exec_")
    text = errors_with(2, path, tmp_path)
    assert "999" in text and "einstall" in text


def test_a_file_that_is_no_library(tmp_path):
    path = tmp_path / "libother.so"
    path.write_text("not a library")
    assert str(path) in errors_with(0, path, tmp_path)
    assert "libother.so" in errors_with(2, path, tmp_path)


@pytest.mark.parametrize(
    "script, expected",
    [
        ("exit 3", "3"),
        ("echo hello; sleep 60", "not a mycelya worker"),
        ("echo broken >&2; kill -9 $$", "broken"),
    ],
)
def test_an_executable_that_is_no_worker(script, expected, tmp_path):
    path = tmp_path / "worker"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    text = errors_with(1, path, tmp_path)
    assert str(path) in text and expected in text


@pytest.mark.cpu_worker
def test_a_cuda_index_that_the_host_lacks(tmp_path):
    text = errors_with(5, "cuda:63", tmp_path)
    assert "CUDA" in text or "NVIDIA driver" in text


def test_a_worker_that_is_killed(tmp_path):
    code = """
        import json, os, signal, torch, mycelya_torch
        from mycelya_torch import _device

        x = torch.ones(3, device="mycelya")
        assert x.sum().item() == 3
        os.kill(json.loads(_device.device_info(0))["pid"], signal.SIGKILL)
        for attempt in range(2):
            try:
                (x + 1).cpu()
            except RuntimeError as error:
                print("RuntimeError:", " ".join(str(error).split()))
        try:
            torch.mycelya.synchronize()
        except RuntimeError as error:
            print("RuntimeError:", " ".join(str(error).split()))
    """
    status, out, err = run(code, tmp_path)
    assert status == 0, err
    lines = out.splitlines()
    assert len(lines) == 3 and all(line.startswith("RuntimeError:") for line in lines)
    assert "worker" in lines[0] and "kill" in lines[0]


def test_a_worker_killed_during_a_read(tmp_path):
    code = """
        import json, os, signal, threading, torch, mycelya_torch
        from mycelya_torch import _device

        x = torch.ones(1500, 1500, device="mycelya")
        pid = json.loads(_device.device_info(0))["pid"]
        for _ in range(400):
            x = x @ x
            x = x / x.amax()
        threading.Timer(0.3, os.kill, (pid, signal.SIGKILL)).start()
        try:
            x.sum().item()
        except RuntimeError as error:
            print("RuntimeError:", error)
    """
    status, out, err = run(code, tmp_path)
    assert status == 0, err
    assert out.startswith("RuntimeError:") and "worker" in out


def test_machines_do_not_mix():
    with (
        mycelya_torch.RemoteMachine("local", name="left") as left,
        mycelya_torch.RemoteMachine("local", name="right") as right,
    ):
        a = torch.ones(2, device=left.device())
        b = torch.ones(2, device=right.device())
        for fn in (lambda: a + b, lambda: torch.cat((a, b)), lambda: a.add_(b)):
            with pytest.raises(RuntimeError) as error:
                fn()
            assert str(left.device()) in str(error.value)
            assert str(right.device()) in str(error.value)
        same((a + b.to(left)).cpu(), torch.full((2,), 2.0))


def test_ids_and_hashes_need_a_device_tensor():
    for fn in (mycelya_torch.get_storage_id, mycelya_torch.get_metadata_hash):
        with pytest.raises(TypeError, match="cpu"):
            fn(torch.zeros(1))
        with pytest.raises(TypeError, match="3"):
            fn(3)


def test_an_unknown_variable_is_a_warning(tmp_path):
    code = "import torch, mycelya_torch; torch.ones(1, device='mycelya').cpu()"
    status, _, err = run(code, tmp_path, MYCELYA_DUMPS="-")
    assert status == 0 and "MYCELYA_DUMPS" in err and "meant=MYCELYA_DUMP\n" in err


def test_variables_may_be_set_before_the_first_use(tmp_path):
    """Python's os.environ changes C's environment, which is not Go's."""
    code = """
        import os, torch
        os.environ["MYCELYA_DUMPS"] = "-"
        del os.environ["MYCELYA_REPLAYS"]
        torch.ones(1, device="mycelya").cpu()
    """
    status, _, err = run(code, tmp_path, fresh=True, MYCELYA_REPLAYS="off")
    assert status == 0
    assert "MYCELYA_DUMPS" in err and "MYCELYA_REPLAYS" not in err


@pytest.mark.parametrize(
    "variable, value", [("MYCELYA_DUMP", "-,wyh"), ("MYCELYA_CHECK", "high")]
)
def test_a_wrong_value_lists_the_right_ones(variable, value, tmp_path):
    code = "import torch, mycelya_torch; torch.ones(1, device='mycelya').cpu()"
    status, _, err = run(code, tmp_path, **{variable: value})
    assert status == 1 and variable in err and value.split(",")[-1] in err


def test_a_missing_build_is_an_import_error(tmp_path):
    package = tmp_path / "mycelya_torch"
    shutil.copytree(
        os.path.dirname(mycelya_torch.__file__),
        package,
        ignore=shutil.ignore_patterns("lib", "bin", "__pycache__"),
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    result = subprocess.run(
        [sys.executable, "-c", "import mycelya_torch"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1
    assert "ImportError" in result.stderr and "make build" in result.stderr


def test_info_is_about_the_worker():
    info = json.loads(_device.device_info(0))
    assert info["pid"] != os.getpid()
    assert is_running(info["pid"])
