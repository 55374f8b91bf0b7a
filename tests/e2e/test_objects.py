# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Tensors, storages and modules as Python objects: copied, saved, moved, refused.

A long file of short tests in sections, in the order of a tensor's life.
"""

import copy
import gc
import io
import pickle
import sys
import warnings
import weakref
from collections import OrderedDict
from concurrent.futures import Future

import numpy
import pytest
import torch
from helpers import DEVICE, run, same
from torch import nn

import mycelya_torch

SAVED_DTYPES = [
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.uint64),
]


def ramp(*shape, dtype=torch.float32):
    return torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)


def there(tensor):
    return tensor.to(DEVICE)


def raw(tensor):
    """A tensor's bytes, for dtypes that have no ==."""
    return tensor.cpu().contiguous().view(torch.uint8)


def same_storage(a, b):
    return a.untyped_storage()._cdata == b.untyped_storage()._cdata


def is_there(tensor):
    return tensor.device == torch.device("mycelya", 0)


@pytest.fixture
def other():
    """The device of a second machine."""
    with mycelya_torch.RemoteMachine("local") as machine:
        yield machine.device()


@pytest.fixture(autouse=True)
def no_default_device():
    yield
    torch.set_default_device(None)


# ---- Copies ----


def test_deepcopy_of_tensors():
    base = there(ramp(2, 3))
    copies = copy.deepcopy([base, base[1], base, base.t()])
    assert copies[0] is copies[2] and same_storage(copies[0], copies[1])
    assert copies[3].stride() == base.t().stride()
    base.zero_()
    assert copies[0].tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    copies[0].add_(1)
    assert copies[1].tolist() == [4.0, 5.0, 6.0]
    assert copy.copy(base).data_ptr() == base.data_ptr()


def test_deepcopy_keeps_what_belongs_to_a_tensor():
    leaf = there(ramp(3)).requires_grad_()
    leaf.pow(2).sum().backward()
    leaf.note = ["mine"]
    twin = copy.deepcopy(leaf)
    assert twin.requires_grad and twin.note == ["mine"] and twin.note is not leaf.note
    assert twin.grad.tolist() == [0.0, 2.0, 4.0] and not same_storage(twin, leaf)
    z = torch.complex(there(ramp(2)), there(ramp(2)))
    assert copy.deepcopy(z.conj()).tolist() == z.conj().tolist()
    assert copy.deepcopy(z.conj().imag).tolist() == [-0.0, -1.0]
    with pytest.raises(RuntimeError, match="graph leaves"):
        copy.deepcopy(leaf * 2)


def test_deepcopy_of_a_model_and_its_optimizer():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model(there(torch.randn(4, 3))).sum().backward()
    optimizer.step()
    twins, twin_optimizer = copy.deepcopy((model, optimizer))
    assert twin_optimizer.param_groups[0]["params"][0] is twins[0].weight
    same(twin_optimizer.state_dict(), copy_to_cpu(optimizer.state_dict()))
    x = there(torch.randn(4, 3))
    for m, o in ((model, optimizer), (twins, twin_optimizer)):
        o.zero_grad()
        m(x).pow(2).sum().backward()
        o.step()
    same(twins.state_dict(), copy_to_cpu(model.state_dict()))
    assert not same_storage(twins[0].weight, model[0].weight)


def copy_to_cpu(nest):
    return torch.utils._pytree.tree_map(
        lambda t: t.cpu() if isinstance(t, torch.Tensor) else t, nest
    )


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

    x = there(ramp(2, 3))
    for tensor in (x, x.t(), x[1:, ::2], x.half(), x.bfloat16(), x > 2, x[:0], x[0, 1]):
        back = round_trip(tensor)
        assert is_there(back) and back.stride() == tensor.stride()
        assert back.dtype == tensor.dtype and torch.equal(back.cpu(), tensor.cpu())
    z = torch.complex(x, x)
    assert round_trip(z.conj()).is_conj() and round_trip(z.conj().imag).is_neg()
    same(round_trip(z.conj()), z.conj().cpu())
    parameter = round_trip(nn.Parameter(x))
    assert isinstance(parameter, nn.Parameter) and parameter.requires_grad
    assert isinstance(round_trip(x.as_subclass(Sub)), Sub)
    model = nn.Linear(3, 2).to(DEVICE)
    twin = round_trip(model)
    assert is_there(twin.weight)
    same(twin(x), model(x).cpu())


class Sub(torch.Tensor):
    pass


# ---- torch.save and torch.load ----


def saved(value, **options):
    file = io.BytesIO()
    torch.save(value, file, **options)
    file.seek(0)
    return file


@pytest.mark.parametrize("dtype", SAVED_DTYPES, ids=str)
def test_every_dtype_goes_through_a_file(dtype):
    x = ramp(2, 3, dtype=dtype)
    for tensor, where in ((x, "mycelya"), (there(x), "cpu"), (there(x), None)):
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
    assert all(is_there(t) for t in loaded.values() if isinstance(t, torch.Tensor))
    assert same_storage(loaded["base"], loaded["view"]) and loaded["n"] == 3
    loaded["base"].add_(1)
    assert loaded["view"].tolist() == [3.0, 4.0, 5.0]
    assert loaded["w"].tolist() == base.tolist() and loaded["w"].requires_grad


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize(
    "location", ["cpu", torch.device("cpu"), {"mycelya:0": "cpu"}, lambda s, _: s.cpu()]
)
def test_a_device_file_is_loaded_to_the_cpu(location, zipped):
    base = there(ramp(8))
    file = saved([base, base[2:5]], _use_new_zipfile_serialization=zipped)
    loaded = torch.load(file, map_location=location)
    assert [t.device.type for t in loaded] == ["cpu", "cpu"]
    assert same_storage(*loaded) and loaded[1].tolist() == [2.0, 3.0, 4.0]


