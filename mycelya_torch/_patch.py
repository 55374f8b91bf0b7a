# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Patches of PyTorch where it has no hook for a remote device.

All of this runs within `import torch`. So a patch only checks a tensor's device; it
imports the module with its code on first use.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable, Iterable
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.overrides import handle_torch_function, has_torch_function_unary

from mycelya_torch import _device, _tested
from mycelya_torch._imports import when_imported

if TYPE_CHECKING:
    from concurrent.futures import Future


def install() -> None:
    """Installs all patches; called once, at import."""
    _patch_printing()
    _patch_storages()
    _patch_sharing()
    _patch_encoder()
    _patch_cross_entropy()
    _patch_loading()
    if os.environ.get("MYCELYA_GUESS") != "off":
        _patch_states()
    _patch_flags()
    _patch_higher_order()
    torch.Tensor.cpu_future = _cpu_future  # type: ignore[attr-defined]
    _allow_for_lazy_modules(torch.Tensor.mycelya)  # type: ignore[attr-defined]
    register_optimizer_step_pre_hook(_start_of_step)
    register_optimizer_step_post_hook(_end_of_step)
    for name, function in {
        "torch._dynamo.device_interface": "register_interface",
        "torch._dynamo.variables.tensor": "know_is_mycelya",
        "torch._dynamo.backends.registry": "register_backend",
        "torch._inductor.compile_fx": "redirect_inductor",
        "torch._functorch.partitioners": "know_rng",
        "torch.nn.attention.flex_attention": "allow_flex_attention",
    }.items():
        when_imported(name, _later("_dynamo", function))
    for name in ("safetensors", "safetensors.torch"):
        when_imported(name, _later("_safetensors", "patch"))
    for name, function in {
        "transformers.generation.utils": "generation",
        "transformers.trainer": "trainer",
        "transformers.masking_utils": "masks",
        "lightning.pytorch.trainer.connectors.logger_connector.result": "progress_bar",
    }.items():
        when_imported(name, _later("_ahead", function))
    for name, function in {
        "torch.distributed.tensor._random": "random_numbers",
        "torch.distributed.tensor": "attention",
    }.items():
        when_imported(name, _later("_distributed", function))
    for name in _tested.CHOICES:
        when_imported(name, _later("_choose", "patch"))


def _wrap(owner: Any, name: str, ours: Callable[..., Any]) -> None:
    """Makes owner.name call ours(original, self, …) if self.device is mycelya."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.device.type != "mycelya":
            return original(self, *args, **kwargs)
        return ours(original, self, *args, **kwargs)

    setattr(owner, name, method)


def _later(module: str, name: str) -> Callable[..., Any]:
    """A function of a module of this package; the first call imports the module."""

    def call(*args: Any, **kwargs: Any) -> Any:
        owner = importlib.import_module(f"mycelya_torch.{module}")
        return getattr(owner, name)(*args, **kwargs)

    return call


def _start_of_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Notes a step that a failure may undo; see _undo."""
    if not torch.compiler.is_compiling():
        _device.note_step(optimizer)


def _end_of_step(*_: Any) -> None:
    """Ends a trace at an optimizer's step; torch.compile records no trace."""
    if not torch.compiler.is_compiling():
        _device.mark_step()


def _patch_encoder() -> None:
    """Sets the padded positions of nn.TransformerEncoder's results; see _encoder."""
    owner: Any = torch.nn.TransformerEncoder
    original = owner.forward

    @functools.wraps(original)
    def forward(
        self: Any,
        src: torch.Tensor,
        mask: torch.Tensor | None = None,
        src_key_padding_mask: torch.Tensor | None = None,
        is_causal: bool | None = None,
    ) -> torch.Tensor:
        result: torch.Tensor = original(
            self, src, mask, src_key_padding_mask, is_causal
        )
        if src.device.type != "mycelya" or src_key_padding_mask is None:
            return result
        from mycelya_torch._encoder import without_padding

        return without_padding(self, result, src, mask, src_key_padding_mask)

    owner.forward = forward


# ---- Numbers, flags, files ----


