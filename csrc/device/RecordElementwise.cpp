// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// The way of the calls that most programs make most: elementwise, on contiguous float tensors of one shape.
#include <ATen/core/Tensor.h>

#include <mutex>

#include "RecordInternal.h"
#include "TensorImpl.h"

namespace mycelya {
namespace {

constexpr c10::DispatchKeySet kLazyViews({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative,
                                          c10::DispatchKey::ZeroTensor});

bool is_float(c10::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kDouble || dtype == at::kHalf || dtype == at::kBFloat16;
}

// Ours, no lazy view, contiguous, of floats; its dims of size 1 could have any stride, so it has none.
bool fits(const c10::TensorImpl& t) {
  const c10::DispatchKeySet keys = t.key_set();
  if (!keys.has(c10::DispatchKey::PrivateUse1) || keys.has_any(kLazyViews)) return false;
  if (!t.is_contiguous() || !is_float(c10::typeMetaToScalarType(t.dtype())) || !storage_of(t)->defined) return false;
  for (const int64_t size : t.sizes()) {
    if (size < 2) return false;
  }
  return true;
}

// As the first operand, and not in its memory if that is written.
bool fits_beside(const c10::TensorImpl& t, const c10::TensorImpl& first, bool writes) {
  if (&t == &first) return true;
  if (t.key_set() != first.key_set() || t.dtype() != first.dtype() || !t.is_contiguous()) return false;
  if (!same_dims(t.sizes(), first.sizes())) return false;
  const Storage *s = storage_of(t), *of_first = storage_of(first);
  return s->defined && s->device_index() == of_first->device_index() && (!writes || s != of_first);
}

bool is_number(const c10::TensorImpl& t) {
  return t.is_wrapped_number() && t.is_cpu() && !c10::isComplexType(c10::typeMetaToScalarType(t.dtype()));
}

}  // namespace

bool record_elementwise(const Op& op, const Elementwise& call, at::Tensor& result) {
  const c10::TensorImpl& first = *call.operands[0]->unsafeGetTensorImpl();
  if (!fits(first)) return false;
  const bool writes = !op.writes.empty();
  bool number[Elementwise::kMost] = {};
  for (size_t i = 1; i < call.n; ++i) {
    const c10::TensorImpl& t = *call.operands[i]->unsafeGetTensorImpl();
    if (!fits_beside(t, first, writes) && !(number[i] = is_number(t))) return false;
  }
  if (call.number != nullptr && (call.number->isComplex() || call.number->isBoolean())) return false;

  check_not_forked();
  keep_backward_in_this_thread();
  const Origin origin = record_origin();  // may take the GIL: before any lock
  const c10::DeviceIndex device = storage_of(first)->device_index();
  const c10::ScalarType dtype = c10::typeMetaToScalarType(first.dtype());
  if (!writes) {
    result = at::detail::make_tensor<TensorImpl>(
        make_storage(first.numel() * static_cast<int64_t>(first.itemsize()), device), dtype, first.sizes(),
        first.strides());
  }
  Recorder& r = recorder(device);
  r.wait_for_room(origin);
  std::lock_guard<SpinLock> guard(r.lock);
  r.prepare(origin);
  r.count_elementwise();
  r.begin(op.hash, op.flags, static_cast<uint32_t>(op.args.size()), op.fresh_returns, origin);
  for (size_t i = 0; i < call.n; ++i) {
    if (number[i]) {
      number_argument(r, *call.operands[i]);
    } else {
      r.contiguous_operand(*call.operands[i]->unsafeGetTensorImpl(), op.args[i].write);
    }
  }
  if (call.number != nullptr) scalar_argument(r, op.args[call.n].number_class, *call.number);
  if (!writes) r.result(*result.unsafeGetTensorImpl());
  r.end();
  return true;
}

bool record_elementwise(const Op& op, torch::jit::Stack* stack) {
  const size_t n = op.args.size();
  Elementwise call;
  c10::Scalar number;
  for (size_t i = 0; i < n; ++i) {
    const c10::IValue& value = torch::jit::peek(*stack, i, n);
    if (value.isTensor()) {
      call.operands[call.n++] = &value.toTensor();
    } else {
      number = value.toScalar();
      call.number = &number;
    }
  }
  at::Tensor result;
  if (!record_elementwise(op, call, result)) return false;
  if (result.defined()) {
    torch::jit::drop(*stack, n);
    stack->emplace_back(std::move(result));
  } else {
    torch::jit::drop(*stack, n - 1);  // the first one is written
  }
  return true;
}

}  // namespace mycelya
