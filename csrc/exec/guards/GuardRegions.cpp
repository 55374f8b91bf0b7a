// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Guards of torchvision's operators: pooling of regions, and the deformable convolution. Their kernels index with 32
// bits, and read and write where their operands say.
#include <ATen/ops/aminmax.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "exec/guards/GuardOperands.h"

namespace mycelya::exec {
namespace {

constexpr int64_t kMaxIndex = std::numeric_limits<int32_t>::max();

// Requires that all numbers are at least 0, or `least`, and returns their product.
int64_t Elements(const Operands& o, const char* what, at::IntArrayRef sizes, int64_t least = 0) {
  int64_t n = 1;
  for (const int64_t size : sizes) {
    o.Require(size >= least, what, " has sizes ", sizes, "; each must be at least ", least, ".");
    o.Require(size == 0 || n <= kMaxIndex / size, what, " of sizes ", sizes, " has more than ", kMaxIndex,
              " elements.");
    n *= size;
  }
  return n;
}

// What the operators on regions share.
struct Regions {
  std::array<int64_t, 4> image{};  // sizes [n, c, h, w]
  std::array<int64_t, 2> pooled{};
  double scale = 0;
  at::Tensor rows;  // f64[k, 5] on the CPU: the number of an image, then x and y of two corners

  int64_t count() const { return rows.size(0); }
  const double* row(int64_t i) const { return rows.const_data_ptr<double>() + 5 * i; }
};

// The operand at `rois` names images, and the scale and the sizes of the pooled grid follow at `scale`. One transfer,
// so that CUDA waits once.
Regions RegionsOf(const Operands& o, at::IntArrayRef image, size_t scale) {
  Regions r;
  std::copy(image.begin(), image.end(), r.image.begin());
  Elements(o, "the image", image);
  r.scale = o.Real(scale);
  r.pooled = {o.Int(scale + 1), o.Int(scale + 2)};
  o.RequireRank(1, "rois", 2, 2);
  o.Require(o.Tensor(1).size(1) == 5, "rois have sizes ", o.Tensor(1).sizes(), ", not [k, 5].");
  o.RequireSameDtype({0, 1});
  r.rows = o.Tensor(1).to(c10::Device(c10::DeviceType::CPU), c10::ScalarType::Double).contiguous();
  Elements(o, "the result", {r.count(), r.image[1], r.pooled[0], r.pooled[1]});
  for (int64_t i = 0; i < r.count(); ++i) {
    const double image_of = r.row(i)[0];  // its fraction does not count
    o.Require(image_of >= 0 && image_of < static_cast<double>(r.image[0]), "rois batch index ", image_of,
              " must be in [0, ", r.image[0], ").");
  }
  return r;
}

// (input [n,c,h,w], rois, scale, pooled_h, pooled_w, ...)
Regions ForwardRegions(const Operands& o) {
  o.RequireRank(0, "input", 4, 4);
  return RegionsOf(o, o.Tensor(0).sizes(), 2);
}

// (grad [k,channels,pooled_h,pooled_w], rois, ...), where `sizes` is the first of four arguments: n, c, h, w. maps: an
// image's channels are those of as many images as the pooled grid has points.
Regions BackwardRegions(const Operands& o, size_t scale, size_t sizes, bool maps) {
  Regions r = RegionsOf(o, {o.Int(sizes), o.Int(sizes + 1), o.Int(sizes + 2), o.Int(sizes + 3)}, scale);
  const int64_t points = maps ? Elements(o, "the pooled grid", r.pooled, 1) : 1;
  o.RequireSizes(0, "grad", {r.count(), r.image[1] / points, r.pooled[0], r.pooled[1]});
  return r;
}

// An operand i32 as grad whose elements lie in [low, high).
void CheckPlaces(const Operands& o, size_t i, const char* what, int64_t low, int64_t high) {
  o.RequireSizes(i, what, o.Tensor(0).sizes());
  o.Require(o.Tensor(i).scalar_type() == c10::ScalarType::Int && o.Tensor(i).is_contiguous(), what, " has dtype ",
            o.Tensor(i).scalar_type(), " and strides ", o.Tensor(i).strides(), "; it must be int32 and contiguous.");
  if (o.Tensor(i).numel() == 0) return;
  const auto [least, greatest] = at::aminmax(o.Tensor(i));
  const at::Tensor both = at::stack({least, greatest}).cpu();  // one transfer
  const auto* bounds = both.const_data_ptr<int32_t>();
  o.Require(bounds[0] >= low && bounds[1] < high, what, " values must be in [", low, ", ", high, "), but ",
            bounds[0] < low ? bounds[0] : bounds[1], " is not.");
}

// The largest number of a dtype. A larger one is infinite in a kernel.
double LargestOf(c10::ScalarType t) {
  return t == c10::ScalarType::Half     ? 65504.
         : t == c10::ScalarType::Double ? std::numeric_limits<double>::max()
                                        : std::numeric_limits<float>::max();
}

// Kernels that interpolate convert coordinates to integers before they compare them. A NaN would be an index far
// outside of the image; it comes of a NaN or of an infinite width. `ratio` points of a bin in each dim are sampled, or,
// if it is 0 or less, one for each pixel.
void CheckSampled(const Operands& o, const Regions& r, int64_t ratio, bool aligned, bool clamps) {
  if (r.count() == 0 || r.image[1] == 0) return;
  o.Require(r.image[2] > 0 && r.image[3] > 0, "an image of sizes ", at::IntArrayRef(r.image), " has no elements.");
  const double largest = LargestOf(o.Tensor(0).scalar_type());
  const double offset = aligned ? .5 : 0;
  for (int64_t i = 0; i < r.count(); ++i) {
    double points = 1;
    for (const size_t d : {0, 1}) {
      const double start = r.row(i)[1 + d] * r.scale - offset;
      double size = r.row(i)[3 + d] * r.scale - offset - start;
      if (clamps) size = std::max(size, 1.);
      o.Require(ratio <= 0 || (!std::isnan(start) && std::abs(size) <= largest), "region ", i,
                " has corners that are not finite.");
      const auto bins = static_cast<double>(r.pooled[1 - d]);
      const double sampled = ratio > 0 ? static_cast<double>(ratio) : std::ceil(size / bins);
      if (!std::isnan(sampled)) points *= std::max(sampled, 0.) * bins;
    }
    o.Require(!(points > static_cast<double>(kMaxIndex)), "region ", i, " has ", points,
              " points to sample, more than ", kMaxIndex, ".");
  }
}

// Arguments from `first` on: input, weight, offset, mask, bias, then for h and w stride, padding and dilation, then
// groups, offset groups, use_mask. Returns the sizes of the result.
std::array<int64_t, 4> CheckDeformable(const Operands& o, size_t first) {
  const size_t input = first, weight = first + 1, offset = first + 2, mask = first + 3, bias = first + 4;
  for (const size_t i : {input, weight, offset}) {
    o.RequireRank(i, "an operand", 4, 4);
    Elements(o, "an operand", o.Tensor(i).sizes());
  }
  o.RequireSameDtype({input, weight, offset, mask, bias});
  std::array<int64_t, 2> out{};
  const at::IntArrayRef in = o.Tensor(input).sizes(), kernel = o.Tensor(weight).sizes();
  for (const size_t d : {0, 1}) {
    const int64_t stride = o.Int(first + 5 + d), pad = o.Int(first + 7 + d), dilation = o.Int(first + 9 + d);
    o.Require(stride > 0 && stride <= kMaxIndex && pad >= 0 && pad <= kMaxIndex / 4 && dilation > 0 &&
                  dilation <= kMaxIndex && kernel[2 + d] > 0 && kernel[2 + d] <= kMaxIndex / dilation,
              "stride ", stride, ", padding ", pad, " or dilation ", dilation, " does not suit a kernel of sizes ",
              kernel, ".");
    const int64_t room = in[2 + d] + 2 * pad - dilation * (kernel[2 + d] - 1) - 1;
    o.Require(room >= 0 && room <= kMaxIndex, "an image of sizes ", in, " with padding ", pad,
              " is smaller than a kernel of sizes ", kernel, " with dilation ", dilation, ".");
    out[d] = room / stride + 1;
  }
  const int64_t groups = o.Int(first + 11), offset_groups = o.Int(first + 12);
  o.Require(groups > 0 && groups <= kMaxIndex && offset_groups > 0 && offset_groups <= kMaxIndex &&
                in[1] % groups == 0 && in[1] % offset_groups == 0 && kernel[0] % groups == 0 &&
                kernel[1] == in[1] / groups,
            "a kernel of sizes ", kernel, " in ", groups, " groups and ", offset_groups,
            " offset groups does not fit to an image of sizes ", in, ".");
  const int64_t taps = offset_groups * kernel[2] * kernel[3];
  o.RequireSizes(offset, "offset", {in[0], 2 * taps, out[0], out[1]});
  if (o.Bool(first + 13)) o.RequireSizes(mask, "mask", {in[0], taps, out[0], out[1]});
  o.RequireSizes(bias, "bias", {kernel[0]});
  Elements(o, "the unfolded image", {in[0], in[1], kernel[2], kernel[3], out[0], out[1]});
  const at::Tensor& t = o.Tensor(offset);
  o.Require(t.numel() == 0 || !at::isnan(t).any().item<bool>(), "an offset is NaN, which is no place to read.");
  return {in[0], kernel[0], out[0], out[1]};
}

}  // namespace

// roi_align(input, rois, scale, pooled_h, pooled_w, ratio, aligned)
void CheckRoiAlign(const Operands& o) { CheckSampled(o, ForwardRegions(o), o.Int(5), o.Bool(6), !o.Bool(6)); }

// ps_roi_align(input, rois, scale, pooled_h, pooled_w, ratio)
void CheckPsRoiAlign(const Operands& o) {
  const Regions r = ForwardRegions(o);
  Elements(o, "the pooled grid", r.pooled, 1);
  CheckSampled(o, r, o.Int(5), true, false);
}

// roi_pool(input, rois, scale, pooled_h, pooled_w)
void CheckRoiPool(const Operands& o) { ForwardRegions(o); }

// ps_roi_pool, as roi_pool
void CheckPsRoiPool(const Operands& o) { Elements(o, "the pooled grid", ForwardRegions(o).pooled, 1); }

// _roi_align_backward(grad, rois, scale, pooled_h, pooled_w, n, c, h, w, ratio, aligned)
void CheckRoiAlignBackward(const Operands& o) { BackwardRegions(o, 2, 5, false); }

// _ps_roi_align_backward(grad, rois, channel_mapping, scale, pooled_h, pooled_w, ratio, n, c, h, w)
void CheckPsRoiAlignBackward(const Operands& o) {
  const Regions r = BackwardRegions(o, 3, 7, true);
  CheckPlaces(o, 2, "channel_mapping", 0, r.image[1]);
}

// _roi_pool_backward(grad, rois, argmax, scale, pooled_h, pooled_w, n, c, h, w)
void CheckRoiPoolBackward(const Operands& o) {
  const Regions r = BackwardRegions(o, 3, 6, false);
  CheckPlaces(o, 2, "argmax", -1, r.image[2] * r.image[3]);
}

// _ps_roi_pool_backward(grad, rois, channel_mapping, scale, pooled_h, pooled_w, n, c, h, w)
void CheckPsRoiPoolBackward(const Operands& o) {
  const Regions r = BackwardRegions(o, 3, 6, true);
  CheckPlaces(o, 2, "channel_mapping", 0, r.image[1]);
}

// deform_conv2d(input, weight, offset, mask, bias, ...)
void CheckDeformConv(const Operands& o) { CheckDeformable(o, 0); }

// _deform_conv2d_backward(grad, input, weight, offset, mask, bias, ...)
void CheckDeformConvBackward(const Operands& o) {
  o.RequireSizes(0, "grad", CheckDeformable(o, 1));
  o.RequireSameDtype({0, 1});
}

}  // namespace mycelya::exec
