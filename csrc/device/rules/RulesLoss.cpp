// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Losses. `reduction` is at::Reduction: 0 none, 1 mean, 2 sum; a reduced loss is 0-dimensional.

#include <ATen/native/LossMulti.h>

#include <algorithm>

#include "device/rules/RulesInternal.h"

namespace mycelya::rules {
namespace {

bool Reduces(Args args, size_t i) { return args[i].toInt() != 0; }

void AddScalar(OutMetas& out, const Tensor& t) { AddContiguous(out, {}, t.scalar_type()); }

// input target weight? reduction
void BinaryCrossEntropy(Args args, OutMetas& out) {
  const Tensor input = TensorAt(args, 0);
  Reduces(args, 3) ? AddScalar(out, input) : AddLike(out, input);
}

// input target reduction delta
void Huber(Args args, OutMetas& out) {
  const Tensor input = TensorAt(args, 0), target = TensorAt(args, 1);
  TORCH_CHECK(args[3].toDouble() > 0, "huber_loss does not support non-positive values for delta.");
  Reduces(args, 2) ? AddScalar(out, input) : Elementwise(out, {input, target}, Promote::kTypes);
}

// input target reduction
void SoftMargin(Args args, OutMetas& out) {
  const Tensor input = TensorAt(args, 0), target = TensorAt(args, 1);
  Reduces(args, 2) ? AddScalar(out, input) : Elementwise(out, {input, target}, Promote::kTypes);
}

// grad input target reduction
void SoftMarginBackward(Args args, OutMetas& out) {
  Elementwise(out, {TensorAt(args, 2), TensorAt(args, 1)}, Promote::kTypes);
}

// grad input …
void LikeInput(Args args, OutMetas& out) { AddLike(out, TensorAt(args, 1)); }
void LikeInputContiguous(Args args, OutMetas& out) { AddLikeContiguous(out, TensorAt(args, 1)); }

// input: buffer, which the CPU's backward reads; CUDA leaves it empty
void LogSigmoid(Args args, OutMetas& out) {
  const Tensor input = TensorAt(args, 0);
  if (OnCuda()) {
    AddLike(out, input);
    AddContiguous(out, {0}, input.scalar_type());
  } else {
    AddLikeContiguous(out, input);
    AddLikeContiguous(out, input);
  }
}

// input [n, c, h, w] target [n, h, w] weight? reduction ignore_index -> loss, total_weight []
void Nll2d(Args args, OutMetas& out) {
  const Tensor input = TensorAt(args, 0), target = TensorAt(args, 1), weight = TensorAt(args, 2);
  TORCH_CHECK(target.dim() == 3,
              "only batches of spatial targets supported (3D tensors) but got targets of size: : ", target.sizes());
  TORCH_CHECK(input.dim() == 4,
              "only batches of spatial inputs supported (4D tensors), but got input of size: ", input.sizes());
  TORCH_CHECK(!weight.defined() || weight.numel() == input.size(1),
              "weight tensor should be defined either for all or no classes");
  TORCH_CHECK(input.size(0) == target.size(0) && input.size(2) == target.size(1) && input.size(3) == target.size(2),
              "size mismatch (got input: ", input.sizes(), " , target: ", target.sizes());
  Reduces(args, 3) ? AddScalar(out, input)
                   : AddContiguous(out, {input.size(0), input.size(2), input.size(3)}, input.scalar_type());
  AddScalar(out, input);
}

// input [n, c] or [c]: target p margin weight? reduction
void MultiMargin(Args args, OutMetas& out) {
  const Tensor input = TensorAt(args, 0), target = TensorAt(args, 1);
  int64_t frames = 0, dim = 0;
  at::native::multi_margin_loss_shape_check(
      frames, dim, input.dim(), input, target,
      Has(args, 4) ? std::optional<Tensor>(TensorAt(args, 4)) : std::optional<Tensor>());
  Reduces(args, 5) || target.dim() == 0 ? AddScalar(out, input) : AddContiguous(out, {frames}, input.scalar_type());
}

// input target reduction -> loss, is_target
void MultilabelMargin(Args args, OutMetas& out) {
  const Tensor input = TensorAt(args, 0), target = TensorAt(args, 1);
  int64_t frames = 0, dim = 0;
  at::native::multilabel_margin_loss_shape_check(frames, dim, input.dim(), input, target);
  Reduces(args, 2) || target.dim() <= 1 ? AddScalar(out, input) : AddContiguous(out, {frames}, input.scalar_type());
  AddContiguous(out, target.sizes(), input.scalar_type());
}

// log_probs [t, n, c] targets input_lengths target_lengths blank zero_infinity -> loss [n], log_alpha [n, t, 2 l + 1]
void Ctc(Args args, OutMetas& out) {
  const Tensor log_probs = TensorAt(args, 0);
  const auto lengths = IntsAt(args, 3);
  const int64_t longest = lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
  const int64_t batch = log_probs.size(1);
  AddContiguous(out, {batch}, log_probs.scalar_type());
  AddContiguous(out, {batch, log_probs.size(0), 2 * longest + 1}, log_probs.scalar_type());
}

// grad log_probs …
void CtcBackward(Args args, OutMetas& out) { AddLikeContiguous(out, TensorAt(args, 1)); }

constexpr RuleRow kLossRows[] = {
    {"_ctc_loss", Ctc},
    {"_ctc_loss_backward", CtcBackward},
    {"_ctc_loss_backward.Tensor", CtcBackward},
    {"binary_cross_entropy", BinaryCrossEntropy},
    {"binary_cross_entropy_backward", LikeInput},
    {"huber_loss", Huber},
    {"huber_loss_backward", LikeInputContiguous},
    {"log_sigmoid_forward", LogSigmoid},
    {"mse_loss_backward", LikeInputContiguous},
    {"multi_margin_loss", MultiMargin},
    {"multi_margin_loss_backward", LikeInputContiguous},
    {"multilabel_margin_loss_backward", LikeInputContiguous},
    {"multilabel_margin_loss_forward", MultilabelMargin},
    {"nll_loss2d_backward", LikeInput},
    {"nll_loss2d_forward", Nll2d},
    {"smooth_l1_loss_backward", LikeInputContiguous},
    {"soft_margin_loss", SoftMargin},
    {"soft_margin_loss_backward", SoftMarginBackward},
};

}  // namespace

RuleRows LossRules() { return kLossRows; }

}  // namespace mycelya::rules
