// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// The short path of the most frequent calls: elementwise ops on contiguous float tensors of one shape, and matrix
// products of floats.
#include <ATen/core/Tensor.h>

#include <array>
#include <mutex>

#include "device/record/RecordInternal.h"
#include "device/tensor/TensorImpl.h"

namespace mycelya {
namespace {

constexpr c10::DispatchKeySet kLazyViews({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative,
                                          c10::DispatchKey::ZeroTensor});

// Whether a tensor is of this device and of floats, is no lazy view, and has a defined storage.
bool fits(const c10::TensorImpl& t) {
  const c10::DispatchKeySet keys = t.key_set();
  if (!keys.has(c10::DispatchKey::PrivateUse1) || keys.has_any(kLazyViews)) return false;
  const c10::ScalarType dtype = c10::typeMetaToScalarType(t.dtype());
  return (dtype == at::kFloat || dtype == at::kDouble || dtype == at::kHalf || dtype == at::kBFloat16) &&
         storage_of(t)->defined;
}

// The same for a further operand, which must have the dtype and the device of the first one.
bool fits_beside(const c10::TensorImpl& t, const c10::TensorImpl& first) {
  if (&t == &first) return true;
  if (t.key_set() != first.key_set() || t.dtype() != first.dtype()) return false;
  const Storage& s = *storage_of(t);
  return s.defined && s.device_index() == storage_of(first)->device_index();
}

bool is_number(const c10::TensorImpl& t) {
  return t.is_wrapped_number() && t.is_cpu() && !c10::isComplexType(c10::typeMetaToScalarType(t.dtype()));
}

using Operand = ShortCall::Operand;

const c10::TensorImpl& impl(const Operand& operand) { return *operand.tensor->unsafeGetTensorImpl(); }

// All tensors but numbers are contiguous and of one shape. No dim has size 1, because its stride would be arbitrary. No
// other operand shares the storage of a written one.
bool fits_elementwise(const Op& op, const ShortCall& call) {
  const c10::TensorImpl& first = impl(call.operands[0]);
  if (!fits(first) || !first.is_contiguous()) return false;
  for (const int64_t size : first.sizes()) {
    if (size < 2) return false;
  }
  for (size_t i = 1; i < call.n; ++i) {
    if (call.operands[i].tensor == nullptr) continue;
    const c10::TensorImpl& t = impl(call.operands[i]);
    if (fits_beside(t, first)) {
      if (!t.is_contiguous() || !same_dims(t.sizes(), first.sizes())) return false;
      if (!op.writes.empty() && &t != &first && storage_of(t) == storage_of(first)) return false;
    } else if (!is_number(t)) {
      return false;
    }
  }
  return true;
}

// a [n, k] b [k, m]. Sets sizes to those of the product.
bool fits_product(const Operand& one, const Operand& other, std::array<int64_t, 2>& sizes) {
  const c10::TensorImpl &a = impl(one), &b = impl(other);
  if (!fits(a) || !fits_beside(b, a) || a.dim() != 2 || b.dim() != 2) return false;
  const int64_t k = a.sizes()[1];
  sizes = {a.sizes()[0], b.sizes()[1]};
  return k == b.sizes()[0] && k > 0 && sizes[0] > 0 && sizes[1] > 0;
}

// Whether a bias has these sizes, or is a row of them.
bool fits_bias(const Operand& operand, const Operand& factor, const std::array<int64_t, 2>& sizes) {
  const c10::TensorImpl& t = impl(operand);
  const c10::IntArrayRef own = t.sizes();
  if (!fits_beside(t, impl(factor)) || own.empty() || own.size() > 2 || own.back() != sizes[1]) return false;
  return own.size() == 1 || own[0] == sizes[0];
}

}  // namespace

bool record_short(const Op& op, const ShortCall& call, at::Tensor& result) {
  std::array<int64_t, 2> sizes;
  const Operand& leading = call.operands[op.columns.shortcut == Shortcut::kBiasedProduct ? 1 : 0];
  switch (op.columns.shortcut) {
    case Shortcut::kNone:
      return false;
    case Shortcut::kElementwise:
      if (!fits_elementwise(op, call)) return false;
      break;
    case Shortcut::kProduct:
      if (!fits_product(call.operands[0], call.operands[1], sizes)) return false;
      break;
    case Shortcut::kBiasedProduct:
      if (!fits_product(leading, call.operands[2], sizes) || !fits_bias(call.operands[0], leading, sizes)) return false;
      break;
  }
  for (size_t i = 0; i < call.n; ++i) {
    const c10::Scalar* number = call.operands[i].number;
    if (number != nullptr && (number->isComplex() || number->isBoolean())) return false;
  }

  check_not_forked();
  keep_backward_in_this_thread();
  const Origin origin = record_origin();  // may take the GIL: before any lock
  const c10::TensorImpl& first = impl(leading);
  const c10::DeviceIndex device = storage_of(first)->device_index();
  const bool writes = !op.writes.empty();
  if (!writes) {
    const c10::ScalarType dtype = c10::typeMetaToScalarType(first.dtype());
    const auto bytes = static_cast<int64_t>(first.itemsize());
    result = op.columns.shortcut == Shortcut::kElementwise
                 ? new_tensor(dtype, first.sizes(), first.strides(), bytes * first.numel(), device)
                 : new_tensor(dtype, sizes, {sizes[1], 1}, bytes * sizes[0] * sizes[1], device);
  }
  Recorder& r = recorder(device);
  r.wait_for_room(origin);
  std::lock_guard<SpinLock> guard(r.lock);
  r.prepare(origin);
  r.count(true);
  r.begin(op.hash, op.flags, static_cast<uint32_t>(op.args.size()), op.fresh_returns, origin);
  for (size_t i = 0; i < call.n; ++i) {
    const Operand& operand = call.operands[i];
    if (operand.tensor == nullptr) {
      const bool stands_for_tensor = op.args[i].kind == Kind::kTensor;
      scalar_argument(r, stands_for_tensor ? 'v' : op.args[i].number_class, *operand.number);
    } else if (const c10::TensorImpl& t = impl(operand); t.device_type() != kDevice) {
      number_argument(r, *operand.tensor);
    } else if (t.is_contiguous()) {
      r.contiguous_operand(t, op.args[i].write);
    } else {
      r.operand(t, op.args[i].write);
    }
  }
  if (!writes) r.result(*result.unsafeGetTensorImpl());
  r.end();
  return true;
}

bool record_short(const Op& op, torch::jit::Stack* stack) {
  const size_t n = op.args.size();
  ShortCall call;
  std::array<c10::Scalar, ShortCall::kMost> numbers;
  for (size_t i = 0; i < n; ++i) {
    const c10::IValue& value = torch::jit::peek(*stack, i, n);
    if (value.isTensor()) {
      call.put(value.toTensor());
    } else {
      numbers[i] = value.toScalar();
      call.put(numbers[i]);
    }
  }
  at::Tensor result;
  if (!record_short(op, call, result)) return false;
  if (result.defined()) {
    torch::jit::drop(*stack, n);
    stack->emplace_back(std::move(result));
  } else {
    torch::jit::drop(*stack, n - 1);  // the result is the first argument
  }
  return true;
}

}  // namespace mycelya
