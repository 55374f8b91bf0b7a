# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""`mycelya run --as-cuda`: in this process "cuda" means the mycelya device.

A mode of torch's functions replaces the device "cuda" in their arguments. The names of
`torch.cuda` become those of `torch.mycelya`. The type of a device stays "mycelya", so a
comparison of it with "cuda" is rewritten in the script and in the modules of its
folder; see _compared. All of it ends with the process.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from mycelya_torch import _compared, _legacy, _redirected
from mycelya_torch._imports import when_imported

_count = _redirected.count

_TENSOR_CUDA: Any = torch.Tensor.cuda
_TENSOR_IS_CUDA: Any = torch.Tensor.is_cuda.__get__  # type: ignore[attr-defined]


def ours(value: Any) -> Any:
    """A device or type of CUDA, by name, as one of mycelya; anything else as it is."""
    if isinstance(value, str):
        if value.partition(":")[0] == "cuda":
            return f"mycelya{value[4:]}"
        if value.startswith("torch.cuda."):  # a type, as "torch.cuda.FloatTensor"
            return f"torch.mycelya.{value[11:]}"
    return value


class _Mode(TorchFunctionMode):
    """Replaces "cuda" in the arguments of all torch functions of a thread."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        for value in args:
            if value.__class__ is str and ours(value) is not value:
                _count(f'{_name(func)}("{value}")')
                args = tuple(ours(v) for v in args)
                break
        if kwargs:
            for key in ("device", "type"):
                value = kwargs.get(key)
                if value.__class__ is str and ours(value) is not value:
                    _count(f'{_name(func)}({key}="{value}")')
                    kwargs = {**kwargs, key: ours(value)}
        if func is _TENSOR_CUDA:
            _count("Tensor.cuda()")
            return _to_ours(*args, **(kwargs or {}))
        if func == _TENSOR_IS_CUDA:
            return args[0].device.type == "mycelya"
        return func(*args, **(kwargs or {}))


def _name(function: Any) -> str:
    if function is torch.device:
        return "torch.device"
    owner = getattr(function, "__objclass__", None)
    if owner is not None:
        return f"Tensor.{function.__name__}"
    name = getattr(function, "__name__", str(function))
    return "Module.to" if name == "_parse_to" else f"torch.{name}"


def _to_ours(
    tensor: torch.Tensor,
    device: Any = None,
    non_blocking: bool = False,
    memory_format: Any = torch.preserve_format,
) -> torch.Tensor:
    """Tensor.cuda(): a tensor of the current device stays as it is."""
    if device is None:
        device = torch.device("mycelya", torch.mycelya.current_device())  # type: ignore[attr-defined]
    elif isinstance(device, int):
        device = torch.device("mycelya", device)
    return tensor.to(device, non_blocking=non_blocking, memory_format=memory_format)


def install() -> None:
    """Makes "cuda" mean the device, in this thread and in those that it starts."""
    _redirect_module()
    _redirect_default_type()
    _redirect_amp()
    _redirect_loading()
    _redirect_generators()
    _redirect_distributed()
    for name in ("lightning.pytorch", "pytorch_lightning"):
        when_imported(f"{name}.accelerators", _redirect_lightning)
    for name in ("lightning.fabric", "lightning_fabric"):
        when_imported(f"{name}.accelerators", _redirect_lightning)
    for name in ("safetensors", "safetensors.torch"):
        when_imported(name, _redirect_safetensors)
    _follow_threads()
    _follow_backward()
    mode: Any = _Mode()
    mode.__enter__()


def _follow_threads() -> None:
    """Modes belong to a thread; new threads get one too."""
    owner: Any = threading.Thread
    original = owner._bootstrap_inner

    @functools.wraps(original)
    def _bootstrap_inner(self: Any) -> None:
        with _Mode():
            original(self)

    owner._bootstrap_inner = _bootstrap_inner


def _follow_backward() -> None:
    """Tensor.backward() is itself called by the mode, which is off meanwhile.

    Code of the user that runs in a backward pass needs it again.
    """
    original: Any = torch.autograd.graph._engine_run_backward

    @functools.wraps(original)
    def _engine_run_backward(*args: Any, **kwargs: Any) -> Any:
        with _Mode():
            return original(*args, **kwargs)

    for module in (torch.autograd.graph, torch.autograd):
        vars(module)["_engine_run_backward"] = _engine_run_backward


# ---- torch.cuda ----


def _redirect_module() -> None:
    """Gives torch.cuda and its modules the functions and classes of torch.mycelya."""
    cuda: Any = torch.cuda
    device: Any = torch.mycelya  # type: ignore[attr-defined]
    parts = [sys.modules[f"torch.cuda.{n}"] for n in ("memory", "random", "streams")]
    parts += [sys.modules[f"torch.cuda.{n}"] for n in ("graphs", "nvtx")]
    replaced: dict[str, Any] = {}
    for name in cuda.__all__:
        value = getattr(device, name)
        if isinstance(value, type(sys)):
            continue  # a module: its names follow
        plain = callable(value) and not isinstance(value, type)
        replaced[name] = _counting(f"torch.cuda.{name}", value) if plain else value
    special: dict[str, Callable[..., Any]] = {
        "get_device_capability": _capability,
        "get_device_properties": _properties,
        "get_rng_state": _state,
        "get_rng_state_all": _states,
    }
    for name, get in special.items():
        replaced[name] = _counting(f"torch.cuda.{name}", get)
    for name, value in replaced.items():
        setattr(cuda, name, value)
        for part in parts:
            if name in vars(part):
                setattr(part, name, value)
    for name in cuda.nvtx.__all__:
        setattr(cuda.nvtx, name, getattr(device.nvtx, name))
    cuda._is_in_bad_fork = device._is_in_bad_fork
    cuda._lazy_init = device._lazy_init


def _counting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        _count(f"{name}()")
        return function(*args, **kwargs)

    return call


def _capability(device: Any = None) -> tuple[int, int]:
    """The compute capability; (0, 0) on a CPU, because scripts only compare it."""
    found = torch.mycelya.get_device_properties(device)  # type: ignore[attr-defined]
    return found.major, found.minor


def _properties(device: Any = None) -> Any:
    """The properties. Scripts divide by the multiprocessors, so a CPU has one."""
    found = torch.mycelya.get_device_properties(device)  # type: ignore[attr-defined]
    return found._replace(multi_processor_count=max(1, found.multi_processor_count))


def _state(device: Any = "cuda") -> torch.Tensor:
    """On the CPU, as CUDA's, because scripts save it."""
    state: torch.Tensor = torch.mycelya.get_rng_state(ours(device))  # type: ignore[attr-defined]
    return state.cpu()


