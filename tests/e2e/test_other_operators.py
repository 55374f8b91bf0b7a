# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Operators of other libraries: torchvision's run on the worker, if it has them.

Others run on this process's CPU, with one warning each.
"""

from __future__ import annotations

import copy
import math
import os
import subprocess
import warnings
from pathlib import Path

import pytest
import torch
import torch.utils.cpp_extension
import torchvision
from helpers import DEVICE, compare, run, same
from test_exec import COMMAND
from torch import nn
from torchvision import ops

from mycelya_torch import RemoteMachine, _load

pytestmark = [
    pytest.mark.fast,
    # A worker that has torchvision runs its operators.
    pytest.mark.filterwarnings("error:torchvision.*runs on the CPU of this process"),
    pytest.mark.filterwarnings("ignore:mycelya_test.*runs on the CPU of this process"),
]
theirs = torch.ops.torchvision

BOXES = torch.tensor([[0, 0, 6, 6], [1, 1, 6, 7], [4, 4, 9, 9.0]])
REGION = torch.tensor([[1.0, 0, 0, 4, 4]])
GRAD, FLAT = torch.ones(1, 4, 2, 2), torch.ones(1, 1, 2, 2)
PLACES = {n: torch.zeros(1, n, 2, 2, dtype=torch.int32) for n in (1, 4)}
IMAGE = torch.randn(2, 4, 8, 8)
OFFSET = torch.zeros(2, 18, 6, 6)
LAST = PLACES[4].to(memory_format=torch.channels_last)
# Strides, paddings, dilations, groups, offset groups, whether there is a mask.
PLAIN = (1, 1, 0, 0, 1, 1, 1, 1, False)


def of_roi_align(x, boxes):
    return ops.roi_align(x, [boxes, boxes[:1]], (3, 2), 0.5, 2, aligned=True)


def of_deform(x, weight):
    offset = x[:, :1].repeat(1, 18, 1, 1) * 0.3
    return ops.deform_conv2d(x, offset, weight, padding=1)


CASES = {
    "roi_align": (of_roi_align, (torch.randn(2, 3, 8, 8), BOXES), [0]),
    "deform_conv2d": (
        of_deform,
        (torch.randn(2, 3, 6, 6), torch.randn(4, 3, 3, 3)),
        [0, 1],
    ),
    "ps_roi_align": (
        lambda x, boxes: ops.ps_roi_align(x, [boxes, boxes], (2, 2), 0.5, 2),
        (torch.randn(2, 8, 8, 8), BOXES),
        [0],
    ),
    "roi_pool": (
        lambda x, boxes: ops.roi_pool(x, [boxes, boxes], 2, 0.5),
        (torch.randn(2, 3, 8, 8), BOXES),
        [0],
    ),
    "ps_roi_pool": (
        lambda x, boxes: ops.ps_roi_pool(x, [boxes, boxes], 2, 0.5),
        (torch.randn(2, 8, 8, 8), BOXES),
        [0],
    ),
    "deform_conv2d with a mask": (
        lambda x, weight, mask: ops.deform_conv2d(
            x,
            x[:, :1].repeat(1, 18, 1, 1) * 0.3,
            weight,
            x[0, 0, 0, :4],
            mask=mask,
            padding=1,
        ),
        (
            torch.randn(2, 3, 6, 6),
            torch.randn(4, 3, 3, 3),
            torch.rand(2, 9, 6, 6),
        ),
        [0, 1, 2],
    ),
    "roi_align of no boxes": (
        lambda x, boxes: ops.roi_align(x, [boxes[:0], boxes[:0]], 2),
        (torch.randn(2, 3, 8, 8), BOXES),
        [0],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name):
    fn, inputs, leaves = CASES[name]
    outcomes = []
    for device in ("cpu", DEVICE):
        moved = [t.detach().clone().to(device) for t in inputs]
        for i in leaves:
            moved[i].requires_grad_()
        result = fn(*moved)
        assert result.device.type == torch.device(device).type
        (result * result).sum().backward()
        outcomes.append([result.detach(), *(moved[i].grad for i in leaves)])
    for want, got in zip(*outcomes, strict=True):
        same(got, want, 1e-5, 1e-5)


def test_a_region_operator_waits_for_nothing(counters):
    x = torch.randn(2, 3, 8, 8, device=DEVICE, requires_grad=True)
    boxes = BOXES.to(DEVICE)
    of_roi_align(x, boxes).sum().backward()  # asks the worker once what it has
    before = counters()["round_trips"]
    for scale in (1.0, 2.0):
        (of_roi_align(x, boxes) * scale).sum().backward()
    assert counters()["round_trips"] == before
    torch.mycelya.synchronize()


def test_nms_keeps_what_the_cpu_keeps():
    torch.manual_seed(1)
    boxes = torch.rand(60, 4) * 20
    boxes[:, 2:] += boxes[:, :2]
    scores, groups = torch.rand(60), torch.randint(0, 3, (60,))
    for n in (60, 1, 0):
        compare(lambda b, s: ops.nms(b, s, 0.3), boxes[:n], scores[:n])
    compare(lambda b, s, g: ops.batched_nms(b, s, g, 0.3), boxes, scores, groups)


def test_autocast_computes_in_float32_as_on_cuda():
    """The results have the dtype of the first operand, also those that are indices."""
    weight, scores = torch.randn(4, 4, 3, 3), torch.tensor([1, 3, 2.0])

    def all_of(x, boxes, weight, offset, region):
        pooled, places = theirs.roi_pool(x, region, 1.0, 2, 2)
        aligned, _ = theirs.ps_roi_align(x, region, 1.0, 2, 2, 2)
        deformed = ops.deform_conv2d(x, offset, weight)
        return [of_roi_align(x, boxes), pooled, places, aligned, deformed]

    narrow = [t.bfloat16() for t in (IMAGE, BOXES, weight, OFFSET + 0.3, REGION)]
    with torch.autocast("mycelya", dtype=torch.bfloat16):
        got = all_of(*(t.to(DEVICE) for t in narrow))
        kept = ops.nms(BOXES.to(DEVICE).half(), scores.to(DEVICE), 0.1)
    want = all_of(*(t.float() for t in narrow))
    for ours, cpu in zip(got, want, strict=True):
        same(ours, cpu.bfloat16(), 1e-2, 1e-5)
    assert kept.tolist() == ops.nms(BOXES, scores, 0.1).tolist()


def region(*values: float) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.float32)


# Operands that torchvision's kernels trust, or with which they crash, and the error.
HOSTILE = {
    "image": (
        theirs.roi_align,
        (IMAGE, region(5, 0, 0, 4, 4), 1, 2, 2, 2, False),
        "index 5 must be in",
    ),
    "negative image": (
        theirs.roi_pool,
        (IMAGE, region(-1, 0, 0, 4, 4), 1, 2, 2),
        "index -1 must be in",
    ),
    "NaN image": (
        theirs.ps_roi_pool,
        (IMAGE, region(math.nan, 0, 0, 4, 4), 1, 2, 2),
        "index nan must be in",
    ),
    "NaN corner": (
        theirs.roi_align,
        (IMAGE, region(0, math.nan, 0, 4, 4), 1, 2, 2, 2, True),
        "not finite",
    ),
    "infinite corner": (
        theirs.ps_roi_align,
        (IMAGE, region(0, 0, 0, math.inf, 4), 1, 2, 2, 2),
        "not finite",
    ),
    "infinite scale": (
        theirs.roi_align,
        (IMAGE, REGION, math.inf, 2, 2, 2, False),
        "not finite",
    ),
    "points": (
        theirs.roi_align,
        (IMAGE, region(0, 0, 0, 1e5, 1e5), 1, 2, 2, 0, False),
        "points to sample",
    ),
    "no elements": (
        theirs.roi_align,
        (IMAGE[:, :, :0], REGION, 1, 2, 2, 2, False),
        "has no elements",
    ),
    "image of a gradient": (
        theirs._roi_align_backward,
        (GRAD, REGION, 1, 2, 2, 1, 4, 8, 8, 2, False),
        "must be in",
    ),
    "gradient": (
        theirs._roi_align_backward,
        (GRAD[:, :3], REGION, 1, 2, 2, 2, 4, 8, 8, 2, False),
        "grad has sizes",
    ),
    "place": (
        theirs._roi_pool_backward,
        (GRAD, REGION, PLACES[4] + 64, 1, 2, 2, 2, 4, 8, 8),
        "but 64 is not",
    ),
    "places in another order": (
        theirs._roi_pool_backward,
        (
            GRAD,
            REGION,
            LAST,
            *(1, 2, 2, 2, 4, 8, 8),
        ),
        "contiguous",
    ),
    "channel": (
        theirs._ps_roi_align_backward,
        (FLAT, REGION, PLACES[1] + 4, 1, 2, 2, 2, 2, 4, 8, 8),
        "but 4 is not",
    ),
    "channel of a pool": (
        theirs._ps_roi_pool_backward,
        (FLAT, REGION, PLACES[1] - 1, 1, 2, 2, 2, 4, 8, 8),
        "but -1 is not",
    ),
    "offset": (
        theirs.deform_conv2d,
        (
            IMAGE,
            torch.ones(4, 4, 3, 3),
            OFFSET * math.nan,
            IMAGE[:, :0],
            torch.ones(4),
            *PLAIN,
        ),
        "an offset is NaN",
    ),
    "offset of a gradient": (
        theirs._deform_conv2d_backward,
        (
            IMAGE[:, :, :6, :6],
            IMAGE,
            torch.ones(4, 4, 3, 3),
            OFFSET[:1],
            IMAGE[:, :0],
            torch.ones(4),
            *PLAIN,
        ),
        "offset has sizes",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_operands_are_errors_and_the_session_lives(name):
    call, args, text = HOSTILE[name]
    there = [a.to(DEVICE) if isinstance(a, torch.Tensor) else a for a in args]
    alive = torch.ones(2, device=DEVICE)
    with pytest.raises(RuntimeError, match=text) as error:
        results = call(*there)
        (results if isinstance(results, torch.Tensor) else results[0]).cpu()
    assert Path(__file__).name in str(error.value)
    assert (alive + 1).tolist() == [2, 2]


def test_boxes_that_the_kernels_take_are_not_refused():
    """What comes of a NaN or a huge box where the kernels do not crash with it."""
    for values in ((1.7, 0, 0, 4, 4), (0, 0, 0, 1e30, 4)):
        compare(
            lambda x, r: theirs.roi_align(x, r, 1, 2, 2, 2, False),
            IMAGE,
            region(*values),
        )
        compare(lambda x, r: theirs.roi_pool(x, r, 1, 2, 2), IMAGE, region(*values))
    nan = region(0, math.nan, 0, 4, 4)
    compare(lambda x, r: theirs.roi_align(x, r, 1, 2, 2, 0, False), IMAGE, nan)
    compare(lambda x, r: theirs.roi_pool(x, r, 1, 2, 2), IMAGE, nan)


def test_a_worker_without_torchvision(tmp_path):
    """Its environment has the same torch: one warning, and the CPU's values."""
    packages = _load.torch_lib().parent.parent
    for folder in packages.iterdir():
        if folder.name != "torchvision":
            (tmp_path / folder.name).symlink_to(folder)
    lib = str(_load.torch_lib())
    command = COMMAND.replace(lib, os.fspath(tmp_path / "torch" / "lib"))
    assert command != COMMAND
    with RemoteMachine("exec", command=command) as machine:
        x, boxes = torch.randn(2, 3, 8, 8), BOXES
        far = x.to(machine.device())
        with pytest.warns(UserWarning, match="the worker's environment has no lib"):
            got = theirs._roi_align_backward(
                far[:1, :, :2, :2],
                REGION.to(machine.device()),
                1,
                2,
                2,
                2,
                3,
                8,
                8,
                2,
                False,
            )
        want = theirs._roi_align_backward(
            x[:1, :, :2, :2], REGION, 1, 2, 2, 2, 3, 8, 8, 2, False
        )
        same(got, want)
    # The default machine has it all the same.
    compare(lambda x, boxes: of_roi_align(x, boxes), x, boxes, rtol=1e-5, atol=1e-5)


