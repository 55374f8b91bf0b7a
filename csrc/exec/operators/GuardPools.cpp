// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Guards of gradients of embeddings, pooling and padding, which write to places that their operands name.
#include <algorithm>

#include "exec/operators/GuardOperands.h"

namespace mycelya::exec {
namespace {

constexpr int64_t kMaxElements = int64_t{1} << 48;

// grad_output [..,out], input [..,in] and indices as grad_output: each index is an element of the last n dims of input.
void CheckPool(const Operands& o, int64_t n) {
  size_t indices = 2;
  while (indices < 16 && !(o.Given(indices) && o.IsTensor(indices))) ++indices;
  o.RequireRank(1, "self", n + 1, n + 2);
  o.RequireRank(0, "grad_output", n + 1, n + 2);
  const at::Tensor& grad = o.Tensor(0);
  const at::Tensor& self = o.Tensor(1);
  o.RequireSizes(indices, "indices", grad.sizes());
  o.RequireSameDtype({0, 1});
  o.Require(grad.dim() == self.dim() && grad.sizes().slice(0, grad.dim() - n) == self.sizes().slice(0, self.dim() - n),
            "grad_output of sizes ", grad.sizes(), " does not fit to self of sizes ", self.sizes(), ".");
  int64_t elements = 1;
  for (int64_t d = self.dim() - n; d < self.dim(); ++d) elements *= self.size(d);
  o.Require(o.Tensor(indices).scalar_type() == c10::ScalarType::Long, "indices have dtype ",
            o.Tensor(indices).scalar_type(), "; they must be int64.");
  o.RequireRange(o.Tensor(indices), "index", 0, elements);
}

// grad_output is self padded at the ends of its last n dims. A reflection is shorter than the dim.
void CheckReflection(const Operands& o, int64_t n) {
  o.RequireRank(1, "self", n + 1, n + 2);
  const at::Tensor& self = o.Tensor(1);
  const std::vector<int64_t> padding = o.Ints(2);
  o.Require(padding.size() == static_cast<size_t>(2 * n), "padding has ", padding.size(), " numbers, not ", 2 * n, ".");
  std::vector<int64_t> sizes = self.sizes().vec();
  for (int64_t i = 0; i < n; ++i) {
    int64_t& size = sizes[sizes.size() - 1 - i];
    for (const int64_t pad : {padding[2 * i], padding[2 * i + 1]}) {
      o.Require(pad < size && pad > -kMaxElements, "padding ", pad, " is not less than the dim's size ", size, ".");
    }
    size += padding[2 * i] + padding[2 * i + 1];
    o.Require(size >= 1, "padding ", padding[2 * i], " and ", padding[2 * i + 1], " leaves nothing of a dim.");
  }
  o.RequireSizes(0, "grad_output", sizes);
  o.RequireSameDtype({0, 1});
}

}  // namespace

void CheckMaxPool2dBackward(const Operands& o) { CheckPool(o, 2); }
void CheckMaxPool3dBackward(const Operands& o) { CheckPool(o, 3); }
void CheckReflectionPad1dBackward(const Operands& o) { CheckReflection(o, 1); }
void CheckReflectionPad2dBackward(const Operands& o) { CheckReflection(o, 2); }
void CheckReflectionPad3dBackward(const Operands& o) { CheckReflection(o, 3); }

// embedding_dense_backward(grad_output, indices, num_weights, padding_idx, scale_grad_by_freq)
void CheckEmbeddingBackward(const Operands& o) {
  o.Require(o.Int(2) >= 0 && o.Int(2) < kMaxElements, "num_weights ", o.Int(2), " is out of range.");
  o.RequireRank(0, "grad_output", 1, 64);
  std::vector<int64_t> sizes = o.Tensor(1).sizes().vec();
  sizes.push_back(o.Size(0, -1));
  o.RequireSizes(0, "grad_output", sizes);
  const int64_t padding = o.Int(3);
  o.RequireRange(o.Tensor(1), "index", 0, o.Int(2), &padding);
}

// _embedding_bag_dense_backward(grad, indices, offset2bag, bag_size, maximum_indices, num_weights, scale_grad_by_freq,
// mode, per_sample_weights, padding_idx)
void CheckEmbeddingBagBackward(const Operands& o) {
  o.RequireRank(0, "grad", 2, 2);
  o.RequireRank(1, "indices", 1, 1);
  const int64_t bags = o.Size(0, 0), weights = o.Int(5), mode = o.Int(7);
  o.Require(weights >= 0 && weights < kMaxElements, "num_weights ", weights, " is out of range.");
  o.Require(mode >= 0 && mode <= 2, "mode ", mode, " is none of 0, 1 and 2.");
  o.RequireRange(o.Tensor(1), "index", 0, weights);
  o.RequireSameDtype({1, 2, 3});
  if (mode != 2 || o.Tensor(2).numel() != 0) {
    o.RequireSizes(2, "offset2bag", o.Tensor(1).sizes());
    o.RequireRange(o.Tensor(2), "offset2bag", 0, bags);
  }
  o.RequireSizes(3, "bag_size", {bags});
  if (mode == 2) {
    o.RequireSizes(4, "maximum_indices", o.Tensor(0).sizes());
    // -1 marks an empty bag.
    o.RequireRange(o.Tensor(4), "maximum index", -1, weights);
  }
  if (o.Given(8)) {
    o.RequireSizes(8, "per_sample_weights", o.Tensor(1).sizes());
    o.RequireSameDtype({0, 8});
  }
}

}  // namespace mycelya::exec
