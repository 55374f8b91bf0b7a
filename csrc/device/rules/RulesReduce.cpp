// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Reductions, scans and order statistics. Their results are contiguous.

#include <ATen/ExpandUtils.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/WrapDimUtilsMulti.h>
#include <ATen/native/ReduceOpsUtils.h>
#include <c10/core/DefaultDtype.h>

#include "device/rules/RulesInternal.h"

namespace mycelya::rules {
namespace {

constexpr ScalarType kLong = ScalarType::Long;

// The sizes of t without `dims`, which are all dims if absent or empty. With keepdim these dims stay as 1.
DimVector reduced(const Tensor& t, const std::optional<DimVector>& dims, bool keepdim) {
  const auto bits = at::native::make_dim_mask(
      dims ? at::OptionalIntArrayRef(IntArrayRef(*dims)) : at::OptionalIntArrayRef(std::nullopt), t.dim());
  return at::native::shape_from_dim_mask(t, bits, keepdim);
}

DimVector reduced(const Tensor& t, int64_t dim, bool keepdim) {
  return reduced(t, DimVector{wrap(dim, t.dim())}, keepdim);
}

ScalarType sum_type(ScalarType dtype) { return c10::isIntegralType(dtype, /*includeBool=*/true) ? kLong : dtype; }

void sum(Args args, OutMetas& out) { infer("sum.dim_IntList", {args[0], std::vector<int64_t>(), false, args[1]}, out); }

void mean(Args args, OutMetas& out) { infer("mean.dim", {args[0], std::vector<int64_t>(), false, args[1]}, out); }

// self dtype
void prod(Args args, OutMetas& out) {
  add_contiguous(out, {}, maybe_dtype(args, 1).value_or(sum_type(tensor(args, 0).scalar_type())));
}

// self dim? keepdim dtype
void nansum(Args args, OutMetas& out) {
  const Tensor self = tensor(args, 0);
  TORCH_CHECK_NOT_IMPLEMENTED(on_cuda() || !self.is_complex(), "nansum does not support complex inputs");
  const ScalarType dtype = maybe_dtype(args, 3).value_or(sum_type(self.scalar_type()));
  TORCH_CHECK_NOT_IMPLEMENTED(!c10::isIntegralType(dtype, true) || !c10::isFloatingType(self.scalar_type()),
                              "nansum is not implemented for ", dtype);
  add_contiguous(out, reduced(self, maybe_ints(args, 1), args[2].toBool()), dtype);
}

// self dim? correction? keepdim
DimVector variance_sizes(Args args, const char* op) {
  const Tensor self = tensor(args, 0);
  TORCH_CHECK_NOT_IMPLEMENTED(c10::isFloatingType(self.scalar_type()) || self.is_complex(), op,
                              " only support floating point and complex dtypes");
  return reduced(self, maybe_ints(args, 1), args[3].toBool());
}

void variance(Args args, OutMetas& out) {
  add_contiguous(out, variance_sizes(args, "std and var"), real_type(tensor(args, 0).scalar_type()));
}

template <bool kStd>
void variance_mean(Args args, OutMetas& out) {
  const auto sizes = variance_sizes(args, kStd ? "std_mean" : "var_mean");
  const ScalarType dtype = tensor(args, 0).scalar_type();
  add_contiguous(out, sizes, real_type(dtype));
  add_contiguous(out, sizes, dtype);
}

// self dim?
void count_nonzero(Args args, OutMetas& out) {
  const Tensor self = tensor(args, 0);
  add_contiguous(out, reduced(self, maybe_ints(args, 1), /*keepdim=*/false), kLong);
}

// self dim keepdim
void logsumexp(Args args, OutMetas& out) {
  const Tensor self = tensor(args, 0);
  ScalarType dtype = self.scalar_type();
  if (c10::isIntegralType(dtype, /*includeBool=*/true)) dtype = c10::get_default_dtype_as_scalartype();
  add_contiguous(out, reduced(self, ints(args, 1), args[2].toBool()), dtype);
}

// self ord dim? keepdim dtype
void powsum(Args args, OutMetas& out) {
  const Tensor self = tensor(args, 0);
  add_contiguous(out, reduced(self, maybe_ints(args, 2), args[3].toBool()),
                 real_type(maybe_dtype(args, 4).value_or(self.scalar_type())));
}

template <bool kMax>
void extreme(Args args, OutMetas& out) {
  const Tensor self = tensor(args, 0);
  const char* const name = kMax ? "max" : "min";
  TORCH_CHECK(self.numel() > 0, name, "(): Expected reduction dim to be specified for input.numel() == 0. ",
              "Specify the reduction dim with the 'dim' argument.");
  add_contiguous(out, {}, self.scalar_type());
}

void median(Args args, OutMetas& out) { add_contiguous(out, {}, tensor(args, 0).scalar_type()); }

void values_indices(OutMetas& out, const Tensor& self, int64_t dim, bool keepdim) {
  const auto sizes = reduced(self, dim, keepdim);
  add_contiguous(out, sizes, self.scalar_type());
  add_contiguous(out, sizes, kLong);
}

// self dim keepdim
void median_dim(Args args, OutMetas& out) {
  const Tensor self = tensor(args, 0);
  at::native::zero_numel_check_dims(self, wrap(args[1].toInt(), self.dim()), "median()");
  values_indices(out, self, args[1].toInt(), args[2].toBool());
}

void mode(Args args, OutMetas& out) {
  const Tensor self = tensor(args, 0);
  if (self.numel() == 0) at::native::zero_numel_check_dims(self, wrap(args[1].toInt(), self.dim()), "mode()");
  values_indices(out, self, args[1].toInt(), args[2].toBool());
}

// self k dim keepdim
void kthvalue(Args args, OutMetas& out) {
  const Tensor self = tensor(args, 0);
  const int64_t k = args[1].toInt(), dim = wrap(args[2].toInt(), self.dim());
  const int64_t length = self.dim() > 0 ? self.size(dim) : 1;
  at::native::zero_numel_check_dims(self, dim, "kthvalue()");
  TORCH_CHECK(k >= 1 && k <= length, "kthvalue(): selected number k out of range for dimension ", dim);
  values_indices(out, self, dim, args[3].toBool());
}

// self dim
void cumulative_extreme(Args args, OutMetas& out) {
  const Tensor self = tensor(args, 0);
  wrap(args[1].toInt(), self.dim());
  add_like_contiguous(out, self);
  add_like_contiguous(out, self, kLong);
}

void cumulative_logsumexp(Args args, OutMetas& out) {
  const Tensor self = tensor(args, 0);
  wrap(args[1].toInt(), self.dim());
  add_like_contiguous(out, self);
}

// self dim descending
void sort(Args args, OutMetas& out) { infer("sort.stable", {args[0], c10::IValue(), args[1], args[2]}, out); }

void aminmax(Args args, OutMetas& out) {
  const ScalarType dtype = tensor(args, 0).scalar_type();
  add_contiguous(out, {}, dtype);
  add_contiguous(out, {}, dtype);
}

void aminmax_dim(Args args, OutMetas& out) {
  const Tensor self = tensor(args, 0);
  const auto sizes = reduced(self, args[1].toInt(), args[2].toBool());
  add_contiguous(out, sizes, self.scalar_type());
  add_contiguous(out, sizes, self.scalar_type());
}

void trace(Args args, OutMetas& out) {
  const Tensor self = tensor(args, 0);
  TORCH_CHECK(self.dim() == 2, "trace: expected a matrix, but got tensor with dim ", self.dim());
  add_contiguous(out, {}, sum_type(self.scalar_type()));
}

// self bins min max
void histc(Args args, OutMetas& out) {
  const int64_t bins = args[1].toInt();
  TORCH_CHECK(bins > 0, "bins must be > 0");
  add_contiguous(out, {bins}, tensor(args, 0).scalar_type());
}

// self bins range? weight? density
void histogram(Args args, OutMetas& out) {
  const ScalarType dtype = tensor(args, 0).scalar_type();
  const int64_t bins = args[1].isTensor() ? tensor(args, 1).numel() - 1 : args[1].toInt();
  add_contiguous(out, {bins}, dtype);
  add_contiguous(out, {bins + 1}, dtype);
}

// self bins: a number or a tensor of edges per dim … -> edges per dim
void histogram_edges(Args args, OutMetas& out) {
  for (const int64_t bins : ints(args, 1)) add_contiguous(out, {bins + 1}, tensor(args, 0).scalar_type());
}

void histogram_of_counts(Args args, OutMetas& out) {
  add_contiguous(out, ints(args, 1), tensor(args, 0).scalar_type());
}

void histogram_of_edges(Args args, OutMetas& out) {
  DimVector sizes;
  for (const Tensor& edges : tensors(args, 1)) sizes.push_back(edges.numel() - 1);
  add_contiguous(out, sizes, tensor(args, 0).scalar_type());
}

// data reduce lengths? indices? offsets? axis …: one element per segment along the axis
void segment_reduce(Args args, OutMetas& out) {
  const Tensor data = tensor(args, 0), lengths = tensor(args, 2), offsets = tensor(args, 4);
  const int64_t axis = wrap(args[5].toInt(), data.dim());
  TORCH_CHECK(lengths.defined() || offsets.defined(), "segment_reduce(): Either lengths or offsets must be defined.");
  const Tensor& segments = offsets.defined() ? offsets : lengths;
  TORCH_CHECK(segments.dim() > axis && data.dim() >= segments.dim(),
              "segment_reduce(): Expected lengths or offsets of ", axis + 1, " to ", data.dim(),
              " dimensions for data of sizes ", data.sizes(), " and axis ", axis, ", but got sizes ", segments.sizes());
  DimVector sizes(data.sizes().begin(), data.sizes().end());
  sizes[axis] = offsets.defined() ? offsets.size(axis) - 1 : lengths.size(axis);
  add_contiguous(out, sizes, data.scalar_type());
}

// grad output data …
void segment_reduce_backward(Args args, OutMetas& out) {
  add_contiguous(out, tensor(args, 2).sizes(), tensor(args, 0).scalar_type());
}

constexpr RuleRow kRows[] = {
    {"_aminmax", aminmax},
    {"_aminmax.dim", aminmax_dim},
    {"_histogramdd_bin_edges", histogram_edges},
    {"_histogramdd_from_bin_cts", histogram_of_counts},
    {"_histogramdd_from_bin_tensors", histogram_of_edges},
    {"_logcumsumexp", cumulative_logsumexp},
    {"_segment_reduce_backward", segment_reduce_backward},
    {"count_nonzero", count_nonzero},
    {"count_nonzero.dim_IntList", count_nonzero},
    {"cummax", cumulative_extreme},
    {"cummin", cumulative_extreme},
    {"histc", histc},
    {"histogram.bin_ct", histogram},
    {"histogram.bins_tensor", histogram},
    {"kthvalue", kthvalue},
    {"linalg__powsum", powsum},
    {"logsumexp", logsumexp},
    {"max", extreme<true>},
    {"mean", mean},
    {"median", median},
    {"median.dim", median_dim},
    {"min", extreme<false>},
    {"mode", mode},
    {"nanmedian", median},
    {"nanmedian.dim", median_dim},
    {"nansum", nansum},
    {"prod", prod},
    {"sort", sort},
    {"segment_reduce", segment_reduce},
    {"std.correction", variance},
    {"std_mean.correction", variance_mean<true>},
    {"sum", sum},
    {"trace", trace},
    {"var.correction", variance},
    {"var_mean.correction", variance_mean<false>},
};

}  // namespace

RuleRows reduce_rules() { return kRows; }

}  // namespace mycelya::rules
