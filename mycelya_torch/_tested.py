# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""The releases of libraries that _ahead and _choose patch; `doctor` reads them."""

# The minor releases that the tests have run with. They run with the last one.
_TRANSFORMERS = ("5.23", "5.24")
_LIGHTNING = ("2.6",)
AHEAD = {"transformers": _TRANSFORMERS, "lightning": _LIGHTNING}
CHOOSE = {
    "accelerate": ("1.15",),
    "transformers": _TRANSFORMERS,
    "lightning": _LIGHTNING,
    "peft": ("0.21",),  # this one and the next two: tests/ecosystem
    "sentence-transformers": ("6.2",),
    "torch-geometric": ("2.8",),
}

# What _choose patches: (library, our module, its function) by the library's module.
CHOICES = {
    "accelerate.state": ("accelerate", "_accelerate", "state"),
    "accelerate.accelerator": ("accelerate", "_accelerate", "accelerator"),
    "accelerate.checkpointing": ("accelerate", "_accelerate", "checkpoints"),
    "accelerate.utils.modeling": ("accelerate", "_accelerate", "modeling"),
    "transformers.training_args": ("transformers", "_transformers", "arguments"),
    "transformers.trainer": ("transformers", "_transformers", "checkpoints"),
    "transformers.pipelines.base": ("transformers", "_transformers", "pipelines"),
    "peft.utils.other": ("peft", "_device_names", "peft"),
    "sentence_transformers.util.environment": (
        "sentence-transformers",
        "_device_names",
        "sentence_transformers",
    ),
    "torch_geometric.device": ("torch-geometric", "_device_names", "geometric"),
}

# Lightning's code is there under two names.
for _fabric, _pytorch in (
    ("lightning.fabric", "lightning.pytorch"),
    ("lightning_fabric", "pytorch_lightning"),
):
    for _name, _function in {
        f"{_fabric}.accelerators": "accelerators",
        f"{_fabric}.strategies": "strategies",
        f"{_fabric}.utilities.device_parser": "auto",
        f"{_fabric}.connector": "fabric",
        f"{_pytorch}.accelerators": "accelerators",
        f"{_pytorch}.strategies": "strategies",
        f"{_pytorch}.trainer.connectors.accelerator_connector": "trainer",
        f"{_pytorch}.trainer.setup": "setup",
        f"{_pytorch}.utilities.seed": "seed",
    }.items():
        CHOICES[_name] = ("lightning", "_lightning_choice", _function)


def reason(releases: dict[str, tuple[str, ...]], library: str, version: str) -> str:
    """Why AHEAD or CHOOSE does not patch this version of a library; "" if it does."""
    tested = releases[library]
    if any(f"{version}.".startswith(f"{release}.") for release in tested):
        return ""
    return f"{library} {version} is not the tested release {' or '.join(tested)}"
