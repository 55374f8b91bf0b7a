# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Whole scripts, in processes of their own: on the device, and on the CPU without it.

The scripts (scripts/) say nothing about the device.
"""

import csv
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
SUMMARY = "import sys; from mycelya_torch import _summary; _summary.main(sys.argv[1:])"


class Scripts:
    """Runs a script in a folder on the device, and in another one on the CPU."""

    def __init__(self, folder):
        self.folder = folder
        self.waits = 0  # of the last run on the device
        self.printed = []

    def run(self, name, *arguments, **environment):
        """Returns what the script has written in both folders."""
        self.printed = []
        for where in ("cpu", "mycelya"):
            out = self.folder / where
            command = [sys.executable]
            if where == "mycelya":
                command += ["-c", SUMMARY, str(self.folder / "summary.json")]
            words = [str(a).replace("OUT", str(out)) for a in arguments]
            loads = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "01"[where == "mycelya"]}
            cache = {"HF_DATASETS_CACHE": str(self.folder / "cache")}
            done = subprocess.run(
                [*command, str(HERE / "scripts" / name), *words],
                env={**os.environ, **loads, **cache, **environment},
                cwd=self.folder,
                capture_output=True,
                text=True,
                timeout=1200,
            )
            assert done.returncode == 0, (
                f"{where}\n{done.stdout}\n{done.stderr[-6000:]}"
            )
            self.printed.append(done.stdout)
        self.waits = json.loads((self.folder / "summary.json").read_text())[
            "blocking_reads"
        ]
        return self.folder / "cpu", self.folder / "mycelya"


@pytest.fixture
def scripts(tmp_path):
    return Scripts(tmp_path)


def words(seed, count):
    chosen = random.Random(seed)
    return [chosen.choice(WORDS) for _ in range(count)]


WORDS = "the a red green leaf stone falls lies on under water slowly again".split()


def tokenizer(folder):
    """Writes a tokenizer for WORDS."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "The", ".", *WORDS]
    ids = {word: i for i, word in enumerate(vocabulary)}
    inner = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "eos_token": "[SEP]"}
    special |= {"cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=inner, **special).save_pretrained(folder)
    return len(vocabulary)


TRAINING = [
    *("--do_train", "--do_eval", "--output_dir", "OUT", "--report_to", "none"),
    *("--per_device_train_batch_size", 4, "--num_train_epochs", 2),
    *("--learning_rate", 1e-3, "--logging_steps", 5, "--save_steps", 20),
    *("--eval_strategy", "epoch", "--seed", 11),
]


def history(folder):
    """The losses that Trainer has logged, and the steps."""
    state = json.loads((folder / "trainer_state.json").read_text())
    losses = [e["loss"] for e in state["log_history"] if "loss" in e]
    return losses, state["global_step"]


def results(folder, *names):
    found = json.loads((folder / "all_results.json").read_text())
    return [found[name] for name in names]


def test_run_clm(scripts, shows, tmp_path):
    from transformers import GPT2Config

    size = tokenizer(tmp_path / "model")
    config = GPT2Config(
        vocab_size=size, n_layer=2, n_embd=32, n_head=2, n_positions=64,
        bos_token_id=2, eos_token_id=3,
    )  # fmt: skip
    config.save_pretrained(tmp_path / "model")
    for name, count in (("train", 400), ("validation", 60)):
        lines = ["The " + " ".join(words(f"{name}{i}", 9)) + " ." for i in range(count)]
        (tmp_path / f"{name}.txt").write_text("\n".join(lines))
    expected, found = scripts.run(
        "run_clm.py",
        *("--config_name", tmp_path / "model", "--tokenizer_name", tmp_path / "model"),
        *("--config_overrides", "resid_pdrop=0.0,embd_pdrop=0.0,attn_pdrop=0.0"),
        *("--train_file", tmp_path / "train.txt", "--block_size", 32),
        *("--validation_file", tmp_path / "validation.txt", *TRAINING),
    )
    (want, steps), (got, _) = history(expected), history(found)
    assert got == pytest.approx(want, rel=1e-3) and want[-1] < want[0] - 0.3
    names = "eval_loss", "eval_accuracy", "perplexity"
    assert results(found, *names) == pytest.approx(results(expected, *names), rel=1e-3)
    generated = [text[text.index("generated:") :] for text in scripts.printed]
    assert generated[0] == generated[1]
    waits = scripts.waits / steps
    assert waits <= 1
    shows("transformers", "a script like run_clm.py", "the CPU's losses", waits)


def test_run_glue(scripts, shows, tmp_path):
    from transformers import BertConfig, BertModel

    folder = tmp_path / "model"
    config = BertConfig(
        vocab_size=tokenizer(folder), hidden_size=32, num_hidden_layers=2,
        num_attention_heads=2, intermediate_size=64, max_position_embeddings=64,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    BertModel(config).save_pretrained(folder)
    for name, count in (("train", 160), ("validation", 40)):
        with open(tmp_path / f"{name}.csv", "w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["sentence1", "sentence2", "label"])
            for i in range(count):
                first, second = words(f"{name}{i}", 3 + i % 5), words(f"{i}{name}", 4)
                label = "same" if first[0] == second[0] else "other"
                rows.writerow([" ".join(first), " ".join(second), label])
    expected, found = scripts.run(
        "run_glue.py",
        *("--model_name_or_path", folder, "--train_file", tmp_path / "train.csv"),
        *("--validation_file", tmp_path / "validation.csv", "--do_predict", *TRAINING),
    )
    (want, steps), (got, _) = history(expected), history(found)
    assert got == pytest.approx(want, rel=2e-3)
    names = "eval_loss", "eval_accuracy"
    assert results(found, *names) == pytest.approx(results(expected, *names), rel=2e-3)
    predictions = [(f / "predict_results.txt").read_text() for f in (expected, found)]
    assert predictions[0] == predictions[1]
    waits = scripts.waits / steps
    assert waits <= 1.2
    shows("transformers", "a script like run_glue.py", "the CPU's losses", waits)


def test_fit(scripts, shows):
    expected, found = scripts.run("fit.py", "--root", "OUT")

    def log(folder):
        with open(folder / "log" / "version_0" / "metrics.csv") as file:
            return [
                {k: float(v) for k, v in row.items() if v}
                for row in csv.DictReader(file)
            ]

    want, got = log(expected), log(found)
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        assert a == pytest.approx(b, rel=2e-3, abs=1e-4)
    assert want[-1]["test_accuracy"] > 0.5
    waits = scripts.waits / 60
    assert waits <= 4
    shows("lightning", "a script: fit and test", "the CPU's metrics", waits)


def test_detect(scripts, shows):
    """The choice of boxes amplifies differences of the last bit."""
    folders = scripts.run("detect.py", "--out", "OUT.json")
    want, got = (json.loads(f.with_suffix(".json").read_text()) for f in folders)
    assert len(got["losses"]) == len(want["losses"]) == 12
    for step, (a, b) in enumerate(zip(got["losses"], want["losses"], strict=True)):
        exact = {"rel": 1e-3, "abs": 1e-4} if step < 4 else {"abs": 2e-2}
        assert a == pytest.approx(b, **exact)
    for a, b in zip(got["found"], want["found"], strict=True):
        assert a["scores"] == pytest.approx(b["scores"], abs=5e-3)
    waits = scripts.waits / 12
    assert waits <= 60
    shows("torchvision", "a script: a detector", "the CPU's losses", waits)
