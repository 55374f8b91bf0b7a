# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Models as people build them: torchvision, timm, and Hugging Face transformers.

All have random weights and small configurations; nothing is downloaded. The libraries
are imported by the tests, since importing them takes seconds. A long file,
because all models share what trains them and what generates.
"""

import copy
from functools import partial

import pytest
import torch
import zoo
from helpers import DEVICE, named, on_cuda
from torch import nn
from torch.nn import functional as F  # noqa: N812

pytestmark = pytest.mark.filterwarnings("ignore")


# ---- What there is ----


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
# Its last norms are over four numbers, and there are so many of them that 1e-7 becomes
# 1e-2, which decides on which side of 0 or 6 an input of ReLU6 is.
IN_DOUBLE = {"timm efficientnet_lite0"}
FAST_VISION = {
    "torchvision resnet18",
    "timm vit_tiny",
    "timm convnext_atto",
    "timm efficientnet_lite0",
}


def ids(*shape, vocabulary=50, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, vocabulary, shape, generator=generator)


def text_batch(seed):
    """Token ids, the second row padded on the left, and their mask."""
    tokens, mask = ids(2, 9, seed=seed), torch.ones(2, 9, dtype=torch.long)
    tokens[1, :3], mask[1, :3] = 0, 0
    return {"input_ids": tokens, "attention_mask": mask}


def llama(**options):
    return zoo.llama(50, 32, 2, (4, 2), 64, 64, attention_dropout=0.1, **options)


def language_batch(seed):
    batch = text_batch(seed)
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    return {**batch, "labels": labels}


def t5_batch(seed):
    return {**text_batch(seed), "labels": ids(2, 6, seed=seed + 100)}


def sound(seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, 8, 32, generator=generator)


def whisper_batch(seed):
    return {"input_features": sound(seed), "labels": ids(2, 6, seed=seed + 100)}


TEXT = {
    "bert": (partial(zoo.bert, 50, 32, 2, 2, 64, 32), language_batch),
    "gpt2": (zoo.gpt2, language_batch),
    "llama": (partial(llama, tie_word_embeddings=True), language_batch),
    "llama untied": (partial(llama, tie_word_embeddings=False), language_batch),
    "t5": (zoo.t5, t5_batch),
    "whisper": (zoo.whisper, whisper_batch),
}
GENERATING = [name for name in TEXT if name != "bert"]


# ---- Training ----


def both(make):
    """A model on the CPU, and a copy on the device."""
    torch.manual_seed(0)
    here = make()
    return here, copy.deepcopy(here).to(DEVICE)


def three(make):
    """A model on the CPU, a copy on the device, one on the CPU with other last places.

    How far training takes the last from the first is how far rounding takes anything:
    it decides on which side of 0 an input of ReLU is, what is left of a gradient that
    is 0, of which AdamW makes whole steps, and a norm over few elements makes much of
    it.
    """
    here, ours = both(make)
    nudged = copy.deepcopy(here)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in nudged.parameters():
            signs = torch.randint(0, 2, p.shape, generator=generator) * 2 - 1
            p.mul_(1 + signs * torch.finfo(p.dtype).eps)
    return here, ours, nudged


def there(batch):
    return {name: t.to(DEVICE) for name, t in batch.items()}


def agree(ours, cpu, tolerance=1e-3, nudged=None):
    """No element is off by more than a part of the tensor's largest.

    Nor, if that is more, by more than some times what rounding may change.
    """
    ours, cpu = ours.detach().cpu(), cpu.detach()
    assert ours.dtype == cpu.dtype and ours.shape == cpu.shape
    if not cpu.is_floating_point():
        assert torch.equal(ours, cpu)
        return
    assert bool(cpu.isfinite().all())
    off = (ours - cpu).abs().max().item()
    bound = tolerance * max(cpu.abs().max().item(), 1e-6)
    if nudged is not None:
        bound = max(bound, 8 * (nudged.detach() - cpu).abs().max().item())
    assert off <= bound


def same_models(ours, cpu, nudged=None):
    mine, theirs = ours.state_dict(), cpu.state_dict()
    others = {} if nudged is None else nudged.state_dict()
    assert list(mine) == list(theirs)
    for name in theirs:
        with named(name):
            assert mine[name].device == torch.device("mycelya", 0)
            agree(mine[name], theirs[name], nudged=others.get(name))


def same_losses(losses):
    for mine, theirs, nudged in zip(losses[1], losses[0], losses[2], strict=True):
        agree(mine, theirs, nudged=nudged)


def train(model, optimizer, loss_of, batches):
    """Each batch is one step. Both sides draw the same numbers for dropout."""
    torch.manual_seed(11)
    model.train()
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def without_draws(model, always=False):
    """CUDA draws other numbers than the CPU: no dropout, no dropped paths there."""
    if on_cuda() or always:
        for module in model.modules():
            rates = ("p", "drop_prob", "dropout", "attention_dropout", "dropout_prob")
            for name in rates:
                if isinstance(getattr(module, name, None), float):
                    setattr(module, name, 0.0)
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
    return model


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


def dtype_of(name):
    return torch.float64 if name in IN_DOUBLE else torch.float32


def steps_of(name):
    """How many are compared: soon an input of a ReLU is on another side of 0."""
    return 3 if "vit" in name or "convnext" in name else 1


@pytest.mark.parametrize("name", list(vision_cases()))
def test_steps_of_vision(name):
    make, size = VISION[name]
    dtype = dtype_of(name)
    models = three(lambda: without_draws(make().to(dtype)))
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
    models = three(lambda: without_draws(make()))
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
    """They draw on the CPU and compute where the images are."""
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


def text_loss(model, batch):
    return model(**batch).loss


@pytest.mark.parametrize(
    "attention", ["sdpa", pytest.param("eager", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", TEXT)
def test_three_steps_of_text(name, attention):
    make, batch_of = TEXT[name]
    models = three(lambda: without_draws(make()))
    here, ours, nudged = models
    losses = []
    for model in models:
        model.set_attn_implementation(attention)
        lr = 1e-3 if not on_cuda() else 1e-4
        optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
        batches = [batch_of(seed) for seed in range(3)]
        if model is ours:
            batches = [there(b) for b in batches]
        losses.append(train(model, optimizer, text_loss, batches))
    same_losses(losses)
    same_models(ours, here, nudged)


@pytest.mark.cpu_worker  # CUDA draws other numbers
@pytest.mark.parametrize("name", TEXT)
def test_dropout_is_the_cpus_bit_for_bit(name, monkeypatch):
    """One seed drops the same places, so that outputs differ by rounding at most."""
    make, batch_of = TEXT[name]
    here, ours = both(make)
    batch, dropout = batch_of(0), F.dropout
    kept, logits = [], []
    for model, given in ((here, batch), (ours, there(batch))):
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
    """Layers run twice, and dropout drops the same places both times."""
    here, ours = both(lambda: without_draws(zoo.gpt2()))
    grads = []
    for model in (here, ours):
        kwargs = {"use_reentrant": reentrant}
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=kwargs)
        model.train()
        torch.manual_seed(5)
        batch = language_batch(0)
        model(**(batch if model is here else there(batch))).loss.backward()
        grads.append({name: p.grad for name, p in model.named_parameters()})
    for name, grad in grads[0].items():
        with named(name):
            agree(grads[1][name], grad)


# ---- Generating ----


def prompt_of(name):
    if name == "whisper":
        return {"input_features": sound(3)}
    return text_batch(3)


GREEDY = {"do_sample": False, "num_beams": 1}
STRATEGIES = {
    "greedy": GREEDY,
    "without a cache": {**GREEDY, "use_cache": False},
    "penalties": {**GREEDY, "repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
    "beams": {"do_sample": False, "num_beams": 3},
    "sample": {"do_sample": True, "temperature": 1.5, "top_k": 20, "top_p": 0.95},
}


def tokens_of(model, prompt, **kwargs):
    """Some strategies draw: the same numbers on both sides."""
    torch.manual_seed(13)
    with torch.no_grad():
        found = model.generate(**prompt, max_new_tokens=12, pad_token_id=0, **kwargs)
    return found


def generate_cases():
    for name in GENERATING:
        for strategy in STRATEGIES:
            tier = pytest.mark.fast if strategy == "greedy" else pytest.mark.slow
            marks = [tier]
            if strategy == "sample":
                marks.append(pytest.mark.cpu_worker)  # CUDA draws other numbers
            yield pytest.param(name, strategy, marks=marks)


def decided(model):
    """Fresh weights make all tokens alike; with these it matters what came before."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.6)
    return model.eval()


