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
DimVector Reduced(const Tensor& t, const std::optional<DimVector>& dims, bool keepdim) {
  const auto bits = at::native::make_dim_mask(
      dims ? at::OptionalIntArrayRef(IntArrayRef(*dims)) : at::OptionalIntArrayRef(std::nullopt), t.dim());
  return at::native::shape_from_dim_mask(t, bits, keepdim);
}

DimVector Reduced(const Tensor& t, int64_t dim, bool keepdim) {
  return Reduced(t, DimVector{Wrap(dim, t.dim())}, keepdim);
}

ScalarType SumType(ScalarType dtype) { return c10::isIntegralType(dtype, /*includeBool=*/true) ? kLong : dtype; }

void Sum(Args args, OutMetas& out) { Infer("sum.dim_IntList", {args[0], std::vector<int64_t>(), false, args[1]}, out); }

void Mean(Args args, OutMetas& out) { Infer("mean.dim", {args[0], std::vector<int64_t>(), false, args[1]}, out); }

// self dtype
void Prod(Args args, OutMetas& out) {
  AddContiguous(out, {}, MaybeDtype(args, 1).value_or(SumType(TensorAt(args, 0).scalar_type())));
}

// self dim? keepdim dtype
void Nansum(Args args, OutMetas& out) {
  const Tensor self = TensorAt(args, 0);
  TORCH_CHECK_NOT_IMPLEMENTED(OnCuda() || !self.is_complex(), "nansum does not support complex inputs");
  const ScalarType dtype = MaybeDtype(args, 3).value_or(SumType(self.scalar_type()));
  TORCH_CHECK_NOT_IMPLEMENTED(!c10::isIntegralType(dtype, true) || !c10::isFloatingType(self.scalar_type()),
                              "nansum is not implemented for ", dtype);
  AddContiguous(out, Reduced(self, MaybeInts(args, 1), args[2].toBool()), dtype);
}

// self dim? correction? keepdim
DimVector VarianceSizes(Args args, const char* op) {
  const Tensor self = TensorAt(args, 0);
  TORCH_CHECK_NOT_IMPLEMENTED(c10::isFloatingType(self.scalar_type()) || self.is_complex(), op,
                              " only support floating point and complex dtypes");
  return Reduced(self, MaybeInts(args, 1), args[3].toBool());
}

void Variance(Args args, OutMetas& out) {
  AddContiguous(out, VarianceSizes(args, "std and var"), RealType(TensorAt(args, 0).scalar_type()));
}

template <bool kStd>
void VarianceMean(Args args, OutMetas& out) {
  const auto sizes = VarianceSizes(args, kStd ? "std_mean" : "var_mean");
  const ScalarType dtype = TensorAt(args, 0).scalar_type();
  AddContiguous(out, sizes, RealType(dtype));
  AddContiguous(out, sizes, dtype);
}

// self dim?
void CountNonzero(Args args, OutMetas& out) {
  const Tensor self = TensorAt(args, 0);
  AddContiguous(out, Reduced(self, MaybeInts(args, 1), /*keepdim=*/false), kLong);
}

// self dim keepdim
void Logsumexp(Args args, OutMetas& out) {
  const Tensor self = TensorAt(args, 0);
  ScalarType dtype = self.scalar_type();
  if (c10::isIntegralType(dtype, /*includeBool=*/true)) dtype = c10::get_default_dtype_as_scalartype();
  AddContiguous(out, Reduced(self, IntsAt(args, 1), args[2].toBool()), dtype);
}

// self ord dim? keepdim dtype
void Powsum(Args args, OutMetas& out) {
  const Tensor self = TensorAt(args, 0);
  AddContiguous(out, Reduced(self, MaybeInts(args, 2), args[3].toBool()),
                RealType(MaybeDtype(args, 4).value_or(self.scalar_type())));
}

