# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Compares what the device infers for a CUDA worker with PyTorch's fake CUDA tensors.

The device is opened on a machine that computes with CUDA and never starts. So calls are
recorded and never run. FakeTensorMode gives the dtypes, shapes and strides of PyTorch's
CUDA operators and needs no GPU.

    python tests/e2e/cuda_rules.py [--dtypes LIST] [--samples N] [--only REGEX]

prints the differences.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import itertools
import logging
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import mycelya_torch  # noqa: F401 (registers the device)
from mycelya_torch import _device

INDEX = 7
DEVICE = torch.device("mycelya", INDEX)
CUDA = torch.device("cuda", 0)
CPU = torch.device("cpu")

DECOMPOSED = "FakeTensorMode decomposes it; PyTorch's shape function is one for all"
BROADCAST = "FakeTensorMode orders the dims of expanded operands as no kernel does"
LOSS = "FakeTensorMode decomposes it; the C++ function makes a contiguous gradient"

# Operators that FakeTensorMode is wrong about, with the reason. Their C++ code chooses
# the layout of results without asking for the device, so the CPU's result is right.
AS_ON_THE_CPU = {
    "_log_softmax_backward_data": DECOMPOSED,
    "angle": DECOMPOSED,
    "copysign.Tensor": DECOMPOSED,
    "div.Tensor_mode": DECOMPOSED,
    "floor_divide": DECOMPOSED,
    "heaviside": DECOMPOSED,
    "ldexp.Tensor": DECOMPOSED,
    "logaddexp": DECOMPOSED,
    "logical_and": DECOMPOSED,
    "logical_or": DECOMPOSED,
    "logical_xor": DECOMPOSED,
    "normal.Tensor_Tensor": DECOMPOSED,
    "pow.Scalar": DECOMPOSED,
    "upsample_bilinear2d": DECOMPOSED,
    "upsample_trilinear3d": DECOMPOSED,
    "xlogy.Tensor": DECOMPOSED,
    "huber_loss_backward": LOSS,
    "mse_loss_backward": LOSS,
    "smooth_l1_loss_backward": LOSS,
    "glu_backward": DECOMPOSED,
    "multilabel_margin_loss_forward": DECOMPOSED,
    "nll_loss2d_forward": DECOMPOSED,
    "index.Tensor": "FakeTensorMode looks at the operand's layout, kernels at the "
    "indices' layout too",
    "nll_loss2d_backward": DECOMPOSED,
    "div.Tensor": BROADCAST,
    "mul.Tensor": BROADCAST,
}

# Calls that the device refuses and fake CUDA tensors accept, with the reason.
REFUSED = {
    "_efficient_attention_forward": "scaled_dot_product_attention chooses the kernel",
    "_flash_attention_forward": "the same",
    "as_strided_scatter": "FakeTensorMode decomposes it; PyTorch refuses the gradient "
    "of an operand that is not contiguous on every device",
}

# Operators that are not compared, with the reason.
NOT_COMPARED = {
    "native_batch_norm_backward": "FakeTensorMode decomposes it; CUDA's kernels give "
    "a contiguous or channels-last gradient",
    "_scaled_dot_product_fused_attention_overrideable": "CUDA has no such operator; "
    "compare_attention compares it with CUDA's own",
    "_scaled_dot_product_fused_attention_overrideable_backward": "the same",
}


@contextlib.contextmanager
def recording_for_cuda() -> Iterator[None]:
    """DEVICE records for a CUDA worker, which would start on first use."""
    _device.open(INDEX, "exec", "cuda", "", '{"command": "false"}')
    try:
        yield
    finally:
        _device.close(INDEX)


def fake_cuda() -> FakeTensorMode:
    """Fake tensors on CUDA, also on a host without a GPU."""
    # FakeTensorMode does this only if there is no accelerator at all, but Mycelya is.
    torch._C._ensureCUDADeviceGuardSet()
    return FakeTensorMode(allow_fallback_kernels=False, allow_non_fake_inputs=False)


