// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Products of a CSR and a strided matrix whose terms are reduced with a sum, mean, maximum or minimum.

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "device/sparse/Compressed.h"

namespace mycelya::compressed {

using at::Tensor;

namespace {

enum class Reduce : uint8_t { kSum, kMean, kMax, kMin };

Reduce Reduction(std::string_view name) {
  if (name == "sum") return Reduce::kSum;
  if (name == "mean") return Reduce::kMean;
  if (name == "amax" || name == "max") return Reduce::kMax;
  if (name == "amin" || name == "min") return Reduce::kMin;
  TORCH_CHECK(false, "sparse_mm_reduce: expected sum, mean, amax or amin, but got ", name);
}

void CheckMmReduce(const Tensor& self, const Tensor& other) {
  constexpr const char* kName = "sparse_mm_reduce";
  TORCH_CHECK(self.layout() == at::kSparseCsr && IsPlain(self), kName, ": expected a SparseCsr matrix, but got ",
              self.layout(), " of size ", self.sizes());
  TORCH_CHECK(other.layout() == at::kStrided, kName, ": expected a strided matrix to multiply, but got ",
              other.layout());
  TORCH_CHECK(other.size(0) == self.size(1) && other.size(1) >= 0 && other.dim() == 2, kName, ": expected a matrix of ",
              self.size(1), " rows to multiply, but got ", other.sizes());
  TORCH_CHECK(self.scalar_type() == other.scalar_type(), kName, ": expected operands of the same dtype, but got ",
              self.scalar_type(), " and ", other.scalar_type());
  TORCH_CHECK(at::isFloatingType(self.scalar_type()), kName, ": expected a floating-point dtype, but got ",
              self.scalar_type());
}

// The number of elements of each row, at least 1. [rows, 1]
Tensor Divisors(const Tensor& self, const Tensor& like) {
  const Tensor begin = MembersOf(self).compressed;
  return begin.slice(0, 1).sub(begin.slice(0, 0, -1)).clamp_min(1).to(like.scalar_type()).unsqueeze(1);
}

// The second result holds, for each maximum or minimum, the element that gave it. It is empty unless a gradient needs
// it.
std::tuple<Tensor, Tensor> MmReduce(const Tensor& self, const Tensor& other, c10::string_view name) {
  CheckDevices("sparse_mm_reduce", {self, other});
  CheckMmReduce(self, other);
  const Reduce reduce = Reduction({name.data(), name.size()});
  const Members m = MembersOf(self);
  const int64_t nnz = m.plain.size(0);
  const Dims sizes = {self.size(0), other.size(1)};
  Tensor argument = at::empty({0}, m.plain.options());
  if (nnz == 0 || other.size(1) == 0) return {at::zeros(sizes, other.options()), argument};
  const auto dtype = ReduceDtype(other);  // as on the CPU, f16 and bf16 are reduced in f32
  const Tensor row = Coordinates(self).select(0, 0);
  const Tensor products = other.index_select(0, m.plain).to(dtype).mul(m.values.to(dtype).unsqueeze(1));
  Tensor out = at::zeros(sizes, products.options());
  if (reduce == Reduce::kSum || reduce == Reduce::kMean) {
    out = out.index_add_(0, row, products).to(other.scalar_type());
    return {reduce == Reduce::kMean ? out.div(Divisors(self, out)) : out, argument};
  }
  const Tensor rows = row.unsqueeze(1).expand(products.sizes());
  out = out.scatter_reduce(0, rows, products, reduce == Reduce::kMax ? "amax" : "amin", /*include_self=*/false);
  if (at::GradMode::is_enabled() && (self.requires_grad() || other.requires_grad())) {
    const Tensor best = out.index_select(0, row);
    const Tensor is_best = products.eq(best).logical_or(products.isnan());
    const Tensor element = at::arange(nnz, row.options()).unsqueeze(1);
    argument = at::full(sizes, nnz, row.options())
                   .scatter_reduce(0, rows, at::where(is_best, element, nnz), "amin")
                   .to(m.plain.scalar_type());
  }
  return {out.to(other.scalar_type()), argument};
}

std::tuple<Tensor, Tensor> MmReduceBackward(const Tensor& self, const Tensor& grad, const Tensor& other,
                                            c10::string_view name, const Tensor& argument, std::array<bool, 2> wanted) {
  CheckDevices("sparse_mm_reduce", {self, grad, other});
  CheckMmReduce(self, other);
  const Reduce reduce = Reduction({name.data(), name.size()});
  const Members m = MembersOf(self);
  const int64_t nnz = m.plain.size(0);
  const auto like_self = [&](const Tensor& values) {
    return Make({m.compressed.clone(), m.plain.clone(), values.to(self.scalar_type())}, self.sizes(), self.layout());
  };
  Tensor of_self, of_other;
  if (nnz == 0 || grad.numel() == 0) {
    if (wanted[0]) of_self = like_self(at::zeros(m.values.sizes(), m.values.options()));
    if (wanted[1]) of_other = at::zeros(other.sizes(), other.options());
    return {of_self, of_other};
  }
  if (reduce == Reduce::kSum || reduce == Reduce::kMean) {
    const auto dtype = ReduceDtype(other);
    const Tensor row = Coordinates(self).select(0, 0), rows = grad.to(dtype).index_select(0, row);
    // As on the CPU, means are divided in the dtype of the operands.
    const bool mean = reduce == Reduce::kMean;
    const Tensor count = mean ? Divisors(self, other).squeeze(1).index_select(0, row) : Tensor();
    if (wanted[0]) {
      const Tensor sums = rows.mul(other.to(dtype).index_select(0, m.plain)).sum(1).to(other.scalar_type());
      of_self = like_self(mean ? sums.div(count) : sums);
    }
    if (wanted[1]) {
      const Tensor scale = (mean ? m.values.div(count) : m.values).to(dtype);
      of_other = at::zeros(other.sizes(), rows.options()).index_add_(0, m.plain, rows.mul(scale.unsqueeze(1)));
    }
  } else {
    // For each entry of the result: the element that gave it, and the column of that element. An entry without an
    // element adds zero to element 0. As on the CPU, f16 and bf16 are rounded after every operation.
    const Tensor some = argument.lt(nnz), element = at::where(some, argument, 0).to(at::kLong).view({-1});
    const Tensor column = m.plain.to(at::kLong).index_select(0, element).view(grad.sizes());
    const Tensor terms = at::where(some, grad, at::zeros({}, grad.options()));
    if (wanted[0]) {
      const Tensor products = other.gather(0, column).mul(terms).view({-1});
      of_self = like_self(at::zeros({nnz}, products.options()).index_add_(0, element, products));
    }
    if (wanted[1]) {
      const int64_t n = other.size(1);
      const Tensor place = column.mul(n).add(at::arange(n, column.options())).view({-1});
      const Tensor products = m.values.index_select(0, element).mul(terms.reshape({-1}));
      of_other = at::zeros({other.numel()}, products.options()).index_add_(0, place, products).view(other.sizes());
    }
  }
  if (wanted[1]) of_other = of_other.to(other.scalar_type());
  return {of_self, of_other};
}

TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) {
  m.impl("_sparse_mm_reduce_impl", &MmReduce);
  m.impl("_sparse_mm_reduce_impl_backward", &MmReduceBackward);
}

}  // namespace

}  // namespace mycelya::compressed
