# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Prints the folders of torch's and CUDA's headers and libraries as CMake settings."""

import pathlib

import torch
from torch.utils import cpp_extension


def cuda_includes() -> list[str]:
    """Folders with the CUDA runtime's headers in NVIDIA's pip packages."""
    packages = pathlib.Path(torch.__file__).parent.parent
    return [str(p.parent) for p in packages.glob("nvidia/*/include/cuda_runtime_api.h")]


def main() -> None:
    settings = {
        "MYC_TORCH_INCLUDE": cpp_extension.include_paths(),
        "MYC_TORCH_LIB": cpp_extension.library_paths(),
        "MYC_CUDA_INCLUDE": cuda_includes(),
    }
    for name, values in settings.items():
        print(f'set({name} "{";".join(values)}")')


if __name__ == "__main__":
    main()
