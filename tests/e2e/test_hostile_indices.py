# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Wild indices, targets and lengths: an error with the op and the line, never a crash.

Each case runs on the CPU and on a real worker. The device raises where the CPU raises,
and where the CPU would read or write outside of its operands (UNDEFINED). The session
goes on afterwards.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from helpers import DEVICE, same

aten = torch.ops.aten
Case = Callable[[Callable[[torch.Tensor], torch.Tensor]], object]


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values)


def x(*sizes: int) -> torch.Tensor:
    return torch.arange(1.0, 1 + torch.Size(sizes).numel()).reshape(sizes)


def put(index: int, accumulate: bool) -> Case:
    return lambda to: to(x(4)).put_(to(ints(index)), to(x(1)), accumulate)


# to: moves an operand to the device of the run.
CASES: dict[str, Case] = {
    "embedding": lambda to: F.embedding(to(ints(0, 9)), to(x(4, 2))),
    "embedding negative": lambda to: F.embedding(to(ints(-1)), to(x(4, 2))),
    "embedding good": lambda to: F.embedding(to(ints(0, 3)), to(x(4, 2))),
    "embedding_bag sum": lambda to: F.embedding_bag(
        to(ints(0, 9)), to(x(4, 2)), to(ints(0)), mode="sum"
    ),
    "embedding_bag max": lambda to: F.embedding_bag(
        to(ints(0, -3)), to(x(4, 2)), to(ints(0)), mode="max"
    ),
    "embedding_bag good": lambda to: F.embedding_bag(
        to(ints(0, 3)), to(x(4, 2)), to(ints(0)), mode="mean"
    ),
    "embedding_renorm": lambda to: F.embedding(to(ints(9)), to(x(4, 2)), max_norm=1.0),
    "one_hot": lambda to: F.one_hot(to(ints(0, 5)), 3),
    "one_hot negative": lambda to: F.one_hot(to(ints(-1)), 3),
    "index": lambda to: to(x(4))[to(ints(4))],
    "index negative": lambda to: to(x(4))[to(ints(-5))],
    "index good": lambda to: to(x(4))[to(ints(-4, 3))],
    "index second dim": lambda to: to(x(3, 4))[:, to(ints(7))],
    "index_put": lambda to: to(x(4)).index_put_((to(ints(99)),), to(x(1))),
    "index_put accumulate": lambda to: to(x(4)).index_put_(
        (to(ints(-99)),), to(x(1)), accumulate=True
    ),
    "index_put good": lambda to: to(x(4)).index_put_((to(ints(-1)),), to(x(1))),
    "index_select": lambda to: to(x(4, 2)).index_select(0, to(ints(4))),
    "index_select negative": lambda to: to(x(4, 2)).index_select(1, to(ints(-1))),
    "index_add": lambda to: to(x(4)).index_add_(0, to(ints(4)), to(x(1))),
    "index_copy": lambda to: to(x(4)).index_copy_(0, to(ints(-1)), to(x(1))),
    "index_fill": lambda to: to(x(4)).index_fill_(0, to(ints(4)), 1.0),
    "index_reduce": lambda to: to(x(4)).index_reduce_(0, to(ints(4)), to(x(1)), "prod"),
    "gather": lambda to: to(x(4)).gather(0, to(ints(4))),
    "gather negative": lambda to: to(x(4)).gather(0, to(ints(-1))),
    "gather good": lambda to: to(x(4)).gather(0, to(ints(3, 0))),
    "take_along_dim": lambda to: to(x(4)).take_along_dim(to(ints(4)), 0),
    "scatter": lambda to: to(x(4)).scatter_(0, to(ints(4)), to(x(1))),
    "scatter value": lambda to: to(x(4)).scatter_(0, to(ints(-1)), 2.0),
    "scatter reduce": lambda to: to(x(4)).scatter(
        0, to(ints(4)), to(x(1)), reduce="add"
    ),
    "scatter_add": lambda to: to(x(4)).scatter_add_(0, to(ints(4)), to(x(1))),
    "scatter_reduce": lambda to: to(x(4)).scatter_reduce_(
        0, to(ints(4)), to(x(1)), "amax"
    ),
    "take": lambda to: to(x(4)).take(to(ints(4))),
    "take negative": lambda to: to(x(4)).take(to(ints(-5))),
    "take good": lambda to: to(x(4)).take(to(ints(-4))),
    "put": put(4, accumulate=False),
    "put accumulate": put(-5, accumulate=True),
    "put good": put(-4, accumulate=True),
    "nll_loss": lambda to: F.nll_loss(to(x(2, 3)), to(ints(0, 3))),
    "nll_loss negative": lambda to: F.nll_loss(to(x(2, 3)), to(ints(0, -1))),
    "nll_loss ignored": lambda to: F.nll_loss(to(x(2, 3)), to(ints(0, -100))),
    "nll_loss2d": lambda to: F.nll_loss(
        to(x(1, 3, 1, 2)), to(ints(0, 3).reshape(1, 1, 2))
    ),
    "cross_entropy": lambda to: F.cross_entropy(to(x(2, 3)), to(ints(0, 77))),
    "cross_entropy smooth": lambda to: F.cross_entropy(
        to(x(2, 3)), to(ints(0, 3)), label_smoothing=0.1
    ),
    "cross_entropy good": lambda to: F.cross_entropy(to(x(2, 3)), to(ints(0, 2))),
    "multi_margin_loss": lambda to: F.multi_margin_loss(to(x(2, 3)), to(ints(0, 3))),
    "multilabel_margin_loss": lambda to: F.multilabel_margin_loss(
        to(x(1, 3)), to(ints(0, 9, -1).reshape(1, 3))
    ),
    "max_unpool1d": lambda to: F.max_unpool1d(
        to(x(1, 1, 2)), to(ints(0, 99).reshape(1, 1, 2)), 2
    ),
    "max_unpool2d": lambda to: F.max_unpool2d(
        to(x(1, 1, 1, 2)), to(ints(0, 99).reshape(1, 1, 1, 2)), 2
    ),
    "max_unpool3d": lambda to: F.max_unpool3d(
        to(x(1, 1, 1, 1, 2)), to(ints(0, -9).reshape(1, 1, 1, 1, 2)), 2
    ),
    "searchsorted sorter": lambda to: torch.searchsorted(
        to(x(3)), to(x(1)), sorter=to(ints(0, 1, 9))
    ),
    "repeat_interleave": lambda to: to(x(2)).repeat_interleave(to(ints(1, -1))),
    "bincount": lambda to: torch.bincount(to(ints(0, -1))),
    "multinomial": lambda to: torch.multinomial(to(-x(3)), 2),
    "ctc_loss length": lambda to: F.ctc_loss(
        to(x(4, 1, 3).log_softmax(-1)), to(ints(1, 2)), (5,), (2,)
    ),
    "ctc_loss good": lambda to: F.ctc_loss(
        to(x(4, 1, 3).log_softmax(-1)), to(ints(1, 2)), (4,), (2,)
    ),
    "ctc_loss padded": lambda to: F.ctc_loss(
        to(x(4, 1, 3).log_softmax(-1)), to(ints(1, 77).reshape(1, 2)), (4,), (1,)
    ),
    "segment_reduce": lambda to: torch.segment_reduce(
        to(x(4)), "sum", lengths=to(ints(3, -1))
    ),
    "segment_reduce good": lambda to: torch.segment_reduce(
        to(x(4)), "sum", lengths=to(ints(3, 1))
    ),
    "grid_sample wild": lambda to: F.grid_sample(
        to(x(1, 1, 2, 2)),
        to(torch.tensor([float("inf"), float("nan"), 1e30, -1e30]).reshape(1, 1, 2, 2)),
        align_corners=False,
    ),
    "divide by zero": lambda to: (to(ints(7, 8)) + 1) // to(ints(2, 0)) * 2,
    "divide by a zero that i8 wraps": lambda to: (to(ints(7)).to(torch.int8) + 1) % 256,
    "divide by computed zeros": lambda to: to(ints(7, 8)) // (to(ints(2, 1)) - 1) + 1,
    "divide by a zero that a cast made": lambda to: (
        to(ints(7, 8)) // to(ints(2, 256)).to(torch.int8) + 1
    ),
    "divide good": lambda to: (to(ints(7, 8)) + 1) // to(ints(2, -3)) * 2,
    "bucketize": lambda to: torch.bucketize(to(x(2)), to(x(3))),
}