def empty_as(
    t: torch.Tensor, device: torch.device, mode: FakeTensorMode | None = None
) -> torch.Tensor:
    """A tensor with the metadata of another and without its content."""
    size, stride, dtype, conj, neg = (
        t.shape,
        t.stride(),
        t.dtype,
        t.is_conj(),
        t.is_neg(),
    )
    with mode or contextlib.nullcontext():
        made = torch.empty_strided(size, stride, dtype=dtype, device=device)
        made = made.conj() if conj else made
        return torch._neg_view(made) if neg else made


def placed(tree: Any, device: torch.device) -> Any:
    """The arguments of a call, on a device."""

    def place(t: Any) -> Any:
        if isinstance(t, torch.device):
            return device
        if not isinstance(t, torch.Tensor) or t.layout != torch.strided:
            return t
        return empty_as(t, device).requires_grad_(t.requires_grad)

    return pytree.tree_map(place, tree)


def as_fake(tree: Any, mode: FakeTensorMode) -> Any:
    """The arguments of a call on DEVICE, as they would be on CUDA."""

    def fake(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if value.device == DEVICE:
                return empty_as(value, CUDA, mode)
            return mode.from_tensor(value)
        if isinstance(value, torch.device) and value == DEVICE:
            return CUDA
        return None if isinstance(value, torch.Generator) else value

    return pytree.tree_map(fake, tree)


Facts = list[tuple[torch.dtype, tuple[int, ...], tuple[int, ...]] | None]


def facts(result: Any) -> Facts:
    """The dtype, sizes and strides of each tensor of a result."""
    return [
        (t.dtype, tuple(t.shape), tuple(t.stride()))
        if isinstance(t, torch.Tensor)
        else None
        for t in pytree.tree_leaves(result)
    ]


def differ(ours: Facts, theirs: Facts) -> bool:
    """Whether results differ in more than strides that reach no second element.

    FakeTensorMode computes these as PyTorch's references do, not as its kernels do.
    """

    def comparable(fact: Any) -> Any:
        if fact is None:
            return None
        dtype, sizes, strides = fact
        used = 0 not in sizes
        pairs = zip(sizes, strides, strict=True)
        return dtype, sizes, [step if used and n > 1 else 0 for n, step in pairs]

    return [*map(comparable, ours)] != [*map(comparable, theirs)]


def describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        where = "" if value.device == DEVICE else f"{value.device}:"
        name = str(value.dtype).removeprefix("torch.")
        return f"{where}{name}{list(value.shape)}{list(value.stride())}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(describe, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {describe(v)}" for k, v in value.items()) + "}"
    return repr(value)


