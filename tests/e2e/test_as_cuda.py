# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""`mycelya run --as-cuda`: scripts that say "cuda"."""

import os
import re
import subprocess
import sys
import textwrap

import pytest
import torch
from helpers import ROOT, run

SCRIPTS = ROOT / "tests" / "e2e" / "as_cuda"
pytestmark = pytest.mark.timeout(300)


def redirected(*command, code=0, **env):
    """The finished `mycelya run --as-cuda …`."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    hide = ["--hide-cuda"] if torch.cuda.is_available() else []
    words = ["run", "--as-cuda", *hide, *map(str, command)]
    done = subprocess.run(
        [sys.executable, "-m", "mycelya_cli", *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, **env},
    )
    assert done.returncode == code, done.stderr
    return done


def of(tmp_path, text):
    """A script with this text."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(text))
    return script


def rows(done):
    """The report: counts by (what, place)."""
    found = re.findall(r"^ +(\d+)  (\S.*?) {2,}(\S+:\d+)$", done.stderr, re.MULTILINE)
    return {(what, place): int(n) for n, what, place in found}


@pytest.mark.slow
def test_a_training_with_mixed_precision(tmp_path):
    script = SCRIPTS / "digits_cuda.py"
    done = redirected(script, "--save", tmp_path / "digits.pt", "--epochs", 5)
    assert done.stdout.splitlines() == [
        "device: GPU 1",
        "name: True",
        "bf16: True",
        "model: on the GPU",
        "accuracy: True",
        "memory: True",
        "loaded: True",
        "scaler: True",
    ]
    counts = {}
    for (what, place), n in rows(done).items():
        assert place.startswith(("digits_cuda.py:", "digits_model.py:")), place
        counts[what] = counts.get(what, 0) + n
    # 5 epochs of 4 batches, and 2 tests of 4 batches of images and labels.
    assert counts["Tensor.cuda()"] == 5 * 4 + 4
    assert counts['Tensor.to("cuda:0")'] == 2 * 4 * 2
    assert counts['torch.autocast("cuda")'] == 5 * 4 + 2 * 4
    assert counts['device.type compared with "cuda"'] == 1


