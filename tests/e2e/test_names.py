# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""torch.mycelya against torch.cuda, name by name: signatures, values, refusals."""

import importlib
import inspect
import json
import pickle
import shutil
import subprocess
import time
import types

import pytest
import torch
from helpers import DEVICE, run

from mycelya_torch import RemoteMachine, _device, _monitor, _refused

CUDA = sorted(torch.cuda.__all__)
OURS = set(torch.mycelya.__all__)
REFUSED = sorted(
    name
    for name in CUDA
    if name not in OURS
    and not name.endswith(("Tensor", "Storage"))
    and name not in _refused._CLASSES
)

# ---- Names ----


@pytest.mark.critical
@pytest.mark.parametrize("name", CUDA)
def test_each_public_name_of_torch_cuda_is_there(name):
    value = getattr(torch.mycelya, name)
    assert value.__doc__ if callable(value) or inspect.ismodule(value) else True


@pytest.mark.parametrize("name", sorted(torch.cuda.memory.__all__))
def test_each_name_of_its_memory_module_is_there(name):
    assert getattr(torch.mycelya.memory, name) is not None


@pytest.mark.parametrize("module", ["random", "nvtx", "streams"])
def test_submodules_have_the_functions_of_torch_cuda(module):
    theirs, ours = getattr(torch.cuda, module), getattr(torch.mycelya, module)
    names = getattr(theirs, "__all__", ["Stream", "Event"])
    assert not [name for name in names if not hasattr(ours, name)]


def test_dir_has_the_public_names_only():
    names = {name for name in dir(torch.mycelya) if not name.startswith("__")}
    assert OURS <= names and {"FloatTensor", "ComplexFloatStorage"} <= names
    leaks = {"Any", "TYPE_CHECKING", "annotations", "json", "torch", "NamedTuple"}
    assert not names & leaks
    assert not [name for name in names if name.startswith("_")]
    legacy = {name for name in names if name.endswith(("Tensor", "Storage"))}
    assert names - legacy == OURS
    for name in names:
        assert getattr(torch.mycelya, name) is not None


def test_dir_of_the_package_has_the_public_names_only():
    import mycelya_torch

    names = {name for name in dir(mycelya_torch) if not name.startswith("__")}
    assert names == set(mycelya_torch.__all__) - {"__version__"}


def test_an_unknown_name_is_an_attribute_error():
    for owner in (torch.mycelya, torch.mycelya.memory, torch.mycelya.nccl):
        with pytest.raises(AttributeError, match="no attribute 'synchronise'"):
            owner.synchronise  # noqa: B018
    assert not hasattr(torch.mycelya, "_sleep")


def parameters(function):
    """Names and defaults of the parameters of a function or a class."""
    found = inspect.signature(function).parameters.values()
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {p.name: p.default for p in found if p.kind not in kinds}


SHARED = [n for n in CUDA if n in OURS and callable(getattr(torch.mycelya, n))]


@pytest.mark.parametrize("name", SHARED)
def test_parameters_are_those_of_torch_cuda(name):
    """Names in the same order, with the same defaults: None is the current device."""
    theirs = parameters(getattr(torch.cuda, name))
    ours = parameters(getattr(torch.mycelya, name))
    common = [parameter for parameter in ours if parameter in theirs]
    assert common == list(theirs), f"{list(ours)} for {list(theirs)}"
    assert list(ours)[: len(theirs)] == list(theirs)
    for parameter, default in theirs.items():
        mine = ours[parameter]
        assert mine == default or (default, mine) == ("cuda", None), parameter


def test_most_names_are_more_than_refusals():
    assert len(SHARED) > 55 and len(REFUSED) < 45


