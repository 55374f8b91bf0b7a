# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Libraries in their current releases: small models with random weights."""

import copy

import pytest
import torch
import zoo
from torch import nn

from mycelya_torch import _choose, _tested

pytestmark = pytest.mark.filterwarnings("ignore")


def test_the_releases_are_those_of_the_patches():
    reasons = _choose.import_all()
    names = {name for name in _tested.CHOICES if name in reasons}
    assert names == set(_tested.CHOICES)
    assert set(reasons.values()) == {""}


def losses(model, batches, device, steps=4, **options):
    """The losses of a training on a device, and the waits of its last steps."""
    model = copy.deepcopy(model).to(device).train()
    parameters = [p for p in model.parameters() if p.requires_grad]
    # SGD: Adam's first step has the sign of a gradient, also where that is rounding.
    optimizer = torch.optim.SGD(parameters, lr=0.02)
    kept = []
    for i in range(steps):
        if i == 2:
            torch.mycelya.reset_metrics()
        batch = {k: v.to(device) for k, v in batches[i % len(batches)].items()}
        loss = model(**batch, **options)
        loss = loss if isinstance(loss, torch.Tensor) else loss.loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        kept.append(loss.detach())
    waits = torch.mycelya.metrics()["blocking_reads"] / (steps - 2)
    return [x.item() for x in kept], waits


def compare(model, batches, **options):
    """Checks that a training on the device is that of the CPU; returns its waits."""
    expected, _ = losses(model, batches, "cpu", **options)
    found, waits = losses(model, batches, "mycelya", **options)
    assert found == pytest.approx(expected, rel=1e-3), (found, expected)
    assert len(set(expected)) == len(expected)
    return waits


def sentences():
    tokens = torch.randint(3, 50, (2, 8), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": tokens, "labels": tokens}]


# ---- peft ----


def test_lora(shows, tmp_path):
    import peft

    base = zoo.llama(50, 32, 2, (4, 2), 48, 64)
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"])
    model = peft.get_peft_model(copy.deepcopy(base), config)
    waits = compare(model, sentences(), use_cache=False)
    assert waits == 0
    shows("peft", "LoRA: a training", "the CPU's losses", waits)

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_()
    tokens = sentences()[0]["input_ids"]
    expected = model.eval()(tokens).logits
    model.save_pretrained(tmp_path)
    loaded = peft.PeftModel.from_pretrained(copy.deepcopy(base).to("mycelya"), tmp_path)
    assert {p.device.type for p in loaded.parameters()} == {"mycelya"}
    got = loaded.eval()(tokens.to("mycelya")).logits
    torch.testing.assert_close(got.cpu(), expected)
    merged = loaded.merge_and_unload()(tokens.to("mycelya")).logits
    torch.testing.assert_close(merged.cpu(), expected, rtol=1e-4, atol=1e-5)
    shows("peft", "an adapter: saved, loaded, merged", "the CPU's logits")


def test_where_peft_loads():
    from peft.utils import infer_device

    assert infer_device() == "mycelya"


# ---- diffusers ----


def unet():
    from diffusers import UNet2DModel

    torch.manual_seed(0)
    return UNet2DModel(
        sample_size=8,
        in_channels=1,
        out_channels=1,
        layers_per_block=1,
        block_out_channels=(8, 16),
        norm_num_groups=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )


class Denoising(nn.Module):
    """The loss of a diffusion model."""

    def __init__(self):
        super().__init__()
        self.unet = unet()

    def forward(self, noisy, noise, times):
        return (self.unet(noisy, times).sample - noise).square().mean()


def test_diffusion(shows):
    from diffusers import DDIMPipeline, DDIMScheduler
    from diffusers.utils.torch_utils import get_device

    scheduler = DDIMScheduler(num_train_timesteps=20)
    batches = []
    for seed in range(2):
        torch.manual_seed(seed)
        noise, times = torch.randn(2, 1, 8, 8), torch.tensor([3, 11])
        noisy = scheduler.add_noise(torch.zeros(2, 1, 8, 8), noise, times)
        batches.append({"noisy": noisy, "noise": noise, "times": times})
    waits = compare(Denoising(), batches)
    shows("diffusers", "UNet2DModel: a training", "the CPU's losses", waits)

    assert get_device() == "mycelya"
    images = []
    for way in ("cpu", "mycelya", "offload"):
        pipeline = DDIMPipeline(unet(), DDIMScheduler(num_train_timesteps=20))
        pipeline.set_progress_bar_config(disable=True)
        if way == "offload":
            pipeline.enable_model_cpu_offload()
            assert pipeline._execution_device.type == "mycelya"
        else:
            pipeline.to(way)
        generator = torch.Generator().manual_seed(5)
        found = pipeline(generator=generator, num_inference_steps=4, output_type="np")
        images.append(torch.from_numpy(found.images))
    for image in images[1:]:
        torch.testing.assert_close(image, images[0], rtol=1e-3, atol=1e-4)
    shows("diffusers", "DDIMPipeline, also with CPU offload", "the CPU's images")


# ---- sentence-transformers ----


def test_sentences(shows, tmp_path):
    from sentence_transformers import SentenceTransformer, util
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from transformers import BertConfig, BertModel, BertTokenizerFast

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "red", "green", "leaf"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    tokenizer = BertTokenizerFast(str(tmp_path / "vocab.txt"))
    tokenizer.save_pretrained(tmp_path)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
    )
    torch.manual_seed(0)
    BertModel(config).save_pretrained(tmp_path)

    def embed(**options):
        inner = Transformer(str(tmp_path))
        pooling = Pooling(inner.get_embedding_dimension())
        model = SentenceTransformer(modules=[inner, pooling], **options)
        found = model.encode(["a red leaf", "a leaf"], convert_to_tensor=True)
        return model.device.type, found

    kind, found = embed()
    assert kind == found.device.type == "mycelya"
    kind, expected = embed(device="cpu")
    assert kind == "cpu"
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-5)
    scores = util.cos_sim(found, found).cpu()
    torch.testing.assert_close(scores, util.cos_sim(expected, expected))
    shows("sentence-transformers", "encode(), cos_sim()", "the CPU's embeddings")


