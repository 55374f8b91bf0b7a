// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// The fused attention ops that torch.nn uses in evaluation.

#include "RulesInternal.h"

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

constexpr RuleRow kRows[] = {
    {"_masked_softmax", masked_softmax},
    {"_masked_softmax_backward", masked_softmax},
    {"_native_multi_head_attention", multi_head_attention},
    {"_transform_bias_rescale_qkv", rescale_qkv},
    {"_transformer_encoder_layer_fwd", encoder_layer},
};

}  // namespace

RuleRows attention_rules() { return kRows; }

}  // namespace mycelya::rules