# ---- Refusals ----


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_names_itself_the_reason_and_the_remedy(name):
    value = getattr(torch.mycelya, name)
    assert getattr(torch.mycelya, name) is value
    if isinstance(value, types.ModuleType):
        cuda = importlib.import_module(f"torch.cuda.{name}")
        functions = [
            n
            for n, f in vars(cuda).items()
            if inspect.isfunction(f) and f.__module__ == cuda.__name__ and n[0] != "_"
        ]
        known = {n.partition(".")[2] for n in _refused._FALSE if n.startswith(name)}
        known |= {n for n in OURS if getattr(torch.cuda, n, 0) is getattr(cuda, n, 1)}
        for function in functions:
            answer = getattr(value, function)
            if function in known:
                assert answer() is False
                continue
            with pytest.raises(NotImplementedError, match=rf"no {name}\.{function}: "):
                answer()
        return
    with pytest.raises(NotImplementedError) as caught:
        value(1, 2, key=3)
    text = str(caught.value)
    assert text.startswith(f"torch.mycelya has no {name}: ") and text.endswith(".")
    assert len(text.split()) > 12 and text.count(".") > 1


def test_classes_of_errors_can_be_caught():
    for name in ("CudaError", "DeferredCudaCallError", "AcceleratorError"):
        with pytest.raises(getattr(torch.mycelya, name)):
            raise getattr(torch.mycelya, name)("text")
    assert torch.mycelya.AcceleratorError is torch.AcceleratorError
    assert torch.mycelya.cudaStatus.SUCCESS == 0


# ---- Devices as arguments ----

BY_DEVICE = """
    current_stream default_stream device_memory_used get_device_name
    get_device_properties get_per_process_memory_fraction get_rng_state
    list_gpu_processes max_memory_allocated max_memory_reserved mem_get_info
    memory_allocated memory_reserved memory_stats memory_stats_as_nested_dict
    memory_summary synchronize utilization flush reset_peak_memory_stats
    reset_accumulated_memory_stats
""".split()


@pytest.fixture(scope="module")
def machine():
    with RemoteMachine("local", device="cpu", name="names") as one:
        yield one


@pytest.mark.parametrize("name", BY_DEVICE)
def test_what_names_a_device(name, machine):
    function = getattr(torch.mycelya, name)
    index = machine.remote_index
    other = machine.device()
    kinds = {type(function())}
    for device in (None, 0, "mycelya", "mycelya:0", DEVICE, torch.device("mycelya", 0)):
        kinds.add(type(function(device)))
    for device in (index, other, str(other), machine, torch.mycelya.device(other)):
        kinds.add(type(function(device)))
    assert len(kinds) == 1
    with pytest.raises(ValueError, match="Expected a mycelya device, got 'cuda:0'"):
        function("cuda:0")
    with pytest.raises(ValueError, match="Expected a mycelya device, got 'cpu'"):
        function(torch.device("cpu"))
    for wrong in ([], 1.5, object()):
        with pytest.raises(TypeError, match="as None, an index, a string"):
            function(wrong)
    with pytest.raises(RuntimeError):
        function("no device")
    for wrong in (-1, 64, 300, "mycelya:64"):
        with pytest.raises(ValueError, match="There is no device mycelya:"):
            function(wrong)


def test_a_machine_is_made_current_by_its_object(machine):
    before = torch.mycelya.current_device()
    with torch.mycelya.device(machine):
        assert torch.mycelya.current_device() == machine.remote_index
        assert torch.ones(2, device="mycelya").device == machine.device()
    torch.mycelya.set_device(machine)
    assert torch.mycelya.current_device() == machine.remote_index
    torch.mycelya.set_device(before)
    torch.mycelya.set_device(-1)
    with torch.mycelya.device(-1):
        assert torch.mycelya.current_device() == before
    assert torch.mycelya.Stream(-1).device == torch.device("mycelya", before)
    stopped = RemoteMachine("local", start=False, name="stopped")
    with pytest.raises(RuntimeError, match="Machine stopped is not running"):
        torch.mycelya.synchronize(stopped)