def _states() -> list[torch.Tensor]:
    states = torch.mycelya.get_rng_state_all()  # type: ignore[attr-defined]
    return [state.cpu() for state in states]


def _redirect_default_type() -> None:
    """torch.set_default_tensor_type("torch.cuda.FloatTensor"), which C refuses."""
    original: Any = torch.set_default_tensor_type
    cuda: Any = torch.cuda

    @functools.wraps(original)
    def set_default_tensor_type(t: Any) -> None:
        name = t.rpartition(".")[2] if isinstance(t, str) else ""
        if ours(t) is not t and name in cuda.__all__:
            t = getattr(cuda, name)
        if not isinstance(t, _legacy.TensorType):
            torch.set_default_device(None)
            original(t)
            return
        _count("torch.set_default_tensor_type()")
        torch.set_default_dtype(t.dtype)
        torch.set_default_device("mycelya")

    vars(torch)["set_default_tensor_type"] = set_default_tensor_type


# ---- Mixed precision ----


def _redirect_amp() -> None:
    autocast: Any = torch.amp.autocast_mode
    _redirect_argument(autocast.autocast, "__init__", "torch.autocast", 1)
    _redirect_argument(torch.amp.GradScaler, "__init__", "GradScaler", 1, "cuda")
    for part in (autocast, torch.amp):
        for name in ("custom_fwd", "custom_bwd", "is_autocast_available"):
            _redirect_argument(part, name, f"torch.amp.{name}", 0)
    owner: Any = torch
    for name in ("is_autocast_enabled", "get_autocast_dtype", "set_autocast_dtype"):
        _redirect_argument(owner, name, f"torch.{name}", 0, "cuda")
    setter: Any = torch.set_autocast_enabled

    def set_autocast_enabled(*args: Any) -> None:
        if len(args) == 1:  # the older form, for CUDA alone
            args = ("mycelya", *args)
        setter(ours(args[0]), *args[1:])

    owner.set_autocast_enabled = set_autocast_enabled
    owner.get_autocast_gpu_dtype = lambda: torch.get_autocast_dtype("mycelya")
    owner.set_autocast_gpu_dtype = lambda dtype: torch.set_autocast_dtype(
        "mycelya", dtype
    )