LIBRARY = """
#include <ATen/ATen.h>
#include <torch/library.h>

at::Tensor Scale(const at::Tensor& x, double by, at::TensorList more) {
  at::Tensor out = x * by;
  for (const at::Tensor& t : more) out += t;
  return out;
}
at::Tensor ScaleMeta(const at::Tensor& x, double, at::TensorList) {
  return at::empty_like(x);
}
at::Tensor Positive(const at::Tensor& x) { return x.index({x > 0}); }
at::Tensor NoShape(const at::Tensor& x) {
  TORCH_CHECK(false, "the shape depends on data");
}
std::tuple<at::Tensor, at::Tensor> Halves(const at::Tensor& x) {
  TORCH_CHECK(x.dim() == 1, "only vectors have halves");
  const int64_t n = x.size(0) / 2;
  return {x.slice(0, 0, n).clone(), x.slice(0, n).clone()};
}
at::Tensor& Count(at::Tensor& counter, const at::Tensor& x) {
  return counter.add_(x.numel());
}
at::Tensor Gather(const at::Tensor& x) { return x + 1; }
std::tuple<at::Tensor&, at::Tensor> Pop(at::Tensor& x) {
  at::Tensor before = x.clone();
  return {x.zero_(), before};
}
std::vector<at::Tensor> Twice(const at::Tensor& x) { return {x + 0, x + 0}; }

TORCH_LIBRARY(mycelya_kernels, m) {
  m.def("scale(Tensor x, float by, Tensor[] more) -> Tensor");
  m.def("positive(Tensor x) -> Tensor");
  m.def("positive.again(Tensor x) -> Tensor");
  m.def("halves(Tensor x) -> (Tensor, Tensor)");
  m.def("count(Tensor(a!) counter, Tensor x) -> Tensor(a!)");
  m.def("gather(Tensor x) -> Tensor");
  m.def("pop(Tensor(a!) x) -> (Tensor(a!), Tensor)");
  m.def("twice(Tensor x) -> Tensor[]");
}
TORCH_LIBRARY_IMPL(mycelya_kernels, CPU, m) {
  m.impl("scale", &Scale);
  m.impl("positive", &Positive);
  m.impl("positive.again", &Positive);
  m.impl("halves", &Halves);
  m.impl("count", &Count);
  m.impl("gather", &Gather);
  m.impl("pop", &Pop);
  m.impl("twice", &Twice);
}
TORCH_LIBRARY_IMPL(mycelya_kernels, Meta, m) {
  m.impl("scale", &ScaleMeta);
  m.impl("positive.again", &NoShape);
}
"""

