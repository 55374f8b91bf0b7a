# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Puts the artefacts that scripts/build.py makes into the wheel.

scripts/wheels.py has built libraries for several versions of torch into a folder, and
names it: build_native --artefacts FOLDER
"""

import shutil
import sys
from pathlib import Path

from setuptools import Command, Distribution, setup
from setuptools.command.build import build

sys.path.insert(0, str(Path(__file__).resolve().parent / "scripts"))
import build as native  # noqa: E402


class BuildNative(Command):
    """Builds in the source tree; a wheel gets copies, an editable install uses it."""

    description = "build the C++ and Go artefacts"
    user_options = [("artefacts=", None, "a folder that has them in lib and bin")]

    def initialize_options(self) -> None:
        self.artefacts = None
        self.build_lib = None
        self.editable_mode = False

    def finalize_options(self) -> None:
        self.set_undefined_options("build", ("build_lib", "build_lib"))

    def run(self) -> None:
        if self.artefacts is None:
            native.build()
        if not self.editable_mode:
            for name in ("lib", "bin"):  # of a former build for another torch
                shutil.rmtree(self.package() / name, ignore_errors=True)
            for target, source in self.get_output_mapping().items():
                Path(target).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)

    def get_output_mapping(self) -> dict[str, str]:
        files = self.files().items()
        return {str(self.package() / name): str(path) for name, path in files}

    def package(self) -> Path:
        return Path(self.build_lib) / native.PACKAGE.name

    def files(self) -> dict[str, Path]:
        """The artefacts by their names in the package."""
        if self.artefacts is None:
            base, paths = native.PACKAGE, native.artefacts(native.Torch.installed())
        else:
            base = Path(self.artefacts)
            paths = sorted(path for path in base.rglob("*") if path.is_file())
        return {str(path.relative_to(base)): path for path in paths}

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


def torch_requirement() -> str:
    """From the oldest torch that has libraries to the last before the next minor."""
    if "--artefacts" in sys.argv:
        lib = Path(sys.argv[sys.argv.index("--artefacts") + 1]) / "lib"
        names = [path.name for path in lib.iterdir()]
    else:
        names = [native.libraries.folder_name(native.Torch.installed().version)]
    first, *_, last = native.libraries.releases(names) * 2
    return f"torch>={first[0]}.{first[1]},<{last[0]}.{last[1] + 1}"


setup(
    cmdclass={"build": Build, "build_native": BuildNative},
    distclass=BinaryDistribution,
    install_requires=[
        torch_requirement(),
        "click>=8.1",
        "rich>=13",
        "typing-extensions>=4.10",
    ],
)
