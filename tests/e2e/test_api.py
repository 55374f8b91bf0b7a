# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""The public API: each name exists, with annotations and a docstring, and works."""

import gc
import inspect
import logging
import threading
import warnings

import pytest
import torch
from helpers import DEVICE, run, same

import mycelya_torch
from mycelya_torch import (
    BackendProvider,
    DeviceRegistry,
    GPUType,
    RemoteMachine,
    get_device_registry,
)

PACKAGE = """
    RemoteMachine BackendProvider GPUType DeviceRegistry
    create_modal_machine get_all_machines get_device_registry
    load_huggingface_state_dicts
    enable_remote_execution disable_remote_execution is_remote_execution_enabled
    get_storage_id get_metadata_hash
    set_logging_level get_logging_level enable_debug_logging enable_info_logging
    disable_logging reset_logging errors
"""
MACHINE = """
    device start stop force_stop restart pause resume checkpoint save load attach logs
    pip_install
"""
PROPERTIES = """
    provider gpu_type gpu_count name device_id machine_id device_name modal_gpu_spec
    remote_index packages state
"""
REGISTRY = """
    register_device get_device_by_index get_device_index devices_compatible clear
"""
MODULE = """
    is_available device_count current_device set_device device device_of synchronize
    is_initialized init get_device_name get_device_properties get_device_capability
    mem_get_info
    manual_seed manual_seed_all seed seed_all initial_seed get_rng_state
    get_rng_state_all set_rng_state set_rng_state_all
    Stream Event stream current_stream default_stream set_stream
    memory_allocated max_memory_allocated memory_reserved memory_stats memory_summary
    reset_peak_memory_stats empty_cache
    is_bf16_supported get_amp_supported_dtype
    metrics reset_metrics explain flush eager set_sync_debug_mode get_sync_debug_mode
    network_bill op_times utilization temperature power_draw clock_rate memory_usage
    can_device_access_peer ipc_collect is_current_stream_capturing is_tf32_supported
    memory_snapshot memory_stats_as_nested_dict list_gpu_processes device_memory_used
    get_per_process_memory_fraction set_per_process_memory_fraction StreamContext
"""
# Names whose values are no functions or classes of ours.
VALUES = """
    default_generators OutOfMemoryError AcceleratorError amp memory random nvtx streams
"""
TYPES = {
    "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64,
    "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16,
    "LongTensor": torch.int64,
    "IntTensor": torch.int32,
    "ShortTensor": torch.int16,
    "CharTensor": torch.int8,
    "ByteTensor": torch.uint8,
    "BoolTensor": torch.bool,
}
GPUS = """
    T4 L4 A10G A100 A100_40GB A100_80GB L40S H100 H200 B200 RTX_PRO_6000
"""
ERRORS = "DeviceLostError MachineStoppedError OutOfMemoryError"


def described(value):
    """Asserts that a function or class has a docstring, and a function annotations."""
    assert value.__doc__, value
    if inspect.isclass(value):
        return
    signature = inspect.signature(value)
    assert signature.return_annotation is not inspect.Signature.empty, value
    for parameter in signature.parameters.values():
        if parameter.name not in ("self", "cls"):
            assert parameter.annotation is not inspect.Parameter.empty, value


@pytest.mark.critical
@pytest.mark.parametrize("name", PACKAGE.split())
def test_the_package_has(name):
    value = getattr(mycelya_torch, name)
    assert name in dir(mycelya_torch)
    if not inspect.ismodule(value):
        assert name in mycelya_torch.__all__
        described(value)


@pytest.mark.parametrize("name", MACHINE.split())
def test_a_machine_has(name):
    described(getattr(RemoteMachine, name))


@pytest.mark.parametrize("name", PROPERTIES.split())
def test_a_machine_has_the_property(name):
    value = getattr(RemoteMachine, name, None)
    if value is None:  # an attribute
        assert f"\n        {name}: " in RemoteMachine.__doc__
        assert hasattr(RemoteMachine(start=False), name)
    else:
        described(value.fget)