CALLS = """
    import warnings
    import torch
    torch.ops.load_library({library!r})
    ours = torch.ops.mycelya_kernels
    here = torch.tensor([1.0, -2, 3, 0])
    x = here.to("mycelya")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        scaled = ours.scale(x, 2.0, [x, x])
        reads = torch.mycelya.metrics()["blocking_reads"]
        for _ in range(3):
            scaled = ours.scale(scaled, 0.5, [])
        reads = torch.mycelya.metrics()["blocking_reads"] - reads
        assert torch.equal(scaled.cpu(), here / 2)
        for positive in (ours.positive, ours.positive.again):
            assert positive(x).tolist() == [1, 3]
        first, second = ours.halves(x)
        assert (first.tolist(), second.tolist()) == ([1, -2], [3, 0])
        counter = torch.zeros((), device="mycelya")
        for _ in range(3):
            same = ours.count(counter, x)
        assert same is counter and counter.item() == 12
        assert ours.gather(x).tolist() == [2, -1, 4, 1]
        y = x.clone()
        same, before = ours.pop(y)
        assert same is y and y.tolist() == [0] * 4 and torch.equal(before.cpu(), here)
        assert [t.tolist() for t in ours.twice(x)] == [here.tolist()] * 2
        try:
            ours.halves(x[None])
        except RuntimeError as error:
            failed = "only vectors have halves" in str(error)
        assert failed
        assert (x + 1).tolist() == [2, -1, 4, 1]
    warned = [w for w in seen if "runs on the CPU of this process" in str(w.message)]
    print(reads, len(warned))
"""


