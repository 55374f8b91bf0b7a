// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package catalogue

// ForeachPrefix begins the names of operators over lists that apply the operator of the same name to each tensor.
const ForeachPrefix = "aten::_foreach_"

// Refusal has the reason why the recorder refuses operators. Patterns are shell patterns of names without "aten::",
// separated by spaces; the first that fits an operator holds. Reason completes the sentence "aten::<name> cannot run:
// …".
type Refusal struct {
	Reason, Patterns string
}

// Refusals lists the operators that the device refuses.
func Refusals() []Refusal {
	return []Refusal{
		{"sparse tensors are not supported",
			"*_sparse* sparse_[!d]* _coalesce* _indices _values _nnz _dimI _dimV hspmm* sspaddmm* _spdiags _spsolve " +
				"_cslt_* _to_dense native_norm native_norm.Scalar* resize_as_sparse_ copy_sparse_to_sparse_ _coalesced_"},
		{"quantized tensors are not supported",
			"quantize_per_* dequantize* q_scale q_zero_point q_per_channel_* qscheme int_repr _empty_affine_quantized " +
				"_empty_per_channel_affine_quantized _make_per_*_quantized_tensor quantized_* empty_quantized " +
				"_flash_attention_forward.quantized _scaled_dot_product_flash_attention.quantized"},
		{"nested tensors of the strided layout are not supported; make a jagged one with layout=torch.jagged",
			"*nested* to_padded_tensor matmul_backward"},
		{"it belongs to the backend of another device",
			"*cudnn* *miopen* *mkldnn* *mps* _use_cudnn_ctc_loss* _nnpack_spatial_convolution max_pool2d_backward " +
				"linear_backward _fused_dropout _masked_scale _fused_rms_norm_backward _triton_*"},
		{"it is the attention kernel of one backend; call torch.nn.functional.scaled_dot_product_attention",
			"_flash_attention_* _efficient_attention* _scaled_dot_product_efficient_attention* " +
				"_scaled_dot_product_flash_attention_*quantized _fill_mem_eff_dropout_mask_ " +
				"_scaled_dot_product_attention_math_for_mps _scaled_dot_product_flash_attention " +
				"_scaled_dot_product_flash_attention_backward"},
		{"the layout of its packed weights depends on the worker's device",
			"_dyn_quant_* _weight_int4pack_mm* _convert_weight_to_int4pack* _weight_int8pack_mm _mixed_dtypes_linear"},
		{"it is internal to PyTorch's tests", "_foobar _test_*"},
		{"it reads a file of the worker", "from_file"},
		{"copy-on-write storages are not supported", "_lazy_clone"},
		{"only meta tensors use it", "_resize_output_"},
		{"only its functional form is supported", "rrelu_with_noise.out _slow_conv2d_backward.grad_input"},
	}
}

// ArgumentClass is the form in which the recorder writes a number: l literal (part of the skeleton), s size and v value
// (both parameters), b literal if it is 0 or 1, else value. Arguments are "operator.argument", where the base name of
// an operator stands for its overloads and its in-place form, and * for all operators.
type ArgumentClass struct {
	Class, Arguments string
}

// ArgumentClasses lists the arguments whose class does not follow from their type.
func ArgumentClasses() []ArgumentClass {
	return []ArgumentClass{
		{"l", "*.padding *.dilation *.output_padding *.kernel_size *.groups *.dim *.stride *.padding_idx " +
			"*.ignore_index *.shifts *.repeats *.ord *.p *.norm_type pow.exponent _foreach_pow.exponent renorm.p norm.p " +
			"embedding_renorm.norm_type repeat_interleave.repeats"},
		{"s", "*.normalized_shape arange.start arange.end arange.step range.start range.end range.step linspace.steps " +
			"logspace.steps histc.bins histogram.bins _histogramdd_bin_edges.bins _histogramdd_from_bin_cts.bins " +
			"adaptive_max_pool2d.output_size adaptive_max_pool3d.output_size fractional_max_pool2d.output_size " +
			"fractional_max_pool3d.output_size fractional_max_pool2d_backward.output_size " +
			"fractional_max_pool3d_backward.output_size tril_indices.row tril_indices.col triu_indices.row " +
			"triu_indices.col _ctc_loss.input_lengths _ctc_loss.target_lengths _ctc_loss_backward.input_lengths " +
			"_ctc_loss_backward.target_lengths"},
		{"v", "tril.diagonal triu.diagonal tril_indices.offset triu_indices.offset kthvalue.k random.from random.to " +
			"_philox_randint.low _philox_randint.high nonzero_static.fill_value histc.min histc.max"},
		{"b", "*.alpha *.beta *.value *.threshold *.correction native_dropout.p bernoulli.p *.weight_decay *.momentum " +
			"*.dampening"},
	}
}
