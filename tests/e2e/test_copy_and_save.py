# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Copies, pickles and files of tensors, models and optimizers."""

import copy
import io
import pickle
import sys
from collections import OrderedDict

import pytest
import torch
from helpers import DEVICE, same
from object_helpers import (
    Sub,
    copy_to_cpu,
    on_device,
    ramp,
    raw,
    same_storage,
    to_device,
)
from torch import nn

import mycelya_torch

SAVED_DTYPES = [
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.uint64),
]


@pytest.fixture
def other():
    """The device of a second machine."""
    with mycelya_torch.RemoteMachine("local") as machine:
        yield machine.device()


# ---- Copies ----


def test_deepcopy_of_tensors():
    base = to_device(ramp(2, 3))
    copies = copy.deepcopy([base, base[1], base, base.t()])
    assert copies[0] is copies[2] and same_storage(copies[0], copies[1])
    assert copies[3].stride() == base.t().stride()
    base.zero_()
    assert copies[0].tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    copies[0].add_(1)
    assert copies[1].tolist() == [4.0, 5.0, 6.0]
    assert copy.copy(base).data_ptr() == base.data_ptr()


def test_deepcopy_keeps_what_belongs_to_a_tensor():
    leaf = to_device(ramp(3)).requires_grad_()
    leaf.pow(2).sum().backward()
    leaf.note = ["mine"]
    twin = copy.deepcopy(leaf)
    assert twin.requires_grad and twin.note == ["mine"] and twin.note is not leaf.note
    assert twin.grad.tolist() == [0.0, 2.0, 4.0] and not same_storage(twin, leaf)
    z = torch.complex(to_device(ramp(2)), to_device(ramp(2)))
    assert copy.deepcopy(z.conj()).tolist() == z.conj().tolist()
    assert copy.deepcopy(z.conj().imag).tolist() == [-0.0, -1.0]
    with pytest.raises(RuntimeError, match="graph leaves"):
        copy.deepcopy(leaf * 2)


def test_deepcopy_of_a_model_and_its_optimizer():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model(to_device(torch.randn(4, 3))).sum().backward()
    optimizer.step()
    twins, twin_optimizer = copy.deepcopy((model, optimizer))
    assert twin_optimizer.param_groups[0]["params"][0] is twins[0].weight
    same(twin_optimizer.state_dict(), copy_to_cpu(optimizer.state_dict()))
    x = to_device(torch.randn(4, 3))
    for m, o in ((model, optimizer), (twins, twin_optimizer)):
        o.zero_grad()
        m(x).pow(2).sum().backward()
        o.step()
    same(twins.state_dict(), copy_to_cpu(model.state_dict()))
    assert not same_storage(twins[0].weight, model[0].weight)


def test_generators_are_copied():
    generator = torch.Generator("mycelya").manual_seed(7)
    torch.rand(3, device=DEVICE, generator=generator)
    twins = [copy.deepcopy(generator), pickle.loads(pickle.dumps(generator))]
    expected = torch.rand(5, device=DEVICE, generator=generator)
    for twin in twins:
        assert twin.device == generator.device and twin.initial_seed() == 7
        same(torch.rand(5, device=DEVICE, generator=twin), expected.cpu())


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_pickle(protocol):
    def round_trip(value):
        return pickle.loads(pickle.dumps(value, protocol))

    x = to_device(ramp(2, 3))
    for tensor in (x, x.t(), x[1:, ::2], x.half(), x.bfloat16(), x > 2, x[:0], x[0, 1]):
        back = round_trip(tensor)
        assert on_device(back) and back.stride() == tensor.stride()
        assert back.dtype == tensor.dtype and torch.equal(back.cpu(), tensor.cpu())
    z = torch.complex(x, x)
    assert round_trip(z.conj()).is_conj() and round_trip(z.conj().imag).is_neg()
    same(round_trip(z.conj()), z.conj().cpu())
    parameter = round_trip(nn.Parameter(x))
    assert isinstance(parameter, nn.Parameter) and parameter.requires_grad
    assert isinstance(round_trip(x.as_subclass(Sub)), Sub)
    model = nn.Linear(3, 2).to(DEVICE)
    twin = round_trip(model)
    assert on_device(twin.weight)
    same(twin(x), model(x).cpu())


