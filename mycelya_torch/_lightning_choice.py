# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Lightning on the device: Trainer() and Fabric(), "16-mixed" and "bf16-mixed".

`lightning.pytorch` and `lightning.fabric` are also there as `pytorch_lightning` and
`lightning_fabric`; each of the four has classes of its own.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch

from mycelya_torch import _choose, _device

_STRATEGY = "single_mycelya"
_ARGUMENT = f'`accelerator="mycelya", strategy="{_STRATEGY}"`'


# ---- The accelerator: <package>.accelerators ----


def accelerators(module: Any) -> str:
    """Registers an Accelerator with the name "mycelya"; returns ""."""
    registry = getattr(module, "AcceleratorRegistry", None)
    if registry is None:  # Fabric's
        registry = module.ACCELERATOR_REGISTRY
    if "mycelya" not in registry:
        registry.register("mycelya", _accelerator_of(module), description="mycelya")
    return ""


def other_accelerators(module: Any, why: str) -> None:
    """Registers it with a release that is not tested, which is its public interface."""
    accelerators(module)


def _accelerator_of(module: Any) -> Any:
    """A class that derives from the package's Accelerator."""

    class MycelyaAccelerator(module.Accelerator):  # type: ignore[misc]
        """One mycelya device."""

        def setup_device(self, device: torch.device) -> None:
            if device.type != "mycelya":
                raise ValueError(
                    f"The accelerator is mycelya, and the strategy's device is "
                    f'{device}. Leave out the strategy, or use strategy="{_STRATEGY}".'
                )
            torch.mycelya.set_device(device)  # type: ignore[attr-defined]

        def teardown(self) -> None:
            pass

        def get_device_stats(self, device: Any) -> dict[str, Any]:
            stats: dict[str, Any] = torch.mycelya.memory_stats(device)  # type: ignore[attr-defined]
            return stats

        @staticmethod
        def parse_devices(devices: Any) -> list[int]:
            return [_index_of(devices)]

        @staticmethod
        def get_parallel_devices(devices: list[int]) -> list[torch.device]:
            return [torch.device("mycelya", index) for index in devices]

        @staticmethod
        def auto_device_count() -> int:
            return 1

        @staticmethod
        def is_available() -> bool:
            return True

        @staticmethod
        def name() -> str:
            return "mycelya"

    MycelyaAccelerator.__module__ = __name__
    return MycelyaAccelerator


def _index_of(devices: Any) -> int:
    """The index of the device of `devices=`: 1 is the current device, [2] the third.

    Raises:
        ValueError: more than one device, or one that is not there.
    """
    wanted = devices
    if isinstance(wanted, str):
        parts = [part for part in wanted.split(",") if part.strip()]
        try:
            wanted = [int(part) for part in parts] if "," in wanted else int(wanted)
        except ValueError:
            wanted = None
    if wanted in (1, -1):
        return _device.current_device()
    one = isinstance(wanted, (list, tuple)) and len(wanted) == 1
    if one and wanted[0] in range(_device.device_count()):
        index: int = wanted[0]
        return index
    raise ValueError(
        f"devices={devices!r} is not one mycelya device. A trainer uses one: devices=1 "
        f"is the current device, and devices=[index] that index, which is below "
        f"{_device.device_count()} here."
    )


# ---- The strategy: <package>.strategies ----


def strategies(module: Any) -> str:
    """Registers a strategy for one mycelya device; returns ""."""
    registry = getattr(module, "StrategyRegistry", None)
    if registry is None:  # Fabric's
        registry = module.STRATEGY_REGISTRY
    if _STRATEGY not in registry:
        registry.register(
            _STRATEGY,
            module.SingleDeviceStrategy,
            description="one mycelya device",
            device="mycelya",
        )
    return ""


def other_strategies(module: Any, why: str) -> None:
    """Registers it with a release that is not tested, which is its public interface."""
    strategies(module)


# ---- The choice: fabric.utilities.device_parser and the connectors ----


def auto(module: Any) -> str:
    """Makes accelerator="auto" of Trainer choose; returns why it does not, or ""."""
    original: Any = module._select_auto_accelerator
    why = _choose.differs(original, "")
    if not why:
        module._select_auto_accelerator = _choosing(original, "")
    return why


def other_auto(module: Any, why: str) -> None:
    """Warns when a release that is not tested chooses the CPU."""
    choose = _choosing(module._select_auto_accelerator, why)
    module._select_auto_accelerator = choose


