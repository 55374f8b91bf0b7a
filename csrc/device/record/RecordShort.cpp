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
bool Fits(const c10::TensorImpl& t) {
  const c10::DispatchKeySet keys = t.key_set();
  if (!keys.has(c10::DispatchKey::PrivateUse1) || keys.has_any(kLazyViews)) return false;
  const c10::ScalarType dtype = c10::typeMetaToScalarType(t.dtype());
  return (dtype == at::kFloat || dtype == at::kDouble || dtype == at::kHalf || dtype == at::kBFloat16) &&
         StorageOf(t)->defined && IsAlive(*StorageOf(t));
}

// The same for a further operand, which must have the dtype and the device of the first one.
bool FitsBeside(const c10::TensorImpl& t, const c10::TensorImpl& first) {
  if (&t == &first) return true;
  if (t.key_set() != first.key_set() || t.dtype() != first.dtype()) return false;
  const Storage& s = *StorageOf(t);
  return s.defined && IsAlive(s) && s.device_index() == StorageOf(first)->device_index();
}

bool IsNumber(const c10::TensorImpl& t) {
  return t.is_wrapped_number() && t.is_cpu() && !c10::isComplexType(c10::typeMetaToScalarType(t.dtype()));
}

using Operand = ShortCall::Operand;

const c10::TensorImpl& Impl(const Operand& operand) { return *operand.tensor->unsafeGetTensorImpl(); }

// All tensors but numbers are contiguous and of one shape. No dim has size 1, because its stride would be arbitrary. No
// other operand shares the storage of a written one.
bool FitsElementwise(const Op& op, const ShortCall& call) {
  const c10::TensorImpl& first = Impl(call.operands[0]);
  if (!Fits(first) || !first.is_contiguous()) return false;
  for (const int64_t size : first.sizes()) {
    if (size < 2) return false;
  }
  for (size_t i = 1; i < call.n; ++i) {
    if (call.operands[i].tensor == nullptr) continue;
    const c10::TensorImpl& t = Impl(call.operands[i]);
    if (FitsBeside(t, first)) {
      if (!t.is_contiguous() || !SameDims(t.sizes(), first.sizes())) return false;
      if (!op.writes.empty() && &t != &first && StorageOf(t) == StorageOf(first)) return false;
    } else if (!IsNumber(t)) {
      return false;
    }
  }
  return true;
}

// a [n, k] b [k, m]. Sets sizes to those of the product.
bool FitsProduct(const Operand& one, const Operand& other, std::array<int64_t, 2>& sizes) {
  const c10::TensorImpl &a = Impl(one), &b = Impl(other);
  if (!Fits(a) || !FitsBeside(b, a) || a.dim() != 2 || b.dim() != 2) return false;
  const int64_t k = a.sizes()[1];
  sizes = {a.sizes()[0], b.sizes()[1]};
  return k == b.sizes()[0] && k > 0 && sizes[0] > 0 && sizes[1] > 0;
}

// Whether a bias has these sizes, or is a row of them.
bool FitsBias(const Operand& operand, const Operand& factor, const std::array<int64_t, 2>& sizes) {
  const c10::TensorImpl& t = Impl(operand);
  const c10::IntArrayRef own = t.sizes();
  if (!FitsBeside(t, Impl(factor)) || own.empty() || own.size() > 2 || own.back() != sizes[1]) return false;
  return own.size() == 1 || own[0] == sizes[0];
}

}  // namespace

bool RecordShort(const Op& op, const ShortCall& call, at::Tensor& result) {
  std::array<int64_t, 2> sizes;
  const Operand& leading = call.operands[op.columns.shortcut == Shortcut::kBiasedProduct ? 1 : 0];
  switch (op.columns.shortcut) {
    case Shortcut::kNone:
      return false;
    case Shortcut::kElementwise:
      if (!FitsElementwise(op, call)) return false;
      break;
    case Shortcut::kProduct:
      if (!FitsProduct(call.operands[0], call.operands[1], sizes)) return false;
      break;
    case Shortcut::kBiasedProduct:
      if (!FitsProduct(leading, call.operands[2], sizes) || !FitsBias(call.operands[0], leading, sizes)) return false;
      break;
  }
  for (size_t i = 0; i < call.n; ++i) {
    const c10::Scalar* number = call.operands[i].number;
    if (number != nullptr && (number->isComplex() || number->isBoolean())) return false;
  }
  const c10::TensorImpl& first = Impl(leading);
  const Storage& storage = *StorageOf(first);
  if (op.columns.Has(kExact) && storage.known) return false;  // perhaps the result is known too
  const c10::DeviceIndex device = storage.device_index();

  CheckUsable();
  Thread& thread = this_thread;  // one look-up of the thread-local variable
  KeepBackwardInThisThread(thread);
  const Origin origin = RecordOrigin(thread);  // may take the GIL: before any lock
  const bool writes = !op.writes.empty();
  if (!writes) {
    const c10::ScalarType dtype = c10::typeMetaToScalarType(first.dtype());
    const auto bytes = static_cast<int64_t>(first.itemsize());
    result = op.columns.shortcut == Shortcut::kElementwise
                 ? NewTensor(dtype, first.sizes(), first.strides(), bytes * first.numel(), device, thread)
                 : NewTensor(dtype, sizes, {sizes[1], 1}, bytes * sizes[0] * sizes[1], device, thread);
  }
  Recorder& r = RecorderOf(device);
  r.WaitForRoom(origin);
  std::lock_guard<SpinLock> guard(r.lock);
  r.Prepare(origin);
  r.Count(true);
  r.Begin(op.hash, op.flags, static_cast<uint32_t>(op.args.size()), op.fresh_returns, origin);
  for (size_t i = 0; i < call.n; ++i) {
    const Operand& operand = call.operands[i];
    if (operand.tensor == nullptr) {
      const bool stands_for_tensor = op.args[i].kind == Kind::kTensor;
      ScalarArgument(r, stands_for_tensor ? 'v' : op.args[i].number_class, *operand.number);
    } else if (const c10::TensorImpl& t = Impl(operand); t.device_type() != kDevice) {
      NumberArgument(r, *operand.tensor);
    } else if (t.is_contiguous()) {
      r.ContiguousOperand(t, op.args[i].write);
    } else {
      r.Operand(t, op.args[i].write);
    }
  }
  if (!writes) r.Result(*result.unsafeGetTensorImpl());
  r.End();
  return true;
}

bool RecordShort(const Op& op, torch::jit::Stack* stack) {
  const size_t n = op.args.size();
  ShortCall call;
  std::array<c10::Scalar, ShortCall::kMost> numbers;
  for (size_t i = 0; i < n; ++i) {
    const c10::IValue& value = torch::jit::peek(*stack, i, n);
    if (value.isTensor()) {
      call.Put(value.toTensor());
    } else {
      numbers[i] = value.toScalar();
      call.Put(numbers[i]);
    }
  }
  at::Tensor result;
  if (!RecordShort(op, call, result)) return false;
  if (result.defined()) {
    torch::jit::drop(*stack, n);
    stack->emplace_back(std::move(result));
  } else {
    torch::jit::drop(*stack, n - 1);  // the result is the first argument
  }
  return true;
}

}  // namespace mycelya