class Watch(TorchDispatchMode):
    """Compares each call below autograd with the same call of fake CUDA tensors.

    Calls of one operator whose operands have the same metadata are compared once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fake = fake_cuda()
        self.cases: collections.Counter[str] = collections.Counter()
        self.seen: set[str] = set()
        self.unanswered: dict[str, str] = {}  # FakeTensorMode cannot run it: why
        self.as_on_cpu: collections.Counter[str] = collections.Counter()
        self.refused: dict[str, list[str]] = collections.defaultdict(list)
        self.wrong: dict[str, list[str]] = collections.defaultdict(list)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        kwargs = kwargs or {}
        name = str(func).removeprefix("aten.").removesuffix(".default")
        call = f"{name} {describe(args)} {describe(kwargs)}"
        if not compares(func, name, args, kwargs) or call in self.seen:
            return func(*args, **kwargs)
        self.seen.add(call)
        placed_args, placed_kwargs = as_fake((args, kwargs), self.fake)
        theirs: Facts | None = None
        try:
            with self.fake:
                theirs = facts(func(*placed_args, **placed_kwargs))
        except Exception as error:
            self.unanswered[name] = f"{call}: {sentence(error)}"
        try:
            result = func(*args, **kwargs)
        except Exception as error:
            known = name in REFUSED or needs_a_value(error)
            if theirs is not None and not known:
                self.refused[name].append(f"{call}: {sentence(error)}")
            raise
        if theirs is not None:
            self.cases[name] += 1
            self.check(func, name, call, facts(result), theirs, (args, kwargs))
        return result

    def check(
        self, func: Any, name: str, call: str, ours: Facts, theirs: Facts, tree: Any
    ) -> None:
        if not differ(ours, theirs):
            return
        if name in AS_ON_THE_CPU:
            args, kwargs = placed(tree, CPU)
            theirs = facts(func(*args, **kwargs))
            self.as_on_cpu[name] += 1
            if not differ(ours, theirs):
                return
        self.wrong[name].append(
            f"{call}\n      infers  {plain(ours)}\n      CUDA is {plain(theirs)}"
        )


def compares(func: Any, name: str, args: Any, kwargs: Any) -> bool:
    """Whether a call on DEVICE returns tensors that it makes."""
    if func.namespace != "aten" or name in NOT_COMPARED:
        return False
    leaves = pytree.tree_leaves((args, kwargs))
    ours = any(
        leaf == DEVICE
        if isinstance(leaf, torch.device)
        else isinstance(leaf, torch.Tensor) and leaf.device == DEVICE
        for leaf in leaves
    )
    returns = func._schema.returns
    if name.startswith("convolution") and any(
        isinstance(leaf, torch.Tensor) and leaf.dtype == torch.bfloat16
        for leaf in leaves
    ):
        return False  # PyTorch asks the GPU whether cuDNN supports it
    return ours and any(
        "Tensor" in str(r.type) and r.alias_info is None for r in returns
    )


def sentence(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0][:150]}"


def needs_a_value(error: Exception) -> bool:
    """Whether a call had to wait for a value, which the machine cannot compute."""
    return "could not start its worker" in str(error)


def plain(answer: Facts) -> str:
    return ", ".join(
        "None" if f is None else f"{str(f[0])[6:]}{list(f[1])}{list(f[2])}"
        for f in answer
    )


# ---- Operands ----


def channels_last(t: torch.Tensor) -> torch.Tensor:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return t.contiguous(memory_format=formats[t.dim()]) if t.dim() in formats else t


def transposed(t: torch.Tensor) -> torch.Tensor:
    return t.transpose(0, -1).contiguous().transpose(0, -1) if t.dim() > 1 else t


def spread(t: torch.Tensor) -> torch.Tensor:
    """The same values as every second element of a larger tensor."""
    return t.repeat_interleave(2, -1)[..., ::2] if t.dim() > 0 else t


def as_it_is(t: torch.Tensor) -> torch.Tensor:
    return t


Layout = Callable[[torch.Tensor], torch.Tensor]
LAYOUTS: list[Layout] = [as_it_is, channels_last, transposed, spread]


def relaid(tree: Any, layout: Layout) -> Any:
    def lay(t: Any) -> Any:
        if not isinstance(t, torch.Tensor) or t.layout != torch.strided:
            return t
        if t.is_conj() or t.is_neg():
            return t
        return layout(t.detach()).requires_grad_(t.requires_grad)

    return pytree.tree_map(lay, tree)


def run_sample(op: Any, tree: Any, watch: Watch, backward: bool) -> None:
    """Records one call of the op, and its backward."""
    with recording_for_cuda():
        first, args, kwargs = placed(tree, DEVICE)
        with watch:
            result = op(first, *args, **kwargs)
            outputs = tensors(result)
            inputs = tensors((first, args, kwargs))
            if backward and outputs and inputs:
                grads = [torch.empty_like(o) for o in outputs]
                torch.autograd.grad(outputs, inputs, grads, allow_unused=True)


def tensors(tree: Any) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves(tree)
    return [t for t in leaves if isinstance(t, torch.Tensor) and t.requires_grad]


def run_database(
    watch: Watch, dtypes: list[torch.dtype], samples: int, only: str, layouts: bool
) -> collections.Counter[str]:
    """Runs the op database. Returns how many samples raised, by error.

    samples: how many of each op and dtype. layouts: each sample in each layout; else
    the layouts take turns.
    """
    from torch.testing._internal.common_methods_invocations import op_db

    raised: collections.Counter[str] = collections.Counter()
    for op in op_db:
        if not re.search(only, op.formatted_name):
            continue
        for dtype in dtypes:
            if dtype not in op.supported_dtypes("cuda"):
                continue
            backward = dtype in op.supported_backward_dtypes("cuda")
            try:
                made = op.sample_inputs("cpu", dtype, requires_grad=backward)
                trees = [
                    (s.input, s.args, s.kwargs) for s in itertools.islice(made, samples)
                ]
            except Exception as error:
                raised[sentence(error)] += 1
                continue
            for i, tree in enumerate(trees):
                turn = LAYOUTS if layouts else [LAYOUTS[i % len(LAYOUTS)]]
                for layout in turn:
                    try:
                        run_sample(op, relaid(tree, layout), watch, backward)
                    except Exception as error:
                        raised[sentence(error)] += 1
    return raised


def run_modules(
    watch: Watch, dtypes: list[torch.dtype], only: str
) -> collections.Counter[str]:
    """Runs the module database in training and evaluation; returns the errors."""
    from torch.testing._internal.common_modules import module_db

    raised: collections.Counter[str] = collections.Counter()
    for info in module_db:
        if not re.search(only, info.name):
            continue
        for dtype, training in itertools.product(dtypes, (True, False)):
            made = info.module_inputs_func(
                info, "cpu", dtype, requires_grad=True, training=training
            )
            for i, sample in enumerate(made):
                try:
                    layout = LAYOUTS[i % len(LAYOUTS)]
                    run_module(info, sample, dtype, training, layout, watch)
                except Exception as error:
                    raised[sentence(error)] += 1
    return raised


def run_module(
    info: Any,
    sample: Any,
    dtype: torch.dtype,
    training: bool,
    layout: Layout,
    watch: Watch,
) -> None:
    given = sample.constructor_input
    module = info.module_cls(*given.args, **given.kwargs).to(dtype).train(training)
    inputs = sample.forward_input
    with recording_for_cuda():
        module = module.to_empty(device=DEVICE)
        args, kwargs = placed(relaid((inputs.args, inputs.kwargs), layout), DEVICE)
        with watch:
            outputs = tensors(module(*args, **kwargs))
            if outputs:
                grads = [torch.empty_like(o) for o in outputs]
                torch.autograd.backward(outputs, grads)


MIXED = [
    (torch.float32, torch.float16),
    (torch.float16, torch.float32),
    (torch.float16, torch.bfloat16),
    (torch.float32, torch.int64),
    (torch.int64, torch.float32),
    (torch.int64, torch.uint8),
]
BINARY = (
    "add sub mul div eq lt maximum minimum fmax atan2 floor_divide remainder fmod pow "
    "logical_and copysign"
).split()


def pointwise(op: Callable[..., Any], a: Any, b: Any, _: Any) -> Any:
    return op(a, b)


def run_mixed(watch: Watch) -> collections.Counter[str]:
    """Elementwise calls with operands of two dtypes and layouts; returns the errors."""
    calls: list[Callable[..., Any]] = [
        functools.partial(pointwise, getattr(torch, name)) for name in BINARY
    ]
    calls += [
        lambda a, b, c: torch.where(c, a, b),
        lambda a, b, c: torch.addcmul(a, b, b),
        lambda a, b, c: torch.stack([a, b]),
        lambda a, b, c: torch.cat([a, b]),
        lambda a, b, c: a * 2.5,
        lambda a, b, c: 3 - b,
    ]
    raised: collections.Counter[str] = collections.Counter()
    for (one, two), first, second in itertools.product(
        MIXED, LAYOUTS, (as_it_is, spread)
    ):
        a = first(torch.empty(2, 3, 4, 5, dtype=one))
        b = second(torch.empty(2, 3, 4, 5, dtype=two))
        c = torch.empty(3, 1, 5, dtype=torch.bool)
        for call in calls:
            for operands in ((a, b, c), (a[0], b, c), (a, b[:, :, :1], c)):
                try:
                    with recording_for_cuda():
                        there = placed(operands, DEVICE)
                        with watch:
                            call(*there)
                except Exception as error:
                    raised[sentence(error)] += 1
    return raised


def run_cases(watch: Watch) -> collections.Counter[str]:
    """Calls that the databases lack; returns the errors."""
    raised: collections.Counter[str] = collections.Counter()
    for layout, dtype in itertools.product(LAYOUTS, (torch.float32, torch.float16)):
        compare_attention(watch, layout, dtype)
        x = layout(torch.empty(2, 4, 6, 8, dtype=dtype))
        for statistics in (torch.float32, dtype):
            c = torch.empty(4, dtype=statistics)
            for training in (True, False):
                with recording_for_cuda():
                    y, d = placed((x, c), DEVICE)
                    with watch:
                        torch.native_batch_norm(y, d, d, d, d, training, 0.1, 1e-5)
        with recording_for_cuda():
            y = placed(x, DEVICE)
            with watch:
                torch.native_group_norm(y, None, None, 2, 4, 48, 2, 1e-5)
    return raised


def compare_attention(watch: Watch, layout: Layout, dtype: torch.dtype) -> None:
    """scaled_dot_product_attention and its gradients have the layouts that CUDA's
    memory-efficient kernel gives. Which kernel runs is known only on the worker.
    """
    aten = torch.ops.aten
    name = "scaled_dot_product_attention"
    query, key = torch.empty(2, 4, 6, 8, dtype=dtype), torch.empty(2, 4, 5, 8)
    operands = [layout(t.to(dtype)) for t in (query, key, key)]
    with recording_for_cuda():
        q, k, v = [t.requires_grad_() for t in placed(operands, DEVICE)]
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        ours = [out, *torch.autograd.grad(out, (q, k, v), torch.empty_like(out))]
        q, k, v, grad = as_fake((q, k, v, out), watch.fake)
        with watch.fake:
            out, lse, seed, offset = aten._scaled_dot_product_efficient_attention(
                q, k, v, None, True
            )
            grads = aten._scaled_dot_product_efficient_attention_backward(
                grad, q, k, v, None, out, lse, seed, offset, 0.0, [True] * 3 + [False]
            )
            theirs = [out, *grads[:3]]
        watch.cases[name] += 1
        call = f"{name} {describe(operands)}"
        watch.check(None, name, call, facts(ours), facts(theirs), ())


def report(watch: Watch, raised: collections.Counter[str], verbose: bool) -> None:
    for title, table in (("refused", watch.refused), ("wrong", watch.wrong)):
        print(f"{title}: {sum(map(len, table.values()))} calls of {len(table)} ops")
        for name, calls in sorted(table.items()):
            print(f"  {name}: {len(calls)} of {watch.cases[name]}")
            for call in calls if verbose else calls[:3]:
                print(f"    {call[:900]}")
    if verbose:
        for name, why in sorted(watch.unanswered.items()):
            print(f"FakeTensorMode cannot run {name}: {why}")
        for why, n in raised.most_common():
            print(f"{n} samples raised {why}")
    print("as on the CPU:", dict(watch.as_on_cpu))
    print(
        f"{sum(watch.cases.values())} cases of {len(watch.cases)} operators compared, "
        f"{len(watch.unanswered)} operators unknown to FakeTensorMode, "
        f"{sum(raised.values())} samples raised"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dtypes", default="float32,float16,int64")
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--only", default="")
    parser.add_argument("--layouts", action="store_true", help="each sample in each")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--what", default="ops", help="ops,modules,mixed,cases")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)
    torch.manual_seed(0)
    watch = Watch()
    dtypes = [getattr(torch, name) for name in options.dtypes.split(",")]
    parts: dict[str, Callable[[], collections.Counter[str]]] = {
        "ops": lambda: run_database(
            watch, dtypes, options.samples, options.only, options.layouts
        ),
        "modules": lambda: run_modules(watch, dtypes, options.only),
        "mixed": lambda: run_mixed(watch),
        "cases": lambda: run_cases(watch),
    }
    raised: collections.Counter[str] = collections.Counter()
    for part in options.what.split(","):
        raised += parts[part]()
    report(watch, raised, options.verbose)
    sys.exit(1 if watch.wrong or watch.refused else 0)


if __name__ == "__main__":
    main()
