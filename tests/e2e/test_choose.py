# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""accelerate and transformers choose the device, and go on exactly as before."""

import logging
import types
import warnings

import pytest
import torch
import zoo
from helpers import run
from torch import nn

from mycelya_torch import _choose, _tested

transformers = pytest.importorskip("transformers", reason="make venv")
accelerate = pytest.importorskip("accelerate", reason="make venv")
pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning:torch.*"),
    pytest.mark.skipif(
        torch.cuda.is_available(), reason="without a patch libraries choose CUDA"
    ),
]


@pytest.fixture(autouse=True)
def no_state(monkeypatch):
    """accelerate has one device for a process; each test chooses anew."""
    from accelerate.state import AcceleratorState

    for name in ("ACCELERATE_TORCH_DEVICE", "MYCELYA_CHOOSE", "ACCELERATE_USE_CPU"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(_choose, "_warned", False)
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


def test_the_installed_releases_are_patched():
    reasons = _choose.import_all()
    installed = {
        module
        for module, (library, *_) in _tested.CHOICES.items()
        if library in ("accelerate", "transformers", "lightning")
    }
    assert {module: reasons.get(module) for module in installed} == dict.fromkeys(
        installed, ""
    )


# ---- accelerate ----


def test_an_accelerator_chooses_the_device(monkeypatch):
    from accelerate.state import AcceleratorState

    assert accelerate.Accelerator().device.type == "mycelya"
    AcceleratorState._reset_state(reset_partial_state=True)
    assert accelerate.Accelerator(cpu=True).device.type == "cpu"
    AcceleratorState._reset_state(reset_partial_state=True)
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "cpu")
    assert accelerate.Accelerator().device.type == "cpu"
    AcceleratorState._reset_state(reset_partial_state=True)
    monkeypatch.delenv("ACCELERATE_TORCH_DEVICE")
    monkeypatch.setenv("MYCELYA_CHOOSE", "off")
    assert accelerate.Accelerator().device.type == "cpu"


def test_the_accelerator_of_pytorch_decides(monkeypatch):
    """On a host with a GPU, too: only one accelerator can train in a process."""
    from accelerate.state import AcceleratorState

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert accelerate.Accelerator().device.type == "mycelya"
    AcceleratorState._reset_state(reset_partial_state=True)
    chosen = torch.device("cuda")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: chosen)
    assert accelerate.Accelerator().device.type == "cuda"


def test_before_torch(tmp_path):
    """accelerate imports torch, and with it the package, while it is imported."""
    code = """
        import sys
        assert "torch" not in sys.modules
        from accelerate import Accelerator
        found = Accelerator(mixed_precision="fp16")
        print(found.device, found.scaler.is_enabled())
    """
    status, out, err = run(code, tmp_path, fresh=True)
    assert (status, out.split()) == (0, ["mycelya", "True"]), err


