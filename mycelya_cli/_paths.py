# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Where the parts of the installed package are, without importing it or torch."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import urllib.parse
from functools import cache
from pathlib import Path
from types import ModuleType

import click


@cache
def folder(package: str) -> Path:
    """The folder of a package.

    Raises:
        ClickException: it is not installed in this environment.
    """
    spec = importlib.util.find_spec(package)  # a name without a dot imports nothing
    places = list(spec.submodule_search_locations or ()) if spec else []
    if not places:
        raise click.ClickException(
            f"The Python package {package!r} is not installed in this environment. "
            f"Run: pip install {package.replace('_', '-')}"
        )
    return Path(places[0]).resolve()


def worker() -> Path:
    """The program mycelya-worker."""
    return folder("mycelya_torch") / "bin" / "mycelya-worker"


def machines() -> Path:
    """The program mycelya-machines."""
    return folder("mycelya_torch") / "bin" / "mycelya-machines"


def library(name: str) -> Path:
    """A library of the package: "device", "exec", "exec_cuda" or "go".

    All but "go" are those for the installed torch.

    Raises:
        ClickException: the package has none for this torch.
    """
    lib = folder("mycelya_torch") / "lib"
    if name != "go":
        libraries = _standalone("_libraries")
        try:
            lib = libraries.folder(libraries.version_of(folder("torch")), lib)
        except ImportError as error:
            raise click.ClickException(str(error)) from None
    return lib / f"libmycelya_{name}.so"


def torch_lib() -> Path:
    """The folder of libtorch_cpu."""
    return folder("torch") / "lib"


def version() -> str:
    """The version of the package; that of the sources if it is not installed."""
    try:
        return importlib.metadata.version("mycelya-torch")
    except importlib.metadata.PackageNotFoundError:
        return str(_standalone("_version").__version__)


def tested() -> ModuleType:
    """The file with the releases of libraries that the package patches."""
    return _standalone("_tested")


def torch_versions() -> tuple[str, str]:
    """The version of torch, and of the CUDA that it was built for; "" is none."""
    assigned, torch = _standalone("_libraries").assigned, folder("torch")
    return assigned(torch, "__version__") or "unknown", assigned(torch, "cuda") or ""


@cache
def _standalone(name: str) -> ModuleType:
    """A module of mycelya_torch that imports nothing of it."""
    path = folder("mycelya_torch") / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"mycelya_cli.{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def provider_names() -> list[str]:
    """The names of all providers."""
    return [p.value for p in _standalone("_provider_table").TABLE]


def check_option(provider: str, name: str, value: str) -> None:
    """Checks a value of a provider's option.

    Raises:
        ClickException: it is not possible; the message says what the option is.
    """
    for of, row in _standalone("_provider_table").TABLE.items():
        for option, values, meaning in row.options:
            if of.value == provider and option == name:
                if not re.fullmatch(values, value):
                    text = f"{name}={value!r} is not possible; it is {meaning}."
                    raise click.ClickException(text)


def split_target(text: str) -> tuple[str, str]:
    """The provider's name and the GPU type of a machine as in MYCELYA_MACHINE.

    The GPU type is "" if the text names none.

    Raises:
        ClickException: unknown provider; the message lists the valid ones.
    """
    provider, given = _parts(text)
    return provider, given.get("gpu_type", "")


def options_of(text: str) -> tuple[str, list[str]]:
    """The provider's name, and its own options as NAME=VALUE, of such a machine."""
    provider, given = _parts(text)
    common = ("device", "gpu_type", "gpu_count", "timeout", "idle_timeout")
    return provider, [f"{k}={v}" for k, v in given.items() if k not in common]


def _parts(text: str) -> tuple[str, dict[str, str]]:
    machine, _, query = text.partition("?")
    name, _, target = machine.partition(":")
    for provider, row in _standalone("_provider_table").TABLE.items():
        if name == provider.value or name in row.aliases:
            given = dict(urllib.parse.parse_qsl(query))
            if target:
                given[row.target] = target
            return provider.value, given
    raise click.ClickException(
        f"{name!r} is not a provider; the providers are {', '.join(provider_names())}. "
        "A machine is written as provider or provider:target, as modal:A100."
    )
