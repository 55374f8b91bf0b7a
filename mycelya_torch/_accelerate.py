# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""accelerate on the device: Accelerator(), fp16, device_map="auto", save_state()."""

from __future__ import annotations

import functools
import inspect
import json
import sys
from collections.abc import Iterable
from typing import Any

import torch

from mycelya_torch import _choose, _device, _env, _registry

_ARGUMENT = "set ACCELERATE_TORCH_DEVICE=mycelya"

# The devices for which Accelerator.__init__ allows fp16.
_WITH_FP16 = ("xpu", "cuda", "npu", "xla", "mlu", "musa", "hpu", "sdaa", "mps")


# ---- accelerate.state ----


def state(module: Any) -> str:
    """Makes PartialState choose the device; returns why it does not, or ""."""
    return _choose_default(module, "")


def other_state(module: Any, why: str) -> None:
    """Warns when a release that is not tested chooses the CPU."""
    _choose_default(module, why)


def _choose_default(module: Any, why: str) -> str:
    owner: Any = module.PartialState
    original = owner.default_device.fget

    @functools.wraps(original)
    def default_device(self: Any) -> torch.device:
        device: torch.device = original(self)
        if device.type not in ("cpu", "cuda") or not _choose.wanted():
            return device
        if why:
            if device.type == "cpu":
                _choose.warn("accelerate", _ARGUMENT, why)
            return device
        return torch.device("mycelya")

    owner.default_device = property(default_device)
    return ""


# ---- accelerate.accelerator ----


def accelerator(module: Any) -> str:
    """Makes Accelerator take the device for fp16; returns why it does not, or ""."""
    return _choose.with_constant(
        module.Accelerator.__init__, _WITH_FP16, (*_WITH_FP16, "mycelya")
    )


# ---- accelerate.utils.modeling ----


def modeling(module: Any) -> str:
    """Patches the memory of devices and the gradient scaler; returns why not, or ""."""
    memory, scaler = module.get_max_memory, module.get_grad_scaler
    why = _choose.differs(memory, "max_memory")
    why = why or _choose.differs(scaler, "distributed_type kwargs")
    if why:
        return why
    module.get_max_memory = _with_devices(module, memory)
    module.get_grad_scaler = _scaler_for(scaler)
    return ""


def _scaler_for(original: Any) -> Any:
    @functools.wraps(original)
    def get_grad_scaler(distributed_type: Any = None, **kwargs: Any) -> Any:
        state: Any = sys.modules["accelerate.state"]
        if state.AcceleratorState().device.type == "mycelya":
            return torch.amp.GradScaler("mycelya", **kwargs)
        return original(distributed_type, **kwargs)

    return get_grad_scaler


def _with_devices(module: Any, original: Any) -> Any:
    @functools.wraps(original)
    def get_max_memory(max_memory: dict[Any, Any] | None = None) -> dict[Any, Any]:
        if not _choose.wanted():
            result: dict[Any, Any] = original(max_memory)
            return result
        if max_memory is None:
            ours, others = _free_memory(), original()
            others = {k: n for k, n in others.items() if not isinstance(k, int)}
            if _shares_memory(ours):  # as for a GPU with the host's memory
                del others["cpu"]
        else:
            for key, n in max_memory.items():
                if isinstance(n, str):  # as the library does, in place
                    max_memory[key] = module.convert_file_size_to_int(n)
            known = range(_device.device_count())
            ours = {k: n for k, n in max_memory.items() if k in known}
            others = original({k: n for k, n in max_memory.items() if k not in ours})
        return {**dict(sorted(ours.items())), **others}

    return get_max_memory


def _free_memory() -> dict[int, int]:
    """The free bytes of each device. The one of a bare "mycelya" starts if need be."""
    running = [i for i in range(_device.device_count()) if _is_running(i)]
    return {i: _device.memory_info(i)[0] for i in running or [_device.current_device()]}


def _is_running(index: int) -> bool:
    return _device.state(index) == "running"


def _shares_memory(indices: Iterable[int]) -> bool:
    """Whether a device is a worker on this host that computes on the CPU."""
    registry = _registry.get_device_registry()
    for index in indices:
        machine = registry.get_device_by_index(index)
        provider = machine.provider.value if machine else _env.default_machine()[0]
        info = json.loads(_device.device_info(index))
        if provider == "local" and info["device"] == "cpu":
            return True
    return False


# ---- accelerate.checkpointing ----


def checkpoints(module: Any) -> str:
    """Saves the states of generators too; returns why it does not, or ""."""
    save: Any = module.save_accelerator_state
    load: Any = module.load_accelerator_state
    why = _choose.differs(
        save,
        "output_dir model_states optimizers schedulers dataloaders process_index step "
        "scaler save_on_each_node safe_serialization",
    )
    why = why or _choose.differs(
        load,
        "input_dir models optimizers schedulers dataloaders process_index scaler "
        "map_location load_kwargs load_model_func_kwargs",
    )
    if why:
        return why
    place = list(inspect.signature(save).parameters).index("process_index")  # of both

    @functools.wraps(save)
    def save_accelerator_state(output_dir: Any, *args: Any, **kwargs: Any) -> Any:
        result = save(output_dir, *args, **kwargs)
        _choose.save_states(output_dir, _process(place, args, kwargs))
        return result

    @functools.wraps(load)
    def load_accelerator_state(input_dir: Any, *args: Any, **kwargs: Any) -> Any:
        result = load(input_dir, *args, **kwargs)
        why = _choose.load_states(input_dir, _process(place, args, kwargs))
        if why:
            module.logger.warning(why)
        return result

    module.save_accelerator_state = save_accelerator_state
    module.load_accelerator_state = load_accelerator_state
    return ""


def _process(place: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """The argument process_index; args lack the first one, the folder."""
    index: int = kwargs["process_index"] if len(args) < place else args[place - 1]
    return index
