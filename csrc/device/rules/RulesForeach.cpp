// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// _foreach_*: result i is that of the plain op on the i-th tensors. Most lists are dense parameters of one dtype, and
// their results have the same geometry. All other lists use the inference of the plain op.

#include <ATen/native/TypeProperties.h>

#include "device/rules/RulesInternal.h"

namespace mycelya::rules {
namespace {

using c10::IValue;
using List = std::vector<Tensor>;

bool Dense(const Tensor& t) { return t.is_non_overlapping_and_dense(); }

void CheckSameLength(const List& a, const List& b) {
  TORCH_CHECK(a.size() == b.size(), "Tensor lists must have the same number of tensors, got ", a.size(), " and ",
              b.size());
}

void CheckNotEmpty(const List& list) { TORCH_CHECK(!list.empty(), "Tensor list must have at least one tensor."); }

List ListOf(Args args, size_t i) {
  List list = TensorsAt(args, i);
  CheckNotEmpty(list);
  return list;
}

// Whether two tensors are dense with equal dtype, sizes and strides. An elementwise result of that dtype equals them.
bool Alike(const Tensor& a, const Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && a.strides() == b.strides() && Dense(a);
}

// Whether a number of this type does not change a tensor's dtype.
bool Keeps(const Tensor& t, const c10::Scalar& s) {
  const auto type = t.scalar_type();
  if (c10::isFloatingType(type)) return !s.isComplex();
  return c10::isComplexType(type);
}

// --- One list.

enum class Unary { kSame, kFloat, kMagnitude };

template <Unary kKind>
void UnaryRule(Args args, OutMetas& out) {
  for (const Tensor& t : ListOf(args, 0)) {
    const bool plain = kKind == Unary::kSame || c10::isFloatingType(t.scalar_type());
    if (plain && Dense(t)) {
      AddLike(out, t);
    } else if (kKind == Unary::kFloat) {
      Elementwise(out, {t}, Promote::kFloat);
    } else {
      Elementwise(out, {t}, Promote::kAny, kKind == Unary::kSame ? t.scalar_type() : RealType(t.scalar_type()));
    }
  }
}

// --- A list and a number, or one number each. `Float`: true division.

template <bool kFloat>
void AddWithNumber(OutMetas& out, const Tensor& t, const c10::Scalar& s) {
  if (Keeps(t, s) && Dense(t)) {
    AddLike(out, t);
  } else {
    Elementwise(out, {t, Wrapped(s)}, kFloat ? Promote::kFloat : Promote::kTypes);
  }
}

template <bool kFloat>
void WithNumber(Args args, OutMetas& out) {
  const c10::Scalar s = args[1].toScalar();
  for (const Tensor& t : ListOf(args, 0)) AddWithNumber<kFloat>(out, t, s);
}

template <bool kFloat>
void WithNumbers(Args args, OutMetas& out) {
  const List list = ListOf(args, 0);
  const auto numbers = args[1].toListRef();
  TORCH_CHECK(list.size() == numbers.size(), "Tensor list must have same number of elements as scalar list, got ",
              list.size(), " and ", numbers.size());
  for (size_t i = 0; i < list.size(); ++i) AddWithNumber<kFloat>(out, list[i], numbers[i].toScalar());
}

// A number to the power of each tensor.
void NumberToThe(Args args, OutMetas& out) {
  const c10::Scalar s = args[0].toScalar();
  for (const Tensor& t : ListOf(args, 1)) AddWithNumber<false>(out, t, s);
}

// --- Two lists, or a list and a 0-dim tensor.

template <bool kFloat>
void AddWithTensor(OutMetas& out, const Tensor& a, const Tensor& b) {
  if (Alike(a, b) && (!kFloat || c10::isFloatingType(a.scalar_type()))) {
    AddLike(out, a);
  } else {
    Elementwise(out, {a, b}, kFloat ? Promote::kFloat : Promote::kTypes);
  }
}

template <bool kFloat>
void WithList(Args args, OutMetas& out) {
  const List a = ListOf(args, 0), b = TensorsAt(args, 1);
  CheckSameLength(a, b);
  for (size_t i = 0; i < a.size(); ++i) AddWithTensor<kFloat>(out, a[i], b[i]);
}

template <bool kFloat>
void WithTensor(Args args, OutMetas& out) {
  const Tensor b = TensorAt(args, 1);
  TORCH_CHECK(b.dim() == 0 && b.numel() == 1, "scalar tensor expected to be 0 dim but it has ", b.dim(),
              " dimensions and ", b.numel(), " elements.");
  for (const Tensor& t : ListOf(args, 0)) AddWithTensor<kFloat>(out, t, b);
}

// Each tensor is a matrix product.
void MatrixProduct(Args args, OutMetas& out) {
  const List a = ListOf(args, 0), b = TensorsAt(args, 1);
  CheckSameLength(a, b);
  for (size_t i = 0; i < a.size(); ++i) Infer("mm", {IValue(a[i]), IValue(b[i])}, out);
}

// --- Three lists.

void Ternary(OutMetas& out, const Tensor& a, const Tensor& b, const Tensor& c, bool divides) {
  if (Alike(a, b) && Alike(a, c) && c10::isFloatingType(a.scalar_type())) {
    AddLike(out, a);
  } else {
    Infer(divides ? "addcdiv" : "addcmul", {IValue(a), IValue(b), IValue(c), IValue(1)}, out);
  }
}

template <bool kDivides>
void TernaryLists(Args args, OutMetas& out) {
  const List a = ListOf(args, 0), b = TensorsAt(args, 1), c = TensorsAt(args, 2);
  CheckSameLength(a, b);
  CheckSameLength(a, c);
  for (size_t i = 0; i < a.size(); ++i) Ternary(out, a[i], b[i], c[i], kDivides);
}

// self end weight
template <bool kWeights>
void Lerp(Args args, OutMetas& out) {
  const List a = ListOf(args, 0), b = TensorsAt(args, 1);
  CheckSameLength(a, b);
  List weights;
  if (kWeights) {
    weights = TensorsAt(args, 2);
    CheckSameLength(a, weights);
  }
  for (size_t i = 0; i < a.size(); ++i) {
    if (Alike(a[i], b[i]) && (!kWeights || Alike(a[i], weights[i]))) {
      AddLike(out, a[i]);
    } else if (kWeights) {
      Infer("lerp.Tensor", {IValue(a[i]), IValue(b[i]), IValue(weights[i])}, out);
    } else {
      Infer("lerp.Scalar", {IValue(a[i]), IValue(b[i]), IValue(0.5)}, out);
    }
  }
}

// --- Others.

// self ord dtype?: 0-dim norms
void Norm(Args args, OutMetas& out) {
  for (const Tensor& t : ListOf(args, 0)) {
    AddContiguous(out, {}, RealType(MaybeDtype(args, 2).value_or(t.scalar_type())));
  }
}

// self: the largest element of each
void Largest(Args args, OutMetas& out) {
  for (const Tensor& t : ListOf(args, 0)) Infer("max", {IValue(t)}, out);
}

// self memory_format?
void CloneAll(Args args, OutMetas& out) {
  for (const Tensor& t : ListOf(args, 0)) Infer("clone", {IValue(t), args[1]}, out);
}

// self src non_blocking: src's values, as self
void Copy(Args args, OutMetas& out) {
  const List a = ListOf(args, 0), b = TensorsAt(args, 1);
  CheckSameLength(a, b);
  for (const Tensor& t : a) AddLike(out, t);
}

constexpr Unary kFloat = Unary::kFloat, kSame = Unary::kSame, kMagnitude = Unary::kMagnitude;

constexpr RuleRow kForeachRows[] = {
    {"_foreach_abs", UnaryRule<kMagnitude>},
    {"_foreach_acos", UnaryRule<kFloat>},
    {"_foreach_add.List", WithList<false>},
    {"_foreach_add.Scalar", WithNumber<false>},
    {"_foreach_add.ScalarList", WithNumbers<false>},
    {"_foreach_add.Tensor", WithTensor<false>},
    {"_foreach_addcdiv.Scalar", TernaryLists<true>},
    {"_foreach_addcdiv.ScalarList", TernaryLists<true>},
    {"_foreach_addcmul.Scalar", TernaryLists<false>},
    {"_foreach_addcmul.ScalarList", TernaryLists<false>},
    {"_foreach_asin", UnaryRule<kFloat>},
    {"_foreach_atan", UnaryRule<kFloat>},
    {"_foreach_ceil", UnaryRule<kSame>},
    {"_foreach_clamp_max.List", WithList<false>},
    {"_foreach_clamp_max.Scalar", WithNumber<false>},
    {"_foreach_clamp_max.ScalarList", WithNumbers<false>},
    {"_foreach_clamp_min.List", WithList<false>},
    {"_foreach_clamp_min.Scalar", WithNumber<false>},
    {"_foreach_clamp_min.ScalarList", WithNumbers<false>},
    {"_foreach_clone", CloneAll},
    {"_foreach_copy", Copy},
    {"_foreach_cos", UnaryRule<kFloat>},
    {"_foreach_cosh", UnaryRule<kFloat>},
    {"_foreach_div.List", WithList<true>},
    {"_foreach_div.Scalar", WithNumber<true>},
    {"_foreach_div.ScalarList", WithNumbers<true>},
    {"_foreach_div.Tensor", WithTensor<true>},
    {"_foreach_erf", UnaryRule<kFloat>},
    {"_foreach_erfc", UnaryRule<kFloat>},
    {"_foreach_exp", UnaryRule<kFloat>},
    {"_foreach_expm1", UnaryRule<kFloat>},
    {"_foreach_floor", UnaryRule<kSame>},
    {"_foreach_frac", UnaryRule<kSame>},
    {"_foreach_lerp.List", Lerp<true>},
    {"_foreach_lerp.Scalar", Lerp<false>},
    {"_foreach_lerp.ScalarList", Lerp<false>},
    {"_foreach_lgamma", UnaryRule<kFloat>},
    {"_foreach_log", UnaryRule<kFloat>},
    {"_foreach_log10", UnaryRule<kFloat>},
    {"_foreach_log1p", UnaryRule<kFloat>},
    {"_foreach_log2", UnaryRule<kFloat>},
    {"_foreach_max", Largest},
    {"_foreach_maximum.List", WithList<false>},
    {"_foreach_maximum.Scalar", WithNumber<false>},
    {"_foreach_maximum.ScalarList", WithNumbers<false>},
    {"_foreach_minimum.List", WithList<false>},
    {"_foreach_minimum.Scalar", WithNumber<false>},
    {"_foreach_minimum.ScalarList", WithNumbers<false>},
    {"_foreach_mm", MatrixProduct},
    {"_foreach_mul.List", WithList<false>},
    {"_foreach_mul.Scalar", WithNumber<false>},
    {"_foreach_mul.ScalarList", WithNumbers<false>},
    {"_foreach_mul.Tensor", WithTensor<false>},
    {"_foreach_neg", UnaryRule<kSame>},
    {"_foreach_norm.Scalar", Norm},
    {"_foreach_pow.List", WithList<false>},
    {"_foreach_pow.Scalar", WithNumber<false>},
    {"_foreach_pow.ScalarAndTensor", NumberToThe},
    {"_foreach_pow.ScalarList", WithNumbers<false>},
    {"_foreach_powsum.Scalar", Norm},
    {"_foreach_reciprocal", UnaryRule<kFloat>},
    {"_foreach_round", UnaryRule<kSame>},
    {"_foreach_rsqrt", UnaryRule<kFloat>},
    {"_foreach_sigmoid", UnaryRule<kFloat>},
    {"_foreach_sign", UnaryRule<kSame>},
    {"_foreach_sin", UnaryRule<kFloat>},
    {"_foreach_sinh", UnaryRule<kFloat>},
    {"_foreach_sqrt", UnaryRule<kFloat>},
    {"_foreach_sub.List", WithList<false>},
    {"_foreach_sub.Scalar", WithNumber<false>},
    {"_foreach_sub.ScalarList", WithNumbers<false>},
    {"_foreach_tan", UnaryRule<kFloat>},
    {"_foreach_tanh", UnaryRule<kFloat>},
    {"_foreach_trunc", UnaryRule<kSame>},
};

}  // namespace

RuleRows ForeachRules() { return kForeachRows; }

}  // namespace mycelya::rules
