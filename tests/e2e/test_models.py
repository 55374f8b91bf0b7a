# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Training of models from torchvision, timm and Hugging Face transformers.

Importing these libraries takes seconds, so the tests import them when they need them.
"""

from functools import partial

import pytest
import torch
import zoo
from helpers import DEVICE, named, on_cuda
from model_cases import (
    TEXT,
    agree,
    both,
    both_and_nudged,
    ids,
    language_batch,
    same_losses,
    same_models,
    text_loss,
    ties,
    to_device,
    train,
    without_draws,
)
from torch.nn import functional as F  # noqa: N812

pytestmark = pytest.mark.filterwarnings("ignore")


# ---- Vision models ----


of_torchvision = partial(partial, zoo.of_torchvision)
of_timm = partial(partial, zoo.of_timm)
VISION = {
    "torchvision resnet18": (of_torchvision("resnet18"), 64),
    "torchvision vit": (
        partial(zoo.vit, 32, 8, 2, 2, 32, 64, attention_dropout=0.1),
        32,
    ),
    "torchvision mobilenet_v3_small": (of_torchvision("mobilenet_v3_small"), 64),
    "torchvision efficientnet_b0": (of_torchvision("efficientnet_b0"), 32),
    "timm resnet18": (of_timm("resnet18"), 64),
    "timm vit_tiny": (of_timm("vit_tiny_patch16_224", img_size=32), 32),
    "timm convnext_atto": (of_timm("convnext_atto", drop_path_rate=0.1), 32),
    "timm efficientnet_lite0": (of_timm("efficientnet_lite0", drop_rate=0.2), 32),
}
# Its last norms are over four numbers each. Together they amplify an error of 1e-7 to
# 1e-2, which can move an input of ReLU6 across 0 or 6.
IN_DOUBLE = {"timm efficientnet_lite0"}
FAST_VISION = {
    "torchvision resnet18",
    "timm vit_tiny",
    "timm convnext_atto",
    "timm efficientnet_lite0",
}


def image_loss(model, batch):
    images, labels = batch
    return F.cross_entropy(model(images), labels)


def images_of(size, steps=3):
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        images = torch.randn(4, 3, size, size, generator=generator)
        yield images, torch.randint(0, 10, (4,), generator=generator)


def vision_cases(names=tuple(VISION)):
    for name in names:
        tier = pytest.mark.fast if name in FAST_VISION else pytest.mark.slow
        yield pytest.param(name, marks=tier)


@pytest.fixture(autouse=True)
def full_float32():
    """cuDNN rounds the operands of float32 convolutions to TF32 unless told not to."""
    if not on_cuda():
        yield  # and PyTorch's own test modules forbid to set the flag
        return
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


def dtype_of(name):
    return torch.float64 if name in IN_DOUBLE else torch.float32


def steps_of(name):
    """The number of steps. In a model with ReLU an input soon changes its sign."""
    return 3 if "vit" in name or "convnext" in name else 1


@pytest.mark.parametrize("name", list(vision_cases()))
def test_steps_of_vision(name):
    make, size = VISION[name]
    dtype = dtype_of(name)
    models = both_and_nudged(lambda: without_draws(make().to(dtype)))
    here, ours, nudged = models
    losses = []
    for model in models:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        device = next(model.parameters()).device
        given = images_of(size, steps_of(name))
        batches = [(x.to(device, dtype), y.to(device)) for x, y in given]
        losses.append(train(model, optimizer, image_loss, batches))
    same_losses(losses)
    same_models(ours, here, nudged)
    images = next(images_of(size))[0].to(dtype)
    with torch.no_grad():
        expected, other = here.eval()(images), nudged.eval()(images)
        got = ours.eval()(images.to(DEVICE))
    assert got.stride() == expected.stride()
    agree(got, expected, nudged=other)


@pytest.mark.parametrize(
    "name", [pytest.param("torchvision resnet18"), pytest.param("timm convnext_atto")]
)
@pytest.mark.slow
def test_steps_in_channels_last(name):
    make, size = VISION[name]
    models = both_and_nudged(lambda: without_draws(make()))
    losses = []
    for model in models:
        model.to(memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        device = next(model.parameters()).device
        batches = [
            (x.to(device).to(memory_format=torch.channels_last), y.to(device))
            for x, y in images_of(size, steps_of(name))
        ]
        losses.append(train(model, optimizer, image_loss, batches))
    here, ours, nudged = models
    same_losses(losses)
    same_models(ours, here, nudged)
    strides = [[p.stride() for p in model.parameters()] for model in (here, ours)]
    assert strides[0] == strides[1]


IMAGES = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(4))


@pytest.mark.slow
def test_transforms_of_torchvision():
    """Transforms draw on the CPU and compute on the images' device."""
    from torchvision.transforms import v2

    transforms = {
        "crop": v2.RandomResizedCrop(24, antialias=True),
        "flip": v2.RandomHorizontalFlip(p=1.0),
        "colours": v2.ColorJitter(0.3, 0.3, 0.3, 0.1),
        "normalize": v2.Normalize([0.5] * 3, [0.2] * 3),
        "blur": v2.GaussianBlur(3),
        "rotate": v2.RandomRotation(30),
        "perspective": v2.RandomPerspective(p=1.0),
        "contrast": v2.RandomAutocontrast(p=1.0),
        "erase": v2.RandomErasing(p=1.0),
        "elastic": v2.ElasticTransform(),
    }
    for name, transform in transforms.items():
        torch.manual_seed(6)
        expected = transform(IMAGES)
        torch.manual_seed(6)
        with named(name):
            got = transform(IMAGES.to(DEVICE))
            assert got.device.type == "mycelya"
            agree(got, expected, 1e-5)
    whole = (IMAGES * 255).to(torch.uint8)
    for transform in (v2.RandomEqualize(p=1.0), v2.RandomPosterize(3, p=1.0)):
        assert torch.equal(transform(whole.to(DEVICE)).cpu(), transform(whole))