def test_peers_are_devices_of_one_machine(machine):
    can = torch.mycelya.can_device_access_peer
    parked = machine.device("cpu")
    assert can(machine, parked) and can(parked.index, machine.device())
    assert not can(machine, machine) and not can(machine, 0) and not can(0, parked)
    for wrong in (-1, torch.mycelya.device_count()):
        with pytest.raises(AssertionError, match=f"no device mycelya:{wrong}"):
            can(0, wrong)
        with pytest.raises(AssertionError, match=f"no device mycelya:{wrong}"):
            can(wrong, 0)


# ---- Values ----


def test_values_of_capabilities():
    mycelya = torch.mycelya
    major = mycelya.get_device_properties().major
    assert mycelya.is_bf16_supported() is True
    assert mycelya.is_bf16_supported(including_emulation=False) is (major >= 8)
    assert mycelya.is_tf32_supported() is (major >= 8)
    assert mycelya.get_arch_list() == [] and mycelya.get_gencode_flags() == ""
    assert mycelya.is_current_stream_capturing() is False
    assert mycelya.graphs.is_current_stream_capturing() is False
    assert mycelya.ipc_collect() is None and mycelya.has_half is True
    assert mycelya.get_allocator_backend() == "native"


def test_memory_statistics_as_nested_dict():
    keep = torch.ones(1 << 18, device=DEVICE)
    flat = torch.mycelya.memory_stats()
    nested = torch.mycelya.memory_stats_as_nested_dict()
    assert nested["allocated_bytes"]["all"]["current"] >= keep.nbytes
    for name in flat:
        at = nested
        for part in name.split("."):
            at = at[part]
        assert isinstance(at, int), name
    free, total = torch.mycelya.mem_get_info()
    assert 0 < torch.mycelya.device_memory_used() <= total and free <= total


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("memory_cached", "memory_reserved"),
        ("max_memory_cached", "max_memory_reserved"),
        ("reset_max_memory_allocated", "reset_peak_memory_stats"),
        ("reset_max_memory_cached", "reset_peak_memory_stats"),
    ],
)
def test_old_names_warn_as_on_cuda(old, new):
    with pytest.warns(FutureWarning, match=f"torch.mycelya.{old}.*{new}"):
        value = getattr(torch.mycelya, old)()
    assert type(value) is type(getattr(torch.mycelya, new)())


def test_memory_fractions():
    mycelya = torch.mycelya
    assert mycelya.get_per_process_memory_fraction() == 1.0
    mycelya.set_per_process_memory_fraction(1.0)
    with pytest.raises(NotImplementedError, match="50% .*mycelya-worker --memory"):
        mycelya.set_per_process_memory_fraction(0.5)
    for wrong in (-0.1, 1.5):
        with pytest.raises(ValueError, match=str(wrong)):
            mycelya.set_per_process_memory_fraction(wrong)
    with pytest.raises(TypeError, match="must be a float"):
        mycelya.set_per_process_memory_fraction(1)
    mycelya.caching_allocator_enable()
    with pytest.raises(NotImplementedError, match="empty_cache"):
        mycelya.caching_allocator_enable(False)


def test_a_snapshot_has_the_line_of_each_live_tensor(tmp_path):
    keep = [torch.ones(1 << 18, device=DEVICE) for _ in range(3)]  # the line
    line = inspect.currentframe().f_lineno - 1
    torch.mycelya.synchronize()
    found = [
        segment
        for segment in torch.mycelya.memory_snapshot()
        for block in segment["blocks"]
        for frame in block["frames"]
        if (frame["filename"], frame["line"]) == (__file__, line)
    ]
    (segment,) = found
    assert segment["total_size"] == sum(t.nbytes for t in keep) == 3 << 20
    assert segment["tensors"] == 3 and segment["device"] == 0
    block = segment["blocks"][0]
    assert (block["size"], block["state"]) == (3 << 20, "active_allocated")
    with pytest.raises(NotImplementedError, match="no memory pool"):
        torch.mycelya.memory_snapshot((0, 1))
    # PyTorch's own viewer reads it.
    memory = torch.mycelya.memory
    memory._record_memory_history(max_entries=1000)
    memory._dump_snapshot(str(tmp_path / "snapshot.pickle"))
    snapshot = pickle.loads((tmp_path / "snapshot.pickle").read_bytes())
    from torch.cuda import _memory_viz

    assert "snapshot.pickle" in _memory_viz.segment_plot(snapshot)
    assert "total_reserved" in _memory_viz.segsum(snapshot)
    del keep
    lines = {
        (frame["filename"], frame["line"])
        for segment in torch.mycelya.memory_snapshot()
        for block in segment["blocks"]
        for frame in block["frames"]
    }
    assert (__file__, line) not in lines