def test_a_device_file_finds_its_device(tmp_path, other):
    x = ramp(3)
    path = tmp_path / "file.pt"
    torch.save({"here": there(x), "other": x.to(other)}, path)
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
    x = there(ramp(3))
    file = saved(x).getvalue().replace(b"mycelya:0", b"mycelya:9")
    with pytest.raises(RuntimeError, match=r"device 9 but .*device_count\(\) is 1"):
        torch.load(io.BytesIO(file))
    same(torch.load(io.BytesIO(file), map_location="mycelya:0"), x.cpu())


def test_checkpoints_of_a_training():
    def make(device):
        # Normalized, a bias would have only rounding for a gradient.
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
    save_file({name: there(t) for name, t in tensors.items()}, path)
    loaded = load_file(path)
    same({name: loaded[name] for name in tensors}, tensors)
    for device in ("mycelya", "mycelya:0", torch.device("mycelya"), 0):
        loaded = load_file(path, device=device)
        assert all(is_there(t) for t in loaded.values())
        same({name: loaded[name] for name in tensors}, tensors)
    with safe_open(path, framework="pt", device="mycelya:0") as file:
        assert isinstance(file, safe_open) and sorted(file.keys()) == sorted(tensors)
        same(file.get_tensor("a"), tensors["a"])
        part = file.get_slice("a")[:, 1:]
        assert is_there(part)
        same(part, tensors["a"][:, 1:].contiguous())
    with safe_open(path, "pt") as file:
        assert file.get_tensor("a").device.type == "cpu"
    with pytest.raises(SafetensorError):
        load_file(path, device="moon")
    shared = there(ramp(4))
    with pytest.raises(RuntimeError, match="share memory"):
        save_file({"one": shared, "two": shared[1:]}, path)
    model = nn.Linear(3, 2).to(DEVICE)
    save_model(model, path)
    twin = nn.Linear(3, 2)
    load_model(twin.to(DEVICE), path, device="mycelya")
    same(twin.state_dict(), copy_to_cpu(model.state_dict()))


# ---- Modules ----


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(3, 3)
        self.b = nn.Linear(3, 3)
        self.b.weight = self.a.weight
        self.register_buffer("scale", torch.ones(3))
        self.alias = self.scale

    def forward(self, x):
        return self.b(self.a(x)) * self.scale


MOVES = {
    "to": lambda m: m.to(DEVICE),
    "to a dtype as well": lambda m: m.to(DEVICE, torch.float32),
    "to a tensor's": lambda m: m.to(torch.empty(0, device=DEVICE)),
    "mycelya": lambda m: m.mycelya(),
    "mycelya of an index": lambda m: m.mycelya(0),
}


@pytest.mark.parametrize("move", MOVES)
def test_ties_are_kept(move):
    model = Tied()
    weight, optimizer = model.a.weight, torch.optim.SGD(model.parameters(), lr=0.1)
    expected = copy.deepcopy(model)
    assert MOVES[move](model) is model
    assert model.a.weight is model.b.weight is weight is next(model.parameters())
    assert (
        is_there(weight)
        and is_there(model.scale)
        and len(list(model.parameters())) == 3
    )
    optimizers = [optimizer, torch.optim.SGD(expected.parameters(), lr=0.1)]
    x = torch.randn(4, 3)
    for _ in range(3):
        for m, o in zip((model, expected), optimizers, strict=True):
            o.zero_grad()
            m(x.to(m.a.weight.device)).pow(2).sum().backward()
            o.step()
    same(model.state_dict(), expected.state_dict(), 1e-4, 1e-5)
    model.cpu()
    assert model.a.weight is model.b.weight is weight and weight.device.type == "cpu"
    same(model.state_dict(), expected.state_dict(), 1e-4, 1e-5)


@pytest.mark.parametrize("swap", [False, True])
def test_ties_are_kept_whichever_way_modules_convert(swap):
    torch.__future__.set_swap_module_params_on_conversion(swap)
    try:
        model = Tied()
        weight = model.a.weight
        model.to(DEVICE).half()
        assert model.a.weight is model.b.weight is weight
        assert (weight.dtype, weight.device.type) == (torch.float16, "mycelya")
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def test_a_machine_stands_for_its_device():
    with mycelya_torch.RemoteMachine("local") as machine:
        x = ramp(2, 3)
        moved = [
            x.to(machine),
            x.to(machine, torch.float64),
            x.to(device=machine, dtype=torch.float64, non_blocking=True),
            nn.Linear(2, 2).to(machine).weight,
            nn.LazyLinear(3).to(machine).weight,
            nn.LazyLinear(3).to(machine.device()).weight,
            x.as_subclass(Sub).to(machine),
        ]
        assert {t.device for t in moved} == {machine.device()}
        assert moved[1].dtype == moved[2].dtype == torch.float64
        assert isinstance(moved[-1], Sub)
        assert pickle.loads(pickle.dumps(torch.Tensor.to)) is torch.Tensor.to