class Net(nn.Module):
    """Two layers with dropout."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 1)
        self.seen = []

    def forward(self, x, more=None):
        y = self.first(x)
        self.seen.append(y.dtype)
        y = self.second(nn.functional.dropout(y.relu(), 0.4, self.training))
        return {"loss": (y.float().squeeze(-1) - x.sum(-1)).square().mean()}


@pytest.mark.parametrize("kind", ["no", "bf16", "fp16"])
def test_mixed_precision(kind):
    dtype = {"no": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[kind]
    accelerator = accelerate.Accelerator(mixed_precision=kind)
    net = Net()
    model, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), 0.1))
    before = [p.detach().clone() for p in net.parameters()]
    x = torch.full((4, 8), 0.01, device=accelerator.device)
    loss = model(x)["loss"]
    accelerator.backward(loss)
    if kind == "fp16":
        assert accelerator.scaler.is_enabled()
        scale = accelerator.scaler.get_scale()
        assert scale == 65536
        # The gradients are those of the scaled loss until the step unscales them.
        scaled = net.second.bias.grad.abs().item()
        accelerator.unscale_gradients()
        assert net.second.bias.grad.abs().item() == pytest.approx(scaled / scale)
    optimizer.step()
    assert net.seen == [dtype]
    for p, old in zip(net.parameters(), before, strict=True):
        assert p.device.type == "mycelya" and p.dtype == torch.float32
        assert not torch.equal(p.detach().cpu(), old.cpu())


def test_a_step_with_infinite_gradients_is_skipped():
    accelerator = accelerate.Accelerator(mixed_precision="fp16")
    net = Net()
    model, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), 0.1))
    before = net.first.weight.detach().cpu()
    accelerator.backward(model(torch.full((4, 8), 6e4, device="mycelya"))["loss"])
    optimizer.step()
    assert optimizer.step_was_skipped
    assert accelerator.scaler.get_scale() == 32768
    assert torch.equal(net.first.weight.detach().cpu(), before)


def test_memory_of_the_devices():
    from accelerate.utils import get_max_memory

    free = get_max_memory()
    assert list(free)[0] == 0 and 0 < free[0] <= torch.mycelya.mem_get_info(0)[1]
    given = get_max_memory({"cpu": "2GiB", 0: "1GiB"})
    assert list(given.items()) == [(0, 1 << 30), ("cpu", 2 << 30)]
    with pytest.raises(ValueError, match="moon is not recognized"):
        get_max_memory({0: "1GiB", "moon": 1})


def trained(accelerator, model, optimizer, steps):
    for i in range(steps):
        x = torch.full((4, 8), 0.1 * (i + 1), device=accelerator.device)
        accelerator.backward(model(x)["loss"])
        optimizer.step()
        optimizer.zero_grad()


def weights(model):
    return torch.cat([p.detach().cpu().flatten() for p in model.parameters()])


@pytest.mark.parametrize("kind", ["no", "fp16"])
def test_save_state_has_the_generators(kind, tmp_path):
    """With dropout, the steps after load_state() are those after save_state()."""
    accelerator = accelerate.Accelerator(mixed_precision=kind)
    net = Net()
    model, optimizer = accelerator.prepare(net, torch.optim.AdamW(net.parameters()))
    trained(accelerator, model, optimizer, 3)
    accelerator.save_state(str(tmp_path / "saved"))
    trained(accelerator, model, optimizer, 4)
    expected = weights(net)

    torch.manual_seed(99)
    accelerator.load_state(str(tmp_path / "saved"))
    trained(accelerator, model, optimizer, 4)
    assert torch.equal(weights(net), expected)

    # Without the state of the device's generator, the weights are others.
    torch.manual_seed(99)
    (tmp_path / "saved" / "mycelya_rng_state_0.pth").unlink()
    accelerator.load_state(str(tmp_path / "saved"))
    trained(accelerator, model, optimizer, 4)
    assert not torch.equal(weights(net), expected)


def test_a_state_of_another_worker(tmp_path):
    """A state that the device does not take is said, and the rest is loaded."""
    _choose.save_states(tmp_path, 0)
    file = tmp_path / "mycelya_rng_state_0.pth"
    assert _choose.load_states(tmp_path, 0) == ""
    torch.save({0: torch.zeros(3, dtype=torch.uint8)}, file)
    why = _choose.load_states(tmp_path, 0)
    assert why.startswith(f"{file}: mycelya:0 does not take a state: ")
    assert "no file" in _choose.load_states(tmp_path / "elsewhere", 0)


# ---- transformers ----


def test_training_arguments_choose_the_device(tmp_path, monkeypatch):
    def device(**options):
        found = transformers.TrainingArguments(output_dir=str(tmp_path), **options)
        return found.device.type

    assert device() == "mycelya"
    assert device(use_cpu=False) == "mycelya"
    assert device(bf16=True) == "mycelya"
    assert device(fp16=True) == "mycelya"
    assert device(use_cpu=True) == "cpu"
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    assert device() == "cpu"
    monkeypatch.delenv("ACCELERATE_USE_CPU")
    monkeypatch.setenv("MYCELYA_CHOOSE", "off")
    assert device() == "cpu"
    with pytest.raises(ValueError, match="doesn't support bf16"):
        device(bf16=True)


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        return {"x": torch.randn(8, generator=torch.Generator().manual_seed(i))}


def trainer_of(folder, **options):
    return transformers.Trainer(
        model=Net(),
        args=transformers.TrainingArguments(
            output_dir=str(folder),
            report_to=[],
            disable_tqdm=True,
            max_steps=8,
            per_device_train_batch_size=4,
            save_steps=4,
            logging_steps=4,
            **options,
        ),
        train_dataset=Rows(),
    )


@pytest.mark.timeout(300)
@pytest.mark.parametrize("options", [{}, {"bf16": True}, {"fp16": True}], ids=str)
def test_trainer_resumes_exactly(options, tmp_path, caplog):
    whole = trainer_of(tmp_path, **options)
    whole.train()
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(
        next(iter(options), ""), torch.float32
    )
    assert set(whole.model.seen) == {dtype}
    expected = weights(whole.model)

    checkpoint = tmp_path / "checkpoint-4"
    resumed = trainer_of(tmp_path, **options)
    resumed.train(resume_from_checkpoint=str(checkpoint))
    assert len(resumed.model.seen) == 4
    assert torch.equal(weights(resumed.model), expected)

    (checkpoint / "mycelya_rng_state_0.pth").unlink()
    logger = logging.getLogger("transformers")
    logger.addHandler(caplog.handler)
    try:
        other = trainer_of(tmp_path, **options)
        other.train(resume_from_checkpoint=str(checkpoint))
    finally:
        logger.removeHandler(caplog.handler)
    assert "has no states of mycelya's generators" in caplog.text
    assert not torch.equal(weights(other.model), expected)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The folder of a small model, tokens, and its logits for them on the CPU."""
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    model = zoo.llama(50, 32, 2, (4, 2), 48, 64).eval()
    model.save_pretrained(folder)
    tokens = torch.arange(8)[None]
    return folder, tokens, model(tokens).logits.detach()