def _patch_cross_entropy() -> None:
    """Makes F.linear_cross_entropy sum 16-bit floats in float32, as on CPU and CUDA."""
    name = "torch.nn.modules.linear_cross_entropy_options"
    if name not in sys.modules:  # an older PyTorch has no such function
        return
    module: Any = sys.modules[name]
    owner = module.LinearCrossEntropyOptions
    policy, dtype_of_sums = module._auto_acc_policy, owner._resolve_auto_acc_dtype

    def auto_policy(device_type: str | None, dtype: torch.dtype) -> str:
        here = "cpu" if device_type == "mycelya" else device_type
        chosen: str = policy(here, dtype)
        return chosen

    def auto_dtype(dtype: torch.dtype, device: torch.device | None) -> Any:
        if device is not None and device.type == "mycelya":
            device = torch.device("cpu")
        return dtype_of_sums(dtype, device)

    module._auto_acc_policy = auto_policy
    owner._resolve_auto_acc_dtype = staticmethod(auto_dtype)


def _patch_loading() -> None:
    """Makes a loaded sparse tensor a leaf.

    A sparse tensor with requires_grad is saved as a CPU tensor with requires_grad. The
    copy from that to the device would not be a leaf.
    """
    utils: Any = torch._utils
    original = utils._rebuild_device_tensor_from_cpu_tensor

    @functools.wraps(original)
    def rebuild(data: torch.Tensor, *args: Any) -> torch.Tensor:
        tensor: torch.Tensor = original(data.detach(), *args)
        return tensor

    utils._rebuild_device_tensor_from_cpu_tensor = rebuild