def test_a_gradient_moves_with_its_parameter():
    layer = nn.Linear(2, 1)
    layer(torch.ones(1, 2)).sum().backward()
    layer.to(DEVICE)
    assert is_there(layer.weight.grad) and layer.weight.grad.tolist() == [[1.0, 1.0]]
    layer.cpu()
    assert layer.weight.grad.device.type == "cpu"


def test_from_meta_to_the_device():
    def make():
        return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.LayerNorm(3))

    with torch.device("meta"):
        model = make()
    with pytest.raises(NotImplementedError, match="meta"):
        model.to(DEVICE)
    model.to_empty(device=DEVICE)
    assert all(is_there(t) for t in model.state_dict().values())
    for layer in model:
        layer.reset_parameters()
    source = make()
    model.load_state_dict(source.state_dict())
    x = torch.randn(5, 2)
    same(model(there(x)), source(x), 1e-4, 1e-5)
    with torch.device("meta"):
        assigned = make()
    assigned.load_state_dict(model.state_dict(), assign=True)
    assert same_storage(assigned[0].weight, model[0].weight)
    assert is_there(nn.utils.skip_init(nn.Linear, 2, 3, device=DEVICE).weight)
    for lazy in (
        nn.LazyLinear(3, device=DEVICE),
        nn.LazyLinear(3).to(DEVICE),
        nn.LazyLinear(3).mycelya(),
    ):
        assert is_there(lazy(there(x))) and lazy.weight.shape == (3, 2)


def test_packed_sequences_move():
    packed = nn.utils.rnn.pack_sequence([ramp(3), ramp(2)])
    moved = packed.to(DEVICE)
    assert moved.data.is_mycelya and moved.is_mycelya and not packed.is_mycelya
    same(nn.utils.rnn.unpack_sequence(moved), [ramp(3), ramp(2)])
    assert packed.mycelya().is_mycelya


# ---- Where tensors are made ----

FACTORIES = {
    "tensor": lambda **k: torch.tensor([1, 2], **k),
    "as_tensor": lambda **k: torch.as_tensor([1.5], **k),
    "asarray": lambda **k: torch.asarray(numpy.arange(3), **k),
    "asarray of a tensor": lambda **k: torch.asarray(ramp(2), **k),
    "zeros": lambda **k: torch.zeros(2, **k),
    "full": lambda **k: torch.full((2,), 3.0, **k),
    "arange": lambda **k: torch.arange(3, **k),
    "linspace": lambda **k: torch.linspace(0, 1, 3, **k),
    "eye": lambda **k: torch.eye(2, **k),
    "zeros_like": lambda **k: torch.zeros_like(ramp(2), **k),
    "complex": lambda **k: torch.tensor(1j, **k),
    "hann_window": lambda **k: torch.hann_window(4, **k),
    "logspace": lambda **k: torch.logspace(0, 1, 3, **k),
    "tril_indices": lambda **k: torch.tril_indices(3, 3, **k),
    "empty_strided": lambda **k: torch.empty_strided((2, 2), (1, 2), **k).zero_(),
    "scalar_tensor": lambda **k: torch.scalar_tensor(2.0, **k),
}


@pytest.mark.parametrize("device", ["mycelya", "mycelya:0", torch.device("mycelya"), 0])
@pytest.mark.parametrize("factory", FACTORIES)
def test_factories(factory, device):
    made = FACTORIES[factory](device=device)
    assert is_there(made)
    same(made, FACTORIES[factory](device="cpu"))


def test_factories_on_another_machine(other):
    for name, factory in FACTORIES.items():
        made = factory(device=other)
        assert made.device == other, name
        same(made, factory(device="cpu"))


def test_a_default_device():
    with torch.device("mycelya"):
        layer = nn.Linear(2, 3)
        made = [torch.ones(2), torch.arange(3), torch.tensor([1.0]), layer.weight]
        assert torch.get_default_device() == torch.device("mycelya", 0)
        assert torch.ones(1, device="cpu").device.type == "cpu"
        assert str(torch.zeros(1)) == "tensor([0.], device='mycelya:0')"
    assert all(is_there(t) for t in made) and torch.ones(1).device.type == "cpu"
    torch.set_default_device("mycelya")
    assert is_there(torch.rand(2)) and is_there(nn.Embedding(2, 2).weight)
    assert torch.get_default_device().type == "mycelya"
    assert torch.from_numpy(numpy.ones(2)).device.type == "cpu"  # as on CUDA
    torch.set_default_device(None)
    assert torch.ones(1).device.type == "cpu"


def test_a_default_device_of_another_machine(other):
    with torch.device(other):
        assert torch.ones(2).device == other
        assert nn.Linear(2, 2).weight.device == other
    with torch.mycelya.device(other):
        assert torch.ones(2, device="mycelya").device == other
        with torch.mycelya.device_of(torch.ones(1, device="mycelya:0")):
            assert torch.mycelya.current_device() == 0
    assert is_there(torch.ones(2, device="mycelya"))


