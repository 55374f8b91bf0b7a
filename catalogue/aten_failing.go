// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package catalogue

import "fmt"

// Failure says whether an operator may raise an error because of values that only the worker knows, although the shapes
// and dtypes of its operands are right.
type Failure uint8

const (
	NeverFails  Failure = iota
	FailsOnInts         // on integers only: a quotient by zero
	MayFail             // an index out of range, a singular matrix, a probability that is none
)

// failing lists the operators that check values. The names are those of records, so composite operators are not listed.
var failing = map[Failure][]string{
	MayFail: {
		"aten::_assert_async", "aten::_assert_async.msg",
		"aten::_functional_assert_async.msg",
		// Indices.
		"aten::embedding", "aten::embedding_renorm_", "aten::embedding_dense_backward",
		"aten::_embedding_bag", "aten::_embedding_bag_forward_only", "aten::_embedding_bag_dense_backward",
		"aten::_embedding_bag_per_sample_weights_backward",
		"aten::index.Tensor", "aten::index.Tensor_out", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_",
		"aten::index_select", "aten::index_select.out", "aten::index_add", "aten::index_add_", "aten::index_add.out",
		"aten::index_copy", "aten::index_copy_", "aten::index_copy.out",
		"aten::index_fill.int_Scalar", "aten::index_fill.int_Tensor",
		"aten::index_fill_.int_Scalar", "aten::index_fill_.int_Tensor",
		"aten::index_reduce", "aten::index_reduce_", "aten::index_reduce.out",
		"aten::gather", "aten::gather.out", "aten::take", "aten::take.out", "aten::put", "aten::put_",
		"aten::scatter.src", "aten::scatter_.src", "aten::scatter.src_out",
		"aten::scatter.value", "aten::scatter_.value", "aten::scatter.value_out",
		"aten::scatter.reduce", "aten::scatter_.reduce", "aten::scatter.reduce_out",
		"aten::scatter.value_reduce", "aten::scatter_.value_reduce", "aten::scatter.value_reduce_out",
		"aten::scatter_add", "aten::scatter_add_", "aten::scatter_add.out",
		"aten::scatter_reduce.two", "aten::scatter_reduce_.two", "aten::scatter_reduce.two_out",
		"aten::max_unpool2d", "aten::max_unpool2d.out", "aten::max_unpool3d", "aten::max_unpool3d.out",
		"aten::max_pool2d_with_indices_backward", "aten::max_pool3d_with_indices_backward",
		"aten::adaptive_max_pool2d_backward", "aten::adaptive_max_pool3d_backward",
		"aten::fractional_max_pool2d_backward", "aten::fractional_max_pool3d_backward",
		"aten::segment_reduce", "aten::_segment_reduce_backward",
		"aten::masked_scatter", "aten::masked_scatter_",
		"aten::searchsorted.Tensor", "aten::searchsorted.Tensor_out",
		// Targets and probabilities.
		"aten::nll_loss_forward", "aten::nll_loss_forward.output", "aten::nll_loss_backward",
		"aten::nll_loss_backward.grad_input", "aten::nll_loss2d_forward", "aten::nll_loss2d_forward.output",
		"aten::nll_loss2d_backward", "aten::nll_loss2d_backward.grad_input",
		"aten::multi_margin_loss", "aten::multi_margin_loss_backward",
		"aten::multilabel_margin_loss_forward", "aten::multilabel_margin_loss_backward",
		"aten::binary_cross_entropy", "aten::binary_cross_entropy.out", "aten::binary_cross_entropy_backward",
		"aten::_ctc_loss", "aten::_ctc_loss.Tensor", "aten::_ctc_loss_backward", "aten::_ctc_loss_backward.Tensor",
		"aten::bernoulli_.Tensor", "aten::multinomial", "aten::multinomial.out",
		"aten::normal.Tensor_Tensor", "aten::normal.float_Tensor",
		"aten::normal.Tensor_Tensor_out", "aten::normal.float_Tensor_out",
		"aten::poisson", "aten::binomial", "aten::_sample_dirichlet", "aten::_standard_gamma",
		// Matrices.
		"aten::linalg_cholesky_ex",
		"aten::cholesky_inverse", "aten::_linalg_eigh", "aten::_linalg_eigh.eigenvalues", "aten::linalg_eig",
		"aten::linalg_eig.out", "aten::_linalg_svd", "aten::_linalg_svd.U", "aten::linalg_lstsq", "aten::linalg_lstsq.out",
		"aten::_linalg_eigvals", "aten::lu_unpack",
		"aten::histogram.bins_tensor", "aten::histogram.bin_ct", "aten::histc",
	},
	FailsOnInts: {
		"aten::floor_divide", "aten::floor_divide_.Tensor", "aten::floor_divide.out",
		"aten::div.Tensor_mode", "aten::div_.Tensor_mode", "aten::div.out_mode",
		"aten::remainder.Tensor", "aten::remainder_.Tensor", "aten::remainder.Tensor_out", "aten::remainder.Scalar_Tensor",
		"aten::fmod.Tensor", "aten::fmod_.Tensor", "aten::fmod.Tensor_out",
	},
}

var failureByName = func() map[string]Failure {
	index := map[string]Failure{}
	for kind, names := range failing {
		for _, name := range names {
			if index[name] != NeverFails {
				panic(fmt.Sprintf("BUG: %s fails twice", name))
			}
			index[name] = kind
		}
	}
	return index
}()

// FailureOf says whether an operator of PyTorch may raise an error because of values. One that is not listed does not.
func FailureOf(name string) Failure { return failureByName[name] }
