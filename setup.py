# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Puts the artefacts that scripts/build.py makes into the wheel."""

import os
import shutil
import sys
from pathlib import Path

# An installed package of before may be what is built anew; building needs no device.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

import torch  # noqa: E402
from setuptools import Command, Distribution, setup  # noqa: E402
from setuptools.command.build import build  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parent / "scripts"))
import build as native  # noqa: E402


class BuildNative(Command):
    """Builds in the source tree; a wheel gets copies, an editable install uses it."""

    description = "build the C++ and Go artefacts"
    user_options: list = []

    def initialize_options(self) -> None:
        self.build_lib = None
        self.editable_mode = False

    def finalize_options(self) -> None:
        self.set_undefined_options("build", ("build_lib", "build_lib"))

    def run(self) -> None:
        native.build()
        if not self.editable_mode:
            for target, source in self.get_output_mapping().items():
                Path(target).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)

    def get_output_mapping(self) -> dict[str, str]:
        return {
            str(Path(self.build_lib) / path.relative_to(native.ROOT)): str(path)
            for path in native.artefacts()
        }

    def get_outputs(self) -> list[str]:
        return list(self.get_output_mapping())

    def get_source_files(self) -> list[str]:
        return []


class Build(build):
    sub_commands = [("build_native", None), *build.sub_commands]


class BinaryDistribution(Distribution):
    """A wheel of this holds libraries for one Python and one platform."""

    def has_ext_modules(self) -> bool:
        return True


# The C++ libraries use torch's C++ ABI, which holds within a minor version only.
major, minor = torch.__version__.split(".")[:2]
setup(
    cmdclass={"build": Build, "build_native": BuildNative},
    distclass=BinaryDistribution,
    install_requires=[f"torch=={major}.{minor}.*"],
)
