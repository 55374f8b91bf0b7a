// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
#include "exec/operators/Close.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/gt.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/logical_or.h>
#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>

#include "exec/Dtype.h"

namespace mycelya::exec {
namespace {

// Element i of a tensor as text.
std::string Element(const at::Tensor& t, int64_t i) { return c10::str(t[i].item()); }

// At most so many elements are compared at once, since a comparison takes several times their memory.
constexpr int64_t kPart = 4 << 20;

// Returns for each element by how much its error exceeds the tolerance. The error may be `tolerance` times the sum of
// the element's absolute value and `scale`.
at::Tensor ErrorOf(const at::Tensor& got, const at::Tensor& want, double scale, double tolerance) {
  if (!want.is_floating_point() && !want.is_complex()) return at::ne(got, want).to(at::kDouble);
  const auto wide = want.is_complex() ? at::kComplexDouble : at::kDouble;
  const at::Tensor a = got.to(wide), b = want.to(wide);
  const at::Tensor finite = at::isfinite(b);
  const at::Tensor size = at::where(finite, b, at::zeros_like(b)).abs();
  // Infinities and NaNs must be equal, except that an infinity may stand for a finite value that overflows by rounding.
  const at::Tensor same = at::logical_or(at::eq(a, b), at::logical_and(at::isnan(a), at::isnan(b)));
  const at::Tensor far = at::nan_to_num(at::sub(a, b).abs(), /*nan=*/HUGE_VAL).sub(size.add(scale).mul(tolerance));
  return at::where(same, at::zeros_like(far), at::where(finite, far, at::full_like(far, HUGE_VAL)));
}

// Calls f with parts of the elements, in order.
template <typename F>
void EachPart(int64_t n, F f) {
  for (int64_t at = 0; at < n; at += kPart) f(at, std::min(kPart, n - at));
}

}  // namespace

double LargestOf(const at::Tensor& t) {
  double largest = 0;
  const at::Tensor all = t.contiguous().view(-1);
  EachPart(all.numel(), [&](int64_t at, int64_t n) {
    const at::Tensor value = all.narrow(0, at, n).abs().to(at::kDouble);
    largest = std::max(largest, at::where(at::isfinite(value), value, at::zeros_like(value)).max().item<double>());
  });
  return largest;
}

std::string DifferenceOf(const at::Tensor& got, const at::Tensor& want, double large, double tolerance, int64_t few) {
  if (got.sizes() != want.sizes() || got.scalar_type() != want.scalar_type()) {
    return TypeText(got.scalar_type(), got.sizes()) + " instead of " + TypeText(want.scalar_type(), want.sizes());
  }
  const at::Tensor ours = got.contiguous().view(-1), theirs = want.contiguous().view(-1);
  const double scale = want.is_floating_point() || want.is_complex() ? LargestOf(theirs) + large / 64 : 0;
  int64_t wrong = 0, worst_at = 0;
  double worst = 0;
  EachPart(theirs.numel(), [&](int64_t at, int64_t n) {
    const at::Tensor off = ErrorOf(ours.narrow(0, at, n), theirs.narrow(0, at, n), scale, tolerance);
    wrong += at::gt(off, 0).sum().item<int64_t>();
    const auto [most, where] = off.max(0);
    if (most.item<double>() <= worst) return;
    worst = most.item<double>();
    worst_at = at + where.item<int64_t>();
  });
  if (wrong <= few) return "";
  return c10::str(wrong, " of ", theirs.numel(), " elements differ by more than rounding; element ", worst_at, " is ",
                  Element(ours, worst_at), " instead of ", Element(theirs, worst_at));
}

}  // namespace mycelya::exec
