# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Uses of a tensor that need host memory or an unsupported layout are refused."""

import numpy
import pytest
import torch
from helpers import DEVICE, same
from object_helpers import on_device, ramp, to_device
from torch import nn


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_numpy_is_refused():
    x = to_device(ramp(2, 3))
    for convert in (
        lambda: x.numpy(),
        lambda: numpy.array(x),
        lambda: numpy.asarray(x),
        lambda: x.__array__(),
        lambda: x.requires_grad_().numpy(),
        lambda: numpy.add(x, 1),
        lambda: x * numpy.ones(3),
    ):
        with pytest.raises(TypeError) as error:
            convert()
        assert str(error.value) == (
            "can't convert mycelya:0 device type tensor to numpy. Use Tensor.cpu() to "
            "copy the tensor to host memory first."
        )
    assert x.numpy(force=True).tolist() == x.tolist()
    same(numpy.float32(2) * x.detach(), ramp(2, 3) * 2)


def test_dlpack_is_refused():
    x = to_device(ramp(3))
    for export in (
        lambda: x.__dlpack__(),
        lambda: x.__dlpack__(max_version=(1, 0)),
        lambda: x.__dlpack__(dl_device=(1, 0), copy=False),
        lambda: torch.to_dlpack(x),
        lambda: torch.utils.dlpack.to_dlpack(x),
        lambda: numpy.from_dlpack(x),
    ):
        with pytest.raises(BufferError, match=r"mycelya:0 .*Use Tensor\.cpu\(\)"):
            export()
    for ask in (x.__dlpack_device__, lambda: torch.from_dlpack(x)):
        with pytest.raises(ValueError, match="mycelya"):
            ask()
    # An explicit request for a copy on the CPU works.
    assert numpy.from_dlpack(x, device="cpu").tolist() == [0.0, 1.0, 2.0]
    assert torch.from_dlpack(torch.to_dlpack(ramp(3))).tolist() == [0.0, 1.0, 2.0]
    assert on_device(torch.from_dlpack(ramp(3), device="mycelya"))
    assert torch.from_dlpack(numpy.ones(2)).to(DEVICE).tolist() == [1.0, 1.0]
    if hasattr(torch.utils.dlpack, "ReadOnlyTensorWrapper"):
        wrapper = torch.utils.dlpack.ReadOnlyTensorWrapper
        assert wrapper(ramp(3)).__dlpack__() is not None
        with pytest.raises(BufferError, match="mycelya"):
            wrapper(x).__dlpack__()


def test_other_exports_are_refused():
    x = to_device(ramp(3))
    assert not hasattr(x, "__cuda_array_interface__")
    with pytest.raises(AttributeError, match="torch.mycelya.FloatTensor"):
        _ = x.__cuda_array_interface__
    with pytest.raises(TypeError, match="bytes-like"):
        memoryview(x)
    for method in (x.apply_, lambda f: x.map_(x, f)):
        with pytest.raises(TypeError, match="only implemented on CPU"):
            method(lambda *a: a[0])


def test_shared_memory_is_refused():
    x = to_device(ramp(3))
    for share in (
        x.share_memory_,
        x.untyped_storage().share_memory_,
        nn.Linear(2, 2).to(DEVICE).share_memory,
    ):
        with pytest.raises(RuntimeError, match=r"tensor\.cpu\(\)\.share_memory_\(\)"):
            share()
    assert not x.is_shared() and not x.untyped_storage().is_shared()
    assert ramp(3).share_memory_().is_shared()


def test_sending_to_a_process_is_refused():
    queue = torch.multiprocessing.get_context("spawn").SimpleQueue()
    layer = nn.Linear(1, 1).to(DEVICE)
    for value in (to_device(ramp(3)), [to_device(torch.empty(0))], layer, layer.weight):
        with pytest.raises(RuntimeError, match=r"Send tensor\.cpu\(\)"):
            queue.put(value)
    queue.put(ramp(3))
    assert queue.get().tolist() == [0.0, 1.0, 2.0]


def test_data_parallel_is_refused():
    layer = nn.Linear(2, 2).to(DEVICE)
    for use in (
        lambda: nn.DataParallel(layer),
        lambda: nn.DataParallel(layer, device_ids=[0]),
        lambda: nn.parallel.data_parallel(layer, to_device(ramp(1, 2))),
    ):
        with pytest.raises(NotImplementedError, match="Use the module itself"):
            use()


REFUSED = {
    "a function of a compressed tensor": lambda x: x.to_sparse_csr().norm(),
    "quantize_per_tensor": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
    "quantize_per_channel": lambda x: torch.quantize_per_channel(
        x, torch.ones(2), torch.zeros(2), 0, torch.qint8
    ),
    "a quantized tensor moved": lambda x: torch.quantize_per_tensor(
        x.cpu(), 0.1, 0, torch.qint8
    ).to(x.device),
    "empty quantized": lambda x: torch.empty(2, dtype=torch.qint8, device=x.device),
    "to_mkldnn": lambda x: x.to_mkldnn(),
    "nested tensors of tensors": lambda x: torch.nested.as_nested_tensor([x[0], x[1]]),
    "a nested tensor moved": lambda x: torch.nested.nested_tensor([x[0].cpu()]).to(
        x.device
    ),
}


@pytest.mark.parametrize("what", REFUSED)
@pytest.mark.filterwarnings("ignore:.*(prototype|deprecated|beta|invariant).*")
def test_layouts_are_refused_clearly(what):
    with pytest.raises(NotImplementedError) as error:
        REFUSED[what](to_device(ramp(2, 3)))
    text = str(error.value)
    assert "mycelya" in text and ".cpu()" in text, text


def test_nested_tensors_are_jagged():
    """The strided layout is refused, and the advice works."""
    parts = [ramp(2, 3), ramp(4, 3)]
    there = [to_device(part) for part in parts]
    for refused in (
        lambda: torch.nested.nested_tensor(there),
        lambda: torch.nested.as_nested_tensor(there),
        lambda: torch.nested.nested_tensor(parts).to(DEVICE),
    ):
        with pytest.raises(NotImplementedError, match="layout=torch.jagged"):
            refused()
    for jagged in (
        torch.nested.nested_tensor(parts, layout=torch.jagged, device=DEVICE),
        torch.nested.nested_tensor(there, layout=torch.jagged),
        torch.nested.as_nested_tensor(there, layout=torch.jagged),
        torch.nested.nested_tensor(parts, layout=torch.jagged).to(DEVICE),
    ):
        assert on_device(jagged)
        for ours, cpu in zip((jagged + 1).unbind(), parts, strict=True):
            same(ours, cpu + 1)
