# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Programs that use the device type-check with mypy --strict and the plugin."""

import importlib.util
import re
import subprocess
import sys

import pytest
from helpers import ROOT

# mypy analyses all of PyTorch, which takes long where other tests run beside it.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

CONFIGURATION = """
[mypy]
strict = True
plugins = mycelya_types.mypy
"""
RIGHT = """
from concurrent.futures import Future

import torch
from torch import nn

import mycelya_torch
from mycelya_torch import GPUType, RemoteMachine
from mycelya_torch.errors import DeviceLostError


def tensors(machine: RemoteMachine, parameter: nn.Parameter) -> torch.Tensor:
    x = torch.ones(2, 3).mycelya()
    flag: bool = x.is_mycelya
    here: torch.Tensor = parameter.mycelya(0, non_blocking=True)
    there: torch.Tensor = x.to(machine)
    there = x.to(machine, torch.float16, non_blocking=True)
    there = x.to(device=machine, dtype=torch.float16, copy=True)
    there = x.to(machine.device("cpu")).to("mycelya:1").to(torch.float64).to(x)
    later: Future[torch.Tensor] = parameter.cpu_future()
    again: torch.Tensor = x.mycelya(torch.device("mycelya", 0))
    reveal_type(parameter.mycelya())
    return here + there + later.result() + again if flag else x


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)


def modules(machine: RemoteMachine) -> Model:
    model: Model = Model().mycelya()
    linear: nn.Linear = model.layer.mycelya("mycelya:0")
    linear = linear.to(machine).to(machine, torch.float16).to(device=machine)
    reveal_type(Model().to(machine))
    return model


def machines() -> None:
    with RemoteMachine("local", name="m", device="cpu") as machine:
        index: int | None = machine.remote_index
        assert machine.provider is mycelya_torch.BackendProvider.LOCAL
        where: torch.device = machine.device("cuda", 1)
        machine.save("x", {"x": torch.ones(2, device=where)})
        machine.checkpoint(every=60)
        names: list[str] = machine.saved()
        print(index, names, machine.logs())
    kinds: list[GPUType] = list(GPUType)
    try:
        mycelya_torch.create_modal_machine(kinds[0]).stop()
    except DeviceLostError as error:
        print(error, mycelya_torch.errors.MachineStoppedError)


def module(machine: RemoteMachine) -> int:
    torch.mycelya.synchronize()
    torch.mycelya.synchronize(machine)
    torch.mycelya.manual_seed_all(3)
    with torch.mycelya.device(machine), torch.mycelya.stream(torch.mycelya.Stream()):
        properties = torch.mycelya.get_device_properties("mycelya:0")
    name: str = properties.name
    total: int = properties.total_memory + torch.mycelya.memory_allocated(0)
    free, _ = torch.mycelya.mem_get_info(machine)
    with torch.mycelya.eager() as times:
        seconds: float = sum(time.seconds for time in times)
    used: int = torch.mycelya.utilization()
    bill = torch.mycelya.network_bill()
    lines: list[int] = [line.line for line in bill]
    event: torch.Event = torch.mycelya.Event(enable_timing=True)
    event.record(torch.mycelya.current_stream())
    floats: torch.Tensor = torch.mycelya.FloatTensor(2, 3)
    with torch.mycelya.amp.autocast(), torch.mycelya.nvtx.range("step"):
        torch.mycelya.memory.empty_cache()
    state: torch.Tensor = torch.mycelya.random.get_rng_state()
    print(name, seconds, lines, floats, state, torch.mycelya.metrics()["cuts"])
    torch.mycelya.set_sync_debug_mode("warn")
    return total + free + used


def others(storage: torch.UntypedStorage) -> bool:
    packed = nn.utils.rnn.pack_sequence([torch.ones(2)])
    return storage.mycelya().is_mycelya and packed.is_mycelya
"""
# Each line is wrong, and mypy says so: the pattern is a part of what it says.
WRONG = """
import torch
from mycelya_torch import RemoteMachine
import mycelya_torch

machine = RemoteMachine("local", start=False)
x = torch.ones(2)
torch.mycelya.synchronise()  # has no attribute "synchronise"
torch.mycelya.synchronize([1])  # incompatible type "list[int]"
torch.mycelya.manual_seed("1")  # incompatible type "str"
x.is_mycelya = True  # read-only
x.is_micelya  # has no attribute "is_micelya"
x.mycelya([1])  # incompatible type "list[int]"
x.to(RemoteMachine)  # No overload variant of "to"
x.to(object())  # No overload variant of "to"
text: str = x.mycelya()  # expression has type "Tensor"
torch.nn.Linear(1, 1).to(3.5)  # No overload variant of "to"
torch.nn.Linear(1, 1).mycelya(machine)  # incompatible type "RemoteMachine"
torch.empty(2, device=machine)  # No overload variant of "empty"
number: int = torch.mycelya.get_device_name()  # expression has type "str"
machine.checkpoint("often")  # incompatible type "str"
machine.devise()  # has no attribute "devise"
mycelya_torch.RemoteMachin("local")  # has no attribute "RemoteMachin"
RemoteMachine("local", gpu_count="2")  # incompatible type "str"
torch.mycelya.memory.memory_alocated()  # has no attribute "memory_alocated"
torch.cuda.synchronise()  # has no attribute "synchronise"
"""


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """What mypy says about both programs, without and with what it has cached."""
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed; make venv installs it")
    folder = tmp_path_factory.mktemp("types")
    (folder / "mypy.ini").write_text(CONFIGURATION)
    (folder / "right.py").write_text(RIGHT)
    (folder / "wrong.py").write_text(WRONG)
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "--no-color-output"]

    def check():
        done = subprocess.run(
            [*command, "--config-file", "mypy.ini", "right.py", "wrong.py"],
            cwd=folder,
            env={
                **{"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
                **{"MYPYPATH": str(ROOT), "HOME": str(folder), "LANG": "C.UTF-8"},
            },
            capture_output=True,
            text=True,
            timeout=700,
        )
        assert done.stderr == "", done.stderr
        return done.stdout.splitlines()

    first = check()
    (folder / "right.py").write_text(RIGHT + "\n")
    return first, check()


@pytest.mark.parametrize("cached", [False, True])
def test_a_right_program_has_no_error(checked, cached):
    mine = [line for line in checked[cached] if line.startswith("right.py")]
    revealed = [re.search('Revealed type is "(.*)"', line) for line in mine]
    assert all(revealed), mine
    assert [found[1].rpartition(".")[2] for found in revealed] == ["Tensor", "Model"]


@pytest.mark.parametrize("cached", [False, True])
def test_each_wrong_line_is_reported(checked, cached):
    said: dict[int, str] = {}
    for line in checked[cached]:
        found = re.match(r"wrong\.py:(\d+): error: (.*)", line)
        if found:
            said[int(found[1])] = said.get(int(found[1]), "") + found[2]
    wanted = {
        number: line.partition("  # ")[2]
        for number, line in enumerate(WRONG.splitlines(), 1)
        if "  # " in line
    }
    assert said.keys() == wanted.keys()
    for number, part in wanted.items():
        assert part in said[number], (number, part, said[number])


def test_nothing_else_is_reported(checked):
    """The package itself, which the programs import, has no error."""
    for lines in checked:
        other = [line for line in lines if not line.startswith(("right", "wrong"))]
        assert other == []