@pytest.mark.parametrize("name", REGISTRY.split())
def test_the_registry_has(name):
    described(getattr(DeviceRegistry, name))


@pytest.mark.parametrize("name", MODULE.split())
def test_the_module_has(name):
    described(getattr(torch.mycelya, name))


@pytest.mark.parametrize("name", VALUES.split())
def test_the_module_has_the_value(name):
    assert getattr(torch.mycelya, name) is not None


def test_enumerations():
    assert {g.name for g in GPUType} == set(GPUS.split())
    assert GPUType.A100_40GB.value == "A100-40GB"
    names = {p.name for p in BackendProvider}
    assert names == {"LOCAL", "MODAL", "SSH", "KUBERNETES", "EXEC"}
    for name in ERRORS.split():
        assert issubclass(getattr(mycelya_torch.errors, name), RuntimeError)


@pytest.mark.parametrize(("name", "dtype"), TYPES.items())
def test_legacy_types(name, dtype):
    kind = getattr(torch.mycelya, name)
    x = kind(2, 3)
    assert x.dtype == dtype and x.device.type == "mycelya" and x.shape == (2, 3)
    assert isinstance(x, kind) and not isinstance(x.cpu(), kind)


# ---- Tensors and modules ----


def test_methods_of_tensors_and_modules():
    x = torch.arange(3.0)
    assert not x.is_mycelya and x.mycelya().is_mycelya
    assert x.mycelya(0).device == torch.device("mycelya", 0)
    model = torch.nn.Linear(3, 2).mycelya()
    assert model.weight.is_mycelya and model(x.mycelya()).shape == (2,)
    same(x.mycelya().cpu_future().result(), x)


@pytest.mark.parametrize(
    "function", [mycelya_torch.get_storage_id, mycelya_torch.get_metadata_hash]
)
@pytest.mark.parametrize("value", [torch.ones(2), None, "x", 3])
def test_other_values_have_no_storage_id(function, value):
    with pytest.raises(TypeError, match="Expected a tensor on a mycelya device"):
        function(value)


def test_an_op_over_two_machines_names_both():
    with RemoteMachine(name="left") as a, RemoteMachine(name="right") as b:
        x, y = torch.ones(3, device=a.device()), torch.ones(3, device=b.device())
        i, j = a.remote_index, b.remote_index
        expected = rf'machine left.*machine right.*\.to\("mycelya:{i}"\)'
        with pytest.raises(RuntimeError, match=expected):
            x + y
        with pytest.raises(RuntimeError, match="machine right.*machine left"):
            torch.cat([y, x])
        q = torch.ones(1, 1, 2, 4, device=a.device())
        mask = torch.ones(2, 2, device=b.device())
        with pytest.raises(RuntimeError, match="machine left.*machine right"):
            torch.nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=mask)
        sparse = torch.eye(3).to_sparse().to(a.device())
        with pytest.raises(RuntimeError, match="machine"):
            sparse @ torch.ones(3, 2, device=b.device())
        assert (x + y.to(f"mycelya:{i}")).tolist() == [2, 2, 2]
        default = torch.ones(3, device="mycelya:0")
        with pytest.raises(RuntimeError, match="the default machine"):
            default + y
        assert j != i


# ---- Machines ----


def test_names_of_a_machine():
    machine = RemoteMachine("local", device="cpu", start=False, name="m")
    assert machine.provider is BackendProvider.LOCAL and machine.gpu_type is None
    assert machine.gpu_count == 1 and machine.packages == ()
    assert machine.device_name == "Local CPU" and machine.remote_index is None
    best = RemoteMachine("local", start=False)
    assert best.device_name == "Local machine"
    with best:
        name = torch.mycelya.get_device_name(best.device())
        chosen = torch.mycelya.get_device_properties(best.device()).device
        assert best.device_name == "Local " + ("CPU" if chosen == "cpu" else name)
    kind, label, end = machine.device_id.split("-")
    assert (kind, label) == ("local", "cpu") and len(end) == 8
    assert int(end, 16) >= 0 and machine.machine_id == machine.device_id