@pytest.mark.filterwarnings("ignore:To copy construct from a tensor")
def test_made_like_another_tensor():
    x = there(ramp(2, 3))
    assert x.new_tensor([1, 2]).tolist() == [1.0, 2.0] and is_there(x.new_tensor(1))
    for made, expected in (
        (x.new_zeros(2), torch.zeros(2)),
        (x.new_ones((1, 2), dtype=torch.int32), torch.ones(1, 2, dtype=torch.int32)),
        (x.new_full((2,), 7.0), torch.full((2,), 7.0)),
        (x.new([1, 2]), torch.tensor([1.0, 2.0])),
        (torch.ones(2).type_as(x), torch.ones(2)),
        (torch.ones(2, dtype=torch.int64).type_as(x.half()), torch.ones(2).half()),
    ):
        assert is_there(made)
        same(made, expected)
    assert (
        is_there(x.new_empty(3)) and x.new_empty(3, device="cpu").device.type == "cpu"
    )
    assert x.new_empty_strided((2, 2), (1, 2)).stride() == (1, 2) and is_there(x.new(2))
    assert x.type_as(torch.ones(1, dtype=torch.float64)).device.type == "cpu"
    assert torch.tensor([x[0, 1], x[1, 0]]).device.type == "cpu"  # as on CUDA
    assert is_there(torch.tensor(x.cpu(), device=DEVICE)) and torch.asarray(x) is x