@pytest.mark.slow
def test_a_library_that_the_workers_owner_allows(tmp_path):
    """Its operators run on the worker, with and without a function for meta tensors."""
    source, library = tmp_path / "kernels.cpp", tmp_path / "kernels.so"
    source.write_text(LIBRARY)
    paths = [f"-I{path}" for path in torch.utils.cpp_extension.include_paths()]
    torch_libraries = [f"-L{_load.torch_lib()}", "-ltorch_cpu", "-lc10"]
    command = ["c++", "-std=c++20", "-shared", "-fPIC", "-w", *paths, source]
    subprocess.run([*command, "-o", library, *torch_libraries], check=True)
    calls = CALLS.format(library=os.fspath(library))
    # A list of tensors is made here in any case.
    for allowed, printed in (f"torchvision,{library}", "0 1"), ("torchvision", "3 8"):
        outcome = run(calls, tmp_path, MYCELYA_LIBRARIES=allowed)
        assert outcome[:2] == (0, f"{printed}\n"), outcome


def test_one_warning_for_each_operator():
    lib = torch.library.Library("mycelya_test_warned", "DEF")
    lib.define("halve(Tensor x, Tensor[] more) -> Tensor")
    lib.impl("halve", lambda x, more: x / 2, "CPU")
    x = torch.ones(5, device=DEVICE)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(3):
            result = torch.ops.mycelya_test_warned.halve(x, [x, torch.ones(2)])
    assert result.tolist() == [0.5] * 5
    (text,) = [str(w.message) for w in seen if "halve" in str(w.message)]
    assert "mycelya_test_warned::halve runs on the CPU of this process" in text
    assert "reads 2 tensors" in text and "(40 bytes" in text


