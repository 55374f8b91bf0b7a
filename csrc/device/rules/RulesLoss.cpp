// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Losses. `reduction` is at::Reduction: 0 none, 1 mean, 2 sum; a reduced loss is 0-dimensional.

#include <ATen/native/LossMulti.h>

#include <algorithm>

#include "device/rules/RulesInternal.h"

namespace mycelya::rules {
namespace {

bool reduces(Args args, size_t i) { return args[i].toInt() != 0; }

void add_scalar(OutMetas& out, const Tensor& t) { add_contiguous(out, {}, t.scalar_type()); }

// input target weight? reduction
void binary_cross_entropy(Args args, OutMetas& out) {
  const Tensor input = tensor(args, 0);
  reduces(args, 3) ? add_scalar(out, input) : add_like(out, input);
}

// input target reduction delta
void huber(Args args, OutMetas& out) {
  const Tensor input = tensor(args, 0), target = tensor(args, 1);
  TORCH_CHECK(args[3].toDouble() > 0, "huber_loss does not support non-positive values for delta.");
  reduces(args, 2) ? add_scalar(out, input) : elementwise(out, {input, target}, Promote::kTypes);
}

// input target reduction
void soft_margin(Args args, OutMetas& out) {
  const Tensor input = tensor(args, 0), target = tensor(args, 1);
  reduces(args, 2) ? add_scalar(out, input) : elementwise(out, {input, target}, Promote::kTypes);
}

// grad input target reduction
void soft_margin_backward(Args args, OutMetas& out) {
  elementwise(out, {tensor(args, 2), tensor(args, 1)}, Promote::kTypes);
}

// grad input …
void like_input(Args args, OutMetas& out) { add_like(out, tensor(args, 1)); }
void like_input_contiguous(Args args, OutMetas& out) { add_like_contiguous(out, tensor(args, 1)); }

// input: buffer, which the CPU's backward reads; CUDA leaves it empty
void log_sigmoid(Args args, OutMetas& out) {
  const Tensor input = tensor(args, 0);
  if (on_cuda()) {
    add_like(out, input);
    add_contiguous(out, {0}, input.scalar_type());
  } else {
    add_like_contiguous(out, input);
    add_like_contiguous(out, input);
  }
}

// input [n, c, h, w] target [n, h, w] weight? reduction ignore_index -> loss, total_weight []
void nll2d(Args args, OutMetas& out) {
  const Tensor input = tensor(args, 0), target = tensor(args, 1), weight = tensor(args, 2);
  TORCH_CHECK(target.dim() == 3,
              "only batches of spatial targets supported (3D tensors) but got targets of size: : ", target.sizes());
  TORCH_CHECK(input.dim() == 4,
              "only batches of spatial inputs supported (4D tensors), but got input of size: ", input.sizes());
  TORCH_CHECK(!weight.defined() || weight.numel() == input.size(1),
              "weight tensor should be defined either for all or no classes");
  TORCH_CHECK(input.size(0) == target.size(0) && input.size(2) == target.size(1) && input.size(3) == target.size(2),
              "size mismatch (got input: ", input.sizes(), " , target: ", target.sizes());
  reduces(args, 3) ? add_scalar(out, input)
                   : add_contiguous(out, {input.size(0), input.size(2), input.size(3)}, input.scalar_type());
  add_scalar(out, input);
}

// input [n, c] or [c]: target p margin weight? reduction
void multi_margin(Args args, OutMetas& out) {
  const Tensor input = tensor(args, 0), target = tensor(args, 1);
  int64_t frames = 0, dim = 0;
  at::native::multi_margin_loss_shape_check(
      frames, dim, input.dim(), input, target,
      has(args, 4) ? std::optional<Tensor>(tensor(args, 4)) : std::optional<Tensor>());
  reduces(args, 5) || target.dim() == 0 ? add_scalar(out, input) : add_contiguous(out, {frames}, input.scalar_type());
}

// input target reduction -> loss, is_target
void multilabel_margin(Args args, OutMetas& out) {
  const Tensor input = tensor(args, 0), target = tensor(args, 1);
  int64_t frames = 0, dim = 0;
  at::native::multilabel_margin_loss_shape_check(frames, dim, input.dim(), input, target);
  reduces(args, 2) || target.dim() <= 1 ? add_scalar(out, input) : add_contiguous(out, {frames}, input.scalar_type());
  add_contiguous(out, target.sizes(), input.scalar_type());
}

// log_probs [t, n, c] targets input_lengths target_lengths blank zero_infinity -> loss [n], log_alpha [n, t, 2 l + 1]
void ctc(Args args, OutMetas& out) {
  const Tensor log_probs = tensor(args, 0);
  const auto lengths = ints(args, 3);
  const int64_t longest = lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
  const int64_t batch = log_probs.size(1);
  add_contiguous(out, {batch}, log_probs.scalar_type());
  add_contiguous(out, {batch, log_probs.size(0), 2 * longest + 1}, log_probs.scalar_type());
}

// grad log_probs …
void ctc_backward(Args args, OutMetas& out) { add_like_contiguous(out, tensor(args, 1)); }

constexpr RuleRow kRows[] = {
    {"_ctc_loss", ctc},
    {"_ctc_loss_backward", ctc_backward},
    {"_ctc_loss_backward.Tensor", ctc_backward},
    {"binary_cross_entropy", binary_cross_entropy},
    {"binary_cross_entropy_backward", like_input},
    {"huber_loss", huber},
    {"huber_loss_backward", like_input_contiguous},
    {"log_sigmoid_forward", log_sigmoid},
    {"mse_loss_backward", like_input_contiguous},
    {"multi_margin_loss", multi_margin},
    {"multi_margin_loss_backward", like_input_contiguous},
    {"multilabel_margin_loss_backward", like_input_contiguous},
    {"multilabel_margin_loss_forward", multilabel_margin},
    {"nll_loss2d_backward", like_input},
    {"nll_loss2d_forward", nll2d},
    {"smooth_l1_loss_backward", like_input_contiguous},
    {"soft_margin_loss", soft_margin},
    {"soft_margin_loss_backward", soft_margin_backward},
};

}  // namespace

RuleRows loss_rules() { return kRows; }

}  // namespace mycelya::rules
