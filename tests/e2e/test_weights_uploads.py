# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Weights of the hub's cache on a slow link: the worker fetches them itself."""

import hashlib
import json
import sys

import hub as hubs
import pytest
import torch
from helpers import run
from networks import TCP, Network
from safetensors.torch import save

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="finds mapped files in /proc/self/maps"
)

# Begins a process whose worker is behind the slow link; prints the bytes that it sent.
BEGIN = """
import json, torch, mycelya_torch
from safetensors.torch import load_file
from mycelya_torch import _device, _load
paths = (_load.CLIENT, {worker!r}, _load.EXEC, _load.torch_lib())
_device.init(*map(str, paths), *mycelya_torch._default_machine)
torch.zeros(1, device="mycelya").item()
"""
END = """
m = torch.mycelya.metrics()
print(json.dumps([m["bytes_sent"], m["upload_bytes_deduped"]]))
"""
# Moves a file's tensors to the device.
MOVES = """
here = load_file({file!r})
if {edit}:
    here["b"][-1] += 1
there = {{name: t.to("mycelya") for name, t in here.items()}}
for name, t in here.items():
    assert torch.equal(there[name].cpu(), t), name
"""
PRETRAINED = """
from transformers import GPT2LMHeadModel
model = GPT2LMHeadModel.from_pretrained("me/gpt", cache_dir={cache!r}).eval()
x = torch.arange(7)[None]
want = model(x).logits
got = model.to("mycelya")(x.to("mycelya")).logits.cpu()
torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)
"""


def cached(root, repo, files):
    """Puts a repository into a cache with the layout of huggingface_hub."""
    folder = root / f"models--{repo.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(hubs.COMMIT)
    (folder / "blobs").mkdir()
    for name, data in files.items():
        blob = hashlib.sha256(data).hexdigest()
        (folder / "blobs" / blob).write_bytes(data)
        link = folder / "snapshots" / hubs.COMMIT / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(folder / "blobs" / blob)
    return folder / "snapshots" / hubs.COMMIT


@pytest.fixture
def slow(faults, tmp_path):
    """Runs code whose worker is behind a slow link; returns the MiB sent and not sent.

    rate: KB per second.
    """

    def begin(hub, code, rate=3000, **env):
        network = Network(faults, tmp_path, f"--rate {rate}")
        code = BEGIN.format(worker=str(network.worker)) + code + END
        cache = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1"}
        env = {"HF_ENDPOINT": hub.url(hub.api), **TCP, **cache, **env}
        status, out, err = run(code, tmp_path, 240, **env)
        assert status == 0, err[-4000:]
        return [n / 2**20 for n in json.loads(out.splitlines()[-1])]

    return begin


@pytest.fixture
def move(slow, tmp_path):
    """Moves 3 tensors of 12 MiB."""
    torch.manual_seed(0)
    files = {"unet/model.safetensors": save({n: torch.randn(3 << 20) for n in "abc"})}
    file = cached(tmp_path / "hub", "me/model", files) / "unet" / "model.safetensors"
    with hubs.running({"me/model": hubs.Repo(files)}) as hub:

        def begin(edit=False, **options):
            return slow(hub, MOVES.format(file=str(file), edit=edit), **options)

        begin.hub, begin.file, begin.endpoint = hub, file, hub.url(hub.api)
        yield begin


def test_the_worker_fetches_the_file(move):
    sent, deduped = move()
    assert sent < 1 and deduped > 35, "nothing is sent but the questions"
    assert move.hub.served > 36e6
    served = move.hub.served
    sent, deduped = move()
    assert sent < 1 and deduped > 35
    assert move.hub.served == served, "the file is on the worker's disk"


def test_nothing_is_sent_over_a_far_link(move, tmp_path):
    """Its round trips say that it is slow, before a rate was measured."""
    env = {"MYCELYA_MACHINE": "local?rtt=20ms", "HF_ENDPOINT": move.endpoint}
    env["XDG_CACHE_HOME"] = str(tmp_path / "cache")
    code = "import json, torch\nfrom safetensors.torch import load_file\n"
    code += MOVES.format(file=str(move.file), edit=False) + END
    status, out, err = run(code, tmp_path, 240, **env)
    assert status == 0, err[-4000:]
    sent, deduped = json.loads(out.splitlines()[-1])
    assert sent < 1 << 20 and deduped > 35 << 20


def test_values_that_differ_from_the_file(move):
    """What is not the file's is sent, and nothing else decides."""
    sent, deduped = move(edit=True)
    assert 11 < sent < 13 and 23 < deduped < 25


def test_a_hub_that_does_not_answer(move):
    move.hub.repos.clear()
    sent, deduped = move(rate=10000)
    assert sent > 36 and deduped == 0


def test_it_can_be_switched_off(move):
    sent, deduped = move(rate=10000, MYCELYA_FETCH="off")
    assert sent > 36 and deduped == 0
    assert move.hub.served == 0


def test_from_pretrained(slow, tmp_path):
    """A model of transformers, whose tensors are views of the mapped file."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=1, n_embd=512, n_head=4, vocab_size=12_000, n_positions=64,
        bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "saved")
    files = {path.name: path.read_bytes() for path in (tmp_path / "saved").iterdir()}
    cached(tmp_path / "hub", "me/gpt", files)
    with hubs.running({"me/gpt": hubs.Repo(files)}) as hub:
        sent, deduped = slow(hub, PRETRAINED.format(cache=str(tmp_path / "hub")))
    assert len(files["model.safetensors"]) > 36e6
    # The small tensors are sent, and pieces of others until the rate is known.
    assert sent < 4 and deduped > 31
