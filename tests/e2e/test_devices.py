# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Several devices of one machine. The second one is the host's memory in all tests."""

import gc
import json
import os
import re
import signal
import threading
from pathlib import Path

import pytest
import torch
from helpers import gone, raised, run, same
from torch import nn

import mycelya_torch
from mycelya_torch import RemoteMachine, _device
from mycelya_torch.errors import DeviceLostError, MachineStoppedError

TRANSPORTS = ["unix", "tcp"]
DTYPES = [
    "uint8 int8 int16 int32 int64 float16 float32 float64 complex32 complex64",
    "complex128 bool bfloat16 float8_e5m2 float8_e4m3fn uint16 uint32 uint64",
]


@pytest.fixture(scope="module")
def machine():
    with RemoteMachine("local", device="cpu", name="two") as m:
        yield m


@pytest.fixture(scope="module")
def first(machine):
    return machine.device()


@pytest.fixture(scope="module")
def second(machine):
    return machine.device("cpu")


def pid_of(device):
    return json.loads(_device.device_info(device.index))["pid"]


def parent_of(pid):
    stat = Path(f"/proc/{pid}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


def exact(got, want):
    same(got, want, rtol=0, atol=0)


# ---- Devices ----


def test_the_devices_of_a_machine(machine, first, second):
    assert first == machine.device(None) and first.index == machine.remote_index
    assert second.type == "mycelya" and second != first
    for same_device in ("cpu", "cpu:0", torch.device("cpu")):
        assert machine.device(same_device) == second
    assert machine.device("cpu", 0) == second
    assert pid_of(first) != pid_of(second)
    assert parent_of(pid_of(first)) == parent_of(pid_of(second))
    assert mycelya_torch.get_all_machines().count(machine) == 1
    assert torch.mycelya.get_device_properties(second).device == "cpu"
    assert torch.ones(3, device=second).add(1).tolist() == [2, 2, 2]


def test_devices_that_cannot_be(machine):
    for arguments, text in [
        (("tpu",), "type='tpu' is not a device of a machine.*\"cuda:<index>\""),
        (("cuda:x",), "cuda:x"),
        ((None, 1), "type=None"),
        (("cuda:1", 2), "two devices"),
        (("cpu", 1), "index=1 is not a cpu device"),
        (("cuda", 16), "at most 16"),
        (("cuda", -1), "index=-1"),
        (("cuda", True), "index=True"),
        (("cuda", 1.0), "index=1.0"),
        ((torch.device("mycelya:0"),), "mycelya"),
    ]:
        with pytest.raises(ValueError, match=text):
            machine.device(*arguments)
    before = torch.mycelya.device_count()
    if not torch.cuda.is_available():
        for _ in range(3):
            with pytest.raises(RuntimeError, match="cuda:0"):
                machine.device("cuda")
        assert torch.mycelya.device_count() <= before + 1, "the index is used again"
    assert torch.ones(1, device=machine.device()).item() == 1
    stopped = RemoteMachine(start=False, name="resting")
    with pytest.raises(MachineStoppedError, match="resting"):
        stopped.device("cpu")


# ---- Copies ----


@pytest.mark.parametrize("name", " ".join(DTYPES).split())
def test_each_dtype(first, second, name):
    bits = torch.randint(0, 256, (6, 16), dtype=torch.uint8)
    if name == "bool":
        bits = bits % 2
    here = bits.view(getattr(torch, name))
    there = here.to(first).to(second)
    assert there.dtype == here.dtype and there.device == second
    back = there.to(first)
    assert torch.equal(back.cpu().view(torch.uint8), bits)


def layouts():
    base = torch.arange(2 * 3 * 4 * 5, dtype=torch.float32).reshape(2, 3, 4, 5)
    return {
        "contiguous": base,
        "transposed": base.transpose(1, 3),
        "channels last": base.contiguous(memory_format=torch.channels_last),
        "strided": base[:, ::2, 1:, ::3],
        "offset": base[1],
        "expanded": base[:1].expand(4, 3, 4, 5),
        "number": base[1, 2, 3, 4],
        "no elements": base[:0],
        "one element": base.reshape(-1)[7:8],
    }


@pytest.mark.parametrize("name", layouts())
@pytest.mark.parametrize("way", ["to", "copy_", "non_blocking"])
def test_layouts(first, second, name, way):
    here = layouts()[name]
    strides = here.stride()
    for source, target in ((first, second), (second, first)):
        there = here.to(source)
        if name in ("transposed", "strided", "expanded", "offset", "number"):
            whole = layouts()["contiguous"].to(source)
            there = whole.as_strided(here.size(), strides, here.storage_offset())
        if way == "copy_":
            got = torch.full(here.shape, -1.0, device=target)
            got.copy_(there)
        else:
            got = there.to(target, non_blocking=way == "non_blocking")
            assert got.stride() == here.clone().stride()
        exact(got.cpu(), here)
        assert got.device == target


def test_copies_into_views(first, second):
    target = torch.zeros(4, 6, device=second)
    alias = target.view(-1)
    target[1:3, ::2].copy_(torch.arange(6.0, device=first).view(2, 3))
    target[0].copy_(torch.tensor(9.0, device=first))
    target[3].copy_(torch.arange(6, device=first))  # converts
    want = torch.zeros(4, 6)
    want[1:3, ::2] = torch.arange(6.0).view(2, 3)
    want[0], want[3] = 9, torch.arange(6)
    exact(target.cpu(), want)
    exact(alias.cpu(), want.view(-1))
    with pytest.raises(RuntimeError, match="size|shape|expand"):
        target.copy_(torch.zeros(5, 6, device=first))
    empty = torch.empty(3, device=first)  # without values
    assert empty.to(second).shape == (3,)


def test_conversions(first, second):
    here = torch.tensor([1.5, -2.5, 300.75, float("inf"), float("nan")])
    for dtype in (torch.float16, torch.float64, torch.complex64, torch.bool):
        got = here.to(first).to(second, dtype)
        exact(got.cpu(), here.to(dtype))
    whole = torch.arange(5).to(first)
    assert whole.to(second, torch.int8).tolist() == [0, 1, 2, 3, 4]
    z = torch.randn(3, 2, dtype=torch.cfloat)
    exact(z.to(first).conj().to(second).cpu(), z.conj())
    exact(z.to(first).conj().imag.to(second).cpu(), z.conj().imag)
    got = torch.zeros(3, 2, dtype=torch.cfloat, device=second)
    got.conj().copy_(z.to(first))
    exact(got.cpu(), z.conj())


def test_a_copy_has_the_values_of_its_line(first, second):
    x = torch.zeros(1000, device=first)
    parked = x.to(second)
    x.add_(1)
    y = x.to(second)
    x.mul_(5)
    parked.sub_(1)
    assert (parked.sum().item(), y.sum().item(), x.sum().item()) == (-1000, 1000, 5000)
    x.copy_(parked)
    parked.zero_()
    assert x.sum().item() == -1000


def test_gradients(first, second):
    x = torch.randn(4, 3)
    leaf = x.clone().requires_grad_()
    (leaf.double() ** 2).sum().backward()
    there = x.to(first).requires_grad_()
    (there.to(second).double() ** 2).sum().backward()
    assert there.grad.device == first
    same(there.grad.cpu(), leaf.grad)
    target = torch.zeros(4, 3, device=second)
    again = x.to(first).requires_grad_()
    target.copy_(again)
    (target**2).sum().backward()
    same(again.grad.cpu(), leaf.grad)


def test_a_model_over_two_devices(first, second):
    torch.manual_seed(3)
    here = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
    one, other = nn.Linear(8, 16), nn.Linear(16, 2)
    one.load_state_dict(here[0].state_dict())
    other.load_state_dict(here[2].state_dict())
    one, other = one.to(first), other.to(second)
    local = torch.optim.SGD(here.parameters(), lr=0.1)
    remote = torch.optim.SGD([*one.parameters(), *other.parameters()], lr=0.1)
    for _ in range(3):
        x, target = torch.randn(5, 8), torch.randn(5, 2)
        local.zero_grad()
        nn.functional.mse_loss(here(x), target).backward()
        local.step()
        remote.zero_grad()
        hidden = torch.tanh(one(x.to(first)))
        out = other(hidden.to(second))
        nn.functional.mse_loss(out, target.to(second)).backward()
        remote.step()
    same(one.weight, here[0].weight)
    same(other.bias, here[2].bias)


def test_a_model_is_parked_and_comes_back(first, second):
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).to(first)
    model[0].weight.data.fill_(2)
    x = torch.randn(3, 4)
    want = model(x.to(first)).detach().cpu()
    model.to(second)
    assert {p.device for p in model.parameters()} == {second}
    model.to(first)
    same(model(x.to(first)).detach().cpu(), want)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_no_element_goes_through_the_client(transport, counters):
    with RemoteMachine(device="cpu", transport=transport) as machine:
        first, second = machine.device(), machine.device("cpu")
        x = torch.arange(1_000_000, dtype=torch.int32, device=first)
        torch.ones(1, device=first).to(second).cpu()
        torch.mycelya.synchronize(first)
        before = counters()
        y = x.to(second)
        z = torch.empty_like(x)
        z.copy_(y, non_blocking=True)
        torch.mycelya.synchronize(second)
        torch.mycelya.synchronize(first)
        after = counters()
        spent = [after[k] - before[k] for k in ("bytes_sent", "bytes_received")]
        assert sum(spent) < 20_000, spent
        assert after["upload_bytes"] == before["upload_bytes"]
        assert torch.equal(z, x) and y.sum().item() == sum(range(1_000_000))