# ---- torch.save and torch.load ----


def saved(value, **options):
    file = io.BytesIO()
    torch.save(value, file, **options)
    file.seek(0)
    return file


@pytest.mark.parametrize("dtype", SAVED_DTYPES, ids=str)
def test_every_dtype_goes_through_a_file(dtype):
    x = ramp(2, 3, dtype=dtype)
    for tensor, where in ((x, "mycelya"), (to_device(x), "cpu"), (to_device(x), None)):
        back = torch.load(saved(tensor), map_location=where)
        assert back.device.type == (where or "mycelya") and back.dtype == dtype
        assert torch.equal(raw(back), raw(x)) and back.stride() == x.stride()


LOCATIONS = {
    "a string": "mycelya",
    "a string with an index": "mycelya:0",
    "a device": torch.device("mycelya"),
    "a device with an index": torch.device("mycelya", 0),
    "a dict": {"cpu": "mycelya:0"},
    "a function that moves": lambda storage, location: storage.mycelya(),
    "a function of to": lambda storage, location: storage.to(device="mycelya:0"),
}


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("location", LOCATIONS)
def test_a_cpu_file_is_loaded_to_the_device(location, zipped):
    base = ramp(8)
    state = {"base": base, "view": base[2:5], "w": nn.Parameter(base.clone()), "n": 3}
    file = saved(state, _use_new_zipfile_serialization=zipped)
    loaded = torch.load(file, map_location=LOCATIONS[location], weights_only=zipped)
    assert all(on_device(t) for t in loaded.values() if isinstance(t, torch.Tensor))
    assert same_storage(loaded["base"], loaded["view"]) and loaded["n"] == 3
    loaded["base"].add_(1)
    assert loaded["view"].tolist() == [3.0, 4.0, 5.0]
    assert loaded["w"].tolist() == base.tolist() and loaded["w"].requires_grad


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize(
    "location", ["cpu", torch.device("cpu"), {"mycelya:0": "cpu"}, lambda s, _: s.cpu()]
)
def test_a_device_file_is_loaded_to_the_cpu(location, zipped):
    base = to_device(ramp(8))
    file = saved([base, base[2:5]], _use_new_zipfile_serialization=zipped)
    loaded = torch.load(file, map_location=location)
    assert [t.device.type for t in loaded] == ["cpu", "cpu"]
    assert same_storage(*loaded) and loaded[1].tolist() == [2.0, 3.0, 4.0]


def test_a_device_file_finds_its_device(tmp_path, other):
    x = ramp(3)
    path = tmp_path / "file.pt"
    torch.save({"here": to_device(x), "other": x.to(other)}, path)
    loaded = torch.load(path)
    assert (loaded["here"].device, loaded["other"].device) == (
        torch.device("mycelya:0"),
        other,
    )
    moved = torch.load(path, map_location={"mycelya:0": str(other)})
    assert {t.device for t in moved.values()} == {other}
    moved = torch.load(path, map_location=other, mmap=True)
    same(list(moved.values()), [x, x])
    with torch.mycelya.device(other):
        assert torch.load(path, map_location="mycelya")["here"].device == other


def test_a_machine_that_is_not_there(monkeypatch):
    monkeypatch.setattr(torch.mycelya, "device_count", lambda: 1)
    x = to_device(ramp(3))
    file = saved(x).getvalue().replace(b"mycelya:0", b"mycelya:9")
    with pytest.raises(RuntimeError, match=r"device 9 but .*device_count\(\) is 1"):
        torch.load(io.BytesIO(file))
    same(torch.load(io.BytesIO(file), map_location="mycelya:0"), x.cpu())


