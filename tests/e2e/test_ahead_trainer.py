# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""transformers' Trainer: no wait in each step, and the same losses."""

import math

import pytest
import torch
import zoo
from helpers import needs_tested
from torch import nn

from mycelya_torch import _trainer

transformers = pytest.importorskip("transformers", reason="pip install -e .[test]")
pytest.importorskip("accelerate", reason="pip install -e .[test]")
needs_tested("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")

BUDGET = 0.25  # blocking reads of a step
ITEMS = 96


@pytest.fixture(autouse=True)
def on_the_device(monkeypatch):
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "mycelya")
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


class Rows(torch.utils.data.Dataset):
    """Rows of numbers, and what is added to the loss: NaN and infinity in some."""

    BAD = {9: math.nan, 10: math.inf, 13: -math.inf, 14: math.nan, 40: math.inf}

    def __len__(self):
        return ITEMS

    def __getitem__(self, i):
        generator = torch.Generator().manual_seed(i)
        x = torch.randn(8, generator=generator)
        return {"x": x, "more": torch.tensor(self.BAD.get(i, 0.0))}


class Loss(nn.Module):
    """A regression whose gradients are finite also where its loss is not."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        torch.manual_seed(0)
        self.net, self.dtype = nn.Linear(8, 1), dtype

    def forward(self, x, more):
        error = (self.net(x).squeeze(-1) - x.sum(-1)).square().mean()
        return {"loss": (error + more.sum()).to(self.dtype)}


def trained(tmp_path, model=None, rows=None, kind=None, **options):
    """A Trainer after its training."""
    options = {"max_steps": 20, "per_device_train_batch_size": 2, **options}
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        report_to=[],
        disable_tqdm=True,
        seed=3,
        save_strategy="no",
        **options,
    )
    trainer = (kind or transformers.Trainer)(
        model=model or Loss(), args=arguments, train_dataset=rows or Rows()
    )
    trainer.train()
    assert trainer.args.device.type == "mycelya"
    return trainer


def log_of(trainer):
    """What it has logged, without times; a NaN is a word, so that it equals itself."""
    times = ("runtime", "samples_per_second", "steps_per_second")
    return [
        {k: repr(v) for k, v in entry.items() if not k.endswith(times)}
        for entry in trainer.state.log_history
    ]


CASES = {
    "filter": {},
    "no filter": {"logging_nan_inf_filter": False},
    "accumulation": {"gradient_accumulation_steps": 3, "max_steps": 12},
    "each step": {"logging_steps": 1},
    "no clipping": {"max_grad_norm": 0.0},
    "two epochs": {"max_steps": -1, "num_train_epochs": 2, "logging_steps": 7},
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        *((case, torch.float32) for case in CASES),
        *(("filter", dtype) for dtype in (torch.float64, torch.bfloat16)),
    ],
)
def test_the_same_log(case, dtype, tmp_path, monkeypatch):
    """All digits of the losses, with NaN and infinite ones among them."""
    options = {"logging_steps": 4, **CASES[case]}
    logs = []
    for way in ("off", "on"):
        monkeypatch.setenv("MYCELYA_AHEAD", way)
        trainer = trained(tmp_path, Loss(dtype), **options)
        logs.append(log_of(trainer))
        assert "training_step" not in vars(trainer)
    assert logs[0] == logs[1] and len(logs[0]) >= 3
    losses = [entry["loss"] for entry in logs[0] if "loss" in entry]
    assert len(set(losses)) > 2 or case == "no filter"
    bad = any("nan" in loss or "inf" in loss for loss in losses)
    assert bad == (case == "no filter")


def test_a_trainer_with_a_step_of_its_own(tmp_path, monkeypatch):
    """Its step sees the loss as it is, and may be the class's or the object's."""
    seen = []

    class Own(transformers.Trainer):
        def training_step(self, *args, **kwargs):
            loss = super().training_step(*args, **kwargs)
            seen.append(loss)
            return loss

    logs = []
    for way in ("off", "on"):
        monkeypatch.setenv("MYCELYA_AHEAD", way)
        seen.clear()
        logs.append(log_of(trained(tmp_path, kind=Own, logging_steps=4)))
        assert len(seen) == 20 and all(type(x) is torch.Tensor for x in seen)
        assert not all(x.isfinite().item() for x in seen)
    assert logs[0] == logs[1]


class Meter(transformers.TrainerCallback):
    """Counts blocking reads from the tenth step on."""

    def __init__(self):
        self.first, self.reads = 10, 0.0

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.first:
            torch.mycelya.reset_metrics()
        elif state.global_step == state.max_steps:
            reads = torch.mycelya.metrics()["blocking_reads"]
            self.reads = reads / (state.max_steps - self.first)


class Sentences(torch.utils.data.Dataset):
    def __len__(self):
        return ITEMS

    def __getitem__(self, i):
        generator = torch.Generator().manual_seed(i)
        tokens = torch.randint(3, 50, (8,), generator=generator)
        return {"input_ids": tokens, "labels": tokens}


def reads_of_a_step(tmp_path, **options):
    torch.manual_seed(0)
    meter = Meter()
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), report_to=[], max_steps=50, **options
    )
    trainer = transformers.Trainer(
        model=zoo.llama(50, 32, 1, (4, 2), 48, 64),
        args=arguments,
        train_dataset=Sentences(),
        callbacks=[meter],
    )
    trainer.train()
    return meter.reads


@pytest.mark.parametrize("options", [{}, {"logging_steps": 10}], ids=["", "log"])
def test_blocking_reads_of_a_step(options, tmp_path):
    """With the default options, and with a log of each tenth step."""
    reads = reads_of_a_step(tmp_path, **options)
    assert reads <= BUDGET, torch.mycelya.network_bill()


def test_the_switch(tmp_path, monkeypatch):
    monkeypatch.setenv("MYCELYA_AHEAD", "off")
    assert reads_of_a_step(tmp_path) >= 1


def test_another_epoch_is_left_alone():
    """A Trainer whose epoch does something else with the loss is not patched."""

    class Trainer(transformers.Trainer):
        def _run_epoch(
            self,
            model,
            epoch,
            train_dataloader,
            steps_in_epoch,
            num_update_steps_per_epoch,
            trial,
            ignore_keys_for_eval,
            start_time,
            resume_from_checkpoint,
            epochs_trained,
            steps_trained_in_current_epoch,
        ):
            tr_loss_step = self.training_step(model, None)
            return tr_loss_step.item()

    class Module:
        pass

    module, own = Module(), Trainer._run_epoch
    module.Trainer = Trainer
    assert "in another way" in _trainer.apply(module)
    assert Trainer._run_epoch is own
    methods = {name: lambda self: 0 for name in _trainer._PARAMETERS}
    module.Trainer = type("Trainer", (), methods)
    assert "has the parameters (self)" in _trainer.apply(module)


# ---- Masks of a training step ----


def test_positions_that_a_model_makes(counters, monkeypatch):
    """A model without a mask asks whether its positions are those of several texts."""
    torch.manual_seed(0)
    model = zoo.llama(50, 32, 1, (4, 2), 48, 64).to("mycelya")
    tokens = torch.arange(16).reshape(2, 8).to("mycelya")
    packed = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3]] * 2).to("mycelya")
    results = []
    for way, positions in (
        *(("off", None), ("on", None)),
        *(("off", packed), ("on", packed)),
    ):
        monkeypatch.setenv("MYCELYA_AHEAD", way)
        torch.mycelya.reset_metrics()
        logits = model(tokens, position_ids=positions, use_cache=False).logits
        reads = counters()["blocking_reads"]
        assert reads == (0 if positions is None and way == "on" else 1)
        results.append(logits.detach().cpu())
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[2], results[3])
    assert not torch.equal(results[1], results[3])