# ---- Streams ----


def test_stream_context():
    mycelya = torch.mycelya
    before = mycelya.current_stream()
    stream = mycelya.Stream()
    context = mycelya.stream(stream)
    assert isinstance(context, mycelya.StreamContext) and context.stream == stream
    with context:
        assert mycelya.current_stream() == stream
        with mycelya.StreamContext(None):
            assert mycelya.current_stream() == stream
        with mycelya.stream(mycelya.Stream()) as nothing:
            assert nothing is None and mycelya.current_stream() != stream
        assert mycelya.current_stream() == stream
    assert mycelya.current_stream() == before
    for wrong in ({"interprocess": True}, {"external": True}):
        with pytest.raises(NotImplementedError, match=f"Remove {next(iter(wrong))}="):
            mycelya.Event(**wrong)


# ---- What a worker does ----


def eventually(condition, seconds=60):
    """Whether a condition becomes true; the deadline is reached in failure only."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
    return True


@pytest.mark.cpu_worker
def test_utilization_follows_the_work():
    x = torch.full((512, 512), 1 / 512, device=DEVICE)
    values = []

    def busy():
        y = x
        for _ in range(40):  # some 10 GFlop; nothing computes results that nobody needs
            y = y @ x
        torch.mycelya.synchronize()
        values.append(torch.mycelya.utilization())
        return values[-1] > 0

    def idle():
        values.append(torch.mycelya.utilization())
        return values[-1] == 0

    assert eventually(busy), values
    assert eventually(idle), values
    assert all(type(v) is int and 0 <= v <= 100 for v in values)


@pytest.mark.cpu_worker
def test_utilization_is_measured_over_a_fifth_of_a_second_at_least(monkeypatch):
    """A call soon after another one measures a new time, and so does the first one."""
    samples = []
    original = _monitor._sample

    def sample(report):
        samples.append(original(report))
        return samples[-1]

    monkeypatch.setattr(_monitor, "_sample", sample)
    monkeypatch.setattr(_monitor, "_last", {})
    torch.mycelya.utilization()
    first, second = samples
    assert second.uptime - first.uptime >= 0.9 * _monitor._SHORTEST
    assert second.cpu >= first.cpu and second.pid == first.pid
    torch.mycelya.utilization()
    assert samples[-1].uptime - second.uptime >= 0.9 * _monitor._SHORTEST


@pytest.mark.cpu_worker
@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("temperature", "temperature"),
        ("power_draw", "power draw"),
        ("clock_rate", "clock rate"),
        ("memory_usage", "use of the memory bus"),
    ],
)
def test_what_only_the_driver_of_a_gpu_tells(name, what):
    expected = rf"The {what} of mycelya:0 is not known: its worker computes on a CPU \("
    with pytest.raises(NotImplementedError, match=expected):
        getattr(torch.mycelya, name)()


def test_processes_of_a_worker():
    pid = json.loads(_device.device_info(0))["pid"]
    lines = torch.mycelya.list_gpu_processes().splitlines()
    assert lines[0].startswith("mycelya:0 (")
    (mine,) = [line for line in lines if line.startswith(f"process {pid:>10d} uses ")]
    assert float(mine.split()[3]) > 1


def test_a_question_needs_a_second_stream(tmp_path):
    """The worker of "exec" has one stream, which its client uses."""
    code = """
        import shlex, torch
        from mycelya_torch import RemoteMachine, _load

        paths = [str(_load.EXEC), str(_load.torch_lib())]
        command = [str(_load.WORKER), "--stdio", "--device", "cpu"]
        command += ["--exec", paths[0], "--torch-lib", paths[1]]
        machine = RemoteMachine("exec", command=shlex.join(command))
        print(torch.ones(2, device=machine.device()).sum().item())
        try:
            torch.mycelya.utilization(machine)
        except RuntimeError as error:
            print(error)
    """
    status, out, err = run(code, tmp_path, timeout=280)
    assert status == 0, err
    first, second = out.splitlines()
    assert first == "2.0" and "cannot be asked what it does" in second
    assert "one stream" in second


# ---- NVML ----

NVML = """
#include <string.h>
typedef struct { unsigned gpu, memory; } rates;
typedef struct { unsigned pid; unsigned long long bytes; unsigned gi, ci; } process;
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned* n) { *n = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void** d) {
  *d = (char*)1 + i;
  return 0;
}
static unsigned number(void* d) { return (unsigned)((char*)d - (char*)1); }
int nvmlDeviceGetUUID(void* d, char* out, unsigned n) {
  strncpy(out, number(d) ? "GPU-bbbb-1" : "GPU-aaaa-0", n);
  return 0;
}
int nvmlDeviceGetUtilizationRates(void* d, rates* r) {
  r->gpu = 40 + number(d), r->memory = 20 + number(d);
  return 0;
}
int nvmlDeviceGetTemperature(void* d, int sensor, unsigned* t) {
  *t = sensor == 0 ? 60 + number(d) : 0;
  return 0;
}
int nvmlDeviceGetPowerUsage(void* d, unsigned* p) { return 3; /* not supported */ }
int nvmlDeviceGetClockInfo(void* d, int type, unsigned* c) {
  *c = type == 1 ? 1500 + number(d) : 0;
  return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void* d, unsigned* n, process* p) {
  p[0].pid = 77, p[0].bytes = 3 << 20;
  p[1].pid = 78, p[1].bytes = -1ull;
  *n = 2;
  return 0;
}
"""
ASK = """
    import torch
    from mycelya_torch import _monitor

    torch.ones(1, device="mycelya").item()
    report = _monitor._Report(0)
    report.device = "cuda:0"  # there is none here, but a driver that tells about one
    names = "utilization_percent memory_utilization_percent temperature_celsius"
    print([report.gpu(n, n) for n in (names + " clock_megahertz").split()])
    print(report.by_process("gpu_process_memory_bytes", device="cuda:0"))
    try:
        report.gpu("power_milliwatts", "power draw")
    except NotImplementedError as error:
        print(error)
    report.device = "cuda:1"
    print(report.get("gpu_clock_megahertz", device="cuda:1"))
