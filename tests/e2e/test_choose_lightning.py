# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Lightning's Trainer and Fabric choose the device; mixed precision is in effect."""

import importlib
import logging
import types
import warnings

import pytest
import torch
from torch import nn

from mycelya_torch import _choose, _lightning_choice

pytest.importorskip("lightning", reason="make venv")
pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(
        torch.cuda.is_available(), reason="without a patch libraries choose CUDA"
    ),
]

PACKAGES = ["lightning.pytorch", "pytorch_lightning"]


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.delenv("MYCELYA_CHOOSE", raising=False)
    monkeypatch.setattr(_choose, "_warned", False)


@pytest.fixture(params=PACKAGES)
def package(request):
    return importlib.import_module(request.param)


def module_of(package):
    """A small model with dropout, in one of Lightning's two packages."""

    class Module(package.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 1)
            self.dropout = nn.Dropout(0.4)
            self.seen, self.drawn, self.state = [], [], None

        def training_step(self, batch, index):
            y = self.first(batch[0])
            self.seen.append((y.device.type, y.dtype))
            return self.second(self.dropout(y.relu())).float().square().mean()

        def validation_step(self, batch, index):
            self.drawn.append(torch.rand(3, device=self.device))

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

        def on_save_checkpoint(self, checkpoint):
            checkpoint["state"] = torch.mycelya.get_rng_state().cpu()

        def on_load_checkpoint(self, checkpoint):
            self.state = checkpoint["state"]

        def on_train_epoch_start(self):
            if self.state is not None:
                torch.mycelya.set_rng_state(self.state)

    return Module()


def rows():
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(1))
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), 4)


def trainer_of(package, folder, epochs=1, **options):
    return package.Trainer(
        default_root_dir=str(folder),
        max_epochs=epochs,
        logger=False,
        enable_checkpointing="callbacks" in options,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )


def weights(module):
    return torch.cat([p.detach().cpu().flatten() for p in module.parameters()])


@pytest.mark.parametrize(
    ("options", "kind", "dtype"),
    [
        ({}, "mycelya", torch.float32),
        ({"accelerator": "gpu", "devices": 1}, "mycelya", torch.float32),
        ({"accelerator": "mycelya", "devices": [0]}, "mycelya", torch.float32),
        ({"strategy": "single_mycelya"}, "mycelya", torch.float32),
        ({"precision": "bf16-mixed"}, "mycelya", torch.bfloat16),
        ({"precision": "16-mixed"}, "mycelya", torch.float16),
        ({"precision": "bf16-true"}, "mycelya", torch.bfloat16),
        ({"accelerator": "cpu"}, "cpu", torch.float32),
    ],
    ids=str,
)
def test_a_trainer(package, options, kind, dtype, tmp_path):
    module = module_of(package)
    before = weights(module)
    trainer = trainer_of(package, tmp_path, **options)
    trainer.fit(module, rows(), rows())
    assert set(module.seen) == {(kind, dtype)}
    assert trainer.strategy.root_device.type == kind
    assert {x.device.type for x in module.drawn} == {kind}
    assert not torch.equal(weights(module), before.to(weights(module).dtype))
    if options.get("precision") == "16-mixed":
        scaler = trainer.precision_plugin.scaler
        assert scaler.is_enabled() and scaler.get_scale() > 1


def test_what_a_trainer_says(package, tmp_path, caplog):
    name = package.__name__
    logger = logging.getLogger(f"{name}.utilities.rank_zero")
    logger.addHandler(caplog.handler)
    try:
        trainer_of(package, tmp_path)
    finally:
        logger.removeHandler(caplog.handler)
    assert "mycelya available: True, used: mycelya:0" in caplog.text


@pytest.mark.parametrize(
    ("devices", "text"),
    [
        (2, "devices=2 is not one mycelya device"),
        ([0, 1], r"devices=\[0, 1\] is not one mycelya device"),
        ([63], r"devices=\[63\] is not one mycelya device"),
        ("moon", "devices='moon' is not one mycelya device"),
    ],
)
def test_devices_that_are_not_there(package, devices, text, tmp_path):
    with pytest.raises(ValueError, match=text):
        trainer_of(package, tmp_path, accelerator="mycelya", devices=devices)


def test_devices_as_text():
    assert [_lightning_choice._index_of(d) for d in ("1", "-1", "0,", [0])] == [0] * 4


def test_a_strategy_of_another_device(package, tmp_path):
    trainer = trainer_of(
        package, tmp_path, accelerator="mycelya", strategy="single_device"
    )
    with pytest.raises(ValueError, match='use strategy="single_mycelya"'):
        trainer.fit(module_of(package), rows())