template <bool kMax>
void Extreme(Args args, OutMetas& out) {
  const Tensor self = TensorAt(args, 0);
  const char* const name = kMax ? "max" : "min";
  TORCH_CHECK(self.numel() > 0, name, "(): Expected reduction dim to be specified for input.numel() == 0. ",
              "Specify the reduction dim with the 'dim' argument.");
  AddContiguous(out, {}, self.scalar_type());
}

void Median(Args args, OutMetas& out) { AddContiguous(out, {}, TensorAt(args, 0).scalar_type()); }

void ValuesIndices(OutMetas& out, const Tensor& self, int64_t dim, bool keepdim) {
  const auto sizes = Reduced(self, dim, keepdim);
  AddContiguous(out, sizes, self.scalar_type());
  AddContiguous(out, sizes, kLong);
}

// self dim keepdim
void MedianDim(Args args, OutMetas& out) {
  const Tensor self = TensorAt(args, 0);
  at::native::zero_numel_check_dims(self, Wrap(args[1].toInt(), self.dim()), "median()");
  ValuesIndices(out, self, args[1].toInt(), args[2].toBool());
}

void Mode(Args args, OutMetas& out) {
  const Tensor self = TensorAt(args, 0);
  if (self.numel() == 0) at::native::zero_numel_check_dims(self, Wrap(args[1].toInt(), self.dim()), "mode()");
  ValuesIndices(out, self, args[1].toInt(), args[2].toBool());
}

// self k dim keepdim
void Kthvalue(Args args, OutMetas& out) {
  const Tensor self = TensorAt(args, 0);
  const int64_t k = args[1].toInt(), dim = Wrap(args[2].toInt(), self.dim());
  const int64_t length = self.dim() > 0 ? self.size(dim) : 1;
  at::native::zero_numel_check_dims(self, dim, "kthvalue()");
  TORCH_CHECK(k >= 1 && k <= length, "kthvalue(): selected number k out of range for dimension ", dim);
  ValuesIndices(out, self, dim, args[3].toBool());
}

// self dim
void CumulativeExtreme(Args args, OutMetas& out) {
  const Tensor self = TensorAt(args, 0);
  Wrap(args[1].toInt(), self.dim());
  AddLikeContiguous(out, self);
  AddLikeContiguous(out, self, kLong);
}

void CumulativeLogsumexp(Args args, OutMetas& out) {
  const Tensor self = TensorAt(args, 0);
  Wrap(args[1].toInt(), self.dim());
  AddLikeContiguous(out, self);
}

// self dim descending
void Sort(Args args, OutMetas& out) { Infer("sort.stable", {args[0], c10::IValue(), args[1], args[2]}, out); }

void Aminmax(Args args, OutMetas& out) {
  const ScalarType dtype = TensorAt(args, 0).scalar_type();
  AddContiguous(out, {}, dtype);
  AddContiguous(out, {}, dtype);
}

void AminmaxDim(Args args, OutMetas& out) {
  const Tensor self = TensorAt(args, 0);
  const auto sizes = Reduced(self, args[1].toInt(), args[2].toBool());
  AddContiguous(out, sizes, self.scalar_type());
  AddContiguous(out, sizes, self.scalar_type());
}

void Trace(Args args, OutMetas& out) {
  const Tensor self = TensorAt(args, 0);
  TORCH_CHECK(self.dim() == 2, "trace: expected a matrix, but got tensor with dim ", self.dim());
  AddContiguous(out, {}, SumType(self.scalar_type()));
}

// self bins min max
void Histc(Args args, OutMetas& out) {
  const int64_t bins = args[1].toInt();
  TORCH_CHECK(bins > 0, "bins must be > 0");
  AddContiguous(out, {bins}, TensorAt(args, 0).scalar_type());
}

// self bins range? weight? density
void Histogram(Args args, OutMetas& out) {
  const ScalarType dtype = TensorAt(args, 0).scalar_type();
  const int64_t bins = args[1].isTensor() ? TensorAt(args, 1).numel() - 1 : args[1].toInt();
  AddContiguous(out, {bins}, dtype);
  AddContiguous(out, {bins + 1}, dtype);
}

