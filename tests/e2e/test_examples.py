# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""The examples run, and training on the device equals training on the CPU."""

import functools
import json
import re

import pytest
import torch
from helpers import ROOT, needs, on_cuda, run_file
from notebooks import executed, pages_of, text_of

pytest.importorskip("sklearn", reason="digits.py reads scikit-learn's data set")


def example(name, *arguments, **environment):
    return run_file(ROOT / "examples" / name, *arguments, **environment)[0]


@functools.cache
def losses(name, device, *arguments, **environment):
    arguments = ("--device", device, "--print-losses", "20", *arguments)
    out = example(name, *arguments, **environment)
    return [float(value) for value in re.findall(r"^loss=([\d.]+)$", out, re.M)]


@pytest.mark.critical
def test_hello():
    out = example("hello.py")
    assert "device='mycelya:0'" in out and "grad of w: tensor" in out


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, arguments",
    [
        ("digits.py", ("--epochs", "1")),
        ("chargpt.py", ("--steps", "20", "--sample", "1")),
    ],
)
def test_the_first_losses_equal_those_on_the_cpu(name, arguments):
    """They equal those that PyTorch computes with one of its vector lengths.

    In step 7 of the digits, rounding decides which of two values that differ by less
    than 1e-7 a max pool takes, and PyTorch's own losses differ by 5e-4 in step 20.
    """
    there = losses(name, "mycelya", *arguments)
    here = losses(name, "cpu", *arguments)
    assert len(here) == len(there) == 20
    assert here[19] < here[0]
    tolerance = 2e-2 if on_cuda() else 1e-4
    if there != pytest.approx(here, rel=tolerance):
        here = losses(name, "cpu", *arguments, ATEN_CPU_CAPABILITY="default")
    assert there == pytest.approx(here, rel=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, arguments",
    [
        ("digits.py", ("--epochs", "1")),
        ("chargpt.py", ("--steps", "6", "--sample", "8")),
    ],
)
def test_fused_groups_equal_their_operators(name, arguments):
    """MYCELYA_CHECK=3 fails where a fused group differs from its operators."""
    example(name, *arguments, MYCELYA_CHECK="3")


@pytest.mark.slow
def test_digits_learns():
    last = example("digits.py").splitlines()[-1]
    found = re.fullmatch(
        r"accuracy=(0\.9\d\d|1\.000) device=mycelya:0 steps_per_s=(\d+)", last
    )
    assert found, last
    assert float(found[1]) >= 0.97


@pytest.mark.slow
def test_chargpt_samples():
    out = example("chargpt.py", "--steps", "60", "--sample", "200")
    *_, last = out.splitlines()
    assert re.fullmatch(r"loss=\d\.\d{3} device=mycelya:0 steps_per_s=\d+", last), last
    sample = out.split("step 50: loss")[1].split("\n", 1)[1].rsplit("\n", 2)[0]
    assert len(sample) == 201


# ---- Models of transformers ----


def tokens(out):
    return re.search(r"^tokens: ([\d ]+)$", out, re.M)[1].split()


def test_generate_gives_the_tokens_of_the_cpu():
    there = example("generate.py", "--tokens", "24")
    here = example("generate.py", "--tokens", "24", "--device", "cpu")
    assert tokens(there) == tokens(here) and len(tokens(there)) == 24
    assert len(set(tokens(there))) > 8
    # The second generation and most tokens of the first one compile nothing.
    compiled, calls = map(
        int, re.search(r"(\d+) programs .* (\d+) calls", there).groups()
    )
    assert compiled <= calls / 3, there
    assert re.search(r"^device=mycelya:0 tokens_per_s=\d+$", there, re.M)


