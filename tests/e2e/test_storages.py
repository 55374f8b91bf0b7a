# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Storages, their bytes, and the addresses of tensors."""

import copy
import pickle

import pytest
import torch
from helpers import DEVICE
from object_helpers import ramp, to_device


def test_storages():
    x = to_device(ramp(2, 3))
    storage = x.untyped_storage()
    assert storage.nbytes() == len(storage) == 24 and storage.device == x.device
    assert storage.is_mycelya and not storage.is_cuda and storage.get_device() == 0
    assert storage.tolist() == x.cpu().untyped_storage().tolist() == list(storage)
    assert storage[6] == 128 and storage[-1] == 64
    storage[7] = 0  # the last byte of 1.0; the value becomes 2 ** -126
    assert x[0, 1].item() == 2.0**-126
    twin = storage.clone()
    twin.fill_(0)
    assert x[1, 2].item() == 5.0 and twin.tolist() == [0] * 24
    twin.copy_(storage)
    assert twin.cpu().tolist() == storage.cpu().tolist()
    assert torch.UntypedStorage(24).copy_(storage).tolist() == storage.tolist()
    assert copy.deepcopy(storage).device == x.device
    assert torch.empty(0, device=DEVICE).set_(storage, 1, (2,), (2,)).tolist() == [
        2.0**-126,
        3.0,
    ]
    made = torch.UntypedStorage(5, device="mycelya")
    assert made.device == x.device and len(made) == 5
    assert ramp(2).untyped_storage().mycelya().tolist() == [0, 0, 0, 0, 0, 0, 128, 63]
    assert x.untyped_storage().mycelya() is not None
    with pytest.raises(IndexError):
        storage[24]
    with pytest.raises(RuntimeError, match="different device"):
        torch.empty(0, device=DEVICE).set_(torch.ones(2).untyped_storage())
    with pytest.raises(NotImplementedError, match=r"set_\(storage\)\[start:stop\]"):
        storage[1:3]


def test_a_storage_is_resized():
    x = to_device(ramp(4))
    x.untyped_storage().resize_(8)
    assert x.untyped_storage().nbytes() == 8 and x.resize_(2).tolist() == [0.0, 1.0]
    x.untyped_storage().resize_(0)
    x.untyped_storage().resize_(8)
    x.fill_(3)
    assert x.tolist() == [3.0, 3.0]


def test_byteswap():
    x = ramp(3, dtype=torch.int32)
    y = to_device(x)
    for storage in (x.untyped_storage(), y.untyped_storage()):
        storage.byteswap(torch.int32)
    assert y.tolist() == x.tolist() == [0, 1 << 24, 2 << 24]


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_typed_storages():
    x = to_device(ramp(2, 3))
    storage = x.storage()
    assert storage.tolist() == list(storage) == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert storage.type() == "torch.mycelya.FloatStorage" and storage.is_mycelya
    assert isinstance(storage, torch.mycelya.FloatStorage)
    assert not isinstance(x.half().storage(), torch.mycelya.FloatStorage)
    storage[0] = 9
    assert x[0, 0].item() == 9.0 and storage[0] == 9.0
    assert storage.half().tolist() == [9.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert storage.cpu().device.type == "cpu"
    assert torch.mycelya.LongStorage([1, 2]).tolist() == [1, 2]
    assert torch.mycelya.LongStorage(4).device == x.device
    assert x.storage_type() is torch.mycelya.FloatStorage
    assert (
        copy.deepcopy(storage).tolist() == pickle.loads(pickle.dumps(storage)).tolist()
    )
    with pytest.raises(RuntimeError, match="CPU"):
        torch.mycelya.FloatStorage.from_buffer(b"1234", "native")


def test_addresses():
    """Addresses are not in this process, but comparing them works as usual."""
    x, y = to_device(ramp(4, 3)), to_device(ramp(4, 3))
    assert (
        x.data_ptr() != y.data_ptr() and x.data_ptr() == x.untyped_storage().data_ptr()
    )
    assert x[2].data_ptr() - x.data_ptr() == 24 == x[2].storage_offset() * 4
    assert x.view(12).data_ptr() == x.data_ptr() == x.detach().data_ptr()
    assert x.data_ptr() % 512 == 0 and torch.empty(0, device=DEVICE).data_ptr() == 0
    assert x.is_set_to(x.view(4, 3)) and not x.is_set_to(x.clone())
    before = x.data_ptr()
    x.add_(1)
    assert x.data_ptr() == before
    end = x.data_ptr() + x.untyped_storage().nbytes()
    assert not x.data_ptr() <= y.data_ptr() < end