def _patch_states() -> None:
    """Notes the tensors of modules and optimizers that are read one after another.

    Saving does that with those of a state dict, and module.cpu() with all of a module.
    """
    module: Any = torch.nn.Module
    of_module: Any = module.state_dict
    of_optimizer: Any = torch.optim.Optimizer.state_dict

    @functools.wraps(of_module)
    def module_state(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = of_module(self, *args, **kwargs)
        if not args and "destination" not in kwargs:  # not of a part of the module
            _note_series(found.values())
        return found

    @functools.wraps(of_optimizer)
    def optimizer_state(self: Any) -> Any:
        found = of_optimizer(self)
        states = (s for s in found["state"].values() if isinstance(s, dict))
        _note_series(value for state in states for value in state.values())
        return found

    def moves(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def move(self: Any, *args: Any, **kwargs: Any) -> Any:
            first = next(self.parameters(), None)
            if first is not None and first.device.type == "mycelya":
                _note_series(_in_order_of_moves(self))
            return original(self, *args, **kwargs)

        return move

    module.state_dict = module_state
    module.to, module.cpu = moves(module.to), moves(module.cpu)
    torch.optim.Optimizer.state_dict = optimizer_state  # type: ignore[method-assign]


def _in_order_of_moves(module: torch.nn.Module) -> Iterable[torch.Tensor | None]:
    for child in module.children():
        yield from _in_order_of_moves(child)
    for parameter in module._parameters.values():
        if parameter is not None:
            yield from (parameter, parameter.grad)
    yield from module._buffers.values()


def _note_series(values: Iterable[object]) -> None:
    ours = [
        value
        for value in values
        if isinstance(value, torch.Tensor) and value.device.type == "mycelya"
    ]
    if ours:
        _device.note_series(ours)


# PyTorch's global flags, which kernels read, and their values at PyTorch's start. Each
# has functions torch._C._get_<name> and _set_<name>; csrc/exec/session/Flags.cpp.
_INITIAL: dict[str, object] = {
    "deterministic_fill_uninitialized_memory": True,
    "float32_matmul_precision": "highest",
    "cublas_allow_tf32": False,
    "cublas_allow_fp16_accumulation": False,
    "cublas_allow_fp16_reduced_precision_reduction": (True, True),
    "cublas_allow_bf16_reduced_precision_reduction": (True, True),
    "cudnn_enabled": True,
    "cudnn_benchmark": False,
    "cudnn_deterministic": False,
    "cudnn_allow_tf32": True,
    "mkldnn_enabled": True,
    "mkldnn_deterministic": False,
    "nnpack_enabled": True,
    "cpu_allow_fp16_reduced_precision_reduction": False,
    "math_sdp_allow_fp16_bf16_reduction": False,
}
# These have other getters, or none.
_FLAGS = (
    *_INITIAL,
    "deterministic_algorithms",
    "fp32_precision_setter",
    "onednn_allow_tf32",
)


def _patch_flags() -> None:
    """Makes PyTorch's setters of flags set them on the workers too."""
    _carry_flags()
    ours: dict[Any, Any] = {}
    for name in _FLAGS:
        original = getattr(torch._C, f"_set_{name}", None)
        if original is not None:  # an older PyTorch lacks some setters
            ours[original] = _flag_setter(name, original)
            setattr(torch._C, f"_set_{name}", ours[original])
    # torch.backends copied some of the setters when it was imported.
    for path, module in list(sys.modules.items()):
        if path.startswith("torch.backends"):
            for prop in vars(type(module)).values():
                if isinstance(prop, torch.backends.ContextProp):
                    prop.setter = ours.get(prop.setter, prop.setter)


# The values of fp32_precision_setter at the start, by backend and operator.
_INITIAL_PRECISION = {
    ("generic", "all"): "none",
    ("cuda", "all"): "none",
    ("cuda", "matmul"): "none",
    ("cuda", "conv"): "tf32",
    ("cuda", "rnn"): "tf32",
    ("mkldnn", "all"): "none",
    ("mkldnn", "matmul"): "none",
    ("mkldnn", "conv"): "none",
    ("mkldnn", "rnn"): "none",
}


def _carry_flags() -> None:
    """Sets on the workers what was set before this package was imported."""
    c: Any = torch._C
    if c._get_deterministic_algorithms():
        warn_only = c._get_deterministic_algorithms_warn_only()
        _device.set_flag("deterministic_algorithms", f"1 {int(warn_only)}")
    for name, initial in _INITIAL.items():
        try:
            value = getattr(c, f"_get_{name}")()
        except (AttributeError, RuntimeError):
            continue  # an older PyTorch, or a flag that fp32_precision_setter has set
        if value != initial and not (isinstance(initial, tuple) and value is True):
            words = value if isinstance(value, tuple) else (value,)
            _device.set_flag(name, _words(words))
    for (backend, op), initial in _INITIAL_PRECISION.items():
        value = c._get_fp32_precision_getter(backend, op)
        if value != initial:
            _device.set_flag("fp32_precision_setter", f"{backend} {op} {value}")


def _words(values: Iterable[object]) -> str:
    return " ".join(str(int(v)) if isinstance(v, bool) else str(v) for v in values)


def _flag_setter(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def set_flag(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        values = [*args, *kwargs.values()]
        if name == "deterministic_algorithms" and len(values) == 1:
            values.append(False)  # warn_only
        elif name.endswith("_reduced_precision_reduction") and len(values) == 1:
            values += [True] if name.startswith("cublas") else []  # allow split-k
        _device.set_flag(name, _words(values))
        return result

    return set_flag


def _patch_higher_order() -> None:
    """Makes higher-order operators ignore autocast, as with autocast of CUDA."""
    names: Any = torch._C.DispatchKey
    key, module = names.AutocastPrivateUse1, cast(Any, torch._ops)
    keys = module._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS
    if key not in keys:
        keys.append(key)
        for operator in module._higher_order_ops.values():
            operator.fallthrough(key)


# ---- Printing ----


def _patch_printing() -> None:
    """Makes printing read only the shown elements, and a debugger none; see _print."""
    module: Any = torch._tensor_str
    to_text: Callable[..., str] = module._tensor_str
    to_repr: Callable[..., str] = module._str

    @functools.wraps(to_text)
    def tensor_str(self: torch.Tensor, indent: int) -> str:
        if self.device.type != "mycelya" or self.numel() == 0 or _dispatches(self):
            return to_text(self, indent)
        from mycelya_torch import _print

        return to_text(_print.on_cpu(self), indent)

    @functools.wraps(to_repr)
    def tensor_repr(self: torch.Tensor, *, tensor_contents: str | None = None) -> str:
        if self.device.type == "mycelya" and tensor_contents is None:
            from mycelya_torch import _print

            if _print.debugger_asks():
                return _print.pending(self)
        return to_repr(self, tensor_contents=tensor_contents)

    def tensor_as_str(self: torch.Tensor) -> str:
        from mycelya_torch import _print

        return _print.as_str(self, sys._getframe().f_back)

    module._tensor_str = tensor_str
    module._str = tensor_repr
    torch.Tensor.__str__ = tensor_as_str  # type: ignore


def _dispatches(tensor: torch.Tensor) -> bool:
    """Whether a subclass handles ops itself, so that its bytes are not its elements."""
    return type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


# ---- Moving ----


def accept(machine: type[Any]) -> None:
    """Makes Tensor.to and Module.to take a `machine` where they take a device.

    Called when machines are first imported. Without machines PyTorch's own methods stay
    in place, because other code may compare them by identity.
    """
    for owner in (torch.Tensor, torch.nn.Module):
        _accept(owner, machine)
    _allow_for_lazy_modules(torch.Tensor.to)


def _allow_for_lazy_modules(method: Any) -> None:
    """Allows the method on parameters that have no shape yet; they refuse others."""
    shapeless: Any = torch.nn.UninitializedParameter
    shapeless._allowed_methods.append(method)


def _accept(owner: Any, machine: type[Any]) -> None:
    original = owner.to

    @functools.wraps(original)
    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], machine):
            args = (args[0].device(), *args[1:])
        elif isinstance(kwargs.get("device"), machine):
            kwargs["device"] = kwargs["device"].device()
        return original(self, *args, **kwargs)

    to.__module__, to.__qualname__ = owner.__module__, f"{owner.__name__}.to"
    owner.to = to


def _cpu_future(self: torch.Tensor) -> Future[torch.Tensor]:
    """Starts a copy of the current values to the CPU and does not wait.

    Returns:
        A `concurrent.futures.Future` of a CPU tensor with this tensor's shape, dtype
        and values, without a gradient. It is done at once if this tensor is on the CPU.
        If an op that computes the values fails, `result()` raises the error.
        In a coroutine, await `asyncio.wrap_future(tensor.cpu_future())`.
    """
    if has_torch_function_unary(self):
        return handle_torch_function(_cpu_future, (self,), self)
    from mycelya_torch import _future

    return _future.cpu_future(self)


_cpu_future.__module__, _cpu_future.__qualname__ = "torch", "Tensor.cpu_future"
_cpu_future.__name__ = "cpu_future"


# ---- Storages, and functions that need an address in this process ----


def _patch_storages() -> None:
    from torch import TypedStorage, UntypedStorage

    for name in ("__iter__", "__getitem__", "byteswap", "_write_file"):
        _wrap(UntypedStorage, name, _later("_storage", name.strip("_")))
    for name in ("_set_from_file", "share_memory_", "is_shared", "__repr__"):
        _wrap(UntypedStorage, name, _later("_storage", name.strip("_")))
    _wrap(TypedStorage, "__iter__", _later("_storage", "iter"))
    _wrap(TypedStorage, "__str__", _later("_storage", "repr"))
    for name in ("_to_dlpack", "_to_dlpack_versioned"):
        if hasattr(torch._C, name):
            _check_dlpack(name)
    for module in (torch, torch.utils.dlpack):
        setattr(module, "to_dlpack", torch._C._to_dlpack)  # noqa: B010 (no annotation)


def _check_dlpack(name: str) -> None:
    """Wraps the C function that all exports call.

    The methods above it stay in place, because other code compares them by identity.
    """
    original = getattr(torch._C, name)

    @functools.wraps(original)
    def export(tensor: torch.Tensor, **options: Any) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            if isinstance(tensor, torch.Tensor) and tensor.device.type == "mycelya":
                from mycelya_torch import _storage

                return _storage.dlpack(original, tensor, **options)
            return original(tensor, **options)

    setattr(torch._C, name, export)


def _patch_sharing() -> None:
    """Refuses to send a storage to another process, and DataParallel."""
    from torch.multiprocessing.reductions import reduce_storage

    def reduce_ours(storage: torch.UntypedStorage) -> Any:
        if storage.device.type == "mycelya":
            from mycelya_torch import _storage

            return _storage.refuse_sending(storage)
        return reduce_storage(storage)

    ForkingPickler.register(torch.UntypedStorage, reduce_ours)

    # DataParallel and data_parallel() call this first.
    module = sys.modules["torch.nn.parallel.data_parallel"]
    original = module._get_available_device_type

    def available_device_type() -> str | None:
        kind: str | None = original()
        if kind == "mycelya":
            raise NotImplementedError(
                "DataParallel copies a module to the GPUs of one process, which the "
                "mycelya device does not support. Use the module itself: it runs on "
                "the one device that it was moved to."
            )
        return kind

    module._get_available_device_type = available_device_type  # type: ignore
