# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""The choice of libraries for a torch, and a wheel in an environment of its own."""

import configparser
import email
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
import torch
from helpers import ROOT

from mycelya_torch import _libraries, _load

BUILT = ["torch2.11", "torch2.13", "torch2.9", "torch2.15", "go", "torch", "torch2.15x"]


@pytest.mark.parametrize(
    "version, wanted",
    [
        ("2.9.1", "torch2.9"),
        ("2.10.0", "torch2.9"),
        ("2.11.0+cpu", "torch2.11"),
        ("2.12.0", "torch2.11"),
        ("2.13.1", "torch2.13"),
        ("2.14.0a0+gitabcdef", "torch2.13"),
        ("2.15.0", "torch2.15"),
        ("2.16.0.dev20261101+cu132", "torch2.15"),
        ("2.100.0", "torch2.15"),
    ],
)
def test_the_newest_libraries_that_are_not_newer(version, wanted):
    assert _libraries.choose(version, BUILT) == wanted
    assert _libraries.choose(version, reversed(BUILT)) == wanted


@pytest.mark.parametrize("version", ["2.10.0", "1.13.1", "3.0.0", "0.1"])
def test_a_torch_without_libraries_is_a_sentence(version):
    with pytest.raises(ImportError) as caught:
        _libraries.choose(version, ["torch2.15", "torch2.11"])
    assert str(caught.value) == (
        f"This mycelya-torch has libraries for torch 2.11 2.15, and none for torch "
        f"{version}. Install a torch that it serves: pip install 'torch>=2.11,<2.16'. "
        "In a checkout, 'make build' builds the libraries for the installed torch."
    )


@pytest.mark.parametrize("version", ["", "two", "2", "2.x", "v2.15"])
def test_a_version_that_is_none(version):
    with pytest.raises(ImportError, match="--force-reinstall torch") as caught:
        _libraries.choose(version, BUILT)
    assert repr(version) in str(caught.value)


def test_no_libraries_at_all(tmp_path):
    for lib in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ImportError, match="the package was not built.*make build"):
            _libraries.folder("2.15.0", lib)


def test_the_version_of_a_torch_that_is_not_imported(tmp_path):
    here = Path(torch.__file__).parent
    assert _libraries.version_of(here) == torch.__version__
    assert _libraries.assigned(here, "cuda") == torch.version.cuda
    with pytest.raises(ImportError, match=re.escape(str(tmp_path / "version.py"))):
        _libraries.version_of(tmp_path)
    (tmp_path / "version.py").write_text("__version__: str = '2.16.0'\ncuda = None\n")
    assert _libraries.version_of(tmp_path) == "2.16.0"
    assert _libraries.assigned(tmp_path, "cuda") is None


def package(folder, names):
    """A package whose libraries have folders with these names."""
    copy, ignored = folder / "mycelya_torch", shutil.ignore_patterns("lib", "bin")
    shutil.copytree(_load.PACKAGE, copy, ignore=ignored)
    (copy / "bin").symlink_to(_load.PACKAGE / "bin")
    (copy / "lib").mkdir()
    (copy / "lib" / _load.CLIENT.name).symlink_to(_load.CLIENT)
    for name in names:
        (copy / "lib" / name).symlink_to(_load.LIBRARIES)


