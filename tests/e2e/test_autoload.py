# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""`import torch` alone registers the device, imports little, and never fails."""

import os
import shutil
import tomllib

import pytest
from helpers import ROOT, run

from mycelya_torch import _load

LIBRARIES = _load.LIBRARIES.name
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture
def installed(tmp_path):
    """Environment variables that make this checkout the installed package.

    Its metadata comes first in the path, so it hides an installed version.
    """
    site = tmp_path / "site"
    info = site / "mycelya_torch-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mycelya-torch\n")
    lines = []
    for group, entries in PYPROJECT["project"]["entry-points"].items():
        lines.append(f"[{group}]")
        lines += [f"{name} = {where}" for name, where in entries.items()]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return {"PYTHONPATH": os.pathsep.join([str(site), str(ROOT)])}


def test_import_torch_is_enough(installed, tmp_path):
    code = """
        import torch
        x = torch.arange(3.0, device="mycelya") * 2
        print(x.tolist(), x.is_mycelya, torch.accelerator.current_accelerator())
        print(torch.get_device_module("mycelya") is torch.mycelya)
        import mycelya_torch
        print(mycelya_torch.RemoteMachine.__name__)
    """
    status, out, err = run(code, tmp_path, **installed)
    assert (status, err) == (0, "")
    assert out == "[0.0, 2.0, 4.0] True mycelya\nTrue\nRemoteMachine\n"


@pytest.mark.parametrize(
    "first",
    [
        "tril_indices.default(3, 3, device=there)",
        "triu_indices.default(3, 3, device=there)",
        "arange.default(3, device=there)",
        "eye.default(3, device=there)",
        "empty_strided.default([2], [1], device=there).fill_(1)",
        "_to_copy.default(torch.ones(3), device=there)",
        "_efficientzerotensor.default([2], device=there)",
        "_sparse_coo_tensor_with_dims.default("
        "2, 0, [2, 3], layout=torch.sparse_coo, device=there)",
    ],
)
def test_the_first_call_may_be_of_any_factory(first, installed, tmp_path):
    """The dispatcher gets most operators of the device with its first tensor."""
    code = f"""
        import torch
        there = torch.device("cpu")
        want = torch.ops.aten.{first}
        there = torch.device("mycelya")
        got = torch.ops.aten.{first}
        assert got.device.type == "mycelya"
        torch.testing.assert_close(got.cpu(), want)
    """
    status, _, err = run(code, tmp_path, **installed)
    assert status == 0, err


def test_a_kernel_that_was_there_first_stays(installed, tmp_path):
    code = """
        import torch
        ours = torch.library.Library("aten", "IMPL")
        ours.impl("floor", lambda x: x.ceil(), "PrivateUse1")
        x = torch.tensor([0.5, 1.5], device="mycelya")
        print(x.floor().tolist(), x.ceil().tolist(), x.trunc().tolist())
    """
    status, out, err = run(code, tmp_path, **installed)
    assert (status, err) == (0, "")
    assert out == "[1.0, 2.0] [1.0, 2.0] [0.0, 1.0]\n"


@pytest.mark.parametrize(
    "first",
    [
        "import mycelya_torch",
        "from mycelya_torch import RemoteMachine",
        "import mycelya_torch.machine",
        "import mycelya_torch_autoload; mycelya_torch_autoload.autoload()",
        "import torch; import mycelya_torch_autoload as a; a.autoload()",
    ],
)
def test_any_import_order(first, installed, tmp_path):
    """If the package imports torch, the entry point finds the package already there."""
    code = f"""
        {first}
        import mycelya_torch, torch
        print(torch.ones(2, device="mycelya").sum().item(), dir(mycelya_torch) != [])
        print(mycelya_torch.GPUType.H100.value, torch.mycelya is mycelya_torch.device)
    """
    for autoload in ("1", "0"):
        env = {**installed, "TORCH_DEVICE_BACKEND_AUTOLOAD": autoload}
        status, out, err = run(code, tmp_path, **env)
        assert (status, err) == (0, ""), autoload
        assert out == "2.0 True\nH100 True\n"


def test_a_backend_of_compile_is_found(installed, tmp_path):
    """Without the import of the package, by the entry point; with it, also without."""
    code = """
        import sys, torch
        from torch._dynamo.backends.registry import list_backends, lookup_backend

        print("mycelya" in list_backends(), "mycelya_torch" in sys.modules)
        x = torch.ones(2).to("cpu")
        print(torch.compile(lambda x: x + 1, backend="mycelya")(x).tolist())
        lookup_backend("mycelya")
    """
    for autoload, there in (("1", "True"), ("0", "False")):
        env = {**installed, "TORCH_DEVICE_BACKEND_AUTOLOAD": autoload}
        status, out, err = run(code, tmp_path, **env)
        assert (status, err) == (0, ""), autoload
        assert out == f"True {there}\n[2.0, 2.0]\n"