def test_checkpoints_of_a_training():
    def make(device):
        # Before a batch norm, a bias has a gradient of zero plus rounding errors.
        first = nn.Linear(3, 4, bias=False)
        model = nn.Sequential(first, nn.BatchNorm1d(4), nn.Linear(4, 1)).to(device)
        return model, torch.optim.AdamW(model.parameters(), lr=0.05)

    def train(model, optimizer, seed, steps):
        generator = torch.Generator().manual_seed(seed)
        for _ in range(steps):
            x = torch.randn(6, 3, generator=generator).to(
                next(model.parameters()).device
            )
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()

    model, optimizer = make(DEVICE)
    train(model, optimizer, 1, 3)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    data = saved(state).getvalue()
    train(model, optimizer, 2, 3)
    for where, device in (("cpu", DEVICE), (None, DEVICE), ("cpu", "cpu")):
        twin, twin_optimizer = make(device)
        state = torch.load(io.BytesIO(data), map_location=where)
        twin.load_state_dict(state["model"])
        twin_optimizer.load_state_dict(state["optimizer"])
        train(twin, twin_optimizer, 2, 3)
        tolerance = 1e-4 if device == "cpu" else 1e-6
        same(
            copy_to_cpu(twin.state_dict()),
            copy_to_cpu(model.state_dict()),
            tolerance,
            tolerance,
        )
    assigned = make(DEVICE)[0]
    state = torch.load(io.BytesIO(data))["model"]
    assigned.load_state_dict(state, assign=True)
    assert same_storage(assigned[0].weight, state["0.weight"])


def test_safetensors(tmp_path):
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import load_file, load_model, save_file, save_model

    path = tmp_path / "file.safetensors"
    tensors = {
        "a": ramp(2, 3),
        "b": ramp(4, dtype=torch.bfloat16),
        "c": ramp(3, dtype=torch.int64),
        "empty": torch.empty(0, 2),
    }
    save_file({name: to_device(t) for name, t in tensors.items()}, path)
    loaded = load_file(path)
    same({name: loaded[name] for name in tensors}, tensors)
    for device in ("mycelya", "mycelya:0", torch.device("mycelya"), 0):
        loaded = load_file(path, device=device)
        assert all(on_device(t) for t in loaded.values())
        same({name: loaded[name] for name in tensors}, tensors)
    with safe_open(path, framework="pt", device="mycelya:0") as file:
        assert isinstance(file, safe_open) and sorted(file.keys()) == sorted(tensors)
        same(file.get_tensor("a"), tensors["a"])
        part = file.get_slice("a")[:, 1:]
        assert on_device(part)
        same(part, tensors["a"][:, 1:].contiguous())
    with safe_open(path, "pt") as file:
        assert file.get_tensor("a").device.type == "cpu"
    with pytest.raises(SafetensorError):
        load_file(path, device="moon")
    shared = to_device(ramp(4))
    with pytest.raises(RuntimeError, match="share memory"):
        save_file({"one": shared, "two": shared[1:]}, path)
    model = nn.Linear(3, 2).to(DEVICE)
    save_model(model, path)
    twin = nn.Linear(3, 2)
    load_model(twin.to(DEVICE), path, device="mycelya")
    same(twin.state_dict(), copy_to_cpu(model.state_dict()))


def test_state_dicts_are_ordinary():
    model = nn.Sequential(OrderedDict(a=nn.Linear(2, 2), b=nn.BatchNorm1d(2))).to(
        DEVICE
    )
    state = model.state_dict()
    assert all(on_device(t) and not t.requires_grad for t in state.values())
    assert same_storage(state["a.weight"], model.a.weight)
    assert state["b.num_batches_tracked"].item() == 0
    wrong = nn.Linear(3, 3)
    with pytest.raises(RuntimeError, match="size mismatch"):
        wrong.load_state_dict(model.a.state_dict())
    same(nn.utils.parameters_to_vector(model.a.parameters()).shape, torch.Size([6]))
    assert sys.getsizeof(state["a.weight"].untyped_storage()) > 16