def imported(folder, *options):
    """Imports a copy of the package, and prints what it computes."""
    code = "import mycelya_torch, torch; print(torch.ones(2, device='mycelya').sum())"
    env = {**os.environ, "PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"}
    env["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    return subprocess.run(
        [sys.executable, *options, "-c", code],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_libraries_for_an_older_torch_are_used_with_a_warning(tmp_path):
    """Here they fit: the folder has another name only."""
    package(tmp_path, ["torch2.0"])
    done = imported(tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("tensor(2.") and done.stderr.count("Warning") == 1
    assert f"has no libraries for torch {torch.__version__}" in done.stderr
    assert "uses those for torch2.0, which" in done.stderr


def test_libraries_for_newer_torches_only(tmp_path):
    package(tmp_path, ["torch2.98", "torch2.99"])
    done = imported(tmp_path)
    assert done.returncode == 1
    assert f"libraries for torch 2.98 2.99, and none for torch {torch.__version__}" in (
        done.stderr
    )


def test_a_library_that_does_not_fit_fails_at_import(tmp_path):
    """One that needs a function which torch lacks, as a newer or an older torch does.

    Its symbols are bound at once. Otherwise the import would pass, and the first call
    of the function would end the process.
    """
    package(tmp_path, [])
    name = _libraries.folder_name(torch.__version__)
    library = tmp_path / "mycelya_torch" / "lib" / name / _load.DEVICE.name
    library.parent.mkdir()
    text = _load.DEVICE.read_bytes()
    function = re.search(rb"\0(_Z\d+THP[A-Za-z0-9_]+)\0", text)
    assert function is not None, "no function of torch found"
    at = function.start(1)
    library.write_bytes(text[:at] + b"X" + text[at + 1 :])
    done = imported(tmp_path)
    assert done.returncode == 1, done.stderr
    assert f"does not load into torch {torch.__version__} on Python" in done.stderr
    assert "undefined symbol: X" in done.stderr and "make build" in done.stderr


def tag_of(wheel):
    return wheel.stem.split("-", 2)[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of the artefacts that this checkout has."""
    if importlib.util.find_spec("auditwheel") is None:
        pytest.skip("auditwheel is not installed; make venv installs it")
    folder = tmp_path_factory.mktemp("wheels")
    command = [sys.executable, ROOT / "scripts" / "wheels.py", "--built"]
    subprocess.run([*command, "--out", folder], cwd=folder, check=True)
    (path,) = folder.iterdir()
    return path


@pytest.mark.slow
def test_a_wheel_has_what_needs_no_torch_once(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (record,) = (n for n in archive.namelist() if n.endswith("/RECORD"))
        names = [line.split(",")[0] for line in archive.read(record).decode().split()]
    native = sorted(n for n in names if n.endswith(".so") or "/bin/" in n)
    folder = f"mycelya_torch/lib/{_load.LIBRARIES.name}"
    ours = sorted(f"{folder}/{p.name}" for p in _load.LIBRARIES.iterdir())
    assert native == sorted(
        [
            *ours,
            "mycelya_torch/bin/mycelya-machines",
            "mycelya_torch/bin/mycelya-worker",
            "mycelya_torch/lib/libmycelya_go.so",
        ]
    )
    assert _load.DEVICE.name in {Path(n).name for n in ours}


@pytest.mark.slow
def test_the_metadata_of_a_wheel(wheel):
    """What a package index shows, and what pip installs with it: no tools of ours."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        read = {
            name: archive.read(path).decode()
            for name in ("METADATA", "WHEEL", "entry_points.txt", "top_level.txt")
            for path in names
            if path.endswith(f".dist-info/{name}")
        }
    data = email.message_from_string(read["METADATA"])
    assert data["Name"] == "mycelya-torch" and data["Summary"]
    assert data["License-Expression"] == "AGPL-3.0-or-later"
    assert data["Requires-Python"] == "<3.14,>=3.11"
    assert data.get_all("Provides-Extra") is None
    required = {re.split(r"[<>=]", r)[0]: r for r in data.get_all("Requires-Dist")}
    assert required.keys() == {"torch", "click", "rich", "typing-extensions"}
    assert not [r for r in required.values() if "==" in r or ";" in r]
    urls = dict(url.split(", ") for url in data.get_all("Project-URL"))
    assert {"Source", "Documentation", "Changelog", "Issues"} <= urls.keys()
    assert all(url.startswith("https://") for url in urls.values())
    classifiers = data.get_all("Classifier")
    assert "Typing :: Typed" in classifiers
    here = f"Programming Language :: Python :: 3.{sys.version_info.minor}"
    assert here in classifiers
    assert not [c for c in classifiers if c.startswith("License ::")]
    assert "# Mycelya" in data.get_payload()
    entries = configparser.ConfigParser()
    entries.read_string(read["entry_points.txt"])
    assert dict(entries["console_scripts"]) == {
        "mycelya": "mycelya_cli:main",
        "mycelya-worker": "mycelya_cli:worker",
    }
    assert dict(entries["torch.backends"]) == {
        "mycelya": "mycelya_torch_autoload:autoload"
    }
    tops = {"mycelya_torch", "mycelya_cli", "mycelya_types", "mycelya_torch_autoload"}
    assert set(read["top_level.txt"].split()) == tops
    assert {name.split("/")[0].removesuffix(".py") for name in names} - tops == {
        f"{wheel.name.split('-')[0]}-{data['Version']}.dist-info"
    }
    assert {"mycelya_types/mypy.py", "mycelya_types/methods.pyi"} <= set(names)
    typed = {name.split("/")[0] for name in names if name.endswith("/py.typed")}
    assert typed == tops - {"mycelya_torch_autoload"}
    assert f"Tag: {tag_of(wheel)}" in read["WHEEL"].splitlines()


@pytest.mark.slow
def test_auditwheel_accepts_the_tag(wheel):
    """Of the libraries in the wheel, none needs one that it lacks but torch's."""
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    found = re.fullmatch(rf"{python}-{python}-manylinux_2_(\d+)_(\w+)", tag_of(wheel))
    assert found is not None, wheel.name
    assert int(found[1]) <= int(os.confstr("CS_GNU_LIBC_VERSION").split(".")[1])
    done = subprocess.run(
        [sys.executable, "-m", "auditwheel", "show", wheel],
        capture_output=True,
        text=True,
        check=True,
    )
    text = " ".join(done.stdout.split())
    assert "is consistent with the following platform tag" in text, text
    with zipfile.ZipFile(wheel) as archive:
        assert not [n for n in archive.namelist() if ".libs/" in n]


@pytest.mark.slow
def test_the_installed_wheel_runs_an_example(wheel, tmp_path):
    """In a new environment, which sees torch and not this checkout."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    pip = [python, "-m", "pip", "install", "-q", "--no-deps", "--no-index"]
    subprocess.run([*pip, wheel], check=True, cwd=tmp_path)
    (site,) = (tmp_path / "venv" / "lib").glob("python3*/site-packages")
    # The path alone: .pth files of the folder, as an editable install's, are not read.
    (site / "torch.pth").write_text(sysconfig.get_path("purelib") + "\n")
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    hello = (ROOT / "examples" / "hello.py").read_text()
    script = tmp_path / "hello.py"
    script.write_text(f"{hello}\nprint(mycelya_torch.__file__)\n")
    command = tmp_path / "venv" / "bin" / "mycelya"
    for argv in ([python, script], [command, "run", script]):
        done = subprocess.run(
            argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        assert "grad of w: tensor(" in done.stdout
        assert "device='mycelya:0'" in done.stdout
        assert done.stdout.endswith(f"{site}/mycelya_torch/__init__.py\n")
        assert done.stderr == ""
    done = subprocess.run(
        [command, "doctor", "--json"],
        cwd=tmp_path,
        env={k: v for k, v in env.items() if not k.startswith("MYCELYA_")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    found = json.loads(done.stdout)
    assert done.returncode == 0 and found["ok"], found
    assert (
        str(site)
        in next(f for f in found["findings"] if f["check"] == "package")["text"]
    )