"""


@pytest.mark.cpu_worker
@pytest.mark.parametrize(
    ("shown", "first", "second"),
    [
        (None, 0, 1501.0),
        ("GPU-bbbb, 0", 1, 1500.0),
    ],
)
def test_a_driver_tells_about_the_gpus_that_cuda_shows(tmp_path, shown, first, second):
    """The worker loads a library with the interface of NVML."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler, "the package is built with a C compiler"
    (tmp_path / "nvml.c").write_text(NVML)
    library = tmp_path / "libnvidia-ml.so.1"
    command = [compiler, "-shared", "-fPIC", "-o", library, tmp_path / "nvml.c"]
    subprocess.run(command, check=True)
    env = {"LD_LIBRARY_PATH": str(tmp_path), "MYCELYA_MACHINE": "local"}
    if shown is not None:
        env["CUDA_VISIBLE_DEVICES"] = shown
    status, out, err = run(ASK, tmp_path, timeout=280, **env)
    assert status == 0, err
    numbers, processes, refusal, other = out.splitlines()
    assert json.loads(numbers) == [40 + first, 20 + first, 60 + first, 1500 + first]
    assert processes == "{77: 3145728.0}"
    assert refusal.startswith("The power draw of mycelya:0 is not known: the driver")
    assert "NVML" in refusal and other == str(second)
