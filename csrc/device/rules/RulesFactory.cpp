// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Tensors made from numbers. Arguments after the numbers: dtype? layout? device? pin_memory?, or out.

#include <c10/core/DefaultDtype.h>
#include <torch/version.h>

#include <cmath>
#include <limits>

#include "device/rules/RulesInternal.h"

namespace mycelya::rules {
namespace {

using c10::Scalar;

// (end - start) / step, rounded up, as at::arange does it: in int64 for an integral dtype, else in double.
int64_t ArangeLength(const Scalar& start, const Scalar& end, const Scalar& step, ScalarType dtype) {
  double length = 0;
  TORCH_CHECK(step.to<double>() != 0, "step must be nonzero");
  // Before 2.15 the numbers of a range of integers were converted to integers first.
  constexpr bool kIntegersFirst = TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 15;
  const bool whole = start.isIntegral(true) && end.isIntegral(true) && step.isIntegral(true);
  if (c10::isIntegralType(dtype, /*includeBool=*/false) && (whole || kIntegersFirst)) {
    const auto a = start.to<int64_t>(), b = end.to<int64_t>(), s = step.to<int64_t>();
    TORCH_CHECK(s != 0, "step must be nonzero");
    length = std::ceil(static_cast<double>(b - a) / static_cast<double>(s));
  } else {
    TORCH_CHECK(step.to<double>() != 0, "step must be nonzero");
    length = std::ceil((end.to<double>() - start.to<double>()) / step.to<double>());
  }
  TORCH_CHECK(std::isfinite(start.to<double>()) && std::isfinite(end.to<double>()),
              "unsupported range: ", start.to<double>(), " -> ", end.to<double>());
  TORCH_CHECK(
      (step.to<double>() > 0) == (end.to<double>() >= start.to<double>()) || end.to<double>() == start.to<double>(),
      "upper bound and lower bound inconsistent with step sign");
  TORCH_CHECK(length >= 0 && length <= static_cast<double>(std::numeric_limits<int64_t>::max()),
              "invalid size, possible overflow?");
  return static_cast<int64_t>(length);
}

bool Integral(const Scalar& s) { return s.isIntegral(/*includeBool=*/true); }

ScalarType DefaultType() { return c10::get_default_dtype_as_scalartype(); }

void AddArange(OutMetas& out, const Scalar& start, const Scalar& end, const Scalar& step,
               std::optional<ScalarType> dtype) {
  const bool whole = Integral(start) && Integral(end) && Integral(step);
  const ScalarType type = dtype.value_or(whole ? ScalarType::Long : DefaultType());
  AddContiguous(out, {ArangeLength(start, end, step, type)}, type);
}

void Arange(Args args, OutMetas& out) { AddArange(out, 0, args[0].toScalar(), 1, MaybeDtype(args, 1)); }

void ArangeStart(Args args, OutMetas& out) {
  AddArange(out, args[0].toScalar(), args[1].toScalar(), 1, MaybeDtype(args, 2));
}

void ArangeStartStep(Args args, OutMetas& out) {
  AddArange(out, args[0].toScalar(), args[1].toScalar(), args[2].toScalar(), MaybeDtype(args, 3));
}

void ArangeOut(Args args, OutMetas& out) {
  AddArange(out, args[0].toScalar(), args[1].toScalar(), args[2].toScalar(), TensorAt(args, 3).scalar_type());
}

// A range contains both ends.
void AddRange(OutMetas& out, const Scalar& start, const Scalar& end, const Scalar& step,
              std::optional<ScalarType> dtype) {
  const bool whole = Integral(start) && Integral(end) && Integral(step);
  const ScalarType type = dtype.value_or(whole ? ScalarType::Long : DefaultType());
  const double a = start.to<double>(), b = end.to<double>(), s = step.to<double>();
  TORCH_CHECK(s != 0, "step must be nonzero");
  TORCH_CHECK(std::isfinite(a) && std::isfinite(b), "unsupported range: ", a, " -> ", b);
  TORCH_CHECK((s > 0 && b >= a) || (s < 0 && b <= a), "upper bound and lower bound inconsistent with step sign");
  AddContiguous(out, {static_cast<int64_t>((b - a) / s + 1)}, type);
}

void Range(Args args, OutMetas& out) { AddRange(out, args[0].toScalar(), args[1].toScalar(), 1, MaybeDtype(args, 2)); }

void RangeStep(Args args, OutMetas& out) {
  AddRange(out, args[0].toScalar(), args[1].toScalar(), args[2].toScalar(), MaybeDtype(args, 3));
}

void RangeOut(Args args, OutMetas& out) {
  AddRange(out, args[0].toScalar(), args[1].toScalar(), args[2].toScalar(), TensorAt(args, 3).scalar_type());
}

int64_t Steps(Args args) {
  const int64_t n = args[2].toInt();
  TORCH_CHECK(n >= 0, "number of steps must be non-negative");
  return n;
}

// start end steps …; the dtype is argument `at`
template <size_t at>
void Spaced(Args args, OutMetas& out) {
  const bool complex = args[0].toScalar().isComplex() || args[1].toScalar().isComplex();
  const ScalarType usual = complex ? c10::toComplexType(DefaultType()) : DefaultType();
  AddContiguous(out, {Steps(args)}, MaybeDtype(args, at).value_or(usual));
}

template <size_t at>
void SpacedOut(Args args, OutMetas& out) {
  AddContiguous(out, {Steps(args)}, TensorAt(args, at).scalar_type());
}

void AddEye(OutMetas& out, int64_t n, int64_t m, ScalarType dtype) {
  TORCH_CHECK(n >= 0, "n must be greater or equal to 0, got ", n);
  TORCH_CHECK(m >= 0, "m must be greater or equal to 0, got ", m);
  AddContiguous(out, {n, m}, dtype);
}

void Eye(Args args, OutMetas& out) {
  AddEye(out, args[0].toInt(), args[0].toInt(), MaybeDtype(args, 1).value_or(DefaultType()));
}

void EyeM(Args args, OutMetas& out) {
  AddEye(out, args[0].toInt(), args[1].toInt(), MaybeDtype(args, 2).value_or(DefaultType()));
}

void EyeOut(Args args, OutMetas& out) {
  AddEye(out, args[0].toInt(), args[0].toInt(), TensorAt(args, 1).scalar_type());
}

void EyeMOut(Args args, OutMetas& out) {
  AddEye(out, args[0].toInt(), args[1].toInt(), TensorAt(args, 2).scalar_type());
}

// Elements of a row × col matrix on and below the diagonal `offset`.
int64_t TrilSize(int64_t row, int64_t col, int64_t offset) {
  int64_t n = 0;
  // Rows before `first` have no such element, rows from `full` on have only such elements.
  const int64_t first = std::max<int64_t>(0, -offset), full = std::max<int64_t>(first, col - offset);
  if (first < row) {
    const int64_t last = std::min(row, full);  // rows [first, last) have offset + i + 1 elements
    if (last > first) n += (first + offset + 1 + last + offset) * (last - first) / 2;
    if (row > full) n += (row - full) * col;
  }
  return n;
}

// row col offset dtype?
template <bool kUpper>
void TriangleIndices(Args args, OutMetas& out) {
  const int64_t row = args[0].toInt(), col = args[1].toInt(), offset = args[2].toInt();
  TORCH_CHECK(row >= 0, "row must be non-negative, got", row);
  TORCH_CHECK(col >= 0, "col must be non-negative, got", col);
  const int64_t n = kUpper ? row * col - TrilSize(row, col, offset - 1) : TrilSize(row, col, offset);
  AddContiguous(out, {2, n}, MaybeDtype(args, 3).value_or(ScalarType::Long));
}

constexpr RuleRow kFactoryRows[] = {
    {"arange", Arange},
    {"arange.start", ArangeStart},
    {"arange.start_out", ArangeOut},
    {"arange.start_step", ArangeStartStep},
    {"eye", Eye},
    {"eye.m", EyeM},
    {"eye.m_out", EyeMOut},
    {"eye.out", EyeOut},
    {"linspace", Spaced<3>},
    {"linspace.out", SpacedOut<3>},
    {"logspace", Spaced<4>},
    {"logspace.out", SpacedOut<4>},
    {"range", Range},
    {"range.out", RangeOut},
    {"range.step", RangeStep},
    {"tril_indices", TriangleIndices<false>},
    {"triu_indices", TriangleIndices<true>},
};

}  // namespace

RuleRows FactoryRules() { return kFactoryRows; }

}  // namespace mycelya::rules
