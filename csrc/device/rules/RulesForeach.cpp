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

bool dense(const Tensor& t) { return t.is_non_overlapping_and_dense(); }

void check_same_length(const List& a, const List& b) {
  TORCH_CHECK(a.size() == b.size(), "Tensor lists must have the same number of tensors, got ", a.size(), " and ",
              b.size());
}

void check_not_empty(const List& list) { TORCH_CHECK(!list.empty(), "Tensor list must have at least one tensor."); }

List list_of(Args args, size_t i) {
  List list = tensors(args, i);
  check_not_empty(list);
  return list;
}

// Whether two tensors are dense with equal dtype, sizes and strides. An elementwise result of that dtype equals them.
bool alike(const Tensor& a, const Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && a.strides() == b.strides() && dense(a);
}

// Whether a number of this type does not change a tensor's dtype.
bool keeps(const Tensor& t, const c10::Scalar& s) {
  const auto type = t.scalar_type();
  if (c10::isFloatingType(type)) return !s.isComplex();
  return c10::isComplexType(type);
}

// --- One list.

enum class Unary { kSame, kFloat, kMagnitude };

template <Unary kKind>
void unary(Args args, OutMetas& out) {
  for (const Tensor& t : list_of(args, 0)) {
    const bool plain = kKind == Unary::kSame || c10::isFloatingType(t.scalar_type());
    if (plain && dense(t)) {
      add_like(out, t);
    } else if (kKind == Unary::kFloat) {
      elementwise(out, {t}, Promote::kFloat);
    } else {
      elementwise(out, {t}, Promote::kAny, kKind == Unary::kSame ? t.scalar_type() : real_type(t.scalar_type()));
    }
  }
}

// --- A list and a number, or one number each. `Float`: true division.

template <bool kFloat>
void add_with_number(OutMetas& out, const Tensor& t, const c10::Scalar& s) {
  if (keeps(t, s) && dense(t)) {
    add_like(out, t);
  } else {
    elementwise(out, {t, wrapped(s)}, kFloat ? Promote::kFloat : Promote::kTypes);
  }
}

template <bool kFloat>
void with_number(Args args, OutMetas& out) {
  const c10::Scalar s = args[1].toScalar();
  for (const Tensor& t : list_of(args, 0)) add_with_number<kFloat>(out, t, s);
}

template <bool kFloat>
void with_numbers(Args args, OutMetas& out) {
  const List list = list_of(args, 0);
  const auto numbers = args[1].toListRef();
  TORCH_CHECK(list.size() == numbers.size(), "Tensor list must have same number of elements as scalar list, got ",
              list.size(), " and ", numbers.size());
  for (size_t i = 0; i < list.size(); ++i) add_with_number<kFloat>(out, list[i], numbers[i].toScalar());
}

// A number to the power of each tensor.
void number_to_the(Args args, OutMetas& out) {
  const c10::Scalar s = args[0].toScalar();
  for (const Tensor& t : list_of(args, 1)) add_with_number<false>(out, t, s);
}

// --- Two lists, or a list and a 0-dim tensor.

template <bool kFloat>
void add_with_tensor(OutMetas& out, const Tensor& a, const Tensor& b) {
  if (alike(a, b) && (!kFloat || c10::isFloatingType(a.scalar_type()))) {
    add_like(out, a);
  } else {
    elementwise(out, {a, b}, kFloat ? Promote::kFloat : Promote::kTypes);
  }
}

template <bool kFloat>
void with_list(Args args, OutMetas& out) {
  const List a = list_of(args, 0), b = tensors(args, 1);
  check_same_length(a, b);
  for (size_t i = 0; i < a.size(); ++i) add_with_tensor<kFloat>(out, a[i], b[i]);
}

template <bool kFloat>
void with_tensor(Args args, OutMetas& out) {
  const Tensor b = tensor(args, 1);
  TORCH_CHECK(b.dim() == 0 && b.numel() == 1, "scalar tensor expected to be 0 dim but it has ", b.dim(),
              " dimensions and ", b.numel(), " elements.");
  for (const Tensor& t : list_of(args, 0)) add_with_tensor<kFloat>(out, t, b);
}

// Each tensor is a matrix product.
void matrix_product(Args args, OutMetas& out) {
  const List a = list_of(args, 0), b = tensors(args, 1);
  check_same_length(a, b);
  for (size_t i = 0; i < a.size(); ++i) infer("mm", {IValue(a[i]), IValue(b[i])}, out);
}

// --- Three lists.

void ternary(OutMetas& out, const Tensor& a, const Tensor& b, const Tensor& c, bool divides) {
  if (alike(a, b) && alike(a, c) && c10::isFloatingType(a.scalar_type())) {
    add_like(out, a);
  } else {
    infer(divides ? "addcdiv" : "addcmul", {IValue(a), IValue(b), IValue(c), IValue(1)}, out);
  }
}

template <bool kDivides>
void ternary_lists(Args args, OutMetas& out) {
  const List a = list_of(args, 0), b = tensors(args, 1), c = tensors(args, 2);
  check_same_length(a, b);
  check_same_length(a, c);
  for (size_t i = 0; i < a.size(); ++i) ternary(out, a[i], b[i], c[i], kDivides);
}

// self end weight
template <bool kWeights>
void lerp(Args args, OutMetas& out) {
  const List a = list_of(args, 0), b = tensors(args, 1);
  check_same_length(a, b);
  List weights;
  if (kWeights) {
    weights = tensors(args, 2);
    check_same_length(a, weights);
  }
  for (size_t i = 0; i < a.size(); ++i) {
    if (alike(a[i], b[i]) && (!kWeights || alike(a[i], weights[i]))) {
      add_like(out, a[i]);
    } else if (kWeights) {
      infer("lerp.Tensor", {IValue(a[i]), IValue(b[i]), IValue(weights[i])}, out);
    } else {
      infer("lerp.Scalar", {IValue(a[i]), IValue(b[i]), IValue(0.5)}, out);
    }
  }
}