# The CPU may read or write anywhere, so it does not run them.
UNDEFINED: dict[str, Case] = {
    "_ctc_loss": lambda to: F.ctc_loss(
        to(x(4, 1, 3).log_softmax(-1)), to(ints(1, 1 << 40)), (4,), (2,)
    ),
    "_ctc_loss negative": lambda to: F.ctc_loss(
        to(x(4, 1, 3).log_softmax(-1)), to(ints(1, -7)), (4,), (2,)
    ),
    "embedding_dense_backward": lambda to: aten.embedding_dense_backward(
        to(x(2, 3)), to(ints(0, 1 << 40)), 4, -1, True
    ),
    "_embedding_bag_dense_backward": lambda to: aten._embedding_bag_dense_backward(
        to(x(1, 2)),
        to(ints(0, 1 << 30)),
        to(ints(0, 0)),
        to(ints(2)),
        to(ints(0, 0).reshape(1, 2)),
        4,
        False,
        0,
        None,
    ),
    "max_pool2d_with_indices_backward": lambda to: (
        aten.max_pool2d_with_indices_backward(
            to(x(1, 1, 1, 1)),
            to(x(1, 1, 2, 2)),
            [2, 2],
            [2, 2],
            [0, 0],
            [1, 1],
            False,
            to(ints(1 << 30).reshape(1, 1, 1, 1)),
        )
    ),
    "adaptive_max_pool2d_backward": lambda to: aten.adaptive_max_pool2d_backward(
        to(x(1, 1, 1, 1)), to(x(1, 1, 2, 2)), to(ints(-9).reshape(1, 1, 1, 1))
    ),
    "fractional_max_pool2d_backward": lambda to: aten.fractional_max_pool2d_backward(
        to(x(1, 1, 1, 1)),
        to(x(1, 1, 2, 2)),
        [2, 2],
        [1, 1],
        to(ints(1 << 30).reshape(1, 1, 1, 1)),
    ),
    "_segment_reduce_backward": lambda to: aten._segment_reduce_backward(
        to(x(2)), to(x(2)), to(x(4)), "max", lengths=to(ints(3, 1 << 20)), axis=0
    ),
    "_convert_indices_from_coo_to_csr": lambda to: (
        torch._convert_indices_from_coo_to_csr(to(ints(0, 1 << 30)), 4)
    ),
    "_convert_indices_from_csr_to_coo": lambda to: (
        torch._convert_indices_from_csr_to_coo(to(ints(0, 1 << 30)), to(ints(0, 1)))
    ),
}