def test_legacy_types():
    float_tensor = torch.mycelya.FloatTensor
    x = float_tensor([1, 2, 3])
    assert is_there(x) and x.dtype == torch.float32 and x.tolist() == [1.0, 2.0, 3.0]
    assert float_tensor(2, 3).shape == (2, 3) and float_tensor().shape == (0,)
    assert float_tensor(torch.Size([4])).shape == (4,)
    assert float_tensor(x).data_ptr() == x.data_ptr()
    assert x.type() == "torch.mycelya.FloatTensor" and isinstance(x, float_tensor)
    assert isinstance(nn.Parameter(x), float_tensor)
    assert not isinstance(x.half(), float_tensor) and not isinstance(
        x.cpu(), float_tensor
    )
    assert (float_tensor.__name__, float_tensor.__module__) == (
        "FloatTensor",
        "torch.mycelya",
    )
    assert repr(float_tensor) == "<class 'torch.mycelya.FloatTensor'>"
    for kind in ("torch.mycelya.LongTensor", torch.mycelya.LongTensor):
        for source in (x, x.cpu()):
            moved = source.type(kind)
            assert is_there(moved) and moved.tolist() == [1, 2, 3]
            assert moved.type() == "torch.mycelya.LongTensor"
    assert x.type("torch.FloatTensor").device.type == "cpu"
    assert x.type(torch.float64).type() == "torch.mycelya.DoubleTensor"
    for name in ("Double", "Half", "BFloat16", "Int", "Short", "Char", "Byte", "Bool"):
        kind = getattr(torch.mycelya, f"{name}Tensor")
        assert kind([1]).type() == f"torch.mycelya.{name}Tensor"
        assert torch.ones(1, dtype=kind.dtype).type(kind).is_mycelya
    with pytest.raises(TypeError):
        float_tensor(torch.ones(2))  # of another type, as on CUDA
    with pytest.raises(AttributeError, match="StringTensor"):
        _ = torch.mycelya.StringTensor
    with pytest.raises(TypeError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.set_default_tensor_type(float_tensor)


# ---- Storages ----


def test_storages():
    x = there(ramp(2, 3))
    storage = x.untyped_storage()
    assert storage.nbytes() == len(storage) == 24 and storage.device == x.device
    assert storage.is_mycelya and not storage.is_cuda and storage.get_device() == 0
    assert storage.tolist() == x.cpu().untyped_storage().tolist() == list(storage)
    assert storage[6] == 128 and storage[-1] == 64
    storage[7] = 0  # of 1.0, which becomes 2 ** -126
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
    x = there(ramp(4))
    x.untyped_storage().resize_(8)
    assert x.untyped_storage().nbytes() == 8 and x.resize_(2).tolist() == [0.0, 1.0]
    x.untyped_storage().resize_(0)
    x.untyped_storage().resize_(8)
    x.fill_(3)
    assert x.tolist() == [3.0, 3.0]


def test_byteswap():
    x = ramp(3, dtype=torch.int32)
    y = there(x)
    for storage in (x.untyped_storage(), y.untyped_storage()):
        storage.byteswap(torch.int32)
    assert y.tolist() == x.tolist() == [0, 1 << 24, 2 << 24]


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_typed_storages():
    x = there(ramp(2, 3))
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
    """No memory of this process, but all that addresses are compared for holds."""
    x, y = there(ramp(4, 3)), there(ramp(4, 3))
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


# ---- What needs memory of this process ----


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_numpy_is_refused():
    x = there(ramp(2, 3))
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
    x = there(ramp(3))
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
    # Who asks for a copy on the CPU gets one.
    assert numpy.from_dlpack(x, device="cpu").tolist() == [0.0, 1.0, 2.0]
    assert torch.from_dlpack(torch.to_dlpack(ramp(3))).tolist() == [0.0, 1.0, 2.0]
    assert is_there(torch.from_dlpack(ramp(3), device="mycelya"))
    assert torch.from_dlpack(numpy.ones(2)).to(DEVICE).tolist() == [1.0, 1.0]
    if hasattr(torch.utils.dlpack, "ReadOnlyTensorWrapper"):
        wrapper = torch.utils.dlpack.ReadOnlyTensorWrapper
        assert wrapper(ramp(3)).__dlpack__() is not None
        with pytest.raises(BufferError, match="mycelya"):
            wrapper(x).__dlpack__()


def test_other_exports_are_refused():
    x = there(ramp(3))
    assert not hasattr(x, "__cuda_array_interface__")
    with pytest.raises(AttributeError, match="torch.mycelya.FloatTensor"):
        _ = x.__cuda_array_interface__
    with pytest.raises(TypeError, match="bytes-like"):
        memoryview(x)
    for method in (x.apply_, lambda f: x.map_(x, f)):
        with pytest.raises(TypeError, match="only implemented on CPU"):
            method(lambda *a: a[0])


def test_shared_memory_is_refused():
    x = there(ramp(3))
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
    for value in (there(ramp(3)), [there(torch.empty(0))], layer, layer.weight):
        with pytest.raises(RuntimeError, match=r"Send tensor\.cpu\(\)"):
            queue.put(value)
    queue.put(ramp(3))
    assert queue.get().tolist() == [0.0, 1.0, 2.0]


def test_data_parallel_is_refused():
    layer = nn.Linear(2, 2).to(DEVICE)
    for use in (
        lambda: nn.DataParallel(layer),
        lambda: nn.DataParallel(layer, device_ids=[0]),
        lambda: nn.parallel.data_parallel(layer, there(ramp(1, 2))),
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
        REFUSED[what](there(ramp(2, 3)))
    text = str(error.value)
    assert "mycelya" in text and ".cpu()" in text, text


# ---- Pinned memory and transfers ----


def test_pinned_memory():
    x = ramp(2, 3)
    pinned = x.pin_memory()
    assert pinned.is_pinned() and not x.is_pinned() and pinned[1].is_pinned()
    assert torch.empty(3, pin_memory=True).is_pinned()
    assert torch.zeros_like(x, pin_memory=True).is_pinned()
    assert not there(x).is_pinned()
    same(pinned, x)
    sent = pinned.to(DEVICE, non_blocking=True)
    pinned.zero_()
    same(sent, x)
    host = torch.empty(2, 3, pin_memory=True)
    host.copy_(sent, non_blocking=True)
    torch.mycelya.synchronize()
    same(host, x)
    assert pinned.untyped_storage().is_pinned()
    for pin in (there(x).pin_memory, there(x).untyped_storage().pin_memory):
        with pytest.raises(
            (RuntimeError, TypeError), match="only .*CPU .*can be pinned"
        ):
            pin()
    with pytest.raises(RuntimeError, match="pinned"):
        torch.empty(2, pin_memory=True, device=DEVICE)


def test_cpu_future():
    x = there(ramp(3))
    future = (x * 2).cpu_future()
    assert isinstance(future, Future)
    y = x + 1
    before = y.cpu_future()
    y.zero_()
    assert before.result(60).tolist() == [1.0, 2.0, 3.0]
    assert future.result(60).tolist() == [0.0, 2.0, 4.0]
    assert future.result().device.type == "cpu"
    learned = (x.requires_grad_() * 2).cpu_future().result(60)
    assert not learned.requires_grad
    at_once = ramp(2).cpu_future()
    assert at_once.done() and at_once.result().tolist() == [0.0, 1.0]
    futures = [(x.detach() + i).cpu_future() for i in range(20)]
    assert [f.result(60)[0].item() for f in futures] == list(range(20))
    assert torch.Tensor.cpu_future.__doc__


@pytest.mark.cpu_worker
def test_cpu_future_of_a_failed_op():
    bad = there(ramp(3)).gather(0, there(torch.tensor([5])))
    with pytest.raises(RuntimeError, match="gather"):
        bad.cpu_future().result(60)


def test_moves_with_all_options():
    x = ramp(2, 3, 4, 4)
    y = x.to(DEVICE, torch.float64, non_blocking=True, copy=True)
    assert y.to("mycelya") is y and y.to(torch.float64) is y
    assert y.to("mycelya", copy=True) is not y
    assert y.mycelya() is y and y.mycelya(0) is y and y.mycelya("mycelya:0") is y
    last = x.to(DEVICE, memory_format=torch.channels_last)
    assert last.stride() == x.to(memory_format=torch.channels_last).stride()
    same(last.cpu().contiguous(), x)
    assert y.to(x).device.type == "cpu" and x.to(y).dtype == torch.float64
    assert y.cpu().dtype == torch.float64 and x.cpu() is x
    with pytest.raises(RuntimeError, match="Invalid device, must be mycelya"):
        x.mycelya("cpu")
    with pytest.raises(RuntimeError, match=r"mycelya:99 does not exist"):
        x.to("mycelya:99")
    assert x.is_cpu and not x.is_mycelya and y.is_mycelya and not y.is_cuda
    assert y.get_device() == 0 and y.device.type == "mycelya"


# ---- Kinds of tensors ----


@pytest.mark.parametrize(
    "dtype",
    [
        *(torch.float8_e4m3fn, torch.float8_e5m2),
        *(torch.float8_e4m3fnuz, torch.float8_e5m2fnuz),
    ],
    ids=str,
)
def test_float8(dtype):
    x = torch.linspace(-4, 4, 9)
    y = there(x).to(dtype)
    assert y.dtype == dtype and y.element_size() == 1
    same(y.float(), x.to(dtype).float())
    assert torch.equal(raw(y.clone()[::2]), raw(x.to(dtype)[::2]))
    assert y[3].item() == x.to(dtype)[3].item()
    assert y.view(torch.uint8).tolist() == x.to(dtype).view(torch.uint8).tolist()


def test_complex():
    z = torch.complex(ramp(2, 2), -ramp(2, 2))
    y = there(z)
    same([y.conj(), y.real, y.imag, y.conj().imag, y.abs(), y.H], [
        z.conj().resolve_conj(), z.real, z.imag, z.conj().imag, z.abs(),
        z.H.resolve_conj(),
    ])  # fmt: skip
    assert y.conj().is_conj() and not y.conj().resolve_conj().is_conj()
    y.imag.zero_()
    assert y.tolist() == z.real.to(z.dtype).tolist()
    same(torch.view_as_real(y), torch.view_as_real(z.real.to(z.dtype)))


@pytest.mark.skipif(
    hasattr(torch.Tensor, "refine_names"), reason="only newer PyTorch has no names"
)
def test_named_tensors_are_gone_as_on_cuda():
    with pytest.raises(TypeError, match="names"):
        torch.ones(2, names=("a",), device=DEVICE)


@pytest.mark.skipif(
    not hasattr(torch.Tensor, "refine_names"), reason="newer PyTorch has no names"
)
def test_named_tensors():
    x = there(ramp(2, 3)).refine_names("a", "b")
    assert x.names == ("a", "b") and x.sum("a").names == ("b",)
    same(x.align_to("b", "a").rename(None), ramp(2, 3).t())


def jagged(device):
    parts = [ramp(2, 4), ramp(3, 4) + 1]
    return torch.nested.nested_tensor(parts, layout=torch.jagged, device=device)


def test_jagged_tensors():
    x, y = jagged(DEVICE), jagged("cpu")
    assert is_there(x) and is_there(x.offsets())
    weight = torch.randn(5, 4)
    for function in (
        lambda t: t * 2 + 1,
        lambda t: t.sin(),
        lambda t: t.softmax(-1),
        lambda t: nn.functional.linear(t, weight.to(t.device)),
        lambda t: nn.functional.layer_norm(t, (4,)),
    ):
        same(function(x).values(), function(y).values(), 1e-4, 1e-5)
    same(list(x.unbind()), list(y.unbind()))
    same(x.sum(1), y.sum(1))
    same(x.to_padded_tensor(-1.0), y.to_padded_tensor(-1.0))
    same(jagged("cpu").to(DEVICE).values(), y.values())
    same(x.cpu().values(), y.values())
    values = there(ramp(5, 4)).requires_grad_()
    offsets = there(torch.tensor([0, 2, 5]))
    nested = torch.nested.nested_tensor_from_jagged(values, offsets)
    (nested * nested).values().sum().backward()
    same(values.grad, 2 * ramp(5, 4))


class Logged(torch.Tensor):
    """A subclass that notes what it is used in."""

    calls: list = []

    @classmethod
    def __torch_function__(cls, function, kinds, args=(), kwargs=None):
        cls.calls.append(getattr(function, "__name__", str(function)))
        return super().__torch_function__(function, kinds, args, kwargs or {})


def test_torch_function():
    """All goes through it, also what this package put in the place of a method."""
    x = there(ramp(3)).as_subclass(Logged)
    Logged.calls.clear()
    y = (x + 1).to("cpu").to(DEVICE).mycelya()
    future = x.cpu_future()
    assert Logged.calls == ["add", "to", "to", "mycelya", "cpu_future"]
    assert isinstance(y, Logged) and is_there(y) and y.is_mycelya
    assert future.result(60).tolist() == [0.0, 1.0, 2.0]

    seen = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, kinds, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    with Mode():
        ramp(1).to(DEVICE)
    assert torch.Tensor.to in seen


def test_torch_dispatch():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.seen = []

        def __torch_dispatch__(self, function, kinds, args=(), kwargs=None):
            self.seen.append(function.__name__)
            return function(*args, **(kwargs or {}))

    x = there(ramp(3))
    with Mode() as mode:
        y = x * 2 + x.sum()
        z = y.cpu()
    assert mode.seen == ["mul.Tensor", "sum.default", "add.Tensor", "_to_copy.default"]
    same(y, z)


class Wrapper(torch.Tensor):
    """A subclass that holds another tensor, and runs ops on it."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, device=inner.device
        )

    def __init__(self, inner):
        self.inner = inner

    def __repr__(self, *, tensor_contents=None):
        return f"Wrapper({self.inner})"

    @classmethod
    def __torch_dispatch__(cls, function, kinds, args=(), kwargs=None):
        unwrap = torch.utils._pytree.tree_map_only
        result = function(
            *unwrap(cls, lambda t: t.inner, args),
            **unwrap(cls, lambda t: t.inner, kwargs or {}),
        )
        return unwrap(torch.Tensor, cls, result)


def test_wrapper_subclasses():
    x = Wrapper(there(ramp(2, 2)))
    y = (x @ x).relu().to("cpu")
    assert isinstance(y, Wrapper) and y.device.type == "cpu"
    same(y.inner, ramp(2, 2) @ ramp(2, 2))
    assert str(x) == f"Wrapper({x.inner})" and is_there(x)


def test_swap_tensors():
    x, y = there(ramp(3)), torch.ones(2)
    torch.utils.swap_tensors(x, y)
    assert x.device.type == "cpu" and y.tolist() == [0.0, 1.0, 2.0] and is_there(y)
    p, q = nn.Parameter(there(ramp(2))), nn.Parameter(ramp(3))
    torch.utils.swap_tensors(p, q)
    assert is_there(q) and p.shape == (3,)


def test_data_and_set():
    p = nn.Parameter(ramp(2))
    p.data = there(ramp(3))
    assert is_there(p) and p.shape == (3,) and p.requires_grad
    p.sum().backward()
    assert is_there(p.grad)
    x = there(ramp(4))
    y = torch.empty(0, device=DEVICE).set_(x)
    y.add_(1)
    assert x.tolist() == [1.0, 2.0, 3.0, 4.0] and same_storage(x, y)


def test_assert_close():
    x = there(torch.randn(3))
    torch.testing.assert_close(x, x.clone())
    torch.testing.assert_close(x, x.cpu(), check_device=False)
    with pytest.raises(AssertionError, match="'device' do not match"):
        torch.testing.assert_close(x, x.cpu())
    with pytest.raises(AssertionError, match="Mismatched elements: 3 / 3"):
        torch.testing.assert_close(x, x + 1)
    with pytest.raises(AssertionError, match="index"):
        torch.testing.assert_close({"a": [x]}, {"a": [x * 2]})


def test_identity_and_lifetime():
    x = there(ramp(3))
    assert hash(x) == id(x) and {x: 1}[x] == 1 and x in [x]
    reference = weakref.ref(x)
    died = []
    weakref.finalize(x, died.append, True)
    assert reference() is x
    gc.collect()
    held = torch.mycelya.memory_allocated()
    storage = x.untyped_storage()
    del x
    gc.collect()
    assert reference() is None and died == [True]
    assert torch.mycelya.memory_allocated() == held  # the storage lives on
    del storage
    assert torch.mycelya.memory_allocated() < held


def test_values_as_python_objects(counters):
    x = there(torch.tensor([[1.5, -2.0], [0.0, 3.0]]))
    n = there(torch.tensor([0, 2, 1]))
    torch.mycelya.synchronize()

    def reads(function):
        before = counters()["round_trips"]
        value = function()
        return value, counters()["round_trips"] - before

    assert reads(x.tolist) == ([[1.5, -2.0], [0.0, 3.0]], 1)
    assert reads(x[0, 0].item) == (1.5, 1)
    assert reads(lambda: (float(x[0, 0]), int(x[0, 0]), complex(x[0, 0]))) == (
        (1.5, 1, 1.5 + 0j),
        3,
    )
    assert reads(lambda: bool(x[1, 0])) == (False, 1)
    assert reads(lambda: ["a", "b", "c"][n[1]]) == ("c", 1)
    assert reads(lambda: list(range(n[1]))) == ([0, 1], 1)
    assert reads(lambda: (3.0 in x, 9 in x)) == ((True, False), 2)
    assert reads(lambda: (len(x), x.shape, x.dim(), x.numel())) == (
        (2, torch.Size([2, 2]), 2, 4),
        0,
    )
    rows, n_reads = reads(lambda: list(x))
    assert n_reads == 0 and [is_there(r) for r in rows] == [True, True]
    assert [r.tolist() for r in reversed(x)] == [[0.0, 3.0], [1.5, -2.0]]
    a, (b, c) = x.unbind(0)[0], x[1]
    assert (a.tolist(), b.item(), c.item()) == ([1.5, -2.0], 0.0, 3.0)
    for kind, wrong in (
        (RuntimeError, lambda: bool(x)),
        (RuntimeError, lambda: x.item()),
        (TypeError, lambda: ["a"][x[0, 0]]),
        (TypeError, lambda: len(x[0, 0])),
        (TypeError, lambda: iter(x[0, 0])),
        (ValueError, lambda: int(x)),
    ):
        with pytest.raises(kind):
            wrong()


# ---- The device's module, and torch.accelerator ----


def test_accelerator():
    accelerator = torch.accelerator
    assert (
        accelerator.is_available()
        and accelerator.current_accelerator().type == "mycelya"
    )
    assert accelerator.device_count() == torch.mycelya.device_count()
    assert accelerator.current_device_index() == torch.mycelya.current_device() == 0
    accelerator.set_device_index(0)
    accelerator.synchronize()
    stream = torch.Stream(device="mycelya")
    with accelerator.device_index(0):
        assert accelerator.current_stream().device_index == 0
    before = accelerator.current_stream()
    accelerator.set_stream(stream)
    assert accelerator.current_stream() == stream
    accelerator.set_stream(before)
    assert torch.get_device_module("mycelya") is torch.mycelya
    assert torch.get_device_module() is torch.mycelya
    assert torch.device(0) == torch.device("mycelya", 0)


def test_accelerator_memory():
    accelerator = torch.accelerator
    keep = there(torch.ones(1 << 18))
    assert accelerator.memory_allocated() >= 1 << 20
    assert accelerator.max_memory_allocated() >= accelerator.memory_allocated()
    assert accelerator.memory_reserved() >= accelerator.memory_allocated()
    stats = accelerator.memory_stats()
    assert stats["allocated_bytes.all.current"] == accelerator.memory_allocated()
    free, total = accelerator.get_memory_info()
    assert 0 < free <= total
    peak = accelerator.max_memory_allocated()
    del keep
    assert accelerator.memory_allocated() < peak
    accelerator.empty_cache()
    accelerator.reset_peak_memory_stats()
    accelerator.reset_accumulated_memory_stats()
    assert accelerator.max_memory_allocated() < peak


def test_accelerator_capability():
    dtypes = torch.accelerator.get_device_capability()["supported_dtypes"]
    assert {torch.float32, torch.bfloat16, torch.int64, torch.complex64} <= dtypes


def test_memory_allocated():
    before = torch.mycelya.memory_allocated()
    x = torch.zeros(1 << 20, device=DEVICE)
    assert torch.mycelya.memory_allocated() - before == 4 << 20
    torch.mycelya.reset_peak_memory_stats()
    y = x + 1
    view = y[5:]
    assert torch.mycelya.memory_allocated() - before == 8 << 20
    del x, y, view
    assert torch.mycelya.memory_allocated() == before
    assert torch.mycelya.max_memory_allocated() - before == 8 << 20
    free, total = torch.mycelya.mem_get_info()
    assert 0 < free <= total


def test_memory_that_the_worker_keeps_for_reuse():
    def kept(stats):
        return stats["reserved_bytes.all.current"] - stats["active_bytes.all.current"]

    mycelya = torch.mycelya
    x = torch.ones(16 << 20, device=DEVICE)
    for _ in range(3):  # the next one is made before the last is freed
        y = x * 2
        mycelya.synchronize()
    stats = mycelya.memory_stats()
    assert stats["active_bytes.all.current"] >= 128 << 20
    assert mycelya.memory_reserved() >= mycelya.memory_allocated()
    for _ in range(3):
        y = x * 2
        mycelya.synchronize()
    assert mycelya.memory_stats()["num_device_alloc"] == stats["num_device_alloc"]
    del y
    stats = mycelya.memory_stats()
    assert kept(stats) >= 64 << 20
    assert mycelya.max_memory_reserved() >= 192 << 20
    # Tensors are counted on this side.
    allocated = mycelya.memory_allocated()
    assert stats["allocated_bytes.all.current"] == allocated
    assert f"{allocated / 2**20:.1f}" in mycelya.memory_summary()
    mycelya.empty_cache()
    assert kept(mycelya.memory_stats()) < 64 << 20
    assert x[-1].item() == 1
    peak = mycelya.max_memory_reserved()
    mycelya.reset_peak_memory_stats()
    mycelya.reset_accumulated_memory_stats()
    assert mycelya.max_memory_reserved() < peak
    assert mycelya.memory_stats()["active_bytes.all.freed"] < 1 << 20


def test_memory_statistics_start_no_worker(tmp_path):
    code = """
        import torch, mycelya_torch

        torch.mycelya.empty_cache()
        torch.mycelya.reset_peak_memory_stats()
        print(torch.mycelya.memory_reserved(), torch.mycelya.is_initialized())
    """
    status, out, err = run(code, tmp_path)
    assert (status, out) == (0, "0 False\n"), err


def test_generators():
    generator = torch.Generator("mycelya")
    assert generator.device == torch.device("mycelya", 0)
    generator.manual_seed(5)
    first = torch.rand(4, device=DEVICE, generator=generator)
    assert generator.initial_seed() == 5
    generator.manual_seed(5)
    same(torch.rand(4, device=DEVICE, generator=generator), first.cpu())
    for wrong in (
        lambda: torch.rand(2, device=DEVICE, generator=torch.Generator()),
        lambda: torch.rand(2, generator=generator),
        lambda: torch.randperm(2, generator=generator),
    ):
        with pytest.raises(RuntimeError, match="mycelya"):
            wrong()


def test_a_fork_cannot_use_the_device(tmp_path):
    """Whatever object of the parent it touches; the parent goes on."""
    code = """
        import os, sys, torch, mycelya_torch
        x = torch.ones(3, device="mycelya")
        x.sum().item()
        pid = os.fork()
        if pid == 0:
            for use in (
                x.tolist,
                lambda: str(x),
                lambda: x.cpu_future().result(20),
                lambda: torch.save(x, os.devnull),
                lambda: x.untyped_storage()[0],
            ):
                try:
                    use()
                except RuntimeError as error:
                    assert "forked child" in str(error), error
                else:
                    os._exit(3)
            assert sys.getsizeof(x) and x.shape == (3,)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        print(x.tolist())
    """
    status, out, err = run(code, tmp_path)
    assert (status, out) == (0, "[1.0, 1.0, 1.0]\n"), err


def test_state_dicts_are_ordinary():
    model = nn.Sequential(OrderedDict(a=nn.Linear(2, 2), b=nn.BatchNorm1d(2))).to(
        DEVICE
    )
    state = model.state_dict()
    assert all(is_there(t) and not t.requires_grad for t in state.values())
    assert same_storage(state["a.weight"], model.a.weight)
    assert state["b.num_batches_tracked"].item() == 0
    wrong = nn.Linear(3, 3)
    with pytest.raises(RuntimeError, match="size mismatch"):
        wrong.load_state_dict(model.a.state_dict())
    same(nn.utils.parameters_to_vector(model.a.parameters()).shape, torch.Size([6]))
    assert sys.getsizeof(state["a.weight"].untyped_storage()) > 16