// self bins: a number or a tensor of edges per dim … -> edges per dim
void HistogramEdges(Args args, OutMetas& out) {
  for (const int64_t bins : IntsAt(args, 1)) AddContiguous(out, {bins + 1}, TensorAt(args, 0).scalar_type());
}

void HistogramOfCounts(Args args, OutMetas& out) {
  AddContiguous(out, IntsAt(args, 1), TensorAt(args, 0).scalar_type());
}

void HistogramOfEdges(Args args, OutMetas& out) {
  DimVector sizes;
  for (const Tensor& edges : TensorsAt(args, 1)) sizes.push_back(edges.numel() - 1);
  AddContiguous(out, sizes, TensorAt(args, 0).scalar_type());
}

// data reduce lengths? indices? offsets? axis …: one element per segment along the axis
void SegmentReduce(Args args, OutMetas& out) {
  const Tensor data = TensorAt(args, 0), lengths = TensorAt(args, 2), offsets = TensorAt(args, 4);
  const int64_t axis = Wrap(args[5].toInt(), data.dim());
  TORCH_CHECK(lengths.defined() || offsets.defined(), "segment_reduce(): Either lengths or offsets must be defined.");
  const Tensor& segments = offsets.defined() ? offsets : lengths;
  TORCH_CHECK(segments.dim() > axis && data.dim() >= segments.dim(),
              "segment_reduce(): Expected lengths or offsets of ", axis + 1, " to ", data.dim(),
              " dimensions for data of sizes ", data.sizes(), " and axis ", axis, ", but got sizes ", segments.sizes());
  DimVector sizes(data.sizes().begin(), data.sizes().end());
  sizes[axis] = offsets.defined() ? offsets.size(axis) - 1 : lengths.size(axis);
  AddContiguous(out, sizes, data.scalar_type());
}

// grad output data …
void SegmentReduceBackward(Args args, OutMetas& out) {
  AddContiguous(out, TensorAt(args, 2).sizes(), TensorAt(args, 0).scalar_type());
}

constexpr RuleRow kReduceRows[] = {
    {"_aminmax", Aminmax},
    {"_aminmax.dim", AminmaxDim},
    {"_histogramdd_bin_edges", HistogramEdges},
    {"_histogramdd_from_bin_cts", HistogramOfCounts},
    {"_histogramdd_from_bin_tensors", HistogramOfEdges},
    {"_logcumsumexp", CumulativeLogsumexp},
    {"_segment_reduce_backward", SegmentReduceBackward},
    {"count_nonzero", CountNonzero},
    {"count_nonzero.dim_IntList", CountNonzero},
    {"cummax", CumulativeExtreme},
    {"cummin", CumulativeExtreme},
    {"histc", Histc},
    {"histogram.bin_ct", Histogram},
    {"histogram.bins_tensor", Histogram},
    {"kthvalue", Kthvalue},
    {"linalg__powsum", Powsum},
    {"logsumexp", Logsumexp},
    {"max", Extreme<true>},
    {"mean", Mean},
    {"median", Median},
    {"median.dim", MedianDim},
    {"min", Extreme<false>},
    {"mode", Mode},
    {"nanmedian", Median},
    {"nanmedian.dim", MedianDim},
    {"nansum", Nansum},
    {"prod", Prod},
    {"sort", Sort},
    {"segment_reduce", SegmentReduce},
    {"std.correction", Variance},
    {"std_mean.correction", VarianceMean<true>},
    {"sum", Sum},
    {"trace", Trace},
    {"var.correction", Variance},
    {"var_mean.correction", VarianceMean<false>},
};

}  // namespace

RuleRows ReduceRules() { return kReduceRows; }

}  // namespace mycelya::rules
