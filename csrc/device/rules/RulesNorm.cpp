// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Normalisations. The CPU keeps statistics of 16-bit inputs in the parameters' dtype, CUDA keeps them in float.

#include <ATen/AccumulateType.h>
#include <ATen/native/layer_norm.h>

#include "device/rules/RulesInternal.h"

namespace mycelya::rules {
namespace {

bool ReducedFloat(ScalarType dtype) { return dtype == ScalarType::Half || dtype == ScalarType::BFloat16; }

// The dtype of statistics on the CPU: float if the input is 16-bit and a parameter is float.
ScalarType StatisticsType(const Tensor& input, std::initializer_list<Tensor> parameters) {
  if (OnCuda()) return at::toAccumulateType(input.scalar_type(), /*is_cuda=*/true);
  if (!ReducedFloat(input.scalar_type())) return input.scalar_type();
  for (const Tensor& p : parameters) {
    if (p.defined()) return p.scalar_type() == ScalarType::Float ? ScalarType::Float : input.scalar_type();
  }
  return input.scalar_type();
}

// input normalized_shape weight? bias? eps -> output [*], mean and rstd [outer dims, 1, …]
void LayerNorm(Args args, OutMetas& out) {
  const Tensor input = TensorAt(args, 0), weight = TensorAt(args, 2), bias = TensorAt(args, 3);
  const auto normalized = IntsAt(args, 1);
  at::native::_check_layer_norm_inputs(input, normalized, weight, bias);
  AddLikeContiguous(out, input);
  DimVector sizes(input.sizes().begin(), input.sizes().end());
  for (size_t i = sizes.size() - normalized.size(); i < sizes.size(); ++i) sizes[i] = 1;
  const ScalarType dtype = StatisticsType(input, {weight, bias});
  AddContiguous(out, sizes, dtype);
  AddContiguous(out, sizes, dtype);
}

// grad input normalized_shape mean rstd weight? bias? mask
void LayerNormBackward(Args args, OutMetas& out) {
  for (const auto& [bit, of] : {std::pair{0, 1}, std::pair{1, 5}, std::pair{2, 6}}) {
    if (MaskAt(args, 7, bit) && Has(args, of)) {
      AddLikeContiguous(out, TensorAt(args, of));
    } else {
      AddUndefined(out);
    }
  }
}

void AddGroupNormalized(OutMetas& out, const Tensor& input) {
  OnCuda() && !kGroupNormKeepsFormat ? AddLikeContiguous(out, input) : AddLikeSuggested(out, input);
}

// input weight? bias? N C HxW group eps -> output, mean and rstd [N, group]
void GroupNorm(Args args, OutMetas& out) {
  const Tensor input = TensorAt(args, 0), weight = TensorAt(args, 1), bias = TensorAt(args, 2);
  const int64_t n = args[3].toInt(), channels = args[4].toInt(), groups = args[6].toInt();
  TORCH_CHECK(groups > 0, "Expected num groups to be greater than 0, got ", groups);
  TORCH_CHECK(channels % groups == 0, "Expected number of channels in input to be divisible by num_groups, but got ",
              "input of shape ", input.sizes(), " and num_groups=", groups);
  AddGroupNormalized(out, input);
  const ScalarType dtype = OnCuda() ? input.scalar_type() : StatisticsType(input, {weight, bias});
  AddContiguous(out, {n, groups}, dtype);
  AddContiguous(out, {n, groups}, dtype);
}

// grad input mean rstd weight? N C HxW group mask -> grads of input, weight, bias
void GroupNormBackward(Args args, OutMetas& out) {
  const Tensor input = TensorAt(args, 1), weight = TensorAt(args, 4);
  const int64_t channels = args[6].toInt();
  if (MaskAt(args, 9, 0)) {
    AddGroupNormalized(out, input);
  } else {
    AddUndefined(out);
  }
  for (const int bit : {1, 2}) {
    if (!MaskAt(args, 9, bit)) {
      AddUndefined(out);
    } else if (weight.defined()) {
      AddLike(out, weight);
    } else {
      AddContiguous(out, {channels}, input.scalar_type());
    }
  }
}

// The saved mean and inverse deviation: [C] in training. In evaluation they are empty on the CPU, and CUDA copies them
// from the running statistics.
void AddSavedStatistics(OutMetas& out, const Tensor& input, bool training, ScalarType dtype) {
  const int64_t channels = training || OnCuda() ? input.size(1) : 0;
  AddContiguous(out, {channels}, dtype);
  AddContiguous(out, {channels}, dtype);
}

// The normalised input, and the gradient of the input.
void AddNormalized(OutMetas& out, const Tensor& input) {
  OnCuda() ? AddLike(out, input) : AddLikeSuggested(out, input);
}

// Refuses given arguments of [first, last) without one element per channel of the input. Kernels do not check that.
void CheckChannels(Args args, size_t first, size_t last) {
  const Tensor input = TensorAt(args, 0);
  const int64_t channels = input.size(1);
  for (size_t i = first; i < last; ++i) {
    const Tensor t = TensorAt(args, i);
    TORCH_CHECK(!t.defined() || t.numel() == channels, "batch_norm: expected a tensor of ", channels,
                " elements for input ", input.sizes(), ", but got ", t.sizes());
  }
}

// input weight? bias? mean? var? training momentum eps
void BatchNorm(Args args, OutMetas& out) {
  const Tensor input = TensorAt(args, 0);
  CheckChannels(args, 1, 5);
  const bool training = args[5].toBool();
  AddNormalized(out, input);
  const ScalarType dtype = StatisticsType(input, {TensorAt(args, 1), TensorAt(args, 2), TensorAt(args, 3)});
  AddSavedStatistics(out, input, training, training || OnCuda() ? dtype : input.scalar_type());
}

// input weight? bias? training momentum eps
void BatchNormWithoutStats(Args args, OutMetas& out) {
  const Tensor input = TensorAt(args, 0);
  CheckChannels(args, 1, 3);
  AddNormalized(out, input);
  const ScalarType dtype = StatisticsType(input, {TensorAt(args, 1), TensorAt(args, 2)});
  AddSavedStatistics(out, input, args[3].toBool(), dtype);
}

// grad input weight? mean? var? saved_mean? saved_invstd? training eps mask
void BatchNormBackward(Args args, OutMetas& out) {
  const Tensor input = TensorAt(args, 1), weight = TensorAt(args, 2);
  if (MaskAt(args, 9, 0)) {
    AddLikeSuggested(out, input);
  } else {
    AddUndefined(out);
  }
  const ScalarType dtype =
      weight.defined() ? weight.scalar_type() : StatisticsType(input, {TensorAt(args, 3), TensorAt(args, 5)});
  for (const int bit : {1, 2}) {
    if (MaskAt(args, 9, bit)) {
      AddContiguous(out, {input.size(1)}, dtype);
    } else {
      AddUndefined(out);
    }
  }
}

// input mean? var? momentum -> mean, var [C]
void BatchNormUpdateStats(Args args, OutMetas& out) {
  const Tensor input = TensorAt(args, 0);
  AddSavedStatistics(out, input, true, StatisticsType(input, {TensorAt(args, 1), TensorAt(args, 2)}));
}

// v g dim -> w, norm
void WeightNorm(Args args, OutMetas& out) {
  const Tensor v = TensorAt(args, 0), g = TensorAt(args, 1);
  const bool widen = g.scalar_type() == ScalarType::BFloat16 || (OnCuda() && g.scalar_type() == ScalarType::Half);
  AddLikeContiguous(out, v);
  Add(out, g.sizes(), g.strides(), widen ? ScalarType::Float : g.scalar_type());
}

// grad_w saved_v saved_g saved_norms dim
void WeightNormBackward(Args args, OutMetas& out) {
  AddLikeContiguous(out, TensorAt(args, 1));
  AddLikeContiguous(out, TensorAt(args, 2));
}

constexpr RuleRow kNormRows[] = {
    {"_native_batch_norm_legit", BatchNorm},
    {"_native_batch_norm_legit.no_stats", BatchNormWithoutStats},
    {"_weight_norm_interface", WeightNorm},
    {"_weight_norm_interface_backward", WeightNormBackward},
    {"batch_norm_update_stats", BatchNormUpdateStats},
    {"native_batch_norm", BatchNorm},
    {"batch_norm_backward", BatchNormBackward},
    {"native_batch_norm_backward", BatchNormBackward},
    {"native_group_norm", GroupNorm},
    {"native_group_norm_backward", GroupNormBackward},
    {"native_layer_norm", LayerNorm},
    {"native_layer_norm_backward", LayerNormBackward},
};

}  // namespace

RuleRows NormRules() { return kNormRows; }

}  // namespace mycelya::rules