// --- Others.

// self ord dtype?: 0-dim norms
void norm(Args args, OutMetas& out) {
  for (const Tensor& t : list_of(args, 0)) {
    add_contiguous(out, {}, real_type(maybe_dtype(args, 2).value_or(t.scalar_type())));
  }
}

// self: the largest element of each
void largest(Args args, OutMetas& out) {
  for (const Tensor& t : list_of(args, 0)) infer("max", {IValue(t)}, out);
}

// self memory_format?
void clone(Args args, OutMetas& out) {
  for (const Tensor& t : list_of(args, 0)) infer("clone", {IValue(t), args[1]}, out);
}

// self src non_blocking: src's values, as self
void copy(Args args, OutMetas& out) {
  const List a = list_of(args, 0), b = tensors(args, 1);
  check_same_length(a, b);
  for (const Tensor& t : a) add_like(out, t);
}

constexpr Unary kFloat = Unary::kFloat, kSame = Unary::kSame, kMagnitude = Unary::kMagnitude;

constexpr RuleRow kRows[] = {
    {"_foreach_abs", unary<kMagnitude>},
    {"_foreach_acos", unary<kFloat>},
    {"_foreach_add.List", with_list<false>},
    {"_foreach_add.Scalar", with_number<false>},
    {"_foreach_add.ScalarList", with_numbers<false>},
    {"_foreach_add.Tensor", with_tensor<false>},
    {"_foreach_addcdiv.Scalar", ternary_lists<true>},
    {"_foreach_addcdiv.ScalarList", ternary_lists<true>},
    {"_foreach_addcmul.Scalar", ternary_lists<false>},
    {"_foreach_addcmul.ScalarList", ternary_lists<false>},
    {"_foreach_asin", unary<kFloat>},
    {"_foreach_atan", unary<kFloat>},
    {"_foreach_ceil", unary<kSame>},
    {"_foreach_clamp_max.List", with_list<false>},
    {"_foreach_clamp_max.Scalar", with_number<false>},
    {"_foreach_clamp_max.ScalarList", with_numbers<false>},
    {"_foreach_clamp_min.List", with_list<false>},
    {"_foreach_clamp_min.Scalar", with_number<false>},
    {"_foreach_clamp_min.ScalarList", with_numbers<false>},
    {"_foreach_clone", clone},
    {"_foreach_copy", copy},
    {"_foreach_cos", unary<kFloat>},
    {"_foreach_cosh", unary<kFloat>},
    {"_foreach_div.List", with_list<true>},
    {"_foreach_div.Scalar", with_number<true>},
    {"_foreach_div.ScalarList", with_numbers<true>},
    {"_foreach_div.Tensor", with_tensor<true>},
    {"_foreach_erf", unary<kFloat>},
    {"_foreach_erfc", unary<kFloat>},
    {"_foreach_exp", unary<kFloat>},
    {"_foreach_expm1", unary<kFloat>},
    {"_foreach_floor", unary<kSame>},
    {"_foreach_frac", unary<kSame>},
    {"_foreach_lerp.List", lerp<true>},
    {"_foreach_lerp.Scalar", lerp<false>},
    {"_foreach_lerp.ScalarList", lerp<false>},
    {"_foreach_lgamma", unary<kFloat>},
    {"_foreach_log", unary<kFloat>},
    {"_foreach_log10", unary<kFloat>},
    {"_foreach_log1p", unary<kFloat>},
    {"_foreach_log2", unary<kFloat>},
    {"_foreach_max", largest},
    {"_foreach_maximum.List", with_list<false>},
    {"_foreach_maximum.Scalar", with_number<false>},
    {"_foreach_maximum.ScalarList", with_numbers<false>},
    {"_foreach_minimum.List", with_list<false>},
    {"_foreach_minimum.Scalar", with_number<false>},
    {"_foreach_minimum.ScalarList", with_numbers<false>},
    {"_foreach_mm", matrix_product},
    {"_foreach_mul.List", with_list<false>},
    {"_foreach_mul.Scalar", with_number<false>},
    {"_foreach_mul.ScalarList", with_numbers<false>},
    {"_foreach_mul.Tensor", with_tensor<false>},
    {"_foreach_neg", unary<kSame>},
    {"_foreach_norm.Scalar", norm},
    {"_foreach_pow.List", with_list<false>},
    {"_foreach_pow.Scalar", with_number<false>},
    {"_foreach_pow.ScalarAndTensor", number_to_the},
    {"_foreach_pow.ScalarList", with_numbers<false>},
    {"_foreach_powsum.Scalar", norm},
    {"_foreach_reciprocal", unary<kFloat>},
    {"_foreach_round", unary<kSame>},
    {"_foreach_rsqrt", unary<kFloat>},
    {"_foreach_sigmoid", unary<kFloat>},
    {"_foreach_sign", unary<kSame>},
    {"_foreach_sin", unary<kFloat>},
    {"_foreach_sinh", unary<kFloat>},
    {"_foreach_sqrt", unary<kFloat>},
    {"_foreach_sub.List", with_list<false>},
    {"_foreach_sub.Scalar", with_number<false>},
    {"_foreach_sub.ScalarList", with_numbers<false>},
    {"_foreach_tan", unary<kFloat>},
    {"_foreach_tanh", unary<kFloat>},
    {"_foreach_trunc", unary<kSame>},
};

}  // namespace

RuleRows foreach_rules() { return kRows; }

}  // namespace mycelya::rules
