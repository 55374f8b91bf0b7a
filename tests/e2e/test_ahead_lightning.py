# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Lightning's progress bar: no wait in each step; the last numbers are exact."""

import importlib
import types

import pytest
import torch
from torch import nn

from mycelya_torch import _ahead, _device, _lightning

lightning = pytest.importorskip("lightning", reason="pip install -e .[test]")
pytestmark = pytest.mark.filterwarnings("ignore")

BUDGET = 0.7  # blocking reads of a step
STEPS = 30


class Accelerator(lightning.pytorch.accelerators.CPUAccelerator):
    """The accelerator of a host whose tensors are on another device."""

    def setup_device(self, device):
        assert device.type == "mycelya"


class Module(lightning.pytorch.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Linear(8, 1)

    def training_step(self, batch, index):
        x = batch[0]
        error = self.net(x).squeeze(-1) - x.sum(-1)
        loss = error.square().mean()
        assert loss.device.type == "mycelya"
        self.log("loss", loss, prog_bar=True)
        self.log("worst", error.abs().max(), prog_bar=True, on_step=True, on_epoch=True)
        self.log("index", float(index), prog_bar=True)
        return loss

    def validation_step(self, batch, index):
        self.log("val", self.net(batch[0]).mean(), prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


class Bar(lightning.pytorch.callbacks.TQDMProgressBar):
    """Keeps what it shows after each step, and at the end of each epoch."""

    def __init__(self):
        super().__init__()
        self.steps, self.ends, self.reads = [], [], 0.0

    def on_train_batch_end(self, trainer, *args):
        super().on_train_batch_end(trainer, *args)
        self.steps.append(dict(self.get_metrics(trainer, None)))
        if len(self.steps) == 10:
            torch.mycelya.reset_metrics()
        elif len(self.steps) == STEPS:
            reads = torch.mycelya.metrics()["blocking_reads"]
            self.reads = reads / (STEPS - 10)

    def on_train_end(self, trainer, *args):
        super().on_train_end(trainer, *args)
        self.ends.append(dict(self.get_metrics(trainer, None)))


def fitted(tmp_path, epochs=1, **options):
    """What the bar has shown, what was logged, and the metrics for callbacks."""
    bar = Bar()
    rows = torch.randn(2 * STEPS, 8, generator=torch.Generator().manual_seed(1))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(rows), 2)
    trainer = lightning.pytorch.Trainer(
        strategy=lightning.pytorch.strategies.SingleDeviceStrategy(
            device=torch.device("mycelya", 0), accelerator=Accelerator()
        ),
        default_root_dir=str(tmp_path),
        max_epochs=epochs,
        callbacks=[bar],
        logger=lightning.pytorch.loggers.CSVLogger(tmp_path, version=str(len(KEPT))),
        enable_checkpointing=False,
        enable_model_summary=False,
        log_every_n_steps=7,
        **options,
    )
    KEPT.append(trainer)
    trainer.fit(Module(), loader, loader)
    log = (tmp_path / "lightning_logs" / str(len(KEPT) - 1) / "metrics.csv").read_text()
    values = {k: v.item() for k, v in trainer.callback_metrics.items()}
    return bar, log, values


KEPT = []  # trainers; their number names the folder of a log


def test_the_installed_release_is_patched():
    importlib.import_module(_ahead.PATCHES["Lightning"][1])
    assert _ahead.reasons["Lightning"] == ""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("late", [False, True])
def test_the_numbers(late, tmp_path, monkeypatch):
    """late: no answer comes before someone waits for it."""

    class Late(_device.Download):
        def done(self):
            return not late and super().done()

    monkeypatch.setenv("MYCELYA_AHEAD", "off")
    exact, log, values = fitted(tmp_path, epochs=2)
    monkeypatch.setenv("MYCELYA_AHEAD", "on")
    monkeypatch.setattr(_device, "Download", Late)
    shown, our_log, our_values = fitted(tmp_path, epochs=2)
    assert our_log == log and our_values == values
    assert len(exact.steps) == len(shown.steps) == 2 * STEPS
    for name in ("loss", "worst_step"):
        truth = [step[name] for step in exact.steps]
        assert len(set(truth)) == 2 * STEPS
        newest = -1
        for i, step in enumerate(shown.steps):
            place = truth.index(step[name])
            assert newest <= place <= i
            newest = place
        if late:  # the first number, then that of the end of the first epoch
            assert newest == STEPS - 1
    for name in ("val", "worst_epoch"):  # numbers of epochs are exact
        truth = [step.get(name) for step in exact.steps]
        assert [step.get(name) for step in shown.steps] == truth
    for bar in (exact, shown):
        bar.ends[0].pop("v_num")
    assert shown.ends == exact.ends
    assert exact.ends[0]["loss"] == exact.steps[-1]["loss"]


def test_blocking_reads_of_a_step(tmp_path):
    bar, *_ = fitted(tmp_path)
    assert bar.reads <= BUDGET, torch.mycelya.network_bill()


def test_the_switch(tmp_path, monkeypatch):
    monkeypatch.setenv("MYCELYA_AHEAD", "off")
    assert fitted(tmp_path)[0].reads >= 2


def test_other_code_is_left_alone():
    class Results:
        def metrics(self, when):
            return {}

    module = types.SimpleNamespace(_ResultCollection=Results)
    assert "has the parameters (self when)" in _lightning.apply(module)
