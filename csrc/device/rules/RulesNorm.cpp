// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Normalisations. The CPU keeps statistics of 16-bit inputs in the parameters' dtype, CUDA keeps them in float.

#include <ATen/AccumulateType.h>
#include <ATen/native/layer_norm.h>

#include "device/rules/RulesInternal.h"

namespace mycelya::rules {
namespace {

bool reduced_float(ScalarType dtype) { return dtype == ScalarType::Half || dtype == ScalarType::BFloat16; }

// The dtype of statistics on the CPU: float if the input is 16-bit and a parameter is float.
ScalarType statistics_type(const Tensor& input, std::initializer_list<Tensor> parameters) {
  if (on_cuda()) return at::toAccumulateType(input.scalar_type(), /*is_cuda=*/true);
  if (!reduced_float(input.scalar_type())) return input.scalar_type();
  for (const Tensor& p : parameters) {
    if (p.defined()) return p.scalar_type() == ScalarType::Float ? ScalarType::Float : input.scalar_type();
  }
  return input.scalar_type();
}

// input normalized_shape weight? bias? eps -> output [*], mean and rstd [outer dims, 1, …]
void layer_norm(Args args, OutMetas& out) {
  const Tensor input = tensor(args, 0), weight = tensor(args, 2), bias = tensor(args, 3);
  const auto normalized = ints(args, 1);
  at::native::_check_layer_norm_inputs(input, normalized, weight, bias);
  add_like_contiguous(out, input);
  DimVector sizes(input.sizes().begin(), input.sizes().end());
  for (size_t i = sizes.size() - normalized.size(); i < sizes.size(); ++i) sizes[i] = 1;
  const ScalarType dtype = statistics_type(input, {weight, bias});
  add_contiguous(out, sizes, dtype);
  add_contiguous(out, sizes, dtype);
}

// grad input normalized_shape mean rstd weight? bias? mask
void layer_norm_backward(Args args, OutMetas& out) {
  for (const auto& [bit, of] : {std::pair{0, 1}, std::pair{1, 5}, std::pair{2, 6}}) {
    if (mask(args, 7, bit) && has(args, of)) {
      add_like_contiguous(out, tensor(args, of));
    } else {
      add_undefined(out);
    }
  }
}

// input weight? bias? N C HxW group eps -> output, mean and rstd [N, group]
void group_norm(Args args, OutMetas& out) {
  const Tensor input = tensor(args, 0), weight = tensor(args, 1), bias = tensor(args, 2);
  const int64_t n = args[3].toInt(), channels = args[4].toInt(), groups = args[6].toInt();
  TORCH_CHECK(groups > 0, "Expected num groups to be greater than 0, got ", groups);
  TORCH_CHECK(channels % groups == 0, "Expected number of channels in input to be divisible by num_groups, but got ",
              "input of shape ", input.sizes(), " and num_groups=", groups);
  if (on_cuda()) {
    add_like_contiguous(out, input);
  } else {
    add_like_suggested(out, input);
  }
  const ScalarType dtype = on_cuda() ? input.scalar_type() : statistics_type(input, {weight, bias});
  add_contiguous(out, {n, groups}, dtype);
  add_contiguous(out, {n, groups}, dtype);
}

// grad input mean rstd weight? N C HxW group mask -> grads of input, weight, bias
void group_norm_backward(Args args, OutMetas& out) {
  const Tensor input = tensor(args, 1), weight = tensor(args, 4);
  const int64_t channels = args[6].toInt();
  if (mask(args, 9, 0)) {
    on_cuda() ? add_like_contiguous(out, input) : add_like_suggested(out, input);
  } else {
    add_undefined(out);
  }
  for (const int bit : {1, 2}) {
    if (!mask(args, 9, bit)) {
      add_undefined(out);
    } else if (weight.defined()) {
      add_like(out, weight);
    } else {
      add_contiguous(out, {channels}, input.scalar_type());
    }
  }
}

// The saved mean and inverse deviation: [C] in training, empty in evaluation.
void add_saved_statistics(OutMetas& out, const Tensor& input, bool training, ScalarType dtype) {
  const int64_t channels = training ? input.size(1) : 0;
  add_contiguous(out, {channels}, dtype);
  add_contiguous(out, {channels}, dtype);
}

// Refuses given arguments of [first, last) without one element per channel of the input. Kernels do not check that.
void check_channels(Args args, size_t first, size_t last) {
  const Tensor input = tensor(args, 0);
  const int64_t channels = input.size(1);
  for (size_t i = first; i < last; ++i) {
    const Tensor t = tensor(args, i);
    TORCH_CHECK(!t.defined() || t.numel() == channels, "batch_norm: expected a tensor of ", channels,
                " elements for input ", input.sizes(), ", but got ", t.sizes());
  }
}

// input weight? bias? mean? var? training momentum eps
void batch_norm(Args args, OutMetas& out) {
  const Tensor input = tensor(args, 0);
  check_channels(args, 1, 5);
  const bool training = args[5].toBool();
  add_like_suggested(out, input);
  const ScalarType dtype = statistics_type(input, {tensor(args, 1), tensor(args, 2), tensor(args, 3)});
  add_saved_statistics(out, input, training, training || on_cuda() ? dtype : input.scalar_type());
}

// input weight? bias? training momentum eps
void batch_norm_without_stats(Args args, OutMetas& out) {
  const Tensor input = tensor(args, 0);
  check_channels(args, 1, 3);
  add_like_suggested(out, input);
  const ScalarType dtype = statistics_type(input, {tensor(args, 1), tensor(args, 2)});
  add_saved_statistics(out, input, args[3].toBool(), dtype);
}

// grad input weight? mean? var? saved_mean? saved_invstd? training eps mask
void batch_norm_backward(Args args, OutMetas& out) {
  const Tensor input = tensor(args, 1), weight = tensor(args, 2);
  if (mask(args, 9, 0)) {
    add_like_suggested(out, input);
  } else {
    add_undefined(out);
  }
  const ScalarType dtype =
      weight.defined() ? weight.scalar_type() : statistics_type(input, {tensor(args, 3), tensor(args, 5)});
  for (const int bit : {1, 2}) {
    if (mask(args, 9, bit)) {
      add_contiguous(out, {input.size(1)}, dtype);
    } else {
      add_undefined(out);
    }
  }
}

// input mean? var? momentum -> mean, var [C]
void batch_norm_update_stats(Args args, OutMetas& out) {
  const Tensor input = tensor(args, 0);
  add_saved_statistics(out, input, true, statistics_type(input, {tensor(args, 1), tensor(args, 2)}));
}

// v g dim -> w, norm
void weight_norm(Args args, OutMetas& out) {
  const Tensor v = tensor(args, 0), g = tensor(args, 1);
  const bool widen = g.scalar_type() == ScalarType::BFloat16 || (on_cuda() && g.scalar_type() == ScalarType::Half);
  add_like_contiguous(out, v);
  add(out, g.sizes(), g.strides(), widen ? ScalarType::Float : g.scalar_type());
}

// grad_w saved_v saved_g saved_norms dim
void weight_norm_backward(Args args, OutMetas& out) {
  add_like_contiguous(out, tensor(args, 1));
  add_like_contiguous(out, tensor(args, 2));
}

constexpr RuleRow kRows[] = {
    {"_native_batch_norm_legit", batch_norm},
    {"_native_batch_norm_legit.no_stats", batch_norm_without_stats},
    {"_weight_norm_interface", weight_norm},
    {"_weight_norm_interface_backward", weight_norm_backward},
    {"batch_norm_update_stats", batch_norm_update_stats},
    {"native_batch_norm", batch_norm},
    {"batch_norm_backward", batch_norm_backward},
    {"native_batch_norm_backward", batch_norm_backward},
    {"native_group_norm", group_norm},
    {"native_group_norm_backward", group_norm_backward},
    {"native_layer_norm", layer_norm},
    {"native_layer_norm_backward", layer_norm_backward},
};

}  // namespace

RuleRows norm_rules() { return kRows; }

}  // namespace mycelya::rules
