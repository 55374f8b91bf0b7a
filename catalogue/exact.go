// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package catalogue

// FactRow has facts of operators whose names, without "aten::", are separated by spaces.
type FactRow struct {
	Facts Facts
	Names string
}

// FactRows lists operators by how alike all devices compute them. The recorder lets PyTorch's CPU kernels compute a
// value that depends only on bytes of this process, if each operator on the way is exact (csrc/device/record/Known.h).
// An operator is not listed where devices may differ: the order of equal elements, duplicates of indices, rounding, a
// shift by too many bits.
func FactRows() []FactRow {
	return []FactRow{
		{Exact, "clone cat stack index_select gather index.Tensor take where.self flip roll repeat " +
			"masked_fill.Scalar masked_fill.Tensor masked_fill_.Scalar masked_fill_.Tensor tril triu tril_ triu_ " +
			"index_fill.int_Scalar index_fill.int_Tensor index_fill_.int_Scalar index_fill_.int_Tensor " +
			"scatter.value scatter_.value nonzero masked_select repeat_interleave.Tensor"},
		{Exact, "eq.Scalar eq.Tensor ne.Scalar ne.Tensor lt.Scalar lt.Tensor le.Scalar le.Tensor " +
			"gt.Scalar gt.Tensor ge.Scalar ge.Tensor isnan isposinf isneginf isin.Tensor_Tensor isin.Tensor_Scalar " +
			"logical_not logical_and logical_or logical_xor logical_not_ logical_and_ logical_or_ logical_xor_ " +
			"any any.dim any.dims all all.dim all.dims neg abs"},
		{Exact, "arange arange.start arange.start_step eye eye.m tril_indices triu_indices"},
		{Exact | IgnoresSelf, "copy_ fill_.Scalar fill_.Tensor zero_"},
		{ExactOnIntegers, "add.Tensor add_.Tensor sub.Tensor sub_.Tensor rsub.Tensor mul.Tensor mul_.Tensor " +
			"bitwise_not bitwise_not_ bitwise_and.Tensor bitwise_or.Tensor bitwise_xor.Tensor bitwise_and_.Tensor " +
			"bitwise_or_.Tensor bitwise_xor_.Tensor remainder.Tensor remainder_.Tensor floor_divide div.Tensor_mode " +
			"maximum minimum clamp clamp.Tensor clamp_min clamp_max clamp_ clamp_min_ clamp_max_ neg_ sign"},
		{ExactOnIntegers, "sum sum.dim_IntList prod prod.dim_int cumsum cumsum_ cumprod amax amin max min argmax argmin " +
			"count_nonzero count_nonzero.dim_IntList searchsorted.Tensor searchsorted.Scalar bucketize.Tensor bincount " +
			"unique_consecutive scatter_add scatter_add_ index_add index_add_"},
	}
}