def test_generate_reads_a_model_from_a_folder(tmp_path):
    """As with a name at Hugging Face, but from files."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = {"[UNK]": 0, "[END]": 1, "a": 2, "device": 3, "is": 4, "place": 5}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", eos_token="[END]"
    )
    fast.save_pretrained(tmp_path)
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        initializer_range=0.5,
        bos_token_id=None,
        eos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    arguments = ("--model", str(tmp_path), "--prompt", "a device is", "--tokens", "8")
    there = example("generate.py", *arguments)
    here = example("generate.py", *arguments, "--device", "cpu")
    assert tokens(there) == tokens(here) and len(tokens(there)) == 8
    assert there.splitlines()[0] == here.splitlines()[0]
    assert "a device is" in there.splitlines()[0]


@pytest.mark.slow
def test_vit_learns_as_on_the_cpu():
    """The losses follow 40 steps of training, so they show the weights of all steps."""
    arguments = ("--steps", "40", "--print-losses", "10")
    there = example("vit.py", *arguments)
    here = example("vit.py", *arguments, "--device", "cpu")
    ours, cpu = (
        [float(v) for v in re.findall(r"^loss=([\d.]+)$", out, re.M)]
        for out in (there, here)
    )
    assert len(ours) == len(cpu) == 10
    assert ours == pytest.approx(cpu, rel=5e-2 if on_cuda() else 1e-2)
    reached = [float(v) for v in re.findall(r"accuracy=(\d\.\d{3})", there)]
    assert len(reached) == 2 and min(reached) > 0.6, there
    assert "device=mycelya:0" in there


# ---- Machines, dumps, the notebook ----


def difference(out):
    return float(re.search(r"^largest difference from the CPU: (\S+)$", out, re.M)[1])


def test_two_machines():
    out = example("two_machines.py", "--steps", "40")
    first, second = re.match(
        r"left is mycelya:(\d), right is mycelya:(\d)", out
    ).groups()
    assert first != second
    assert "Expected all tensors to be on the same device" in out
    assert "after a copy: [2.0, 2.0]" in out
    begin, end = map(float, re.search(r"loss: (\S+) in .*, (\S+) in", out).groups())
    assert end < begin / 4
    assert difference(out) < (1e-2 if on_cuda() else 1e-4)


def test_dump_tour(tmp_path):
    out = example("dump_tour.py", "--folder", str(tmp_path / "dump"))
    titles = re.findall(r"^## (.*)$", out, re.M)
    assert titles[0] == "Why was a program compiled" and len(titles) >= 8
    recorded, optimised = (
        out.split(f"## {title}\n")[1].split("\n## ")[0]
        for title in ("The graph as it was recorded", "The graph after the last pass")
    )
    assert "aten.addmm" in recorded or "aten.linear" in recorded
    assert "fuse " not in recorded and "fuse " in optimised
    assert "dump_tour.py:" in recorded
    assert (tmp_path / "dump" / "index.html").exists()
    assert difference(out) < (1e-3 if on_cuda() else 1e-6)


@pytest.mark.slow
def test_the_notebook(tmp_path, monkeypatch):
    notebook = ROOT / "examples" / "tour.ipynb"
    stored = json.loads(notebook.read_text())
    assert not any(cell.get("outputs") for cell in stored["cells"])
    needs(module="nbformat")
    import nbformat

    book = nbformat.read(notebook, as_version=4)
    code = [c for c in executed(book, tmp_path, monkeypatch).cells if "outputs" in c]
    texts = [text_of(cell) for cell in code]
    assert "torch.Size([3, 4]), torch.float32, device(type='mycelya'" in texts[1]
    assert "[20.0000, 22.5000, 25.0000, 27.5000]" in texts[2]
    assert "is pending:" in texts[3] and "aten._softmax" in texts[3]
    assert texts[4] == "3.0" or float(texts[4]) == pytest.approx(3)

    (training,) = (c.source for c in code if "optimizer =" in c.source)
    names = {"torch": torch, "nn": torch.nn, "F": torch.nn.functional}
    torch.manual_seed(0)
    exec(training.split("torch.mycelya")[0].replace('"mycelya"', '"cpu"'), names)
    cpu = [names["step"]().item() for _ in range(150)]
    (shown,) = (t for t in texts if t.startswith("loss: "))
    ours = [float(v) for v in re.findall(r"\d\.\d{3}", shown)]
    assert ours == pytest.approx([cpu[0], cpu[-1]], abs=2e-2 if on_cuda() else 2e-3)

    counters = next(t for t in texts if "program_misses" in t)
    misses, hits = (
        int(re.search(rf"'{name}': (\d+)", counters)[1])
        for name in ("program_misses", "program_hits")
    )
    assert misses <= 5 and hits >= 145
    assert any("line" in t and "stalled" in t for t in texts)
    assert any(re.search(r"^addmm .* [µm]s$", t, re.M) for t in texts)
    bill, programs = [page for cell in code for page in pages_of(cell)]
    assert '<td style="text-align:left"><code>futures = [step()' in bill
    assert 'title="loss = F.cross_entropy(' in programs and "/tmp/" not in programs
    (failure,) = (t for t in texts if "Error -" in t)
    assert "nll_loss" in failure and "recorded at In [" in failure, failure
    assert texts[-1] == "second ['weights']\n"