def untied_t5():
    """With the input's weights at its end too, a T5 says one word again and again."""
    return zoo.t5(tie_word_embeddings=False)


def generating(name):
    return both(lambda: decided(untied_t5() if name == "t5" else TEXT[name][0]()))


@pytest.mark.parametrize(("name", "strategy"), list(generate_cases()))
def test_generate_gives_the_cpus_tokens(name, strategy):
    here, ours = generating(name)
    prompt = prompt_of(name)
    expected = tokens_of(here, prompt, **STRATEGIES[strategy])
    got = tokens_of(ours, there(prompt), **STRATEGIES[strategy])
    assert got.device.type == "mycelya"
    assert torch.equal(got.cpu(), expected)
    assert len(expected[:, -12:].unique()) > 3


@pytest.mark.slow
def test_generate_with_a_static_cache():
    here, ours = generating("llama")
    prompt = prompt_of("llama")
    kwargs = {**GREEDY, "cache_implementation": "static", "disable_compile": True}
    expected = tokens_of(here, prompt, **kwargs)
    assert torch.equal(tokens_of(ours, there(prompt), **kwargs).cpu(), expected)


def test_generate_stops_at_its_end_token():
    here, ours = generating("gpt2")
    prompt = prompt_of("gpt2")
    free = tokens_of(here, prompt, **GREEDY, eos_token_id=None)
    stop = free[0, 9 + 3].item()  # what the first row says fourth
    expected = tokens_of(here, prompt, **GREEDY, eos_token_id=stop)
    got = tokens_of(ours, there(prompt), **GREEDY, eos_token_id=stop)
    assert torch.equal(got.cpu(), expected)
    assert (expected[0, 9:] == stop).any()


