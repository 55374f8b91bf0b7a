# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Trainers of libraries: they choose the device, and do not wait in each step."""

import pytest
import torch
import zoo
from torch import nn

pytestmark = pytest.mark.filterwarnings("ignore")

STEPS, FIRST = 30, 10  # steps of a training, and the first that is counted


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 4 * STEPS

    def __getitem__(self, i):
        generator = torch.Generator().manual_seed(i)
        tokens = torch.randint(3, 50, (8,), generator=generator)
        return {"input_ids": tokens, "labels": tokens}


def waits_of(counted):
    """The waits of a step, from the step on at which the counters were reset."""
    return torch.mycelya.metrics()["blocking_reads"] / counted


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_trainer(precision, shows, tmp_path):
    import transformers

    class Count(transformers.TrainerCallback):
        waits = 0.0

        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == FIRST:
                torch.mycelya.reset_metrics()
            elif state.global_step == STEPS:
                self.waits = waits_of(STEPS - FIRST)

    count = Count()
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        report_to=[],
        disable_tqdm=True,
        max_steps=STEPS,
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        logging_steps=10,
        save_strategy="no",
        **({} if precision == "fp32" else {precision: True}),
    )
    trainer = transformers.Trainer(
        model=zoo.llama(50, 32, 1, (4, 2), 48, 64),
        args=arguments,
        train_dataset=Tokens(),
        callbacks=[count],
    )
    trainer.train()
    assert trainer.args.device.type == trainer.model.device.type == "mycelya"
    logged = [e["loss"] for e in trainer.state.log_history if "loss" in e]
    assert logged[-1] < logged[0]
    # fp16: the gradient scaler reads in each step whether gradients are infinite.
    assert count.waits <= (1.5 if precision == "fp16" else 0.25)
    shows("transformers", f"Trainer, {precision}", "a falling loss", count.waits)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
def test_lightning(precision, shows, tmp_path):
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.losses, self.waits = nn.Linear(8, 1), [], 0.0

        def training_step(self, batch, index):
            if index == FIRST:
                torch.mycelya.reset_metrics()
            elif index == STEPS - 1:
                self.waits = waits_of(STEPS - 1 - FIRST)
            y = self.net(batch[0]).float()
            loss = (y.squeeze(-1) - batch[0].sum(-1)).square().mean()
            self.log("loss", loss, prog_bar=True)
            self.losses.append(loss.detach())
            return loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=0.1)

    rows = torch.randn(4 * STEPS, 8, generator=torch.Generator().manual_seed(1))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(rows), 4)
    trainer = lightning.Trainer(
        default_root_dir=tmp_path,
        max_epochs=1,
        precision=precision,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    module = Module()
    trainer.fit(module, loader)
    assert {loss.device.type for loss in module.losses} == {"mycelya"}
    assert module.losses[-1].item() < module.losses[0].item() / 2
    assert module.waits <= (1.7 if precision == "16-mixed" else 0.7)
    what = f"Trainer with a progress bar, {precision}"
    shows("lightning", what, "a falling loss", module.waits)


@pytest.mark.parametrize("precision", ["no", "bf16", "fp16"])
def test_accelerate(precision, shows):
    import accelerate

    accelerator = accelerate.Accelerator(mixed_precision=precision)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    rows = torch.randn(4 * STEPS, 8, generator=torch.Generator().manual_seed(1))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(rows), 4)
    net, optimizer, loader = accelerator.prepare(
        net, torch.optim.AdamW(net.parameters(), lr=1e-2), loader
    )
    losses = []
    for i, (x,) in enumerate(loader):
        if i == FIRST:
            torch.mycelya.reset_metrics()
        assert x.device.type == "mycelya"
        with accelerator.autocast():
            loss = (net(x).float().squeeze(-1) - x.sum(-1)).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    waits = waits_of(STEPS - FIRST)
    assert losses[-1].item() < losses[0].item()
    assert waits <= (1.5 if precision == "fp16" else 0)
    shows("accelerate", f"a training loop, {precision}", "a falling loss", waits)


def test_generation(shows):
    model = zoo.llama(50, 32, 2, (4, 2), 48, 128).eval()
    tokens = torch.randint(3, 50, (1, 8), generator=torch.Generator().manual_seed(1))
    options = {"max_new_tokens": 40, "do_sample": False, "eos_token_id": None}
    expected = model.generate(tokens, pad_token_id=0, **options)
    model.to("mycelya")
    given = tokens.to("mycelya")
    model.generate(given, pad_token_id=0, **options)
    torch.mycelya.reset_metrics()
    found = model.generate(given, pad_token_id=0, **options)
    reads = torch.mycelya.metrics()["blocking_reads"]
    assert torch.equal(found.cpu(), expected)
    assert reads <= 6
    shows("transformers", "generate(), 40 tokens", "the CPU's tokens", reads / 40)
