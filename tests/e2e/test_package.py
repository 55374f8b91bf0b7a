# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""A wheel holds everything that is needed, and works in any folder."""

import os
import subprocess
import sys
import zipfile

import pytest
import torch
from helpers import ROOT

from mycelya_torch import _libraries, _load

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    options = ["--no-deps", "--no-build-isolation", "--disable-pip-version-check", "-q"]
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", *options, "-w", folder, "."],
        cwd=ROOT,
        check=True,
    )
    (path,) = folder.glob("*.whl")
    return path


def test_a_wheel_holds_the_artefacts(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        programs = [
            archive.getinfo(f"mycelya_torch/bin/mycelya-{name}")
            for name in ("worker", "machines")
        ]
        (metadata,) = (n for n in names if n.endswith(".dist-info/METADATA"))
        requires = archive.read(metadata).decode()
        (entries,) = (n for n in names if n.endswith(".dist-info/entry_points.txt"))
        entry_points = archive.read(entries).decode()
    folder = f"mycelya_torch/lib/{_load.LIBRARIES.name}"
    libraries = {f"{folder}/libmycelya_{x}.so" for x in ("device", "exec")}
    libraries.add("mycelya_torch/lib/libmycelya_go.so")
    assert libraries | {program.filename for program in programs} <= names
    assert {"mycelya_torch/py.typed", "mycelya_torch/_device.pyi"} <= names
    sources = {
        str(path.relative_to(ROOT))
        for package in ("mycelya_torch", "mycelya_cli", "mycelya_types")
        for path in ROOT.glob(f"{package}/*.py")
    }
    assert sources | {"mycelya_torch_autoload.py"} == {
        n for n in names if n[-3:] == ".py"
    }
    assert entry_points == (
        "[console_scripts]\n"
        "mycelya = mycelya_cli:main\n"
        "mycelya-worker = mycelya_cli:worker\n"
        "\n[torch.backends]\nmycelya = mycelya_torch_autoload:autoload\n"
        "\n[torch_dynamo_backends]\nmycelya = mycelya_torch._compile:backend\n"
    )
    for program in programs:
        assert program.external_attr >> 16 & 0o111 == 0o111
    assert not [n for n in names if n.startswith(("tests", "csrc", "scripts", "build"))]
    assert not [n for n in names if n.endswith(".h")]
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert f"-{python}-{python}-" in wheel.name
    major, minor = _libraries.release(torch.__version__)
    for needed in (f"torch<{major}.{minor + 1},>=", "click>=", "rich>="):
        assert f"Requires-Dist: {needed}" in requires


def test_a_wheel_works_in_any_folder(wheel, tmp_path):
    """The package finds its worker and libraries next to its own files.

    `import torch` finds the package by its metadata.
    """
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index"]
    site = tmp_path / "site"
    subprocess.run([*install, "--target", site, wheel], check=True)
    code = (
        "import torch, sys; print(sys.modules['mycelya_torch'].__file__);"
        "print((torch.ones(3, device='mycelya') + 1).tolist())"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"{site}/mycelya_torch/__init__.py\n[2.0, 2.0, 2.0]\n"
    for command in (["mycelya", "--version"], ["mycelya-worker", "--version"]):
        result = subprocess.run(
            [site / "bin" / command[0], *command[1:]],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(site)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert result.returncode == 0 and result.stdout.strip(), result.stderr


def test_no_library_names_a_folder_of_this_machine(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    libraries = [*(tmp_path / "mycelya_torch" / "lib").rglob("*.so")]
    assert len(libraries) >= 3
    for library in libraries:
        assert str(ROOT).encode() not in library.read_bytes(), library.name
