// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Simulated quantisation: plain tensors, rounded.

#include "device/rules/RulesInternal.h"

namespace mycelya::rules {
namespace {

void like(Args args, OutMetas& out) { add_like(out, tensor(args, 0)); }

// -> rounded, which elements were in range
void with_mask(Args args, OutMetas& out) {
  const Tensor self = tensor(args, 0);
  add_like(out, self);
  add_like(out, self, ScalarType::Bool);
}

// grad self scale zero_point … -> grads of self, scale, zero_point
void learnable_backward(Args args, OutMetas& out) {
  add_like(out, tensor(args, 1));
  add_like_contiguous(out, tensor(args, 2));
  add_like_contiguous(out, tensor(args, 3), tensor(args, 2).scalar_type());
}

constexpr RuleRow kRows[] = {
    {"_fake_quantize_learnable_per_channel_affine", like},
    {"_fake_quantize_learnable_per_channel_affine_backward", learnable_backward},
    {"_fake_quantize_learnable_per_tensor_affine", like},
    {"_fake_quantize_learnable_per_tensor_affine_backward", learnable_backward},
    {"_fake_quantize_per_tensor_affine_cachemask_tensor_qparams", with_mask},
    {"_fused_moving_avg_obs_fq_helper", with_mask},
    {"fake_quantize_per_channel_affine_cachemask", with_mask},
    {"fake_quantize_per_tensor_affine_cachemask", with_mask},
};

}  // namespace

RuleRows quantize_rules() { return kRows; }

}  // namespace mycelya::rules