def _redirect_argument(
    owner: Any, name: str, shown: str, place: int, default: str = ""
) -> None:
    """Replaces "cuda" in one argument, which may have the default "cuda"."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        key = next((k for k in ("device_type", "device") if k in kwargs), "")
        given = args[place] if len(args) > place else kwargs.get(key, default)
        if isinstance(given, str) and ours(given) != given:
            _count(f'{shown}("{given}")')
            if len(args) > place:
                args = (*args[:place], ours(given), *args[place + 1 :])
            elif key:
                kwargs[key] = ours(given)
            else:
                args = (*args, ours(given))
        return original(*args, **kwargs)

    setattr(owner, name, call)


# ---- Files, generators ----


def _redirect_loading() -> None:
    """map_location="cuda", and files that were saved on a CUDA GPU."""
    serialization: Any = torch.serialization
    original = serialization.load

    @functools.wraps(original)
    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        if ours(map_location) != map_location:
            _count(f'torch.load(map_location="{map_location}")')
            map_location = ours(map_location)
        elif isinstance(map_location, dict):
            _count("torch.load(map_location={…})")
            map_location = {k: ours(v) for k, v in map_location.items()}
        return original(f, map_location, *args, **kwargs)

    serialization.load = torch.load = load

    def restore(storage: Any, location: str) -> Any:
        if ours(location) == location:
            return None
        return serialization.default_restore_location(storage, "mycelya")

    serialization.register_package(0, lambda storage: None, restore)
    owner: Any
    for owner in (torch.UntypedStorage, torch.TypedStorage):
        owner.cuda = _storage_to_ours


def _storage_to_ours(
    storage: Any, device: Any = None, non_blocking: bool = False
) -> Any:
    index = "" if device is None else f":{torch.device(device).index or 0}"
    return storage.to(device=f"mycelya{index}", non_blocking=non_blocking)


class _GeneratorType(type):
    """Makes the class below stand for torch.Generator, whose constructor is in C."""

    original: Any = torch.Generator

    def __call__(cls, device: Any = "cpu") -> Any:
        if ours(device) != device:
            _count(f'torch.Generator("{device}")')
        return cls.original(ours(device))

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.original)

    def __getattr__(cls, name: str) -> Any:
        return getattr(cls.original, name)


def _redirect_generators() -> None:
    names = {"__module__": "torch", "__doc__": torch.Generator.__doc__}
    vars(torch)["Generator"] = _GeneratorType("Generator", (), names)


# ---- Libraries ----


def _redirect_distributed() -> None:
    """The backend "nccl" is "mycelya"."""
    dist: Any = torch.distributed
    if not dist.is_available():
        return
    for name in ("init_process_group", "new_group"):
        call = _with_our_backend(getattr(dist, name))
        setattr(dist, name, call)
        setattr(dist.distributed_c10d, name, call)
    dist.is_nccl_available = lambda: True


def _with_our_backend(original: Any) -> Any:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = inspect.signature(original).bind(*args, **kwargs)
        backend = given.arguments.get("backend")
        if isinstance(backend, str) and "nccl" in backend.lower():
            _count(f'{original.__name__}("{backend}")')
            given.arguments["backend"] = "mycelya"
        return original(*given.args, **given.kwargs)

    return call


def _redirect_safetensors(module: Any) -> None:
    for name in ("safe_open", "load_file"):
        original = getattr(module, name, None)
        if original is not None and not hasattr(original, "_mycelya"):
            setattr(module, name, _with_device(original))


def _with_device(original: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        kwargs = {k: ours(v) if k == "device" else v for k, v in kwargs.items()}
        return original(*(ours(a) if i else a for i, a in enumerate(args)), **kwargs)

    call._mycelya = True  # type: ignore[attr-defined]
    return functools.wraps(original)(call)


def _redirect_lightning(module: Any) -> None:
    """accelerator="cuda" is the accelerator "mycelya"."""
    registry = getattr(module, "AcceleratorRegistry", None)
    if registry is None:
        registry = module.ACCELERATOR_REGISTRY
    if "mycelya" in registry:
        registry["cuda"] = registry["mycelya"]
        module.CUDAAccelerator.is_available = staticmethod(lambda: False)


# ---- The script ----


def main(argv: list[str], hide: bool) -> None:
    """Runs a script.

    Args:
        argv: the script's path, and its arguments
        hide: whether a CUDA GPU of this host is ignored
    """
    if not hide and torch.cuda.is_available():
        name = torch.cuda.get_device_name(0)
        sys.exit(
            f"mycelya run --as-cuda: this host has a CUDA GPU ({name}), which the "
            "script can use without mycelya. To use the mycelya device instead, add "
            "--hide-cuda."
        )
    install()
    _redirected.report_at_exit()
    _compared.run(argv)
