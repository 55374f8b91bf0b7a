# Copyright (C) 2026 The Mycelya Authors
# SPDX-License-Identifier: AGPL-3.0-or-later
"""Operators of other libraries run on this process's CPU, with one warning each."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
import torchvision
from helpers import DEVICE, same
from torch import nn
from torchvision import ops

pytestmark = [
    pytest.mark.fast,
    pytest.mark.filterwarnings("ignore:.*runs on the CPU of this process.*"),
]

BOXES = torch.tensor([[0, 0, 6, 6], [1, 1, 6, 7], [4, 4, 9, 9.0]])


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


def test_nms_keeps_what_the_cpu_keeps():
    torch.manual_seed(1)
    boxes = torch.rand(60, 4) * 20
    boxes[:, 2:] += boxes[:, :2]
    scores, groups = torch.rand(60), torch.randint(0, 3, (60,))
    got = ops.nms(boxes.to(DEVICE), scores.to(DEVICE), 0.3)
    assert got.device.type == "mycelya" and got.dtype == torch.int64
    assert got.tolist() == ops.nms(boxes, scores, 0.3).tolist()
    got = ops.batched_nms(boxes.to(DEVICE), scores.to(DEVICE), groups.to(DEVICE), 0.3)
    assert got.tolist() == ops.batched_nms(boxes, scores, groups, 0.3).tolist()


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
