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
DimVector with_last(const Tensor& t, IntArrayRef last) {
  DimVector sizes(t.sizes().begin(), t.sizes().end() - static_cast<int64_t>(last.size()));
  sizes.append(last.begin(), last.end());
  return sizes;
}

MemoryFormat format_of(const Tensor& t) { return t.suggest_memory_format(); }

void check_rank(const Tensor& self, int64_t spatial, const char* name) {
  TORCH_CHECK(self.dim() == spatial + 1 || self.dim() == spatial + 2, name, "(): Expected ", spatial + 1, "D or ",
              spatial + 2, "D tensor, but got ", self.sizes());
}

// Kernels divide by these sizes.
void check_not_empty(const Tensor& t, const char* what) {
  for (int64_t d = 1; d < t.dim(); ++d) {
    TORCH_CHECK(t.size(d) > 0, what, " to have non-zero size for non-batch dimensions, but got ", t.sizes(),
                " with dimension ", d, " being empty");
  }
}

// self output_size
template <int kSpatial>
void adaptive_average(Args args, OutMetas& out) {
  const Tensor self = tensor(args, 0);
  auto size = ints(args, 1);
  check_rank(self, kSpatial, kSpatial == 2 ? "adaptive_avg_pool2d" : "adaptive_avg_pool3d");
  TORCH_CHECK(size.size() == kSpatial, "adaptive_avg_pool", kSpatial, "d: output_size must be ", kSpatial);
  check_not_empty(self,
                  kSpatial == 2 ? "adaptive_avg_pool2d(): Expected input" : "adaptive_avg_pool3d(): Expected input");
  add_format(out, with_last(self, size), self.scalar_type(),
             kSpatial == 2 ? format_of(self) : MemoryFormat::Contiguous);
}

// grad self
void adaptive_average2d_backward(Args args, OutMetas& out) {
  check_not_empty(tensor(args, 0), "adaptive_avg_pool2d_backward(): Expected grad_output");
  add_like_suggested(out, tensor(args, 1));
}
void adaptive_average3d_backward(Args args, OutMetas& out) {
  check_not_empty(tensor(args, 0), "adaptive_avg_pool3d_backward(): Expected grad_output");
  add_like_contiguous(out, tensor(args, 1));
}

int64_t at(const DimVector& v, size_t i) { return v.size() == 1 ? v[0] : v[i]; }

// self kernel stride padding dilation ceil_mode -> output, indices
void max_pool3d(Args args, OutMetas& out) {
  const Tensor self = tensor(args, 0);
  check_rank(self, 3, "max_pool3d");
  const auto kernel = ints(args, 1), padding = ints(args, 3), dilation = ints(args, 4);
  auto stride = ints(args, 2);
  if (stride.empty()) stride = kernel;
  DimVector size;
  for (size_t i = 0; i < 3; ++i) {
    size.push_back(pooling_output_shape<int64_t>(self.size(static_cast<int64_t>(i) - 3), at(kernel, i), at(padding, i),
                                                 at(stride, i), at(dilation, i), args[5].toBool()));
  }
  const auto sizes = with_last(self, size);
  const auto format = format_of(self);
  add_format(out, sizes, self.scalar_type(), format);
  add_format(out, sizes, ScalarType::Long, format);
}

// grad self …
void like_suggested(Args args, OutMetas& out) { add_like_suggested(out, tensor(args, 1)); }
void like_contiguous(Args args, OutMetas& out) { add_like_contiguous(out, tensor(args, 1)); }

// self indices output_size …
template <int kSpatial>
void max_unpool(Args args, OutMetas& out) {
  const Tensor self = tensor(args, 0), indices = tensor(args, 1);
  TORCH_CHECK(indices.scalar_type() == ScalarType::Long,
              "elements in indices should be type int64 but got: ", indices.scalar_type());
  TORCH_CHECK(self.sizes() == indices.sizes(), "Expected shape of indices to be same as that of the input tensor (",
              self.sizes(), ") but got indices tensor with shape: ", indices.sizes());
  add_format(out, with_last(self, ints(args, 2)), self.scalar_type(),
             kSpatial == 2 ? format_of(self) : MemoryFormat::Contiguous);
}

// self padding (left, right, top, bottom); strict as reflection wants it
void reflection_pad2d(Args args, OutMetas& out) {
  const Tensor self = tensor(args, 0);
  const auto pad = ints(args, 1);
  check_rank(self, 2, "reflection_pad2d");
  const int64_t h = self.size(-2), w = self.size(-1);
  TORCH_CHECK(pad[0] < w && pad[1] < w, "Argument #4: Padding size should be less than the corresponding input ",
              "dimension, but got: padding (", pad[0], ", ", pad[1], ") at dimension ", self.dim() - 1, " of input ",
              self.sizes());
  TORCH_CHECK(pad[2] < h && pad[3] < h, "Argument #6: Padding size should be less than the corresponding input ",
              "dimension, but got: padding (", pad[2], ", ", pad[3], ") at dimension ", self.dim() - 2, " of input ",
              self.sizes());
  add_format(out, with_last(self, {h + pad[2] + pad[3], w + pad[0] + pad[1]}), self.scalar_type(),
             on_cuda() ? MemoryFormat::Contiguous : format_of(self));
}

// They have a structured form, but the CPU's kernels keep the memory format of the input.
template <int kOp>
void pad(Args args, OutMetas& out) {
  static constexpr const char* kNames[] = {"reflection_pad3d", "replication_pad2d", "replication_pad3d"};
  structured(kNames[kOp], args, out);
  if (on_cuda()) return;
  const OutMeta result = out.pop_back_val();
  add_format(out, result.sizes, result.dtype, format_of(tensor(args, 0)));
}

