# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Trains, validates and tests a classifier with Lightning's Trainer.

python fit.py --root FOLDER [--epochs N] [--precision P]
"""

import argparse

import lightning as L
import torch
from lightning.pytorch.callbacks import (
    EarlyStopping,
    LearningRateMonitor,
    ModelCheckpoint,
)
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy


class Shapes(L.LightningDataModule):
    """Images of noise with a brighter quarter, whose number is the label."""

    def setup(self, stage=None):
        generator = torch.Generator().manual_seed(7)
        images = torch.rand(400, 1, 12, 12, generator=generator)
        labels = torch.randint(0, 4, (400,), generator=generator)
        for image, label in zip(images, labels.tolist(), strict=True):
            y, x = divmod(label, 2)
            image[0, 6 * y : 6 * y + 6, 6 * x : 6 * x + 6] += 0.3
        parts = zip(
            images.split([240, 80, 80]), labels.split([240, 80, 80]), strict=True
        )
        self.train, self.validate, self.held_out = (TensorDataset(*p) for p in parts)

    def train_dataloader(self):
        generator = torch.Generator().manual_seed(1)
        return DataLoader(self.train, 16, shuffle=True, generator=generator)

    def val_dataloader(self):
        return DataLoader(self.validate, 40)

    def test_dataloader(self):
        return DataLoader(self.held_out, 40)


class Classifier(L.LightningModule):
    def __init__(self, rate=3e-3):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
            nn.Flatten(), nn.Linear(64, 4),
        )  # fmt: skip
        self.loss = nn.CrossEntropyLoss(label_smoothing=0.05)
        self.accuracy = MulticlassAccuracy(4)

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, index):
        loss = self.loss(self(batch[0]), batch[1])
        self.log("train_loss", loss, prog_bar=True, on_step=True, on_epoch=True)
        return loss

    def evaluate(self, batch, name):
        scores = self(batch[0])
        self.accuracy(scores, batch[1])
        self.log(f"{name}_loss", self.loss(scores, batch[1]), prog_bar=True)
        self.log(f"{name}_accuracy", self.accuracy, prog_bar=True)

    def validation_step(self, batch, index):
        self.evaluate(batch, "val")

    def test_step(self, batch, index):
        self.evaluate(batch, "test")

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=8)
        return [optimizer], [schedule]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", required=True)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--precision", default="32-true")
    options = parser.parse_args()
    L.seed_everything(3, workers=True)
    best = ModelCheckpoint(monitor="val_loss", save_last=True)
    trainer = L.Trainer(
        default_root_dir=options.root,
        max_epochs=options.epochs,
        precision=options.precision,
        gradient_clip_val=1.0,
        log_every_n_steps=5,
        logger=CSVLogger(options.root, name="log", version=0),
        callbacks=[best, EarlyStopping("val_loss", patience=3), LearningRateMonitor()],
    )
    model, data = Classifier(), Shapes()
    trainer.fit(model, datamodule=data)
    trainer.test(datamodule=data, ckpt_path="best")


if __name__ == "__main__":
    main()
