// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Guards of gradients of embeddings, pooling and padding, which write to places that their operands name.
#include <algorithm>

#include "exec/guards/GuardOperands.h"

namespace mycelya::exec {
namespace {

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
  // Some kernels read indices as if they were contiguous.
  o.Require(o.Tensor(indices).is_non_overlapping_and_dense(), "indices of sizes ", o.Tensor(indices).sizes(),
            " and strides ", o.Tensor(indices).strides(), " are not dense.");
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

// grad_output [..,out], input [..,in] with n last dims.
void CheckAveragePool(const Operands& o, int64_t n) {
  o.RequireRank(1, "self", n + 1, n + 2);
  o.RequireRank(0, "grad_output", n + 1, n + 2);
  const at::IntArrayRef grad = o.Tensor(0).sizes(), self = o.Tensor(1).sizes();
  o.Require(grad.size() == self.size() && grad.slice(0, grad.size() - n) == self.slice(0, self.size() - n),
            "grad_output of sizes ", grad, " does not fit to self of sizes ", self, ".");
  o.Require((o.Tensor(0).numel() == 0) == (o.Tensor(1).numel() == 0), "grad_output has sizes ", grad,
            " and self has sizes ", self, "; only one of them is empty.");
  o.RequireSameDtype({0, 1});
}

void CheckFractionalPool(const Operands& o, size_t n) {
  const size_t kernel = o.Ints(2).size(), output = o.Ints(3).size();
  o.Require(kernel == n && output == n, "kernel_size and output_size have ", kernel, " and ", output, " numbers, not ",
            n, ".");
  CheckPool(o, n);
}

}  // namespace

// Operators that resample. With a scale near 0, their kernels would read far outside of the input.
void CheckScales(const Operands& o) {
  for (size_t i = 0; i < o.size(); ++i) {
    if (!o.IsReal(i)) continue;
    o.Require(o.Real(i) > 1e-9 && o.Real(i) < 1e9, "scale ", o.Real(i), " is out of range.");
  }
}

// adaptive_max_pool2d, adaptive_max_pool3d, _adaptive_avg_pool2d and _adaptive_avg_pool3d(self, output_size). Their
// kernels loop over all rows of the output, even if the rows have no elements, so a huge output size would take hours.
void CheckAdaptivePool(const Operands& o) {
  constexpr int64_t kMaxSize = 1 << 20;
  for (const int64_t size : o.Ints(1)) {
    o.Require(size >= 0 && size <= kMaxSize, "output_size has ", size, "; the range is 0 to ", kMaxSize, ".");
  }
}

void CheckAdaptiveAvgPool2dBackward(const Operands& o) { CheckAveragePool(o, 2); }
void CheckAdaptiveAvgPool3dBackward(const Operands& o) { CheckAveragePool(o, 3); }
void CheckMaxPool2dBackward(const Operands& o) { CheckPool(o, 2); }
void CheckMaxPool3dBackward(const Operands& o) { CheckPool(o, 3); }

// fractional_max_pool2d_backward and fractional_max_pool3d_backward(grad_output, self, kernel_size, output_size,
// indices): the kernels take as many numbers as there are dims.
void CheckFractionalPool2dBackward(const Operands& o) { CheckFractionalPool(o, 2); }
void CheckFractionalPool3dBackward(const Operands& o) { CheckFractionalPool(o, 3); }

void CheckReflectionPad1dBackward(const Operands& o) { CheckReflection(o, 1); }
void CheckReflectionPad2dBackward(const Operands& o) { CheckReflection(o, 2); }
void CheckReflectionPad3dBackward(const Operands& o) { CheckReflection(o, 3); }

// _slow_conv2d_backward(grad_output, self, weight, kernel_size, stride, padding, output_mask)
void CheckSlowConvBackward(const Operands& o) {
  o.RequireRank(1, "self", 3, 4);
  o.RequireRank(2, "weight", 4, 4);
  const at::Tensor& self = o.Tensor(1);
  const std::vector<int64_t> kernel = o.Ints(3), stride = o.Ints(4), padding = o.Ints(5);
  o.Require(kernel.size() == 2 && stride.size() == 2 && padding.size() == 2, "kernel_size, stride and padding have ",
            kernel.size(), ", ", stride.size(), " and ", padding.size(), " numbers, not 2.");
  std::vector<int64_t> sizes = self.sizes().vec();
  o.RequireSizes(2, "weight", {o.Size(2, 0), self.size(-3), kernel[0], kernel[1]});
  for (size_t i = 0; i < 2; ++i) {
    int64_t& size = sizes[sizes.size() - 2 + i];
    o.Require(kernel[i] > 0 && stride[i] > 0 && padding[i] >= 0 && padding[i] < kMaxElements &&
                  size + 2 * padding[i] >= kernel[i],
              "a dim of size ", size, " has no result with kernel_size ", kernel[i], ", stride ", stride[i],
              " and padding ", padding[i], ".");
    size = (size + 2 * padding[i] - kernel[i]) / stride[i] + 1;
  }
  sizes[sizes.size() - 3] = o.Size(2, 0);
  o.RequireSizes(0, "grad_output", sizes);
  o.RequireSameDtype({0, 1, 2});
}

// unfold_backward(grad_in, input_sizes, dim, size, step)
void CheckUnfoldBackward(const Operands& o) {
  std::vector<int64_t> sizes = o.Ints(1);
  const bool number = sizes.empty();
  if (number) sizes = {1};  // a number is one window of one element
  const auto rank = static_cast<int64_t>(sizes.size());
  const int64_t dim = o.Int(2) < 0 ? o.Int(2) + rank : o.Int(2), size = o.Int(3), step = o.Int(4);
  o.Require(dim >= 0 && dim < rank, "dim ", o.Int(2), " is out of range for ", rank, " dims.");
  o.Require(size >= 0 && step > 0 && size <= sizes[dim], "windows of ", size, " in steps of ", step,
            " do not fit into a dim of ", sizes[dim], ".");
  sizes[dim] = (sizes[dim] - size) / step + 1;
  if (!number) sizes.push_back(size);
  o.RequireSizes(0, "grad_in", sizes);
}

// max_unpool2d(self, indices, output_size), max_unpool3d(self, indices, output_size, stride, padding)
void CheckUnpool(const Operands& o) {
  int64_t elements = 1;
  for (const int64_t size : o.Ints(2)) {
    o.Require(size >= 0 && size < kMaxElements && elements < kMaxElements, "output_size ", size, " is out of range.");
    elements *= size;
  }
  if (o.Given(1)) o.RequireRange(o.Tensor(1), "index", 0, elements);
}

// index(self, indices), index_put(self, indices, values, ...): the i-th index tensor counts along one dim, a mask along
// as many dims as it has.
void CheckIndexList(const Operands& o) {
  const at::Tensor& self = o.Tensor(0);
  int64_t dim = 0;
  for (const at::Tensor& t : o.OptionalTensors(1)) {
    if (t.defined() && (t.scalar_type() == c10::ScalarType::Bool || t.scalar_type() == c10::ScalarType::Byte)) {
      dim += t.dim();
      continue;
    }
    if (t.defined() && dim < self.dim()) o.RequireRange(t, "index", -self.size(dim), self.size(dim));
    ++dim;
  }
}

// multilabel_margin_loss_forward(self, target, reduction), and its backward(grad_output, self, target, ...). -1 ends a
// row.
void CheckMultilabelMargin(const Operands& o) {
  const size_t self = o.name().find("backward") == std::string::npos ? 0 : 1;
  if (o.Tensor(self).dim() > 0) o.RequireRange(o.Tensor(self + 1), "target", -1, o.Size(self, -1));
}

// reflection_pad<n>d and replication_pad<n>d(self, padding), and replication_pad<n>d_backward(grad_output, self,
// padding)
void CheckPadding(const Operands& o) {
  const int64_t n = o.name()[o.name().find("_pad") + 4] - '0';
  const size_t self = o.name().find("backward") == std::string::npos ? 0 : 1;
  o.RequireRank(self, "self", n + 1, n + 2);
  const std::vector<int64_t> padding = o.Ints(self + 1);
  o.Require(padding.size() == static_cast<size_t>(2 * n), "padding has ", padding.size(), " numbers, not ", 2 * n, ".");
  for (const int64_t pad : padding) {
    o.Require(pad > -kMaxElements && pad < kMaxElements, "padding ", pad, " is out of range.");
  }
}

// _embedding_bag(weight, indices, offsets, scale_grad_by_freq, mode, sparse, per_sample_weights, include_last_offset)
void CheckEmbeddingBag(const Operands& o) {
  o.RequireRank(0, "weight", 2, 2);
  o.RequireRank(1, "indices", 1, 1);
  o.RequireRank(2, "offsets", 1, 1);
  o.Require(o.Int(4) >= 0 && o.Int(4) <= 2, "mode ", o.Int(4), " is none of 0, 1 and 2.");
  const at::Tensor& offsets = o.Tensor(2);
  o.RequireRange(offsets, "offset", 0, o.Tensor(1).numel() + 1);
  o.RequireOrdered(offsets, "offsets");
  const int64_t bags = offsets.numel() - (o.Bool(7) ? 1 : 0);
  o.Require(bags > 0 || o.Tensor(1).numel() == 0, "there is no bag for ", o.Tensor(1).numel(), " indices.");
  if (!o.Given(6)) return;
  o.RequireSizes(6, "per_sample_weights", o.Tensor(1).sizes());
  o.RequireSameDtype({0, 6});
}

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
  // CUDA's has an element more if the last offset is included.
  o.RequireRank(3, "bag_size", 1, 1);
  o.Require(o.Size(3, 0) >= bags, "bag_size has ", o.Size(3, 0), " elements, not ", bags, ".");
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