void pad_backward(Args args, OutMetas& out) {
  const Tensor self = tensor(args, 1);
  on_cuda() ? add_like(out, self) : add_like_suggested(out, self);
}

// input [n, c, *] grid [n, *, 2 or 3]: interpolation padding align_corners
template <int kSpatial>
void grid_sampler(Args args, OutMetas& out) {
  const Tensor input = tensor(args, 0), grid = tensor(args, 1);
  at::native::check_grid_sampler_common(input, grid);
  DimVector sizes{input.size(0), input.size(1)};
  for (int i = 1; i <= kSpatial; ++i) sizes.push_back(grid.size(i));
  add_contiguous(out, sizes, input.scalar_type());
}

// grad input grid interpolation padding align_corners mask
void grid_sampler_backward(Args args, OutMetas& out) {
  mask(args, 6, 0) ? add_like_contiguous(out, tensor(args, 1)) : add_undefined(out);
  add_like_contiguous(out, tensor(args, 2));
}

// theta [n, …] size [n, c, (d,) h, w] align_corners -> [n, (d,) h, w, rank]
void affine_grid(Args args, OutMetas& out) {
  const Tensor theta = tensor(args, 0);
  const auto size = ints(args, 1);
  TORCH_CHECK(size.size() == 4 || size.size() == 5,
              "AffineGridGenerator needs 4d (spatial) or 5d (volumetric) inputs.");
  DimVector sizes{size[0]};
  sizes.append(size.begin() + 2, size.end());
  sizes.push_back(static_cast<int64_t>(size.size()) - 2);
  add_contiguous(out, sizes, theta.scalar_type());
}

int64_t windows(int64_t size, int64_t kernel, int64_t dilation, int64_t padding, int64_t stride) {
  return (size + 2 * padding - (dilation * (kernel - 1) + 1)) / stride + 1;
}

// self [n?, c, h, w]: kernel dilation padding stride -> [n?, c*kh*kw, windows]
void im2col(Args args, OutMetas& out) {
  const Tensor self = tensor(args, 0);
  const auto kernel = ints(args, 1), dilation = ints(args, 2), padding = ints(args, 3), stride = ints(args, 4);
  check_rank(self, 2, "im2col");
  int64_t n = 1;
  for (size_t i = 0; i < 2; ++i) {
    n *= windows(self.size(static_cast<int64_t>(i) - 2), kernel[i], dilation[i], padding[i], stride[i]);
  }
  TORCH_CHECK(n > 0, "Given input with spatial size (", self.size(-2), ", ", self.size(-1), "), kernel_size=(",
              kernel[0], ", ", kernel[1], "), dilation=(", dilation[0], ", ", dilation[1], "), padding=(", padding[0],
              ", ", padding[1], "), stride=(", stride[0], ", ", stride[1],
              "), calculated shape of the array of sliding blocks is not positive");
  DimVector sizes{self.size(-3) * kernel[0] * kernel[1], n};
  if (self.dim() == 4) sizes.insert(sizes.begin(), self.size(0));
  add_contiguous(out, sizes, self.scalar_type());
}

// self [n?, c*kh*kw, windows]: output_size kernel … -> [n?, c, h, w]
void col2im(Args args, OutMetas& out) {
  const Tensor self = tensor(args, 0);
  const auto size = ints(args, 1), kernel = ints(args, 2);
  TORCH_CHECK(self.dim() == 2 || self.dim() == 3, "Expected 2D or 3D (batch mode) tensor for input with possibly 0 ",
              "batch size and non-zero dimensions for input, but got: ", self.sizes());
  DimVector sizes{self.size(-2) / (kernel[0] * kernel[1]), size[0], size[1]};
  if (self.dim() == 3) sizes.insert(sizes.begin(), self.size(0));
  add_contiguous(out, sizes, self.scalar_type());
}

constexpr RuleRow kRows[] = {
    {"_adaptive_avg_pool2d", adaptive_average<2>},
    {"_adaptive_avg_pool2d_backward", adaptive_average2d_backward},
    {"_adaptive_avg_pool3d", adaptive_average<3>},
    {"_adaptive_avg_pool3d_backward", adaptive_average3d_backward},
    {"adaptive_avg_pool2d", adaptive_average<2>},
    {"adaptive_avg_pool3d", adaptive_average<3>},
    {"affine_grid_generator", affine_grid},
    {"col2im", col2im},
    {"fractional_max_pool3d_backward", like_contiguous},
    {"grid_sampler_2d", grid_sampler<2>},
    {"grid_sampler_2d_backward", grid_sampler_backward},
    {"grid_sampler_3d", grid_sampler<3>},
    {"grid_sampler_3d_backward", grid_sampler_backward},
    {"im2col", im2col},
    {"max_pool3d_with_indices", max_pool3d},
    {"max_pool3d_with_indices_backward", like_suggested},
    {"max_unpool2d", max_unpool<2>},
    {"max_unpool3d", max_unpool<3>},
    {"reflection_pad2d", reflection_pad2d},
    {"reflection_pad2d_backward", pad_backward},
    {"reflection_pad3d", pad<0>},
    {"reflection_pad3d_backward", pad_backward},
    {"replication_pad2d", pad<1>},
    {"replication_pad2d_backward", pad_backward},
    {"replication_pad3d", pad<2>},
    {"replication_pad3d_backward", pad_backward},
};

}  // namespace

RuleRows pool_rules() { return kRows; }

}  // namespace mycelya::rules