# ---- torch-geometric ----


class Graphs(nn.Module):
    def __init__(self):
        super().__init__()
        from torch_geometric.nn import GATConv, GCNConv, global_mean_pool

        torch.manual_seed(0)
        self.first, self.second = GCNConv(4, 8), GATConv(8, 8, heads=2, concat=False)
        self.pool, self.head = global_mean_pool, nn.Linear(8, 3)

    def forward(self, x, edge_index, batch, y):
        x = self.first(x, edge_index).relu()
        x = self.second(x, edge_index).relu()
        return nn.functional.cross_entropy(self.head(self.pool(x, batch, 4)), y)


def test_graphs(shows):
    import torch_geometric
    from torch_geometric.data import Data
    from torch_geometric.loader import DataLoader

    device = torch_geometric.device("auto")
    assert device.type == "mycelya" and torch_geometric.device("cpu").type == "cpu"
    torch.manual_seed(0)
    graphs = [
        Data(
            x=torch.randn(5, 4),
            edge_index=torch.randint(0, 5, (2, 12)),
            y=torch.tensor([i % 3]),
        )
        for i in range(8)
    ]
    batches = []
    for batch in DataLoader(graphs, batch_size=4):
        assert batch.to(device).x.device.type == "mycelya"
        names = ("x", "edge_index", "batch", "y")
        batches.append({name: getattr(batch, name) for name in names})
    waits = compare(Graphs(), batches)
    shows("torch-geometric", "GCNConv, GATConv: a training", "the CPU's losses", waits)


# ---- timm, torchmetrics ----


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        import timm

        torch.manual_seed(0)
        self.net = timm.create_model("resnet10t", num_classes=4)

    def forward(self, x, y):
        return nn.functional.cross_entropy(self.net(x), y)


def test_timm(shows):
    torch.manual_seed(0)
    # Batch norm of few values amplifies differences of rounding.
    batches = [
        {"x": torch.randn(8, 3, 96, 96), "y": torch.arange(i, 8 + i) % 4}
        for i in range(2)
    ]
    waits = compare(Images(), batches)
    assert waits == 0
    shows("timm", "resnet10t: a training", "the CPU's losses", waits)


def test_torchmetrics(shows):
    from torchmetrics import MetricCollection
    from torchmetrics.classification import (
        MulticlassAccuracy,
        MulticlassAUROC,
        MulticlassConfusionMatrix,
        MulticlassF1Score,
    )

    values = []
    for device in ("cpu", "mycelya"):
        kinds = MulticlassAccuracy, MulticlassF1Score, MulticlassAUROC
        metrics = MetricCollection(
            [kind(4) for kind in (*kinds, MulticlassConfusionMatrix)]
        ).to(device)
        for seed in range(3):
            torch.manual_seed(seed)
            scores, labels = torch.randn(16, 4), torch.randint(0, 4, (16,))
            metrics.update(scores.to(device), labels.to(device))
        values.append({k: v.cpu() for k, v in metrics.compute().items()})
    for name, value in values[0].items():
        torch.testing.assert_close(values[1][name], value, msg=name)
    shows("torchmetrics", "accuracy, F1, AUROC, confusion matrix", "the CPU's values")