# ---- Tied weights ----


def ties(model):
    """Names that share a parameter, in groups."""
    groups = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        groups.setdefault(id(parameter), []).append(name)
    return sorted(names for names in groups.values() if len(names) > 1)


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5", "whisper"])
def test_tied_weights_stay_tied(name):
    make, batch_of = TEXT[name]
    here, ours = both(make)
    assert ties(here)
    assert ties(ours) == ties(here)

    def one(model):
        first = model.get_input_embeddings().weight
        last = model.get_output_embeddings().weight
        return first is last and first.data_ptr() == last.data_ptr()

    assert one(ours)
    optimizer = torch.optim.AdamW(ours.parameters(), lr=1e-3)
    before = ours.get_input_embeddings().weight.detach().clone()
    train(ours, optimizer, text_loss, [there(batch_of(0))])
    assert one(ours) and ties(ours) == ties(here)
    assert not torch.equal(before.cpu(), ours.get_output_embeddings().weight.cpu())
    assert ties(copy.deepcopy(ours)) == ties(here)
    returned = ours.to("cpu")
    assert one(returned) and ties(returned) == ties(here)
    returned.to(DEVICE, torch.bfloat16)
    assert one(returned) and ties(returned) == ties(here)


def test_ties_of_plain_modules():
    """Ties of parameters, of buffers, and of views of one storage."""
    shared = nn.Linear(4, 4)
    model = nn.Sequential(shared, nn.Tanh(), shared, nn.Linear(4, 4))
    model[3].weight = shared.weight
    model.register_buffer("a", torch.ones(3))
    model.register_buffer("b", model.a)
    model.to(DEVICE)
    assert model[0] is model[2]
    assert model[3].weight is model[0].weight
    assert model.a.device.type == "mycelya" and model.b.device.type == "mycelya"
    model(torch.ones(2, 4, device=DEVICE)).sum().backward()
    twice = copy.deepcopy(model)
    assert twice[3].weight is twice[0].weight is not model[0].weight
    assert len(list(model.parameters())) == 3


# ---- Saving ----


@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_save_and_load_a_pretrained_model(name, tmp_path):
    """save_pretrained from the device (safetensors), from_pretrained to both."""
    make, batch_of = TEXT[name]
    here, ours = both(lambda: make().eval())
    ours.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").exists()
    kind, batch = type(here), batch_of(0)
    loaded = [
        kind.from_pretrained(tmp_path),
        kind.from_pretrained(tmp_path).to(DEVICE),
        kind.from_pretrained(tmp_path, device_map={"": "mycelya"}),
    ]
    assert [next(m.parameters()).device.type for m in loaded] == [
        "cpu",
        "mycelya",
        "mycelya",
    ]
    expected = here(**batch).logits
    for model in loaded:
        assert ties(model) == ties(here)
        given = batch if model is loaded[0] else there(batch)
        agree(model.eval()(**given).logits, expected, 1e-5)


def test_safetensors(tmp_path):
    from safetensors.torch import load_file, load_model, save_file, save_model

    path = str(tmp_path / "x.safetensors")
    tensors = {
        "a": torch.randn(3, 4),
        "b": torch.arange(5),
        "c": torch.tensor(2.5, dtype=torch.bfloat16),
        "d": torch.tensor([True, False]),
    }
    save_file(there(tensors), path)
    for device in ("cpu", "mycelya"):
        loaded = load_file(path, device=device)
        assert set(loaded) == set(tensors)
        for name, t in tensors.items():
            assert loaded[name].device.type == device
            assert loaded[name].dtype == t.dtype
            assert torch.equal(loaded[name].cpu(), t)
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    model.to(DEVICE)
    save_model(model, path)
    other = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)).to(DEVICE)
    other[1].weight = other[0].weight
    load_model(other, path, device="mycelya")
    assert other[1].weight is other[0].weight
    for a, b in zip(other.parameters(), model.parameters(), strict=True):
        assert torch.equal(a.detach().cpu(), b.detach().cpu())


# ---- Hugging Face Trainer ----


class Sentences(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, i):
        tokens = ids(8, seed=i)
        return {"input_ids": tokens, "labels": tokens}


@pytest.mark.slow
def test_trainer(tmp_path, monkeypatch):
    """ACCELERATE_TORCH_DEVICE=mycelya is all that Trainer needs."""
    from accelerate.state import AcceleratorState
    from transformers import Trainer, TrainingArguments

    def run(**kwargs):
        torch.manual_seed(0)
        # Shuffling draws from the CPU's generator, which dropout there draws from too.
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
