// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Pooling, padding, unfolding and sampling of images without a structured form. Shapes: [n?, c, (d,) h, w].

#include <ATen/native/GridSamplerUtils.h>
#include <ATen/native/Pool.h>

#include "device/rules/RulesInternal.h"

namespace mycelya::rules {
namespace {

using at::native::pooling_output_shape;

// The sizes of t without its last n, then `last`.
DimVector WithLast(const Tensor& t, IntArrayRef last) {
  DimVector sizes(t.sizes().begin(), t.sizes().end() - static_cast<int64_t>(last.size()));
  sizes.append(last.begin(), last.end());
  return sizes;
}

MemoryFormat FormatOf(const Tensor& t) { return t.suggest_memory_format(); }

void CheckRank(const Tensor& self, int64_t spatial, const char* name) {
  TORCH_CHECK(self.dim() == spatial + 1 || self.dim() == spatial + 2, name, "(): Expected ", spatial + 1, "D or ",
              spatial + 2, "D tensor, but got ", self.sizes());
}

// Kernels divide by these sizes.
void CheckNotEmpty(const Tensor& t, const char* what) {
  for (int64_t d = 1; d < t.dim(); ++d) {
    TORCH_CHECK(t.size(d) > 0, what, " to have non-zero size for non-batch dimensions, but got ", t.sizes(),
                " with dimension ", d, " being empty");
  }
}

// self output_size
template <int kSpatial>
void AdaptiveAverage(Args args, OutMetas& out) {
  const Tensor self = TensorAt(args, 0);
  auto size = IntsAt(args, 1);
  CheckRank(self, kSpatial, kSpatial == 2 ? "adaptive_avg_pool2d" : "adaptive_avg_pool3d");
  TORCH_CHECK(size.size() == kSpatial, "adaptive_avg_pool", kSpatial, "d: output_size must be ", kSpatial);
  CheckNotEmpty(self,
                kSpatial == 2 ? "adaptive_avg_pool2d(): Expected input" : "adaptive_avg_pool3d(): Expected input");
  AddFormat(out, WithLast(self, size), self.scalar_type(), kSpatial == 2 ? FormatOf(self) : MemoryFormat::Contiguous);
}

// grad self
void AdaptiveAverage2dBackward(Args args, OutMetas& out) {
  CheckNotEmpty(TensorAt(args, 0), "adaptive_avg_pool2d_backward(): Expected grad_output");
  AddLikeSuggested(out, TensorAt(args, 1));
}
void AdaptiveAverage3dBackward(Args args, OutMetas& out) {
  CheckNotEmpty(TensorAt(args, 0), "adaptive_avg_pool3d_backward(): Expected grad_output");
  AddLikeContiguous(out, TensorAt(args, 1));
}

int64_t At(const DimVector& v, size_t i) { return v.size() == 1 ? v[0] : v[i]; }

// self kernel stride padding dilation ceil_mode -> output, indices
void MaxPool3d(Args args, OutMetas& out) {
  const Tensor self = TensorAt(args, 0);
  CheckRank(self, 3, "max_pool3d");
  const auto kernel = IntsAt(args, 1), padding = IntsAt(args, 3), dilation = IntsAt(args, 4);
  auto stride = IntsAt(args, 2);
  if (stride.empty()) stride = kernel;
  DimVector size;
  for (size_t i = 0; i < 3; ++i) {
    size.push_back(pooling_output_shape<int64_t>(self.size(static_cast<int64_t>(i) - 3), At(kernel, i), At(padding, i),
                                                 At(stride, i), At(dilation, i), args[5].toBool()));
  }
  const auto sizes = WithLast(self, size);
  const auto format = FormatOf(self);
  AddFormat(out, sizes, self.scalar_type(), format);
  AddFormat(out, sizes, ScalarType::Long, format);
}

// grad self …
void LikeSuggested(Args args, OutMetas& out) { AddLikeSuggested(out, TensorAt(args, 1)); }
void LikeContiguousInput(Args args, OutMetas& out) { AddLikeContiguous(out, TensorAt(args, 1)); }

// self indices output_size …
template <int kSpatial>
void MaxUnpool(Args args, OutMetas& out) {
  const Tensor self = TensorAt(args, 0), indices = TensorAt(args, 1);
  TORCH_CHECK(indices.scalar_type() == ScalarType::Long,
              "elements in indices should be type int64 but got: ", indices.scalar_type());
  TORCH_CHECK(self.sizes() == indices.sizes(), "Expected shape of indices to be same as that of the input tensor (",
              self.sizes(), ") but got indices tensor with shape: ", indices.sizes());
  AddFormat(out, WithLast(self, IntsAt(args, 2)), self.scalar_type(),
            kSpatial == 2 && !OnCuda() ? FormatOf(self) : MemoryFormat::Contiguous);
}

// self padding (left, right, top, bottom); strict as reflection wants it
void ReflectionPad2d(Args args, OutMetas& out) {
  const Tensor self = TensorAt(args, 0);
  const auto pad = IntsAt(args, 1);
  CheckRank(self, 2, "reflection_pad2d");
  const int64_t h = self.size(-2), w = self.size(-1);
  TORCH_CHECK(pad[0] < w && pad[1] < w, "Argument #4: Padding size should be less than the corresponding input ",
              "dimension, but got: padding (", pad[0], ", ", pad[1], ") at dimension ", self.dim() - 1, " of input ",
              self.sizes());
  TORCH_CHECK(pad[2] < h && pad[3] < h, "Argument #6: Padding size should be less than the corresponding input ",
              "dimension, but got: padding (", pad[2], ", ", pad[3], ") at dimension ", self.dim() - 2, " of input ",
              self.sizes());
  AddFormat(out, WithLast(self, {h + pad[2] + pad[3], w + pad[0] + pad[1]}), self.scalar_type(),
            OnCuda() ? MemoryFormat::Contiguous : FormatOf(self));
}

// They have a structured form, but the CPU's kernels keep the memory format of the input.
template <int kOp>
void Pad(Args args, OutMetas& out) {
  static constexpr const char* kNames[] = {"reflection_pad3d", "replication_pad2d", "replication_pad3d"};
  Structured(kNames[kOp], args, out);
  if (OnCuda()) return;
  const OutMeta result = out.pop_back_val();
  AddFormat(out, result.sizes, result.dtype, FormatOf(TensorAt(args, 0)));
}

void PadBackward(Args args, OutMetas& out) {
  const Tensor self = TensorAt(args, 1);
  OnCuda() ? AddLikeContiguous(out, self) : AddLikeSuggested(out, self);
}

// input [n, c, *] grid [n, *, 2 or 3]: interpolation padding align_corners
template <int kSpatial>
void GridSampler(Args args, OutMetas& out) {
  const Tensor input = TensorAt(args, 0), grid = TensorAt(args, 1);
  at::native::check_grid_sampler_common(input, grid);
  DimVector sizes{input.size(0), input.size(1)};
  for (int i = 1; i <= kSpatial; ++i) sizes.push_back(grid.size(i));
  AddContiguous(out, sizes, input.scalar_type());
}

// grad input grid interpolation padding align_corners mask
void GridSamplerBackward(Args args, OutMetas& out) {
  MaskAt(args, 6, 0) ? AddLikeContiguous(out, TensorAt(args, 1)) : AddUndefined(out);
  AddLikeContiguous(out, TensorAt(args, 2));
}

// theta [n, …] size [n, c, (d,) h, w] align_corners -> [n, (d,) h, w, rank]
void AffineGrid(Args args, OutMetas& out) {
  const Tensor theta = TensorAt(args, 0);
  const auto size = IntsAt(args, 1);
  TORCH_CHECK(size.size() == 4 || size.size() == 5,
              "AffineGridGenerator needs 4d (spatial) or 5d (volumetric) inputs.");
  DimVector sizes{size[0]};
  sizes.append(size.begin() + 2, size.end());
  sizes.push_back(static_cast<int64_t>(size.size()) - 2);
  AddContiguous(out, sizes, theta.scalar_type());
}

int64_t Windows(int64_t size, int64_t kernel, int64_t dilation, int64_t padding, int64_t stride) {
  return (size + 2 * padding - (dilation * (kernel - 1) + 1)) / stride + 1;
}

// self [n?, c, h, w]: kernel dilation padding stride -> [n?, c*kh*kw, windows]
void Im2col(Args args, OutMetas& out) {
  const Tensor self = TensorAt(args, 0);
  const auto kernel = IntsAt(args, 1), dilation = IntsAt(args, 2), padding = IntsAt(args, 3), stride = IntsAt(args, 4);
  CheckRank(self, 2, "im2col");
  int64_t n = 1;
  for (size_t i = 0; i < 2; ++i) {
    n *= Windows(self.size(static_cast<int64_t>(i) - 2), kernel[i], dilation[i], padding[i], stride[i]);
  }
  TORCH_CHECK(n > 0, "Given input with spatial size (", self.size(-2), ", ", self.size(-1), "), kernel_size=(",
              kernel[0], ", ", kernel[1], "), dilation=(", dilation[0], ", ", dilation[1], "), padding=(", padding[0],
              ", ", padding[1], "), stride=(", stride[0], ", ", stride[1],
              "), calculated shape of the array of sliding blocks is not positive");
  DimVector sizes{self.size(-3) * kernel[0] * kernel[1], n};
  if (self.dim() == 4) sizes.insert(sizes.begin(), self.size(0));
  AddContiguous(out, sizes, self.scalar_type());
}

// self [n?, c*kh*kw, windows]: output_size kernel … -> [n?, c, h, w]
void Col2im(Args args, OutMetas& out) {
  const Tensor self = TensorAt(args, 0);
  const auto size = IntsAt(args, 1), kernel = IntsAt(args, 2);
  TORCH_CHECK(self.dim() == 2 || self.dim() == 3, "Expected 2D or 3D (batch mode) tensor for input with possibly 0 ",
              "batch size and non-zero dimensions for input, but got: ", self.sizes());
  DimVector sizes{self.size(-2) / (kernel[0] * kernel[1]), size[0], size[1]};
  if (self.dim() == 3) sizes.insert(sizes.begin(), self.size(0));
  AddContiguous(out, sizes, self.scalar_type());
}

constexpr RuleRow kPoolRows[] = {
    {"_adaptive_avg_pool2d", AdaptiveAverage<2>},
    {"_adaptive_avg_pool2d_backward", AdaptiveAverage2dBackward},
    {"_adaptive_avg_pool3d", AdaptiveAverage<3>},
    {"_adaptive_avg_pool3d_backward", AdaptiveAverage3dBackward},
    {"adaptive_avg_pool2d", AdaptiveAverage<2>},
    {"adaptive_avg_pool3d", AdaptiveAverage<3>},
    {"affine_grid_generator", AffineGrid},
    {"col2im", Col2im},
    {"fractional_max_pool3d_backward", LikeContiguousInput},
    {"grid_sampler_2d", GridSampler<2>},
    {"grid_sampler_2d_backward", GridSamplerBackward},
    {"grid_sampler_3d", GridSampler<3>},
    {"grid_sampler_3d_backward", GridSamplerBackward},
    {"im2col", Im2col},
    {"max_pool3d_with_indices", MaxPool3d},
    {"max_pool3d_with_indices_backward", LikeSuggested},
    {"max_unpool2d", MaxUnpool<2>},
    {"max_unpool3d", MaxUnpool<3>},
    {"reflection_pad2d", ReflectionPad2d},
    {"reflection_pad2d_backward", PadBackward},
    {"reflection_pad3d", Pad<0>},
    {"reflection_pad3d_backward", PadBackward},
    {"replication_pad2d", Pad<1>},
    {"replication_pad2d_backward", PadBackward},
    {"replication_pad3d", Pad<2>},
    {"replication_pad3d_backward", PadBackward},
};

}  // namespace

RuleRows PoolRules() { return kPoolRows; }

}  // namespace mycelya::rules
