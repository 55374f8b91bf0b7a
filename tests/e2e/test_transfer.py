# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Transfers of tensors to the device and back."""

import copy
import io

import numpy
import pytest
import torch
from helpers import DEVICE, run, same, to_device

DTYPES = [
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.uint16, torch.uint32, torch.uint64),
]


def raw(tensor):
    return tensor.contiguous().view(torch.uint8)


@pytest.mark.critical
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_bit_pattern_survives(dtype):
    x = torch.randint(0, 256, (6, 16), dtype=torch.uint8)
    x = (x % 2).bool() if dtype == torch.bool else x.view(dtype)
    back = x.to("mycelya").cpu()
    assert back.dtype == dtype and torch.equal(raw(back), raw(x))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_item(dtype):
    x = torch.tensor([0, 1]).to(dtype).to(DEVICE)
    assert x[1].item() == 1 and type(x[1].item()) is type(x[1].cpu().item())


def test_layouts():
    x = torch.randn(3, 4, 5)
    for view in (
        x.transpose(0, 2),
        x[:, 1:3, ::2],
        x[1, 2, 3],
        x[:0],
        x.permute(1, 2, 0),
        x.expand(2, 3, 4, 5),
        torch.tensor(2.5),
    ):
        assert view.to(DEVICE).stride() == view.to("cpu", copy=True).stride()
        same(view.to(DEVICE), view.to("cpu", copy=True))
        same(
            to_device(x).as_strided(view.shape, view.stride()).cpu(),
            x.as_strided(view.shape, view.stride()).clone(),
        )


def test_device_and_dtype_at_once():
    x = torch.arange(6).reshape(2, 3)
    y = x.to(DEVICE, torch.float64)
    assert (y.device.type, y.dtype) == ("mycelya", torch.float64)
    assert y.to("cpu", torch.int32).tolist() == x.tolist()
    assert y.to(DEVICE) is y
    assert x.mycelya().device == torch.device("mycelya:0")
    assert y.to(DEVICE, copy=True).data_ptr() != y.data_ptr()


def test_an_upload_is_copied_at_the_call():
    x = torch.ones(1000)
    y = x.to(DEVICE, non_blocking=True)
    z = torch.zeros(1000, device=DEVICE)
    z.copy_(x, non_blocking=True)
    x.fill_(7)
    assert y.sum().item() == 1000 and z.sum().item() == 1000


def test_copies_convert():
    x = torch.randn(3, 4)
    y = torch.zeros(3, 4, dtype=torch.float64, device=DEVICE)
    y.copy_(x)
    same(y, x.double())
    back = torch.zeros(4, 3, dtype=torch.float16).t()
    back.copy_(y)
    torch.testing.assert_close(back, x.half())
    part = torch.zeros(3, 8)
    part[:, ::2] = y.cpu().float()
    part[:, 1::2].copy_(y)
    assert torch.equal(part[:, 0::2], part[:, 1::2])


def test_a_download_is_no_larger_than_the_view(counters):
    x = torch.zeros(1 << 20, device=DEVICE)
    torch.mycelya.synchronize()
    before = counters()["bytes_received"]
    assert x[5:7].cpu().tolist() == [0.0, 0.0]
    assert counters()["bytes_received"] - before < 4096


def test_reading_as_numbers_and_arrays():
    x = torch.arange(6.0).reshape(2, 3).to(DEVICE)
    assert x.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert numpy.array_equal(x.cpu().numpy(), numpy.arange(6.0).reshape(2, 3))
    assert bool(x[0, 1]) and int(x[1, 1]) == 4 and float(x[1, 2]) == 5.0
    assert torch.equal(x, x.clone()) and not torch.equal(x, x + 1)
    assert torch.allclose(x, x + 1e-9)
    with pytest.raises(TypeError, match="mycelya"):
        x.numpy()
    same(torch.from_numpy(numpy.ones(3)).to(DEVICE), torch.ones(3).double())


def test_printing_reads_once(counters):
    for x in (
        torch.arange(12.0).reshape(3, 4),
        torch.randn(200, 300),
        torch.randn(3000),
        torch.zeros(0, 2),
        torch.tensor(1.5),
        torch.randn(2, dtype=torch.complex64),
        torch.randn(40, 2, 40, 3),
    ):
        expected = repr(x)
        there = x.to(DEVICE)
        torch.mycelya.synchronize()
        before = counters()
        text = repr(there)
        after = counters()
        body, _, suffix = text.rpartition(", device='mycelya:0'")
        assert body + suffix == expected or "size=" in expected or "\n" in suffix
        assert text.replace(" ", "").replace("\n", "").replace(
            ",device='mycelya:0'", ""
        ) == expected.replace(" ", "").replace("\n", "")
        assert after["round_trips"] - before["round_trips"] <= 1
        assert after["bytes_received"] - before["bytes_received"] < 64 << 10


def test_copies_of_objects():
    model = torch.nn.Linear(3, 2).to(DEVICE)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.weight.zero_()
    assert model.weight.abs().sum().item() > 0
    assert twin.weight.device.type == "mycelya"


@pytest.mark.parametrize("where", ["cpu", "mycelya"])
def test_save_and_load(where):
    base = torch.arange(8.0, device=DEVICE)
    file = io.BytesIO()
    torch.save({"base": base, "view": base[2:4], "w": torch.nn.Parameter(base)}, file)
    file.seek(0)
    loaded = torch.load(file, map_location=where)
    assert {t.device.type for t in loaded.values()} == {where}
    loaded["base"].add_(1)
    assert loaded["view"].tolist() == [3.0, 4.0]


@pytest.mark.slow
def test_device_data_takes_no_memory_of_the_client(tmp_path):
    code = """
        import torch, mycelya_torch

        def resident():
            for line in open("/proc/self/status"):
                if line.startswith("VmRSS"):
                    return int(line.split()[1]) / 1024  # MiB

        torch.ones(8).to("mycelya").sum().item()  # starts worker, loads libraries
        before = resident()
        x = torch.full((1 << 28,), 1.5)  # 1 GiB
        y = x.to("mycelya")
        del x
        total = y.sum(dtype=torch.float64).item()
        assert total == 1.5 * (1 << 28), total
        print(resident() - before)
    """
    status, out, err = run(code, tmp_path, timeout=240)
    assert status == 0, err
    assert float(out.split()[-1]) < 64