def test_device_map_auto(saved):
    folder, tokens, expected = saved
    load = transformers.AutoModelForCausalLM.from_pretrained
    model = load(folder, device_map="auto")
    assert {p.device.type for p in model.parameters()} == {"mycelya"}
    got = model(tokens.to(model.device)).logits.detach().cpu()
    torch.testing.assert_close(got, expected)


def test_device_map_auto_with_little_memory(saved):
    """What does not fit stays on the CPU, and comes to the device for its turn."""
    folder, tokens, expected = saved
    load = transformers.AutoModelForCausalLM.from_pretrained
    model = load(folder, device_map="auto", max_memory={0: "60KB", "cpu": "1GB"})
    assert set(model.hf_device_map.values()) == {0, "cpu"}
    got = model(tokens.to(model.device)).logits
    assert got.device.type == "mycelya"
    torch.testing.assert_close(got.detach().cpu(), expected)


class Sum(transformers.Pipeline):
    """A pipeline without a tokenizer."""

    def _sanitize_parameters(self, **options):
        return {}, {}, {}

    def preprocess(self, text):
        return {"input_ids": torch.tensor([[len(text), 2, 3]])}

    def _forward(self, inputs):
        self.where = inputs["input_ids"].device
        return self.model(**inputs)

    def postprocess(self, outputs):
        return outputs.logits.sum().item()


def test_a_pipeline_chooses_the_device(saved):
    model = transformers.AutoModelForCausalLM.from_pretrained(saved[0])
    for options, kind in (
        ({}, "mycelya"),
        ({"device": 0}, "mycelya"),
        ({"device": "mycelya"}, "mycelya"),
        ({"device": "cpu"}, "cpu"),
        ({"device": 0}, "mycelya"),
    ):
        pipe = Sum(model, **options)
        pipe("four")
        assert pipe.where.type == pipe.model.device.type == kind, options


def test_generation_of_a_pipeline(saved):
    """transformers.pipeline() itself, with a tokenizer made here."""
    tokenizers = pytest.importorskip("tokenizers", reason="make venv")
    words = {word: i for i, word in enumerate("abcdefghijklmnop")}
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="a"))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="a", eos_token="b"
    )
    texts = []
    for device in (0, -1):
        model = transformers.AutoModelForCausalLM.from_pretrained(saved[0])
        pipe = transformers.pipeline(
            "text-generation", model=model, tokenizer=tokenizer, device=device
        )
        assert pipe.device.type == ("mycelya" if device == 0 else "cpu")
        (out,) = pipe("c d e f", max_new_tokens=6, do_sample=False)
        texts.append(out["generated_text"])
    assert texts[0] == texts[1] and texts[0].startswith("c d e f")


# ---- Releases that are not tested ----


def accelerate_of_another_release(monkeypatch):
    class PartialState:
        @property
        def default_device(self):
            return torch.device("cpu")

    module = types.ModuleType("accelerate.state")
    module.PartialState = PartialState
    monkeypatch.setattr(_choose, "version_of", lambda *_: "9.1.0")
    _choose.patch(module)
    return module


def test_another_release_is_left_alone_and_warns_once(monkeypatch):
    monkeypatch.setattr(_choose, "reasons", {})
    module = accelerate_of_another_release(monkeypatch)
    why = "accelerate 9.1.0 is not the tested release 1.15"
    assert _choose.reasons == {"accelerate.state": why}
    with pytest.warns(UserWarning) as found:
        assert module.PartialState().default_device.type == "cpu"
    assert str(found[0].message) == (
        f"accelerate has chosen the CPU, although there is a mycelya device ({why}). "
        "To use the device: set ACCELERATE_TORCH_DEVICE=mycelya. MYCELYA_CHOOSE=off "
        "turns this warning off."
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert module.PartialState().default_device.type == "cpu"


def test_the_switch_of_the_warning(monkeypatch):
    monkeypatch.setattr(_choose, "reasons", {})
    monkeypatch.setenv("MYCELYA_CHOOSE", "off")
    module = accelerate_of_another_release(monkeypatch)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert module.PartialState().default_device.type == "cpu"


def test_other_functions_are_left_alone():
    def get_max_memory(limits):
        return limits

    def get_grad_scaler(distributed_type=None, **kwargs):
        return None

    module = types.SimpleNamespace(
        get_max_memory=get_max_memory, get_grad_scaler=get_grad_scaler
    )
    from mycelya_torch import _accelerate

    assert "has the parameters (limits), not (max_memory)" in _accelerate.modeling(
        module
    )
    assert module.get_max_memory is get_max_memory
    why = _choose.with_constant(get_max_memory, ("cuda",), ("cuda", "mycelya"))
    assert "has no constant ('cuda',)" in why
