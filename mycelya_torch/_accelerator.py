# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Explains a failure of backward on the tensors of a GPU of this host.

PyTorch has one accelerator in a process (torch.accelerator), and prefers a device of
another package to CUDA. Its autograd finds streams only for tensors of the accelerator,
and a backward pass of other GPU tensors fails with an internal assertion. So `import
torch` alone does not load this package on a host with a GPU (mycelya_torch_autoload).
Where a program has imported it, that failure gets a sentence of ours.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from mycelya_torch_autoload import beside_gpu

_ASSERTION = "opt_ready_stream && opt_parent_stream"


def explain() -> None:
    """Called once, at import. Without a GPU beside the device it does nothing."""
    if not beside_gpu():
        return
    graph: Any = torch.autograd.graph
    original = graph._engine_run_backward

    @functools.wraps(original)
    def run_backward(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except RuntimeError as error:
            if _ASSERTION not in str(error):
                raise
            raise RuntimeError(
                "PyTorch can't run backward on the tensors of a GPU of this host in a "
                "process that has imported mycelya_torch: it has one accelerator in a "
                "process. Train on that GPU in another process, or on the mycelya "
                'device: RemoteMachine("local", device="cuda:0") uses the same GPU.'
            ) from error

    graph._engine_run_backward = run_backward
    torch.autograd._engine_run_backward = run_backward  # type: ignore[attr-defined]