def test_a_training_without_redirection_needs_cuda():
    """The script is one that fails or takes the CPU without --as-cuda."""
    done = subprocess.run(
        [sys.executable, "digits_cuda.py"],
        capture_output=True,
        text=True,
        cwd=SCRIPTS,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    assert done.returncode == 1
    assert "device: CPU 0" in done.stdout


@pytest.mark.slow
def test_generation_with_transformers(tmp_path):
    pytest.importorskip("transformers", reason="make venv")
    done = redirected(SCRIPTS / "generate_cuda.py", tmp_path / "model")
    assert done.stdout.splitlines()[1:] == [
        "model: True cuda:0",
        "same: True",
        "auto: True",
        "thread: [True]",
    ]


def test_what_is_redirected(tmp_path):
    script = of(
        tmp_path,
        """
        import torch, torch.nn as nn
        from torch.utils.checkpoint import checkpoint

        x = torch.ones(3, device="cuda", requires_grad=True)
        y = torch.ones(3).cuda()
        assert x.is_cuda and not torch.ones(1).is_cuda
        assert torch.device("cuda", 0) == y.device == torch.device("cuda:0")
        assert y.cuda() is y and y.cuda(0) is y and y.to("cuda") is y
        assert torch.ones(1).to(device="cuda").is_cuda
        assert nn.Linear(2, 2, device="cuda").weight.is_cuda
        assert nn.Linear(2, 2).cuda().weight.is_cuda
        assert nn.DataParallel(nn.Linear(2, 2))(torch.ones(1, 2).cuda()).is_cuda
        assert nn.utils.rnn.pack_sequence([torch.ones(3)]).cuda().is_cuda
        assert torch.ones(2).pin_memory().cuda(non_blocking=True).is_cuda

        generator = torch.Generator(device="cuda").manual_seed(3)
        first = torch.rand(2, generator=generator, device="cuda")
        assert isinstance(generator, torch.Generator)
        assert torch.equal(
            first, torch.rand(2, generator=generator.manual_seed(3), device="cuda")
        )
        torch.randperm(3, generator=torch.Generator())
        state = torch.cuda.get_rng_state()
        drawn = torch.rand(2, device="cuda")
        assert state.device.type == "cpu"
        torch.cuda.set_rng_state(state)
        assert torch.equal(drawn, torch.rand(2, device="cuda"))

        class Double(torch.autograd.Function):
            @staticmethod
            @torch.amp.custom_fwd(device_type="cuda")
            def forward(ctx, x):
                return x * 2

            @staticmethod
            @torch.amp.custom_bwd(device_type="cuda")
            def backward(ctx, dy):
                return dy * torch.full((1,), 2.0, device="cuda")

        Double.apply(x).sum().backward()
        assert x.grad.tolist() == [2.0] * 3
        grad, = torch.autograd.grad(Double.apply(x).sum(), x)
        assert grad.tolist() == [2.0] * 3
        checkpoint(
            lambda t: (t * torch.rand(3, device="cuda")).sum(), x, use_reentrant=False
        ).backward()
        print("all")
        """,
    )
    assert redirected(script).stdout == "all\n"


def test_names_of_cuda(tmp_path):
    script = of(
        tmp_path,
        """
        import torch

        x, y = torch.ones(3, device="cuda"), torch.ones(3).cuda()
        with torch.autocast(device_type="cuda", dtype=torch.bfloat16):
            assert torch.is_autocast_enabled("cuda") and torch.is_autocast_enabled()
            assert torch.get_autocast_gpu_dtype() == torch.bfloat16
            assert (x[None] @ x[:, None]).dtype == torch.bfloat16
        assert torch.amp.GradScaler().is_enabled()
        assert torch.amp.GradScaler("cuda").is_enabled()

        with torch.cuda.device(0), torch.cuda.stream(torch.cuda.Stream()):
            assert torch.cuda.current_device() == 0
        assert torch.cuda.FloatTensor([1, 2]).is_cuda
        assert isinstance(y, torch.cuda.FloatTensor)
        assert torch.ones(2).type("torch.cuda.FloatTensor").is_cuda
        for kind in ("torch.cuda.FloatTensor", torch.cuda.FloatTensor):
            torch.set_default_tensor_type(kind)
            assert torch.ones(2).is_cuda
        torch.set_default_tensor_type("torch.FloatTensor")
        assert not torch.ones(2).is_cuda
        torch.set_default_device("cuda")
        assert torch.ones(2).is_cuda
        torch.set_default_device("cpu")

        kind = x.device.type
        assert x.device.type == "cuda" and "cuda" == x.device.type
        assert x.device.type in ("cuda", "mps") and not x.device.type != "cuda"
        assert torch.ones(1).device.type != "cuda" and kind == "mycelya"
        assert torch.cuda.get_device_properties("cuda").multi_processor_count >= 1
        assert torch.cuda.get_device_capability()[0] >= 0
        assert torch.cuda.memory.memory_allocated("cuda:0") > 0
        torch.cuda.nvtx.range_push("x"), torch.cuda.nvtx.range_pop()
        try:
            torch.cuda.CUDAGraph()
        except NotImplementedError as error:
            assert "captures no graphs" in str(error)
        else:
            raise AssertionError
        print("all")
        """,
    )
    assert redirected(script).stdout == "all\n"


def test_compiled_code(tmp_path):
    script = of(
        tmp_path,
        """
        import torch

        @torch.compile(fullgraph=True)
        def f(x):
            return torch.relu(x) + torch.ones(3, device="cuda")

        x = torch.ones(3, device="cuda")
        print(f(x).tolist(), f(-x).is_cuda)
        """,
    )
    assert redirected(script).stdout == "[2.0, 2.0, 2.0] True\n"


def test_files(tmp_path):
    """Also a file that was saved on a CUDA GPU, whose storages say "cuda:0"."""
    script = of(
        tmp_path,
        """
        import sys, torch
        from safetensors.torch import load_file, save_file

        folder = sys.argv[1]
        save_file({"a": torch.ones(2)}, f"{folder}/a.safetensors")
        for device in ("cuda", "cuda:0"):
            assert load_file(f"{folder}/a.safetensors", device=device)["a"].is_cuda
        torch.save(torch.arange(3), f"{folder}/plain.pt")
        for where in ("cuda", "cuda:0", torch.device("cuda"), {"cpu": "cuda:0"}):
            assert torch.load(f"{folder}/plain.pt", map_location=where).is_cuda, where
        where = lambda storage, location: storage.cuda(0)
        assert torch.load(f"{folder}/plain.pt", map_location=where).is_cuda

        import torch.serialization as serialization
        location = serialization.location_tag
        serialization.location_tag = lambda storage: "cuda:0"
        torch.save(torch.arange(3), f"{folder}/gpu.pt")
        serialization.location_tag = location
        found = torch.load(f"{folder}/gpu.pt")
        print(found.is_cuda, found.tolist())
        """,
    )
    assert redirected(script, tmp_path).stdout == "True [0, 1, 2]\n"


def test_libraries(tmp_path):
    pytest.importorskip("lightning", reason="make venv")
    script = of(
        tmp_path,
        """
        import sys, torch, lightning, transformers
        from accelerate import Accelerator
        from accelerate.state import AcceleratorState

        accelerator = Accelerator(mixed_precision="fp16")
        print(accelerator.device.type == "cuda", accelerator.scaler.is_enabled())
        accelerator.save_state(sys.argv[1])
        accelerator.load_state(sys.argv[1])
        AcceleratorState._reset_state(True)
        arguments = transformers.TrainingArguments(output_dir=sys.argv[1], bf16=True)
        print(arguments.device.type == "cuda", arguments.n_gpu)
        for name in ("auto", "gpu", "cuda"):
            options = {"accelerator": name, "devices": 1, "precision": "16-mixed"}
            trainer = lightning.Trainer(logger=False, **options)
            fabric = lightning.Fabric(**options)
            print(trainer.strategy.root_device.type == "cuda", fabric.device.type)
            print(trainer.precision_plugin.scaler.is_enabled())
        """,
    )
    done = redirected(script, tmp_path / "state")
    assert (
        done.stdout.splitlines()
        == ["True True", "True 1"]
        + [
            "True mycelya",
            "True",
        ]
        * 3
    )
    assert "GPU available but not used" not in done.stderr


def test_arguments_exit_codes_and_tracebacks(tmp_path):
    (tmp_path / "beside.py").write_text("import torch\nx = torch.ones(1).cuda()\n")
    script = of(
        tmp_path,
        """
        import sys
        import beside

        print(sys.argv[1:], __name__, __file__ == sys.argv[0], beside.x.is_cuda)
        if sys.argv[1] == "--machine":
            sys.exit(7)
        raise ValueError("of the script")
        """,
    )
    done = redirected(script, "--machine", "--as-cuda", code=7)
    assert done.stdout == "['--machine', '--as-cuda'] __main__ True True\n"
    assert '"cuda" was the mycelya device 1 time, at 1 place:' in done.stderr
    assert rows(done) == {("Tensor.cuda()", "beside.py:2"): 1}
    done = redirected(script, "raise", code=1)
    trace = done.stderr.partition("Traceback")[2].splitlines()
    assert trace[1].strip().startswith(f'File "{script}", line 8')
    assert "ValueError: of the script" in trace
    (tmp_path / "script.py").write_text("print('x'\n")
    assert "SyntaxError" in redirected(script, code=1).stderr


def test_a_script_that_says_nothing_of_cuda(tmp_path):
    script = of(tmp_path, "import torch; print(torch.ones(1).item())")
    done = redirected(script)
    assert done.stdout == "1.0\n"
    assert '"cuda" was the mycelya device 0 times, at 0 places.' in done.stderr


# The host of the tests may have no GPU, so torch says that it has one.
GPU = """
    import torch

    torch.cuda.is_available = lambda: True
    torch.cuda.get_device_name = lambda index: "Test GPU"
    from mycelya_torch import _as_cuda
"""


def test_a_host_with_a_gpu_is_refused(tmp_path):
    script = of(tmp_path, "print('run')")
    code = textwrap.dedent(GPU)
    status, out, err = run(
        code + f"_as_cuda.main([{str(script)!r}], False)", tmp_path, fresh=True
    )
    assert (status, out) == (1, "")
    assert err.strip() == (
        "mycelya run --as-cuda: this host has a CUDA GPU (Test GPU), which the script "
        "can use without mycelya. To use the mycelya device instead, add --hide-cuda."
    )


def test_a_gpu_can_be_hidden(tmp_path):
    script = of(tmp_path, "import torch; print(torch.ones(1).cuda().device)")
    code = textwrap.dedent(GPU)
    status, out, err = run(
        code + f"_as_cuda.main([{str(script)!r}], True)", tmp_path, fresh=True
    )
    assert (status, out) == (0, "mycelya:0\n"), err


def test_hiding_alone_is_an_error(tmp_path):
    script = of(tmp_path, "print('run')")
    done = subprocess.run(
        [sys.executable, "-m", "mycelya_cli", "run", "--hide-cuda", str(script)],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 2 and done.stdout == ""
    assert "--hide-cuda has an effect with --as-cuda only." in done.stderr