# ---- Text models ----


@pytest.mark.parametrize(
    "attention", ["sdpa", pytest.param("eager", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", TEXT)
def test_three_steps_of_text(name, attention):
    make, batch_of = TEXT[name]
    models = both_and_nudged(lambda: without_draws(make()))
    here, ours, nudged = models
    losses = []
    for model in models:
        model.set_attn_implementation(attention)
        lr = 1e-3 if not on_cuda() else 1e-4
        optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
        batches = [batch_of(seed) for seed in range(3)]
        if model is ours:
            batches = [to_device(b) for b in batches]
        losses.append(train(model, optimizer, text_loss, batches))
    same_losses(losses)
    same_models(ours, here, nudged)


@pytest.mark.cpu_worker  # CUDA draws other numbers
@pytest.mark.parametrize("name", TEXT)
def test_dropout_is_the_cpus_bit_for_bit(name, monkeypatch):
    """One seed drops the same elements, so outputs differ only by rounding."""
    make, batch_of = TEXT[name]
    here, ours = both(make)
    batch, dropout = batch_of(0), F.dropout
    kept, logits = [], []
    for model, given in ((here, batch), (ours, to_device(batch))):
        seen = []

        def watched(x, p=0.5, training=True, inplace=False, seen=seen):
            result = dropout(x, p, training, inplace)
            if training and p > 0:
                seen.append(result != 0)
            return result

        monkeypatch.setattr(torch.nn.functional, "dropout", watched)
        model.set_attn_implementation("eager")
        torch.manual_seed(5)
        logits.append(model.train()(**given).logits)
        kept.append([places.cpu() for places in seen])
    agree(logits[1], logits[0], 1e-5)
    assert len(kept[0]) == len(kept[1]) >= 2
    assert all(torch.equal(a, b) for a, b in zip(*kept, strict=True))
    dropped = sum((~places).sum().item() for places in kept[0])
    assert 0.03 < dropped / sum(places.numel() for places in kept[0]) < 0.6


@pytest.mark.slow
@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing(reentrant):
    """Layers run twice, and dropout drops the same elements both times."""
    here, ours = both(lambda: without_draws(zoo.gpt2()))
    grads = []
    for model in (here, ours):
        kwargs = {"use_reentrant": reentrant}
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=kwargs)
        model.train()
        torch.manual_seed(5)
        batch = language_batch(0)
        model(**(batch if model is here else to_device(batch))).loss.backward()
        grads.append({name: p.grad for name, p in model.named_parameters()})
    for name, grad in grads[0].items():
        with named(name):
            agree(grads[1][name], grad)


# ---- Hugging Face Trainer ----


class Sentences(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, i):
        tokens = ids(8, seed=i)
        return {"input_ids": tokens, "labels": tokens}


@pytest.mark.slow
def test_trainer(tmp_path, monkeypatch):
    """Trainer needs only ACCELERATE_TORCH_DEVICE=mycelya."""
    from accelerate.state import AcceleratorState
    from transformers import Trainer, TrainingArguments

    def run(**kwargs):
        torch.manual_seed(0)
        # On the CPU, shuffling and dropout draw from the same generator.
        model = without_draws(zoo.gpt2(), always=True)
        arguments = TrainingArguments(
            output_dir=str(tmp_path),
            max_steps=3,
            per_device_train_batch_size=4,
            learning_rate=1e-3,
            logging_steps=1,
            report_to=[],
            disable_tqdm=True,
            seed=3,
            **kwargs,
        )
        trainer = Trainer(model=model, args=arguments, train_dataset=Sentences())
        trainer.train()
        losses = [
            entry["loss"] for entry in trainer.state.log_history if "loss" in entry
        ]
        return trainer, losses

    try:
        here, expected = run(use_cpu=True)
        monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "mycelya")
        ours, losses = run()
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)
    assert ours.args.device.type == "mycelya"
    assert len(losses) == 3
    assert losses == pytest.approx(expected, rel=1e-3)
    same_models(ours.model, here.model)
    assert ties(ours.model) == ties(here.model)
