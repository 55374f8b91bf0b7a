// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

#include "device/rules/RulesInternal.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/ScalarOps.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/native/TypeProperties.h>
#include <c10/core/DefaultDtype.h>

#include <algorithm>

namespace mycelya::rules {

Tensor TensorAt(Args args, size_t i) { return args[i].isTensor() ? args[i].toTensor() : Tensor(); }

bool Has(Args args, size_t i) { return args[i].isTensor() && args[i].toTensor().defined(); }

DimVector IntsAt(Args args, size_t i) {
  if (args[i].isInt()) return {args[i].toInt()};
  if (args[i].isIntList()) return args[i].toDimVector();
  DimVector values;
  for (const c10::IValue& v : args[i].toListRef()) values.push_back(v.toInt());
  return values;
}

std::optional<DimVector> MaybeInts(Args args, size_t i) {
  if (args[i].isNone()) return std::nullopt;
  return IntsAt(args, i);
}

std::optional<ScalarType> MaybeDtype(Args args, size_t i) {
  if (args[i].isNone()) return std::nullopt;
  return args[i].toScalarType();
}

bool MaskAt(Args args, size_t i, size_t bit) { return args[i].toBoolList().get(bit); }

std::vector<Tensor> TensorsAt(Args args, size_t i) { return args[i].toTensorVector(); }

void Add(OutMetas& out, IntArrayRef sizes, IntArrayRef strides, ScalarType dtype) {
  OutMeta& m = out.emplace_back();
  m.defined = true;
  m.dtype = dtype;
  m.sizes.assign(sizes.begin(), sizes.end());
  m.strides.assign(strides.begin(), strides.end());
}

void AddContiguous(OutMetas& out, IntArrayRef sizes, ScalarType dtype) {
  Add(out, sizes, c10::contiguous_strides(sizes), dtype);
}

void AddFormat(OutMetas& out, IntArrayRef sizes, ScalarType dtype, MemoryFormat format) {
  if (format == MemoryFormat::ChannelsLast && sizes.size() == 4) {
    Add(out, sizes, c10::get_channels_last_strides_2d(sizes), dtype);
  } else if (format == MemoryFormat::ChannelsLast3d && sizes.size() == 5) {
    Add(out, sizes, c10::get_channels_last_strides_3d(sizes), dtype);
  } else {
    AddContiguous(out, sizes, dtype);
  }
}

void AddLike(OutMetas& out, const Tensor& t, std::optional<ScalarType> dtype) {
  const ScalarType type = dtype.value_or(t.scalar_type());
  if (t.is_non_overlapping_and_dense()) {
    Add(out, t.sizes(), t.strides(), type);
  } else {
    Add(out, t.sizes(), at::infer_dense_strides(t.sizes(), t.strides()), type);
  }
}

void AddLikeContiguous(OutMetas& out, const Tensor& t, std::optional<ScalarType> dtype) {
  AddContiguous(out, t.sizes(), dtype.value_or(t.scalar_type()));
}

void AddLikeSuggested(OutMetas& out, const Tensor& t, std::optional<ScalarType> dtype) {
  AddFormat(out, t.sizes(), dtype.value_or(t.scalar_type()), t.suggest_memory_format());
}

void Like(Args args, OutMetas& out) { AddLike(out, TensorAt(args, 0)); }

void LikeContiguous(Args args, OutMetas& out) { AddLikeContiguous(out, TensorAt(args, 0)); }

void AddUndefined(OutMetas& out) { out.emplace_back(); }

void AddMeta(OutMetas& out, const at::TensorBase& t) {
  if (t.defined()) {
    Add(out, t.sizes(), t.strides(), t.scalar_type());
  } else {
    AddUndefined(out);
  }
}

Tensor MetaLike(const Tensor& t) {
  if (!t.defined()) return t;
  return Tensor(at::detail::empty_strided_meta(t.sizes(), t.strides(), t.scalar_type()));
}

Tensor Wrapped(const c10::Scalar& number) {
  // Only its dtype and whether it is a number count.
  ScalarType dtype = ScalarType::Long;
  if (number.isFloatingPoint()) dtype = ScalarType::Double;
  if (number.isComplex()) dtype = ScalarType::ComplexDouble;
  if (number.isBoolean()) dtype = ScalarType::Bool;
  Tensor t(at::detail::empty_cpu({}, dtype, /*pin_memory=*/false));
  t.unsafeGetTensorImpl()->set_wrapped_number(true);
  return t;
}

namespace {

// A TensorIterator that gives its results metadata only. Its virtual function had one more parameter before PyTorch
// removed dimension names, so the parameter list is taken from the base class.
template <class Signature>
class ShapeIteratorOf;
template <class... Names>
class ShapeIteratorOf<void (at::TensorIteratorBase::*)(int64_t, IntArrayRef, IntArrayRef, at::TensorOptions, Names...)>
    final : public at::TensorIteratorBase {
 public:
  explicit ShapeIteratorOf(int n) : results_(n) {}

  const Tensor& maybe_get_output(int64_t i) override { return results_[i]; }

  void set_output_raw_strided(int64_t i, IntArrayRef sizes, IntArrayRef strides, at::TensorOptions options,
                              Names... names) override {
    const ScalarType dtype = c10::typeMetaToScalarType(options.dtype());
    results_[i] = Tensor(strides.empty() ? at::detail::empty_meta(sizes, dtype, options.memory_format_opt())
                                         : at::detail::empty_strided_meta(sizes, strides, dtype));
    at::TensorIteratorBase::set_output_raw_strided(i, sizes, strides, options, names...);
  }

  const Tensor& Result(int i) const { return results_[i]; }

 private:
  c10::SmallVector<Tensor, 2> results_;
};
using ShapeIterator = ShapeIteratorOf<decltype(&at::TensorIteratorBase::set_output_raw_strided)>;

}  // namespace

ScalarType CommonType(at::ArrayRef<Tensor> operands) {
  at::native::ResultTypeState state = {};
  for (const Tensor& t : operands) state = at::native::update_result_type_state(t, state);
  return at::native::result_type(state);
}

bool Loose(const Tensor& t) { return t.defined() && !t.is_non_overlapping_and_dense(); }

Tensor Copied(const Tensor& t, ScalarType dtype) {
  if (t.is_cpu()) return t;
  if (t.scalar_type() == dtype || !Loose(t)) return MetaLike(t);
  const auto strides = at::infer_dense_strides(t.sizes(), t.strides());
  return Tensor(at::detail::empty_strided_meta(t.sizes(), strides, t.scalar_type()));
}

void Elementwise(OutMetas& out, std::initializer_list<Tensor> operands, Promote promote,
                 std::optional<ScalarType> dtype, int n) {
  std::optional<ScalarType> meet;  // if operands may be copied into it
  if ((promote == Promote::kTypes || promote == Promote::kFloat) && !OnCuda() &&
      std::any_of(operands.begin(), operands.end(), Loose)) {
    meet = CommonType(operands);
    if (promote == Promote::kFloat && c10::isIntegralType(*meet, /*includeBool=*/true)) {
      meet = c10::get_default_dtype_as_scalartype();
    }
  }
  at::TensorIteratorConfig config;
  config.set_check_mem_overlap(false).allow_cpu_scalars(true);
  switch (promote) {
    case Promote::kNone:
      break;
    case Promote::kAny:
      config.check_all_same_dtype(false).declare_static_dtype(*dtype);
      break;
    case Promote::kTypes:
      config.promote_inputs_to_common_dtype(true);
      break;
    case Promote::kFloat:
      config.promote_inputs_to_common_dtype(true).promote_integer_inputs_to_float(true);
      break;
  }
  for (int i = 0; i < n; ++i) config.add_owned_output(at::TensorBase());
  for (const Tensor& t : operands) config.add_owned_const_input(meet ? Copied(t, *meet) : t);
  ShapeIterator iterator(n);
  iterator.build(config);
  for (int i = 0; i < n; ++i) {
    AddMeta(out, iterator.Result(i));
    if (dtype) out.back().dtype = *dtype;
  }
}

ScalarType RealType(ScalarType dtype) { return c10::isComplexType(dtype) ? c10::toRealValueType(dtype) : dtype; }

int64_t Wrap(int64_t dim, int64_t rank) { return at::maybe_wrap_dim(dim, rank); }

}  // namespace mycelya::rules
