# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Norms of sparse tensors, and the gradient clipping that uses them."""

import copy

import pytest
import torch
from helpers import DEVICE
from test_sparse import compare, coo, same


def has_norms() -> bool:
    try:
        torch.linalg.vector_norm(torch.eye(2).to_sparse())
    except NotImplementedError:
        return False
    return True


pytestmark = pytest.mark.skipif(
    not has_norms(), reason=f"torch {torch.__version__} has no norm of sparse tensors"
)


def test_vector_norm():
    c = coo((3, 4, 2), 9, 2).coalesce()
    compare(lambda t: torch.linalg.vector_norm(t), c)


@pytest.mark.parametrize("norm", [1.0, 2.0, float("inf")])
def test_gradients_are_clipped(norm):
    module = torch.nn.Embedding(6, 3, sparse=True).double()
    ours = copy.deepcopy(module).to(DEVICE)
    totals = []
    for m in (module, ours):
        m(torch.tensor([1, 2, 2]).to(m.weight.device)).exp().sum().backward()
        totals.append(torch.nn.utils.clip_grad_norm_(m.parameters(), 0.5, norm))
    same(totals[1], totals[0])
    same(ours.weight.grad, module.weight.grad)
