# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""What the device infers for a CUDA worker is what PyTorch's CUDA operators give.

No GPU is needed: cuda_rules.py compares with fake CUDA tensors. It runs in a process of
its own, because it opens a device that never starts.
"""

import re
from pathlib import Path

import pytest
import torch
from helpers import finish, start_file

PROGRAM = Path(__file__).with_name("cuda_rules.py")
# Older releases have other references for the layouts of CUDA's results.
KNOWN = torch.__version__ >= torch.torch_version.TorchVersion("2.15")
pytestmark = [
    pytest.mark.timeout(1000),
    pytest.mark.skipif(
        not KNOWN,
        reason=f"the list of errors of FakeTensorMode is that of torch 2.15, this is "
        f"{torch.__version__}",
    ),
    pytest.mark.skipif(
        torch.version.cuda is None,
        reason="FakeTensorMode chooses convolutions as PyTorch's build for CUDA does",
    ),
]


def compared(*arguments: str) -> int:
    """Runs cuda_rules.py; returns the number of cases that it has compared."""
    status, out, err = finish(start_file(PROGRAM, *arguments), 940)
    assert status == 0, out[-6000:] + err[-3000:]
    found = re.search(r"(\d+) cases of (\d+) operators compared", out)
    assert found is not None, out + err
    return int(found[1])


def test_op_database():
    """Forward and backward, with each sample in another memory layout."""
    assert compared("--dtypes", "float32,float16,int64", "--samples", "2") > 3000


def test_modules_and_cases():
    """Modules, operands of two dtypes and layouts, attention and norms.

    CUDA does not copy operands to a common dtype first, as the CPU does.
    """
    assert compared("--what", "modules,mixed,cases", "--dtypes", "float16") > 3000


@pytest.mark.sweep
@pytest.mark.parametrize(
    "dtype", "float32 float64 float16 bfloat16 int64 bool complex64".split()
)
def test_op_database_in_each_layout(dtype):
    assert compared("--dtypes", dtype, "--samples", "20", "--layouts") > 1000
