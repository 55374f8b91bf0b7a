// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package catalogue

// listRows are operators over lists of tensors.
var listRows = []ATen{
	{Name: "aten::_fused_adam_", Whole: "PyTorch computes all its tensors in one kernel"},
	{Name: "aten::_fused_adamw_", Whole: "PyTorch computes all its tensors in one kernel"},
	{Name: "aten::_foreach_norm.Scalar", Whole: "PyTorch computes all its tensors in two kernels"},
	{Name: "aten::_fused_sgd_", Whole: "PyTorch computes all its tensors in one kernel"},
	{Name: "aten::_foreach_zero_", Overwrites: true, Capture: Capture{Facts: MayOverlap}},
	{Name: "aten::_foreach_copy_", Overwrites: true, Capture: Capture{Facts: CopiesLists}},
	{Name: "aten::_foreach_addcdiv.Tensor", Capture: Capture{Handling: Hand}},
	{Name: "aten::_foreach_addcdiv_.Tensor", Capture: Capture{Handling: Hand}},
	{Name: "aten::_foreach_addcmul.Tensor", Capture: Capture{Handling: Hand}},
	{Name: "aten::_foreach_addcmul_.Tensor", Capture: Capture{Handling: Hand}},
}
