# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Random shapes, views and writes, beyond the cases that a list contains."""

import torch
from helpers import SOAK, compare
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

quick = settings(
    max_examples=40 * SOAK,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
shapes = st.lists(st.integers(0, 4), min_size=0, max_size=3)


@quick
@given(
    shape=shapes,
    ones=st.integers(0, 7),
    drop=st.integers(0, 2),
    flip=st.booleans(),
    name=st.sampled_from(["add", "mul", "sub", "maximum", "div", "eq"]),
)
def test_broadcast_of_any_shape(shape, ones, drop, flip, name):
    """b has a's shape, but some dims are 1 and leading dims may be missing."""
    other = [1 if ones >> i & 1 else n for i, n in enumerate(shape)][drop:]
    a = torch.randn(shape[::-1]).permute(list(reversed(range(len(shape)))))
    a = a if flip else a.contiguous()
    compare(getattr(torch, name), a, torch.randn(other))


@st.composite
def windows(draw):
    """A function from a [4,5,6] tensor to a view of it: up to four view ops."""
    steps = draw(
        st.lists(
            st.tuples(st.sampled_from("tsnud"), st.integers(0, 2), st.integers(0, 2)),
            max_size=4,
        )
    )

    def window(x):
        for kind, a, b in steps:
            if x.dim() == 0:
                return x
            a, b = a % x.dim(), b % x.dim()
            if kind == "t":
                x = x.transpose(a, b)
            elif kind == "s" and x.size(a) > 1:
                x = x.select(a, 1)
            elif kind == "n" and x.size(a) > 2:
                x = x.narrow(a, 1, x.size(a) - 2)
            elif kind == "u" and x.dim() < 4:
                x = x.unsqueeze(a)
            elif kind == "d" and a != b:
                x = x.diagonal(0, a, b)
        return x

    return window


@quick
@given(
    views=st.lists(windows(), min_size=2, max_size=4),
    program=st.lists(
        st.tuples(
            st.sampled_from(["add", "mul", "fill", "copy", "read", "cut"]),
            st.integers(0, 3),
            st.integers(0, 3),
        ),
        min_size=2,
        max_size=8,
    ),
)
def test_views_of_one_storage_written_in_any_order(views, program):
    """Reads and writes through several windows, with cuts anywhere between them."""

    def fn(x):
        windows, seen = [view(x) for view in views], []
        for what, a, b in program:
            target, source = windows[a % len(windows)], windows[b % len(windows)]
            if what == "add":
                target.add_(source.sum())
            elif what == "mul":
                target.mul_(0.5)
            elif what == "fill":
                target.fill_(a + b)
            elif what == "copy" and target.shape == source.shape:
                target.copy_(source.clone())
            elif what == "read":
                seen.append(source * 2)
            elif what == "cut":
                torch.mycelya.synchronize()
        return seen

    compare(fn, torch.arange(120.0).reshape(4, 5, 6), rtol=1e-5, atol=1e-5)