def test_the_registry():
    registry = get_device_registry()
    gc.collect()  # else a machine of another test may leave the registry meanwhile
    assert DeviceRegistry() is registry
    before = len(registry)
    machine = RemoteMachine(start=False)
    other = RemoteMachine(start=False)
    assert registry.get_device_index(machine) is None and len(registry) == before
    index = registry.register_device(machine)
    assert registry.register_device(machine) == index != 0
    assert registry.register_device(other) != index
    assert registry.get_device_by_index(index) is machine
    assert registry.get_device_index(machine) == index
    assert registry._devices[index] is machine and len(registry) == before + 2
    assert machine.remote_index is None and machine.state == "new"
    with machine:
        assert machine.remote_index == index
        assert machine in mycelya_torch.get_all_machines()
    assert registry.devices_compatible(machine, machine)
    assert not registry.devices_compatible(machine, other)
    assert registry.get_device_by_index(63) is None
    del machine
    assert registry.get_device_by_index(index) is None


def test_clear(tmp_path):
    code = """
        import torch
        from mycelya_torch import RemoteMachine, get_device_registry

        registry = get_device_registry()
        a, b = RemoteMachine(), RemoteMachine(start=False)
        registry.register_device(b)
        print(len(registry), a.state)
        registry.clear()
        print(len(registry), a.state, registry.get_device_index(a))
        a.start()
        print(a.remote_index, torch.ones(1, device=a.device()).item())
    """
    status, out, err = run(code, tmp_path)
    assert (status, out) == (0, "2 running\n0 stopped None\n0 1.0\n"), err


def test_a_start_that_fails_takes_no_index(tmp_path):
    code = """
        from mycelya_torch import RemoteMachine, _load, _device, get_device_registry

        paths = [str(p) for p in (_load.CLIENT, "/nowhere", _load.EXEC)]
        _device.init(*paths, str(_load.torch_lib()), "local", "", "")
        machine = RemoteMachine(start=False)
        try:
            machine.start()
        except RuntimeError as error:
            print("/nowhere" in str(error))
        print(machine.state, len(get_device_registry()))
    """
    status, out, err = run(code, tmp_path)
    assert (status, out) == (0, "True\nnew 0\n"), err


# ---- torch.mycelya ----


def test_properties():
    properties = torch.mycelya.get_device_properties()
    total = torch.mycelya.mem_get_info()[1]
    assert properties.total_memory > 1 << 28
    assert abs(properties.total_memory - total) <= total // 2
    if properties.device == "cpu":
        assert (properties.major, properties.minor) == (0, 0)
        assert properties.multi_processor_count == 0
    else:
        assert properties.major >= 5 and properties.multi_processor_count > 0
    assert 0 <= torch.mycelya.utilization() <= 100


def test_capability():
    if torch.mycelya.get_device_properties().device == "cpu":
        with pytest.raises(RuntimeError, match="no compute capability.* on cpu"):
            torch.mycelya.get_device_capability()
    else:
        assert torch.mycelya.get_device_capability() >= (5, 0)


def test_seeds_and_states_of_all_devices():
    with RemoteMachine("local", device="cpu") as machine:
        devices = [torch.device("mycelya", 0), machine.device()]

        def draw():
            return [torch.rand(3, device=d).cpu() for d in devices]

        torch.mycelya.seed_all()
        states = torch.mycelya.get_rng_state_all()
        assert len(states) == torch.mycelya.device_count()
        first = draw()
        torch.mycelya.seed_all()
        assert not torch.equal(draw()[1], first[1])
        torch.mycelya.set_rng_state_all(states)
        for a, b in zip(draw(), first, strict=True):
            same(a, b)