@pytest.mark.parametrize("precision", ["32-true", "16-mixed"])
def test_a_checkpoint(package, precision, tmp_path):
    """Lightning saves no generators. With their states, a resumed training is exact."""
    whole = module_of(package)
    keep = package.callbacks.ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1)
    trainer = trainer_of(package, tmp_path, 2, precision=precision, callbacks=[keep])
    trainer.fit(whole, rows())
    expected = weights(whole)

    resumed = module_of(package)
    trainer = trainer_of(package, tmp_path, 2, precision=precision)
    trainer.fit(resumed, rows(), ckpt_path=tmp_path / "epoch=0.ckpt")
    assert len(resumed.seen) == 4 and len(whole.seen) == 8
    assert torch.equal(weights(resumed), expected)


def test_the_sanity_check_draws_no_numbers(package, tmp_path):
    """Its random numbers do not change those of the training, as on CUDA."""
    found = []
    for steps in (0, 2):
        module = module_of(package)
        torch.manual_seed(5)
        trainer_of(package, tmp_path, num_sanity_val_steps=steps).fit(
            module, rows(), rows()
        )
        assert len(module.drawn) == 4 + steps
        found.append(weights(module))
    assert torch.equal(found[0], found[1])


@pytest.mark.parametrize("name", ["lightning.fabric", "lightning_fabric"])
@pytest.mark.parametrize(
    ("options", "kind", "dtype"),
    [
        ({}, "mycelya", torch.float32),
        ({"accelerator": "gpu"}, "mycelya", torch.float32),
        ({"accelerator": "mycelya", "devices": 1}, "mycelya", torch.float32),
        ({"precision": "bf16-mixed"}, "mycelya", torch.bfloat16),
        ({"precision": "16-mixed"}, "mycelya", torch.float16),
        ({"accelerator": "cpu"}, "cpu", torch.float32),
    ],
    ids=str,
)
def test_fabric(name, options, kind, dtype, tmp_path):
    fabric = importlib.import_module(name).Fabric(**options)
    assert fabric.device.type == kind
    torch.manual_seed(0)
    net = nn.Linear(8, 1)
    net, optimizer = fabric.setup(net, torch.optim.AdamW(net.parameters()))
    loader = fabric.setup_dataloaders(rows())
    for (x,) in loader:
        assert x.device.type == kind
        loss = net(x).square().mean()
        with fabric.autocast():
            assert (net.weight @ net.weight.T).dtype == dtype
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    fabric.save(tmp_path / "state", {"net": net, "optimizer": optimizer})
    expected = weights(net)
    with torch.no_grad():
        net.weight.zero_()
    fabric.load(tmp_path / "state", {"net": net, "optimizer": optimizer})
    assert torch.equal(weights(net), expected)
    assert net.weight.device.type == kind


# ---- Releases that are not tested ----


def test_another_release_warns_once(monkeypatch):
    monkeypatch.setattr(_choose, "reasons", {})
    monkeypatch.setattr(_choose, "version_of", lambda *_: "9.0.0")
    module = types.ModuleType("lightning.fabric.utilities.device_parser")
    module._select_auto_accelerator = lambda: "cpu"
    _choose.patch(module)
    with pytest.warns(UserWarning) as found:
        assert module._select_auto_accelerator() == "cpu"
    text = str(found[0].message)
    assert text.startswith("lightning has chosen the CPU, although there is a mycelya")
    assert "(lightning 9.0.0 is not the tested release 2.6)" in text
    assert '`accelerator="mycelya", strategy="single_mycelya"`' in text
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module._select_auto_accelerator()


def test_the_registry_of_another_release(monkeypatch):
    """What the warning names works in releases that are not patched."""
    found = importlib.import_module("lightning.pytorch.accelerators")
    module = types.ModuleType("lightning.pytorch.accelerators")
    module.Accelerator = found.Accelerator
    module.AcceleratorRegistry = type(found.AcceleratorRegistry)()
    monkeypatch.setattr(_choose, "reasons", {})
    monkeypatch.setattr(_choose, "version_of", lambda *_: "9.0.0")
    _choose.patch(module)
    assert "not the tested release" in _choose.reasons[module.__name__]
    assert module.AcceleratorRegistry.get("mycelya").name() == "mycelya"


def test_other_code_is_left_alone():
    class Connector:
        def _choose_strategy(self, more):
            return more

        def _check_and_init_precision(self):
            return None

        @staticmethod
        def _choose_gpu_accelerator_backend():
            return "cuda"

    own = Connector._choose_strategy
    module = types.SimpleNamespace(_AcceleratorConnector=Connector)
    assert "has the parameters (self more)" in _lightning_choice.trainer(module)
    assert Connector._choose_strategy is own
