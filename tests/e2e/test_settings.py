# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Wrong settings and limits: one message that names the setting and the fix."""

import pytest
import torch
from helpers import DEVICE, run

from mycelya_torch import _device

USE = """
    import logging, torch, mycelya_torch
    print(torch.ones(2, device="mycelya"))
    print(logging.getLogger("mycelya").level)
"""
TEXT = "tensor([1., 1.], device='mycelya:0')\n"


@pytest.mark.parametrize(
    "word, level",
    [
        ("verbose", 10),
        (" Debug ", 10),
        ("WARNING", 30),
        ("warn", 30),
        ("critical", 40),
    ],
)
def test_words_of_the_log_level(word, level, tmp_path):
    status, out, err = run(USE, tmp_path, MYCELYA_LOG=word)
    assert (status, out) == (0, f"{TEXT}{level}\n"), err
    assert "MYCELYA_LOG" not in err


def test_an_unknown_log_level_is_a_warning(tmp_path):
    status, out, err = run(USE, tmp_path, MYCELYA_LOG="loud")
    assert (status, out) == (0, f"{TEXT}0\n"), err
    assert "MYCELYA_LOG='loud' is not a level" in err and "verbose" in err


IMPORT = """
    try:
        import mycelya_torch
    except (ValueError, NotImplementedError) as error:
        print(error)
    else:
        import torch
        print(torch.ones(2, device="mycelya").sum().item())
"""


@pytest.mark.parametrize(
    "value, wanted",
    [
        ("locl", "'locl' is not a provider"),
        ("local:gpu", "device='gpu' is not a device of the local machine"),
        ("kubernetes?wait=x", "wait='x' is not possible on the kubernetes machine"),
        ("local:cpu", "2.0"),
        ("", "2.0"),
    ],
)
def test_the_machine(value, wanted, tmp_path):
    env = {"MYCELYA_MACHINE": value, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    status, out, err = run(IMPORT, tmp_path, **env)
    assert (status, err) == (0, "")
    assert wanted in out and len(out) < 250
    if wanted != "2.0":
        assert f"MYCELYA_MACHINE={value!r}" in out and "Set it to 'local'" in out


@pytest.mark.parametrize(
    "value, wanted",
    [
        ("fuse", "unknown word"),
        ("-fusee", "no pass"),
        ("-negofneq", "as -NegOfNeg"),
        ("until=x", "no pass"),
        ("bisect=cse", "needs a count, as in bisect=cse:10"),
    ],
)
def test_the_passes(value, wanted, tmp_path):
    code = """
        import torch, mycelya_torch
        try:
            torch.ones(2, device="mycelya").sum().item()
        except ValueError as error:
            print(error)
    """
    status, out, err = run(code, tmp_path, MYCELYA_PASSES=value)
    assert (status, err) == (0, "")
    assert f'MYCELYA_PASSES is "{value}"' in out and wanted in out and len(out) < 250


def test_too_many_open_files(tmp_path):
    """The message says what failed and what to do; nothing is to be reinstalled."""
    code = """
        import os, resource, torch, mycelya_torch

        torch.ones(2).to("mycelya:0").cpu()  # loads the libraries, starts the worker
        mycelya_torch.RemoteMachine  # loads the module
        kept = []
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
        try:
            while True:
                kept.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            pass
        try:
            mycelya_torch.RemoteMachine("local", device="cpu")
        except RuntimeError as error:
            print(error)
        for fd in kept:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        with mycelya_torch.RemoteMachine("local", device="cpu") as machine:
            print(torch.ones(2).to(machine.device()).sum().item())
    """
    status, out, err = run(code, tmp_path, fresh=True)
    assert status == 0, err
    assert "too many open files" in out and "ulimit -n" in out
    assert "einstall" not in out and out.endswith("\n2.0\n")


# ---- What a worker sends is not trusted ----

RANK = 32


def words(dtype, sizes, strides, rank=None):
    def pad(values):
        return [*values, *[0] * (RANK - len(values))]

    rank = len(sizes) if rank is None else rank
    return [dtype, rank, *pad(sizes), *pad(strides)]


@pytest.mark.parametrize(
    "record, what",
    [
        (words(99, [1], [1]), "dtype 99"),
        (words(-1, [1], [1]), "dtype -1"),
        (words((1 << 32) + 6, [1], [1]), "dtype"),
        (words(6, [1], [1], 33), "rank 33"),
        (words(6, [1], [1], -1), "rank -1"),
        (words(6, [1], [1], 1 << 40), "rank"),
        (words(6, [-3], [1]), "size -3"),
        (words(6, [3], [-1]), "stride -1"),
        (words(6, [1 << 40, 1 << 40], [1, 1]), "size"),
        (words(6, [3, 3], [1 << 62, 1]), "stride"),
        (words(6, [1 << 62], [0]), "elements"),
    ],
)
def test_a_shape_that_no_tensor_has(record, what):
    with pytest.raises(RuntimeError, match=f"result of {what}"):
        _device.shape_of(record)


def test_shapes_that_workers_send():
    assert _device.shape_of(words(6, [], [])) == ([], [])
    assert _device.shape_of(words(6, [2, 3], [1, 2])) == ([2, 3], [1, 2])
    assert _device.shape_of(words(6, [0, 1 << 40], [1 << 40, 1])) == (
        [0, 1 << 40],
        [1 << 40, 1],
    )
    assert _device.shape_of(words(6, [1] * RANK, [1] * RANK))[0] == [1] * RANK
    x = torch.tensor([0.0, 2.0, 3.0]).to(DEVICE)
    assert x.nonzero().tolist() == [[1], [2]]


@pytest.mark.cpu_worker
def test_control_characters_of_a_text():
    """An error's text cannot steer a terminal; newlines and tabs stay."""
    x = torch.ones((), device=DEVICE)
    torch._assert_async(x == 2, "a\x1b[2Jb\tc\nd\u202ee\u00e9")
    with pytest.raises(RuntimeError) as error:
        torch.mycelya.synchronize()
    assert str(error.value).startswith("a\\x1b[2Jb\tc\nd\\u202ee\u00e9\n")