@pytest.mark.slow
def test_large_tensors(first, second):
    """They are passed in parts, of 256 MiB at most."""
    n = (256 << 20) // 8 + 12_345
    x = torch.zeros(n, dtype=torch.int64, device=first)
    x[::1001] = 7
    x[-1] = 9
    y = x.to(second)
    assert torch.equal(y.to(first), x)
    del y
    matrix = x[: 1 << 25].view(1 << 13, 1 << 12).t()
    z = matrix.to(second)
    assert z.stride() == matrix.stride()
    marked = 1001 * 1000
    at = marked % (1 << 12), marked >> 12
    assert z[at].item() == 7 and z.sum().item() == matrix.sum().item()
    z.zero_()
    z[:, 1:].copy_(matrix[:, 1:])
    assert z[at].item() == 7 and z[:, 0].sum().item() == 0
    torch.mycelya.synchronize(second)


def test_many_small_copies(first, second):
    x = torch.arange(200.0, device=first)
    parts = [x[i].to(second) for i in range(200)]
    assert torch.stack(parts).tolist() == list(range(200))


def test_threads_that_copy_both_ways(first, second):
    failures = []

    def work(source, target, seed):
        try:
            for i in range(20):
                x = torch.full((1000,), float(seed + i), device=source)
                y = (x.to(target) * 2).to(source)
                assert y.sum().item() == 2000 * (seed + i)
        except BaseException as error:
            failures.append(error)

    threads = [
        threading.Thread(target=work, args=pair)
        for pair in ((first, second, 0), (second, first, 100), (first, second, 200))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
        assert not thread.is_alive()
    assert not failures, failures


# ---- Errors ----


def test_an_op_over_two_devices(machine, first, second):
    a, b = torch.ones(2, device=first), torch.ones(2, device=second)
    with pytest.raises(RuntimeError) as error:
        a + b
    text = str(error.value)
    assert f"mycelya:{first.index} and mycelya:{second.index}" in text
    assert f"two devices of one machine: mycelya:{first.index} is machine two," in text
    assert f"mycelya:{second.index} is machine two (cpu)" in text
    assert f'with .to("mycelya:{first.index}")' in text
    with RemoteMachine(device="cpu", name="far") as other:
        with pytest.raises(RuntimeError) as error:
            torch.cat([torch.ones(2, device=other.device()), a])
    assert "different machines" in str(error.value)
    assert "is machine far" in str(error.value) and "machine two" in str(error.value)
    with pytest.raises(RuntimeError, match="is the default machine"):
        torch.ones(1, device="mycelya:0") + a


def test_the_error_of_the_source(first, second):
    """A copy of what a failed op should have made has the op's error, once."""
    index = torch.tensor([9], device=first)
    lost = torch.zeros(3, device=first)[index]
    with pytest.raises(IndexError) as error:
        lost.to(second)
    assert "test_devices.py" in str(error.value)
    target = torch.zeros(1, device=second)
    with pytest.raises(IndexError):
        target.copy_(torch.zeros(3, device=first)[index])
    assert target.item() == 0
    assert torch.ones(2, device=first).to(second).tolist() == [1, 1]


def test_an_error_of_the_target(first, second):
    x = torch.ones(3, device=first)
    bad = torch.zeros(3, device=second)[torch.tensor([9], device=second)]
    y = x.to(second)
    with pytest.raises(IndexError):
        torch.mycelya.synchronize(second)
    del bad
    assert y.tolist() == [1, 1, 1] and (x.to(second) + y).tolist() == [2, 2, 2]


# ---- Lives ----


def test_the_second_device_ends_with_its_machine():
    machine = RemoteMachine(device="cpu", name="whole")
    first, second = machine.device(), machine.device("cpu")
    x = torch.ones(3, device=first).to(second)
    processes = [pid_of(first), pid_of(second)]
    machine.stop()
    assert all(gone(pid) for pid in processes)
    with pytest.raises(MachineStoppedError, match=r"machine whole \(cpu\).*stopped"):
        x.cpu()
    machine.start()
    assert machine.device("cpu") == second and machine.device() == first
    with pytest.raises(DeviceLostError, match=r"machine whole \(cpu\).*was stopped"):
        x.cpu()
    x = torch.ones(3, device=second)  # its session starts on first use
    assert x.to(first).tolist() == [1, 1, 1]
    machine.restart()
    with pytest.raises(DeviceLostError):
        x.to(first)
    assert torch.ones(3, device=first).to(second).tolist() == [1, 1, 1]
    machine.stop()


def test_indices_are_used_again():
    gc.collect()  # no index becomes free meanwhile, as that of another test's machine
    seen = []
    for _ in range(3):
        with RemoteMachine(device="cpu") as machine:
            seen.append((machine.device().index, machine.device("cpu").index))
        del machine
    assert len(set(seen)) == 1


def lose(device):
    """Ends the process of a session, and waits until the client knows."""
    pid = pid_of(device)
    os.kill(pid, signal.SIGKILL)
    return raised(DeviceLostError, lambda: torch.ones(1, device=device).cpu())


def test_the_loss_of_the_second_device():
    with RemoteMachine(device="cpu", name="half") as machine:
        first, second = machine.device(), machine.device("cpu")
        x = torch.arange(3.0, device=first)
        parked = x.to(second)
        text = lose(second)
        assert f"mycelya:{second.index}, machine half (cpu), is lost" in text
        assert "killed" in text and "Call the machine's start()" in text
        for use in (lambda: x.to(second), lambda: parked.to(first)):
            with pytest.raises(DeviceLostError, match=r"half \(cpu\)"):
                use()
        assert x.tolist() == [0, 1, 2] and machine.state == "running"
        machine.start()
        assert machine.device("cpu") == second
        assert x.to(second).tolist() == [0, 1, 2]
        with pytest.raises(DeviceLostError, match="killed"):
            parked.cpu()
        lose(second)
        torch.mycelya.restart(second)
        assert x.to(second).tolist() == [0, 1, 2]


def test_the_loss_of_the_machine():
    with RemoteMachine(device="cpu", name="gone") as machine:
        first, second = machine.device(), machine.device("cpu")
        x = torch.ones(3, device=first)
        y = x.to(second)
        y.cpu()
        lose(first)
        text = raised(DeviceLostError, y.cpu)
        assert f"ended with mycelya:{first.index}" in text and "killed" in text
        assert "restart()" in text and "gone (cpu)" in text
        with pytest.raises(DeviceLostError):
            x.to(second)
        machine.restart()
        assert torch.ones(3, device=second).to(first).tolist() == [1, 1, 1]


def test_checkpoints_are_of_the_first_device():
    """Copies to it go through the client then, which may have to repeat them."""
    with RemoteMachine(device="cpu", name="kept") as machine:
        first, second = machine.device(), machine.device("cpu")
        parked = torch.full((4,), 7.0, device=second)
        machine.checkpoint()
        x = parked.to(first)
        x.add_(1)
        worker = pid_of(first)
        os.kill(worker, signal.SIGKILL)
        assert x.tolist() == [8, 8, 8, 8]
        assert machine.state == "running"
        assert "kept (cpu)" in raised(DeviceLostError, parked.cpu)
        machine.start()
        assert x.to(second).tolist() == [8, 8, 8, 8]


def test_the_registry_knows_the_other_devices():
    registry = mycelya_torch.get_device_registry()
    gc.collect()  # else a machine of another test may leave the registry meanwhile
    with RemoteMachine(device="cpu", name="known") as machine:
        before = len(registry)
        second = machine.device("cpu")
        assert len(registry) == before and second.index != 0
        assert registry.get_device_by_index(second.index) is machine
        assert registry.get_device_index(machine) == machine.remote_index


def test_a_pause_keeps_the_first_device_only(tmp_path):
    folder = str(tmp_path)
    with RemoteMachine(device="cpu", name="paused", state=folder) as machine:
        x = torch.ones(3, device=machine.device())
        parked = x.to(machine.device("cpu"))
        with pytest.raises(RuntimeError, match="paused cannot pause.*has tensors"):
            machine.pause()
        assert machine.state == "running" and parked.tolist() == [1, 1, 1]
        del parked
        machine.pause()
        assert machine.state == "paused"
        machine.resume()
        assert x.to(machine.device("cpu")).tolist() == [1, 1, 1]


def test_an_interrupted_copy(tmp_path):
    code = """
        import os, signal, threading, time
        import torch
        from mycelya_torch import RemoteMachine

        with RemoteMachine(device="cpu") as machine:
            first, second = machine.device(), machine.device("cpu")
            torch.ones(1, device=first).to(second).cpu()
            x = torch.randn(700, 700, device=first)
            for _ in range(400):
                x = x @ x / 30
            interrupt = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
            try:
                interrupt.start()
                x.to(second)
                print("the work was too short")
                time.sleep(600)  # until the interrupt
            except KeyboardInterrupt:
                print("interrupted")
            print(torch.ones(3, device=first).to(second).tolist())
    """
    status, out, err = run(code, tmp_path)
    assert status == 0, err
    assert out.endswith("[1.0, 1.0, 1.0]\n") and re.match("interrupted|the work", out)


def test_a_fork_closes_what_is_open(tmp_path):
    code = """
        import os
        import torch
        from mycelya_torch import RemoteMachine

        with RemoteMachine(device="cpu") as machine:
            second = machine.device("cpu")
            x = torch.ones(3, device=second)
            child = os.fork()
            if child == 0:
                try:
                    x.cpu()
                    os._exit(1)
                except RuntimeError:
                    os._exit(7)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), x.tolist())
    """
    status, out, err = run(code, tmp_path)
    assert (status, out) == (0, "7 [1.0, 1.0, 1.0]\n"), err


def test_a_program_that_ends_with_two_devices(tmp_path):
    code = """
        import torch
        from mycelya_torch import RemoteMachine

        machine = RemoteMachine(device="cpu")
        x = torch.ones(3, device=machine.device("cpu")).to(machine.device())
        print(x.tolist())
    """
    status, out, err = run(code, tmp_path)
    assert (status, out, err) == (0, "[1.0, 1.0, 1.0]\n", "")


def test_random_numbers_and_flags_of_each_device(first, second):
    torch.manual_seed(5)
    a = torch.rand(4, device=first)
    torch.manual_seed(5)
    b = torch.rand(4, device=second)
    assert torch.equal(a.cpu(), b.cpu())
    state = torch.mycelya.get_rng_state(second)
    assert state.device == second
    c = torch.rand(2, device=second)
    torch.mycelya.set_rng_state(state, second)
    assert torch.equal(torch.rand(2, device=second), c)


def test_dtypes_follow_the_worker_of_each_device(tmp_path):
    """CUDA keeps the statistics of 16-bit floats as float32; a CPU does not."""
    code = """
        import torch
        from mycelya_torch import RemoteMachine, _device

        machine = RemoteMachine(device="cpu")
        _device.open(7, "local", "cuda:0", "far", "")  # starts on first use: never here
        for device in [machine.device(), "mycelya:7"] * 2:
            x = torch.ones(4, 8, dtype=torch.bfloat16, device=device)
            print(torch.native_layer_norm(x, [8], None, None, 1e-5)[1].dtype)
        print(_device.state(7))
        state = torch.mycelya.get_rng_state
        print(state("mycelya:7").numel(), state(machine.device()).numel() > 1000)
        import os
        os._exit(0)  # without the work of the device that does not exist
    """
    status, out, err = run(code, tmp_path)
    want = ["torch.bfloat16", "torch.float32"] * 2 + ["running", "16 True"]
    assert (status, out.split("\n")[:-1]) == (0, want), err
