# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""The examples, common layers and all optimizers never call the Meta key.

The Meta key computes shapes in Python. The first call in a process takes more than a
second, and each further call takes 90 µs to 1 ms.
"""

import pytest
import torch
from helpers import DEVICE, ROOT, run
from test_optim import OPTIMIZERS, network, train
from torch import nn

NETWORKS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 2)), (3, 8)),
    "cnn": (
        lambda: nn.Sequential(
            *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()),
            *(nn.MaxPool2d(2), nn.Dropout(0.1), nn.AdaptiveAvgPool2d(1)),
            *(nn.Flatten(), nn.Linear(8, 4), nn.LogSoftmax(1)),
        ),
        (2, 3, 8, 8),
    ),
    "transformer": (
        lambda: nn.TransformerEncoderLayer(16, 2, 32, batch_first=True),
        (2, 5, 16),
    ),
    "norms": (
        lambda: nn.Sequential(nn.GroupNorm(2, 4), nn.LayerNorm(6), nn.SiLU()),
        (2, 4, 6),
    ),
    "rnn": (lambda: nn.RNN(4, 6, batch_first=True), (2, 3, 4)),
    "lstm": (lambda: nn.LSTM(4, 6, batch_first=True), (2, 3, 4)),
    "gru": (lambda: nn.GRU(4, 6, batch_first=True), (2, 3, 4)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name, counters):
    make, shape = NETWORKS[name]
    model = make().to(DEVICE)
    out = model(torch.randn(shape).to(DEVICE))
    out = out[0] if isinstance(out, tuple) else out
    out.pow(2).mean().backward()
    assert counters()["meta_key_calls"] == 0
    model.eval()
    with torch.no_grad():
        model(torch.randn(shape).to(DEVICE))
    assert counters()["meta_key_calls"] == 0


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name, counters):
    model = network(name).to(DEVICE)
    kind = getattr(torch.optim, name.split()[0])
    train(model, kind(model.parameters(), **OPTIMIZERS[name]), 2)
    assert counters()["meta_key_calls"] == 0


LOSSES = {
    "cross_entropy": lambda x, y: nn.functional.cross_entropy(x, y),
    "smoothed": lambda x, y: nn.functional.cross_entropy(x, y, label_smoothing=0.1),
    "nll": lambda x, y: nn.functional.nll_loss(x.log_softmax(1), y),
    "mse": lambda x, y: nn.functional.mse_loss(x, x.detach() * 2),
    "l1": lambda x, y: nn.functional.l1_loss(x, x.detach() * 2),
    "bce": lambda x, y: nn.functional.binary_cross_entropy_with_logits(x, x.sigmoid()),
    "huber": lambda x, y: nn.functional.smooth_l1_loss(x, x.detach() + 1),
    "embedding": lambda x, y: nn.functional.embedding(y, x).sum(),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses(name, counters):
    x = torch.randn(4, 5, device=DEVICE, requires_grad=True)
    y = torch.tensor([0, 1, 2, 3], device=DEVICE)
    LOSSES[name](x, y).sum().backward()
    nn.utils.clip_grad_norm_([x], 1.0)
    assert counters()["meta_key_calls"] == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, arguments",
    [
        ("hello.py", []),
        ("digits.py", ["--epochs", "1"]),
        ("chargpt.py", ["--steps", "5", "--sample", "5"]),
    ],
)
def test_examples(name, arguments, tmp_path):
    pytest.importorskip("sklearn", reason="digits.py reads scikit-learn's data set")
    path = str(ROOT / "examples" / name)
    code = f"""
        import runpy, sys
        import torch

        sys.argv = [{path!r}, *{arguments!r}]
        runpy.run_path({path!r}, run_name="__main__")
        print("meta_key_calls", torch.mycelya.metrics()["meta_key_calls"])
    """
    status, out, err = run(code, tmp_path)
    assert status == 0, err
    assert out.splitlines()[-1] == "meta_key_calls 0"