def outcome(case: Case, move: Callable[[torch.Tensor], torch.Tensor]) -> object:
    """The result on the CPU, or the error.

    The error of an operator in place may come with the read or with what follows it.
    """
    try:
        result = case(move)
        result = result.cpu() if isinstance(result, torch.Tensor) else result
        torch.mycelya.synchronize()
        return result
    except (RuntimeError, IndexError, ValueError) as error:
        return error


def there(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(DEVICE)


def is_alive() -> bool:
    return (torch.ones(2, device=DEVICE) + 1).tolist() == [2, 2]


@pytest.mark.parametrize("name", CASES)
def test_wild_indices_are_errors_as_on_the_cpu(name: str) -> None:
    want = outcome(CASES[name], lambda tensor: tensor)
    got = outcome(CASES[name], there)
    if isinstance(want, Exception):
        assert isinstance(got, Exception), f"the CPU raises {want}; the device does not"
        assert re.search(r"\w", str(got))
    else:
        assert not isinstance(got, Exception), got
        same(got, want)
    assert is_alive()


@pytest.mark.parametrize("name", UNDEFINED)
def test_what_the_cpu_leaves_undefined_is_an_error(name: str) -> None:
    got = outcome(UNDEFINED[name], there)
    assert isinstance(got, Exception), "nothing is raised"
    text = str(got)
    assert name.split()[0] in text
    assert f"{os.path.basename(__file__)}:" in text
    assert is_alive()


def test_a_wild_target_in_a_training_step_leaves_the_session_usable() -> None:
    """A wild target of ctc_loss is reported; the next step trains."""
    model = torch.nn.Linear(3, 3).to(DEVICE)

    def loss(target: int) -> torch.Tensor:
        logits = model(there(x(4, 1, 3))).log_softmax(-1)
        return F.ctc_loss(logits, there(ints(1, target)), (4,), (2,))

    with pytest.raises(
        (IndexError, RuntimeError, ValueError), match=r"target 99 is out"
    ):
        loss(99).backward()
        torch.mycelya.synchronize()
    model.zero_grad(set_to_none=True)
    good = loss(2)
    good.backward()
    assert torch.isfinite(good).item()
    assert is_alive()


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.float32])
@pytest.mark.parametrize("name", ["chebyshev_polynomial_t", "legendre_polynomial_p"])
def test_polynomials_of_usual_degrees(name, dtype):
    f = getattr(torch.special, name)
    x, n = torch.tensor([0, 1, 2, 3]).to(dtype), torch.tensor([5, 4, 3, 1]).to(dtype)
    assert torch.equal(f(x.to(DEVICE), n.to(DEVICE)).cpu(), f(x, n))