def test_autoload_can_be_turned_off(installed, tmp_path):
    code = """
        import sys, torch
        print("mycelya_torch" in sys.modules, hasattr(torch, "mycelya"))
        import mycelya_torch
        print(torch.ones(2, device="mycelya").sum().item())
    """
    env = {**installed, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    status, out, err = run(code, tmp_path, **env)
    assert (status, err) == (0, "")
    assert out == "False False\n2.0\n"


def test_nothing_runs_before_the_first_use(installed, tmp_path):
    """The import adds no thread, socket, process or Go runtime to those of torch."""
    code = """
        import os
        import torch

        def kinds():
            found = []
            for name in os.listdir("/proc/self/fd"):
                try:
                    found.append(os.readlink("/proc/self/fd/" + name).partition(":")[0])
                except FileNotFoundError:  # the descriptor of the listing itself
                    pass
            return sorted(found)

        threads = os.listdir("/proc/self/task")
        children = [open(f"/proc/self/task/{t}/children").read() for t in threads]
        maps = open("/proc/self/maps").read()
        print(len(threads), "".join(children), kinds().count("socket"), len(kinds()))
        print("libmycelya_go" in maps)
        if hasattr(torch, "mycelya"):
            # These calls do not start the device either.
            model = torch.nn.Linear(2, 2)
            str(model.state_dict()), torch.mycelya.is_available()
            torch.mycelya.device_count(), torch.mycelya.current_device()
            torch.manual_seed(0), torch.get_rng_state()
            assert not torch.mycelya.is_initialized()
            assert "libmycelya_go" not in open("/proc/self/maps").read()
            assert len(os.listdir("/proc/self/task")) == len(threads)
    """
    outs = []
    for autoload in ("1", "0"):
        env = {**installed, "TORCH_DEVICE_BACKEND_AUTOLOAD": autoload}
        status, out, err = run(code, tmp_path, **env)
        assert (status, err) == (0, "")
        outs.append(out)
    assert outs[0] == outs[1] and outs[0].endswith("False\n")


def broken_package(tmp_path, replace):
    """A copy of the package without its libraries, with some files replaced."""
    folder = tmp_path / "broken"
    shutil.copytree(
        ROOT / "mycelya_torch",
        folder / "mycelya_torch",
        ignore=shutil.ignore_patterns("lib", "bin", "__pycache__"),
    )
    for name, text in replace.items():
        (folder / "mycelya_torch" / name).write_text(text)
    return str(folder)


FAILURES = {
    "no library": {},
    "a syntax error": {"__init__.py": "this is no Python"},
    "an exception": {"__init__.py": "raise KeyError('what')"},
    "an exit": {"__init__.py": "raise SystemExit(3)"},
    "an empty library": {f"lib/{LIBRARIES}/libmycelya_device.so": ""},
}


@pytest.mark.parametrize("strict", [False, True], ids=["warns", "warnings are errors"])
@pytest.mark.parametrize("failure", FAILURES)
def test_a_failure_is_one_warning(failure, strict, installed, tmp_path):
    files = FAILURES[failure]
    folder = broken_package(tmp_path, {k: v for k, v in files.items() if "/" not in k})
    for name in files.keys() - {"__init__.py"}:
        path = os.path.join(folder, "mycelya_torch", name)
        os.makedirs(os.path.dirname(path))
        open(path, "w").close()
    code = """
        import torch
        print(torch.ones(2).sum().item())
        try:
            torch.ones(2, device="mycelya")
        except RuntimeError as error:
            print("mycelya" in str(error))
    """
    site = installed["PYTHONPATH"].partition(os.pathsep)[0]
    path = os.pathsep.join([site, folder, str(ROOT)])
    env = {"PYTHONPATH": path, "PYTHONWARNINGS": "error" if strict else "default"}
    status, out, err = run(code, tmp_path, **env)
    assert status == 0, err
    assert out == "2.0\nTrue\n"
    warning = 'RuntimeWarning: The device "mycelya" is not available: '
    assert err.count(warning) == 1 and "Traceback" not in err, err
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in err


def test_a_bad_setting_is_one_warning(installed, tmp_path):
    """`import torch` warns; an explicit `import mycelya_torch` raises an error."""
    code = """
        import torch
        try:
            import mycelya_torch
        except ValueError as error:
            print(error)
    """
    env = {**installed, "MYCELYA_MACHINE": "moon:base"}
    status, out, err = run(code, tmp_path, **env)
    assert status == 0
    assert err.count("RuntimeWarning") == 1 and "'moon:base'" in err
    assert "'moon:base'" in out


def test_another_backend_was_first(tmp_path):
    code = """
        import torch
        torch.utils.rename_privateuse1_backend("other")
        try:
            import mycelya_torch
        except RuntimeError as error:
            print(error)
        print(torch.device("other:0"))
    """
    env = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    status, out, err = run(code, tmp_path, **env)
    assert (status, err) == (0, "")
    assert "'other' has registered already" in out and out.endswith("other:0\n")


def test_autoload_imports_the_package_alone(installed, tmp_path):
    """Nothing but the modules that register the device; bench/startup.py has times."""
    code = """
        import sys
        import torch
        from importlib.metadata import entry_points

        before = set(sys.modules)
        (entry,) = set(entry_points(group="torch.backends", name="mycelya"))
        entry.load()()
        print(*sorted(set(sys.modules) - before))
    """
    env = {**installed, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    status, out, err = run(code, tmp_path, **env)
    assert (status, err) == (0, "")
    ours = """_accelerator _current _device _distributed _env _imports _libraries
        _load _patch _tested _version device log memory random streams usage"""
    package = {f"mycelya_torch.{name}" for name in ours.split()}
    package |= {"mycelya_torch", "mycelya_torch_autoload", "torch.mycelya"}
    assert set(out.split()) == package