def test_eager(counters):
    x = torch.ones(3, device=DEVICE, requires_grad=True)
    before = counters()
    with torch.mycelya.eager():
        y = x * 2
        assert counters()["cuts"]["sync"] > before["cuts"].get("sync", 0)
        (y * y).sum().backward()
        middle = counters()["round_trips"]
        z = x + 1
        assert counters()["round_trips"] > middle
    middle = counters()["round_trips"]
    z = z + 1
    assert counters()["round_trips"] == middle
    assert x.grad.tolist() == [8, 8, 8] and z.tolist() == [3, 3, 3]


def test_an_error_of_an_eager_op_is_raised_at_its_line():
    table = torch.ones(3, 2, device=DEVICE)
    index = torch.tensor([5], device=DEVICE)
    with torch.mycelya.eager(), pytest.raises((IndexError, RuntimeError)):
        table[index]
    assert table.sum().item() == 6


def test_eager_by_the_environment(tmp_path):
    code = """
        import torch

        x = torch.ones(3, device="mycelya")
        before = torch.mycelya.metrics()["round_trips"]
        x = x + 1
        x = x + 1
        print(torch.mycelya.metrics()["round_trips"] - before >= 2, x.tolist())
    """
    status, out, err = run(code, tmp_path, MYCELYA_EAGER="on")
    assert (status, out) == (0, "True [3.0, 3.0, 3.0]\n"), err
    status, _, err = run(code, tmp_path, MYCELYA_EAGER="yes")
    assert status == 1 and 'MYCELYA_EAGER is "yes"; it is on' in err


@pytest.fixture
def sync_debug():
    yield torch.mycelya.set_sync_debug_mode
    torch.mycelya.set_sync_debug_mode("default")


def test_sync_debug_mode(sync_debug):
    x = torch.ones(3, device=DEVICE)
    sync_debug("warn")
    assert torch.mycelya.get_sync_debug_mode() == 1
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            x.sum().item()
        if x[0] > 0:
            x.nonzero()
        x.cpu_future().result()
        torch.mycelya.synchronize()
    texts = [str(w.message) for w in caught if "waits for the values" in str(w.message)]
    assert len(texts) == 3, texts
    assert all("test_api.py:" in text and "cpu_future" in text for text in texts)
    sync_debug(2)
    with pytest.raises(RuntimeError, match=r"test_api\.py:\d+.*forbids waits"):
        x.tolist()
    torch.mycelya.synchronize()
    assert (x + 1).cpu_future().result().tolist() == [2, 2, 2]
    sync_debug("default")
    assert x.tolist() == [1, 1, 1]
    for wrong in ("loud", 3, -1, None):
        with pytest.raises(ValueError, match="'warn'"):
            sync_debug(wrong)


def test_nvtx():
    nvtx = torch.mycelya.nvtx
    with torch.profiler.profile() as profile:
        assert nvtx.range_push("outer") == 0
        assert nvtx.range_push("inner") == 1
        assert nvtx.range_pop() == 1 and nvtx.range_pop() == 0
        number = nvtx.range_start("started")
        nvtx.mark("moment")
        nvtx.range_end(number)
        nvtx.range_end(number)
        with nvtx.range("step {}", 3):
            pass
    assert nvtx.range_pop() == -1
    names = {event.key for event in profile.key_averages()}
    assert {"outer", "inner", "started", "moment", "step 3"} <= names


def test_submodules_are_those_of_the_module():
    assert torch.mycelya.memory.memory_allocated is torch.mycelya.memory_allocated
    assert torch.mycelya.random.manual_seed is torch.mycelya.manual_seed
    assert torch.mycelya.memory.OutOfMemoryError is torch.OutOfMemoryError


def test_logging_of_threads():
    """Levels belong to the logger tree, whoever sets them."""
    thread = threading.Thread(target=mycelya_torch.enable_debug_logging)
    thread.start()
    thread.join()
    assert mycelya_torch.get_logging_level() == logging.DEBUG
    mycelya_torch.reset_logging()