@pytest.mark.parametrize(
    ("name", "x", "slow"),
    [
        ("chebyshev_polynomial_t", 0.5, False),  # a closed form
        ("chebyshev_polynomial_u", 2.0, False),  # overflows soon
        ("hermite_polynomial_h", 0.5, False),  # no such degree in PyTorch
        ("laguerre_polynomial_l", -3.0, False),
        ("laguerre_polynomial_l", 3.0, True),
        ("legendre_polynomial_p", 0.5, True),
        ("shifted_chebyshev_polynomial_t", 1e-30, True),  # 2 x - 1 rounds to -1
        ("shifted_chebyshev_polynomial_t", 0.0, False),
    ],
)
def test_polynomials_of_high_degrees(name, x, slow):
    """Those that would take hours are refused, and the others have PyTorch's value."""
    f = getattr(torch.special, name)
    x, n = torch.tensor([x]), torch.tensor([1e12])
    if slow:
        with pytest.raises(RuntimeError, match="a polynomial has a degree above"):
            f(x.to(DEVICE), n.to(DEVICE)).cpu()
    else:
        same(f(x.to(DEVICE), n.to(DEVICE)), f(x, n))


def test_segments_that_leave_out_the_end():
    """PyTorch allows it with unsafe=True; no segment may go beyond the end."""
    data = torch.arange(10.0)
    lengths = torch.tensor([1, 2, 0, 6])

    def of(device, lengths, unsafe):
        return torch.segment_reduce(
            data.to(device), "sum", lengths=lengths.to(device), axis=0, unsafe=unsafe
        ).cpu()

    assert torch.equal(of(DEVICE, lengths, True), of("cpu", lengths, True))
    with pytest.raises(RuntimeError, match="lengths"):
        of(DEVICE, lengths, False)
    with pytest.raises(RuntimeError, match="the sum 12, the data has 10"):
        of(DEVICE, lengths + torch.tensor([3, 0, 0, 0]), True)