def _choosing(original: Any, why: str) -> Any:
    @functools.wraps(original)
    def choose() -> str:
        chosen: str = original()
        if chosen not in ("cpu", "cuda") or not _choose.wanted():
            return chosen
        if why:
            if chosen == "cpu":
                _choose.warn("lightning", _ARGUMENT, why)
            return chosen
        return "mycelya"

    return choose


def trainer(module: Any) -> str:
    """Patches Trainer's connector; returns why it does not, or ""."""
    return _connect(module._AcceleratorConnector, module, "_precision_flag")


def fabric(module: Any) -> str:
    """Patches Fabric's connector; returns why it does not, or ""."""
    owner: Any = module._Connector
    why = _choose.differs(owner._choose_auto_accelerator, "")
    why = why or _connect(owner, module, "_precision_input")
    if not why:
        choose = _choosing(owner._choose_auto_accelerator, "")
        owner._choose_auto_accelerator = staticmethod(choose)
    return why


def other_fabric(module: Any, why: str) -> None:
    """Warns when a release that is not tested chooses the CPU."""
    owner: Any = module._Connector
    choose = _choosing(owner._choose_auto_accelerator, why)
    owner._choose_auto_accelerator = staticmethod(choose)


def _connect(owner: Any, module: Any, precision: str) -> str:
    strategy, amp = owner._choose_strategy, owner._check_and_init_precision
    gpu = owner._choose_gpu_accelerator_backend
    why = _choose.differs(strategy, "self") or _choose.differs(amp, "self")
    why = why or _choose.differs(gpu, "")
    if why:
        return why

    @functools.wraps(gpu)
    def _choose_gpu_accelerator_backend() -> str:
        if _choose.wanted():
            return "mycelya"
        chosen: str = gpu()
        return chosen

    @functools.wraps(strategy)
    def _choose_strategy(self: Any) -> Any:
        chosen = strategy(self)
        if _is_ours(self) and isinstance(chosen, module.SingleDeviceStrategy):
            return module.SingleDeviceStrategy(device=self._parallel_devices[0])
        return chosen

    @functools.wraps(amp)
    def _check_and_init_precision(self: Any) -> Any:
        kind = getattr(self, precision)
        if not _is_ours(self) or kind not in ("16-mixed", "bf16-mixed"):
            return amp(self)
        # The library's own choice is autocast of "cuda", which computes in float32. It
        # takes another plugin first, and refuses kinds that do not fit.
        setattr(self, precision, "32-true")
        try:
            plugin = amp(self)
        finally:
            setattr(self, precision, kind)
        if type(plugin) is not module.Precision:
            return plugin
        name = "16-bit" if kind == "16-mixed" else "bfloat16"
        module.rank_zero_info(f"Using {name} Automatic Mixed Precision (AMP)")
        return module.MixedPrecision(kind, "mycelya")

    owner._choose_gpu_accelerator_backend = staticmethod(
        _choose_gpu_accelerator_backend
    )
    owner._choose_strategy = _choose_strategy
    owner._check_and_init_precision = _check_and_init_precision
    return ""


def _is_ours(connector: Any) -> bool:
    return bool(connector.accelerator.name() == "mycelya")


# ---- What Trainer says: pytorch.trainer.setup ----


def setup(module: Any) -> str:
    """Makes Trainer say that it uses the device; returns why it does not, or ""."""
    original: Any = module._log_device_info
    why = _choose.differs(original, "trainer")
    if why:
        return why

    @functools.wraps(original)
    def _log_device_info(trainer: Any) -> None:
        original(trainer)
        device = trainer.strategy.root_device
        if device.type == "mycelya":
            module.rank_zero_info(f"mycelya available: True, used: {device}")

    module._log_device_info = _log_device_info
    return ""


# ---- Random numbers: pytorch.utilities.seed ----


def seed(module: Any) -> str:
    """Makes isolate_rng() restore the device's generators; returns why not, or ""."""
    original: Any = module.isolate_rng
    why = _choose.differs(original, "include_cuda")
    if why:
        return why

    @functools.wraps(original)
    @contextlib.contextmanager
    def isolate_rng(include_cuda: bool = True) -> Iterator[None]:
        states = _choose.states() if include_cuda else {}
        with original(include_cuda):
            yield
        _choose.set_states(states)

    module.isolate_rng = isolate_rng
    return ""