def test_writes_and_errors():
    lib = torch.library.Library("mycelya_test_writes", "DEF")
    lib.define("double_(Tensor(a!) x) -> Tensor(a!)")
    lib.define("fail(Tensor x) -> Tensor")
    lib.define("no_kernel(Tensor x) -> Tensor")
    lib.impl("double_", lambda x: x.mul_(2), "CPU")

    def fail(x):
        raise ValueError("no such thing")

    lib.impl("fail", fail, "CPU")
    calls = torch.ops.mycelya_test_writes
    x = torch.arange(6.0, device=DEVICE)
    view = x[1::2]
    assert calls.double_(view) is not None
    assert x.tolist() == [0, 2, 2, 6, 4, 10]
    with pytest.raises(ValueError, match="no such thing"):
        calls.fail(x)
    with pytest.raises(NotImplementedError, match="no_kernel cannot run on mycelya"):
        calls.no_kernel(x)


@pytest.mark.slow
def test_a_detector_trains_and_detects():
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU())
    backbone.out_channels = 8
    detection = torchvision.models.detection
    model = detection.FasterRCNN(
        backbone,
        rpn_anchor_generator=detection.rpn.AnchorGenerator(((8, 16),), ((0.5, 1.0),)),
        box_roi_pool=ops.MultiScaleRoIAlign(["0"], 3, 2),
        box_head=detection.faster_rcnn.TwoMLPHead(8 * 9, 16),
        box_predictor=detection.faster_rcnn.FastRCNNPredictor(16, 3),
        min_size=32,
        max_size=40,
        rpn_batch_size_per_image=10_000,  # all: a sample is random
        box_batch_size_per_image=10_000,
    )
    images = [torch.rand(3, 32, 40), torch.rand(3, 36, 32)]
    targets = [
        {"boxes": BOXES[:2] * 3, "labels": torch.tensor([1, 2])},
        {"boxes": BOXES[1:] * 2, "labels": torch.tensor([2, 1])},
    ]
    outcomes = []
    for device in ("cpu", DEVICE):
        ours = copy.deepcopy(model).to(device).train()
        moved = [{k: v.to(device) for k, v in t.items()} for t in targets]
        losses = ours([i.to(device) for i in images], moved)
        sum(losses.values()).backward()
        grads = {n: p.grad for n, p in ours.named_parameters() if p.grad is not None}
        found = ours.eval()([i.to(device) for i in images])
        outcomes.append((losses, grads, found))
    (losses, grads, found), (our_losses, our_grads, our_found) = outcomes
    assert losses.keys() == our_losses.keys() and grads.keys() == our_grads.keys()
    for name in losses:
        same(our_losses[name].detach(), losses[name].detach(), 1e-4, 1e-5)
    for name in grads:
        same(our_grads[name], grads[name], 1e-3, 1e-4)
    for ours, want in zip(our_found, found, strict=True):
        assert len(ours["boxes"]) == len(want["boxes"])
        assert torch.allclose(ours["scores"].cpu(), want["scores"], atol=1e-4)
