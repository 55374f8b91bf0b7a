// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Fused attention: the op of scaled_dot_product_attention, and the ops that torch.nn uses in evaluation.

#include <ATen/OpMathType.h>
#include <ATen/WrapDimUtils.h>

#include "device/rules/RulesInternal.h"

namespace mycelya::rules {
namespace {

// self mask …; the backward's grad comes first
void MaskedSoftmax(Args args, OutMetas& out) { AddLike(out, TensorAt(args, 0)); }

// query [b, t, d] key [b, s, d] value embed_dim num_head qkv_weight qkv_bias proj_weight proj_bias mask? need_weights
// average_attn_weights … -> output [b, t, d], weights [b, (heads,) t, s]
void MultiHeadAttention(Args args, OutMetas& out) {
  const Tensor query = TensorAt(args, 0), key = TensorAt(args, 1);
  TORCH_CHECK(query.dim() == 3, "expected 3-D `query`, got ", query.dim(), "-D tensor");
  TORCH_CHECK(args[3].toInt() % args[4].toInt() == 0, "`embed_dim` must divide evenly by `num_heads`");
  AddLikeContiguous(out, query);
  const int64_t b = query.size(0), t = query.size(1), s = key.size(1);
  if (!args[10].toBool()) {
    AddUndefined(out);
  } else if (args[11].toBool()) {
    AddContiguous(out, {b, t, s}, query.scalar_type());
  } else {
    AddContiguous(out, {b, args[4].toInt(), t, s}, query.scalar_type());
  }
}

// qkv [b, t, 3 d] bias heads -> q, k, v [b, heads, t, d / heads]
void RescaleQkv(Args args, OutMetas& out) {
  const Tensor qkv = TensorAt(args, 0);
  const int64_t heads = args[2].toInt(), width = qkv.size(2) / 3;
  TORCH_CHECK(width % heads == 0, "`embed_dim` must divide evenly by `num_heads`");
  for (int i = 0; i < 3; ++i) {
    AddContiguous(out, {qkv.size(0), heads, qkv.size(1), width / heads}, qkv.scalar_type());
  }
}

// src [b, t, d] …
void EncoderLayer(Args args, OutMetas& out) { AddLikeContiguous(out, TensorAt(args, 0)); }

// Its memory is [b, l, h, e], its dims are [b, h, l, e].
void AddHeadsInside(OutMetas& out, const Tensor& t) {
  const int64_t h = t.size(1), l = t.size(2), e = t.size(3);
  Add(out, t.sizes(), {h * l * e, e, h * e, 1}, t.scalar_type());
}

// query [b, h, l, e] key [b, k, s, e] value [b, k, s, e] … -> output [b, h, l, e], logsumexp [b, h, l]
void FlashAttentionForCpu(Args args, OutMetas& out) {
  const Tensor query = TensorAt(args, 0);
  at::maybe_wrap_dim(0, query.dim(), /*wrap_scalar=*/false);
  TORCH_CHECK(query.dim() == 4 && TensorAt(args, 1).dim() == 4 && TensorAt(args, 2).dim() == 4,
              "Accept only 4 dims inputs shape of {B, H, T, K}");
  AddLike(out, query);
  const int64_t b = query.size(0), h = query.size(1), l = query.size(2);
  Add(out, {b, h, l}, {h * l, 1, h}, at::toOpMathType(query.scalar_type()));
}

// grad_out query key value out logsumexp … -> gradients of query, key, value
void FlashAttentionForCpuBackward(Args args, OutMetas& out) {
  for (size_t i = 1; i < 4; ++i) AddHeadsInside(out, TensorAt(args, i));
}

constexpr RuleRow kAttentionRows[] = {
    {"_masked_softmax", MaskedSoftmax},
    {"_masked_softmax_backward", MaskedSoftmax},
    {"_native_multi_head_attention", MultiHeadAttention},
    {"_scaled_dot_product_flash_attention_for_cpu", FlashAttentionForCpu},
    {"_scaled_dot_product_flash_attention_for_cpu_backward", FlashAttentionForCpuBackward},
    {"_transform_bias_rescale_qkv", RescaleQkv},
    {"_transformer_encoder_layer_fwd", EncoderLayer},
};

}  // namespace

RuleRows AttentionRules() { return kAttentionRows; }

}  // namespace mycelya::rules
