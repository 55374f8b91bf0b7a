// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Simulated quantisation: plain tensors, rounded.

#include "device/rules/RulesInternal.h"

namespace mycelya::rules {
namespace {

// -> rounded, which elements were in range
void WithMask(Args args, OutMetas& out) {
  const Tensor self = TensorAt(args, 0);
  AddLike(out, self);
  AddLike(out, self, ScalarType::Bool);
}

// grad self scale zero_point … -> grads of self, scale, zero_point
void LearnableBackward(Args args, OutMetas& out) {
  AddLike(out, TensorAt(args, 1));
  AddLikeContiguous(out, TensorAt(args, 2));
  AddLikeContiguous(out, TensorAt(args, 3), TensorAt(args, 2).scalar_type());
}

constexpr RuleRow kQuantizeRows[] = {
    {"_fake_quantize_learnable_per_channel_affine", Like},
    {"_fake_quantize_learnable_per_channel_affine_backward", LearnableBackward},
    {"_fake_quantize_learnable_per_tensor_affine", Like},
    {"_fake_quantize_learnable_per_tensor_affine_backward", LearnableBackward},
    {"_fake_quantize_per_tensor_affine_cachemask_tensor_qparams", WithMask},
    {"_fused_moving_avg_obs_fq_helper", WithMask},
    {"fake_quantize_per_channel_affine_cachemask", WithMask},
    {"fake_quantize_per_tensor_affine_cachemask", WithMask},
};

}  // namespace

RuleRows QuantizeRules() { return kQuantizeRows; }

}  // namespace mycelya::rules
