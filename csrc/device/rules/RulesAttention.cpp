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
void masked_softmax(Args args, OutMetas& out) { add_like(out, tensor(args, 0)); }

// query [b, t, d] key [b, s, d] value embed_dim num_head qkv_weight qkv_bias proj_weight proj_bias mask? need_weights
// average_attn_weights … -> output [b, t, d], weights [b, (heads,) t, s]
void multi_head_attention(Args args, OutMetas& out) {
  const Tensor query = tensor(args, 0), key = tensor(args, 1);
  TORCH_CHECK(query.dim() == 3, "expected 3-D `query`, got ", query.dim(), "-D tensor");
  TORCH_CHECK(args[3].toInt() % args[4].toInt() == 0, "`embed_dim` must divide evenly by `num_heads`");
  add_like_contiguous(out, query);
  const int64_t b = query.size(0), t = query.size(1), s = key.size(1);
  if (!args[10].toBool()) {
    add_undefined(out);
  } else if (args[11].toBool()) {
    add_contiguous(out, {b, t, s}, query.scalar_type());
  } else {
    add_contiguous(out, {b, args[4].toInt(), t, s}, query.scalar_type());
  }
}

// qkv [b, t, 3 d] bias heads -> q, k, v [b, heads, t, d / heads]
void rescale_qkv(Args args, OutMetas& out) {
  const Tensor qkv = tensor(args, 0);
  const int64_t heads = args[2].toInt(), width = qkv.size(2) / 3;
  TORCH_CHECK(width % heads == 0, "`embed_dim` must divide evenly by `num_heads`");
  for (int i = 0; i < 3; ++i) {
    add_contiguous(out, {qkv.size(0), heads, qkv.size(1), width / heads}, qkv.scalar_type());
  }
}

// src [b, t, d] …
void encoder_layer(Args args, OutMetas& out) { add_like_contiguous(out, tensor(args, 0)); }

// Its memory is [b, l, h, e], its dims are [b, h, l, e].
void add_heads_inside(OutMetas& out, const Tensor& t) {
  const int64_t h = t.size(1), l = t.size(2), e = t.size(3);
  add(out, t.sizes(), {h * l * e, e, h * e, 1}, t.scalar_type());
}

// query [b, h, l, e] key [b, k, s, e] value [b, k, s, e] … -> output [b, h, l, e], logsumexp [b, h, l]
void flash_attention_for_cpu(Args args, OutMetas& out) {
  const Tensor query = tensor(args, 0);
  at::maybe_wrap_dim(0, query.dim(), /*wrap_scalar=*/false);
  TORCH_CHECK(query.dim() == 4 && tensor(args, 1).dim() == 4 && tensor(args, 2).dim() == 4,
              "Accept only 4 dims inputs shape of {B, H, T, K}");
  add_like(out, query);
  const int64_t b = query.size(0), h = query.size(1), l = query.size(2);
  add(out, {b, h, l}, {h * l, 1, h}, at::toOpMathType(query.scalar_type()));
}

// grad_out query key value out logsumexp … -> gradients of query, key, value
void flash_attention_for_cpu_backward(Args args, OutMetas& out) {
  for (size_t i = 1; i < 4; ++i) add_heads_inside(out, tensor(args, i));
}

constexpr RuleRow kRows[] = {
    {"_masked_softmax", masked_softmax},
    {"_masked_softmax_backward", masked_softmax},
    {"_native_multi_head_attention", multi_head_attention},
    {"_scaled_dot_product_flash_attention_for_cpu", flash_attention_for_cpu},
    {"_scaled_dot_product_flash_attention_for_cpu_backward", flash_attention_for_cpu_backward},
    {"_transform_bias_rescale_qkv", rescale_qkv},
    {"_transformer_encoder_layer_fwd", encoder_layer},
};

}  // namespace

RuleRows attention_rules() { return kRows; }

}  // namespace mycelya::rules
