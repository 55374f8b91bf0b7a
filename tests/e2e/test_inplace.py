# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""In-place and out= ops: what they write, what they check, what they count."""

import pytest
import torch
from helpers import DEVICE, compare, same, to_device

IN_PLACE = {
    "add_": lambda x, y: x.add_(y, alpha=2),
    "mul_ number": lambda x, y: x.mul_(1.5),
    "div_": lambda x, y: x.div_(y),
    "sub broadcast": lambda x, y: x.sub_(y[0]),
    "relu_": lambda x, y: x.relu_(),
    "sigmoid_": lambda x, y: x.sigmoid_(),
    "clamp_": lambda x, y: x.clamp_(-0.5, 0.5),
    "copy_": lambda x, y: x.copy_(y),
    "copy_ broadcast": lambda x, y: x.copy_(y[0]),
    "copy_ cast": lambda x, y: x.copy_(y.double()),
    "fill_": lambda x, y: x.fill_(2.5),
    "zero_": lambda x, y: x.zero_(),
    "addmm_": lambda x, y: x.addmm_(y, y.t() @ x),
    "addcmul_": lambda x, y: x.addcmul_(y, y, value=0.5),
    "addcdiv_": lambda x, y: x.addcdiv_(y, y.abs() + 1),
    "lerp_": lambda x, y: x.lerp_(y, 0.25),
    "masked_fill_": lambda x, y: x.masked_fill_(y > 0, 7.0),
    "setitem": lambda x, y: x.__setitem__((slice(None), 1), y[:, 0]),
    "setitem mask": lambda x, y: x.__setitem__(y > 0, 9.0),
    "setitem ints": lambda x, y: x.__setitem__([0, 2], y[:2]),
    "index_put_": lambda x, y: x.index_put_((y[:, 0].argsort(),), y, accumulate=True),
    "index_add_": lambda x, y: x.index_add_(0, y[:, 0].argsort(), y),
    "scatter_": lambda x, y: x.scatter_(1, y.argsort(1), y),
    "index_fill_": lambda x, y: x.index_fill_(1, y[0].argsort()[:2], 3.0),
    "tril_": lambda x, y: x.tril_(),
    "self twice": lambda x, y: x.add_(x).mul_(x),
    "own transpose": lambda x, y: x[:, :3].add_(x[:, :3].t().clone()),
}


@pytest.mark.parametrize("name", IN_PLACE)
@pytest.mark.parametrize("cut", [False, True], ids=["one trace", "cut between"])
def test_in_place(name, cut):
    def fn(x, y):
        IN_PLACE[name](x, y)
        if cut:
            torch.mycelya.synchronize()
        IN_PLACE[name](x, y)
        return x.sum()

    compare(fn, torch.randn(3, 4), torch.randn(3, 4), rtol=1e-5, atol=1e-5)


def test_old_values_survive_for_those_who_hold_them():
    def fn(x):
        kept = [x * 1]
        for i in range(4):
            x.add_(i)
            kept.append(x * 1)
        return kept

    compare(fn, torch.randn(3, 4))


def both_raise(fn, kind=RuntimeError):
    """fn must raise the same kind on both devices; returns both messages."""
    messages = []
    for device in ("cpu", DEVICE):
        with pytest.raises(kind) as error:
            fn(device)
        messages.append(str(error.value))
    return messages


def test_checks_are_made_at_the_call():
    cpu, ours = both_raise(
        lambda d: torch.zeros(3, device=d).add_(torch.zeros(2, 3, device=d))
    )
    assert "output with shape [3]" in ours and "output with shape [3]" in cpu
    cpu, ours = both_raise(
        lambda d: torch.zeros(3, dtype=torch.int64, device=d).add_(1.5)
    )
    assert "result type Float can't be cast" in ours
    both_raise(lambda d: torch.zeros(3, device=d).add_(torch.zeros(4, device=d)))
    both_raise(lambda d: torch.zeros(2, 3, device=d) @ torch.zeros(2, 3, device=d))


def test_out():
    def fn(x, y):
        out = torch.empty(3, 4, device=x.device)
        torch.mul(x, y, out=out)
        part = torch.zeros(3, 8, device=x.device)
        torch.add(x, y, out=part[:, ::2])
        empty = torch.empty(0, device=x.device)
        torch.matmul(x, y.t(), out=empty)
        values = torch.empty(0, device=x.device)
        indices = torch.empty(0, dtype=torch.int64, device=x.device)
        torch.max(x, 1, out=(values, indices))
        return out, part, empty, values, indices

    compare(fn, torch.randn(3, 4), torch.randn(3, 4))


def test_out_of_another_size_warns_and_resizes():
    for device in ("cpu", DEVICE):
        out = torch.ones(5, device=device)
        with pytest.warns(UserWarning, match="was resized"):
            torch.add(torch.ones(2, 3, device=device), 1, out=out)
        assert out.shape == (2, 3)
    both_raise(
        lambda d: torch.add(
            torch.ones(3, device=d), 1.5, out=torch.ones(3, dtype=torch.int32, device=d)
        )
    )


def test_saved_tensors_know_that_they_were_written():
    def fn(device):
        x = torch.ones(3, device=device, requires_grad=True)
        y = x.exp()
        y.add_(1)
        y.sum().backward()

    for message in both_raise(fn):
        assert "modified by an inplace operation" in message

    def foreach(device):
        x = torch.ones(3, device=device, requires_grad=True)
        y = x.exp()
        with torch.no_grad():
            torch._foreach_add_([y], 1.0)
        y.sum().backward()

    for message in both_raise(foreach):
        assert "modified by an inplace operation" in message


def test_versions_count():
    def versions(device):
        x = torch.zeros(3, device=device)
        seen = [x._version]
        for write in (
            lambda: x.add_(1),
            lambda: x[0].mul_(2),
            lambda: torch._foreach_mul_([x], 2.0),
            lambda: x.copy_(torch.ones(3)),
            lambda: torch.add(x, 1, out=x),
        ):
            write()
            seen.append(x._version)
        return seen

    assert versions(DEVICE) == versions("cpu")


def test_a_leaf_that_requires_grad_cannot_be_written():
    both_raise(lambda d: torch.ones(2, device=d, requires_grad=True).add_(1))


def test_foreach_writes_all():
    def fn(*t):
        torch._foreach_add_(t[:3], t[3:], alpha=0.5)
        torch._foreach_mul_(t[:3], [1.0, 2.0, 3.0])
        torch._foreach_addcdiv_(t[:3], t[3:], [x.abs() + 1 for x in t[3:]], 0.1)
        torch._foreach_zero_(t[3:4])
        return [x.sum() for x in t]

    compare(fn, *(torch.randn(2, 3) for _ in range(6)), rtol=1e-5, atol=1e-6)


def test_batch_norm_writes_its_running_statistics():
    here, there = torch.nn.BatchNorm2d(3), torch.nn.BatchNorm2d(3).to(DEVICE)
    for _ in range(3):
        x = torch.randn(4, 3, 5, 5)
        same(there(x.to(DEVICE)), here(x), 1e-4, 1e-5)
    same(dict(there.named_buffers()), dict(here.named_buffers()), 1e-5, 1e-6)
    assert there.num_batches_tracked.item() == 3
    here.eval(), there.eval()
    same(there(x.to(DEVICE)), here(x), 1e-4, 1e-5)


def test_writes_to_one_storage_through_two_names():
    x = to_device(torch.zeros(4))
    y = x.detach()
    x.add_(1)
    y.mul_(5)
    x.sub_(2)
    assert y.cpu().tolist() == [3.0] * 4
