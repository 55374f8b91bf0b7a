// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Conjugate and negative views. The worker does not have their bits.
#include <ATen/native/Resize.h>
#include <ATen/ops/_conj.h>
#include <ATen/ops/_neg_view.h>
#include <ATen/ops/conj_physical.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/neg.h>

#include "device/record/RecordInternal.h"
#include "device/record/Transfer.h"

namespace mycelya {

void ResolveViews(const Op& op, std::span<c10::IValue> args, WrittenViews& written) {
  for (size_t i = 0; i < args.size(); ++i) {
    if (op.args[i].kind == Kind::kTensor && args[i].isTensor() && IsLazyView(args[i].toTensor())) {
      if (op.args[i].write) written.emplace_back(i, args[i].toTensor());
      args[i] = Resolve(args[i].toTensor());
    } else if (op.args[i].kind == Kind::kTensors && !op.args[i].write && args[i].isTensorList()) {
      c10::List<at::Tensor> list;
      for (const auto& e : args[i].toListRef())
        list.push_back(IsLazyView(e.toTensor()) ? Resolve(e.toTensor()) : e.toTensor());
      args[i] = std::move(list);
    }
  }
}

void RecordThrough(const Op& op, torch::jit::Stack* stack, const WrittenViews& written) {
  const size_t n = op.args.size();
  c10::SmallVector<at::Tensor, 2> copies;
  for (const auto& [i, view] : written) copies.push_back((*stack)[stack->size() - n + i].toTensor());
  Record(op.handle, stack);
  for (size_t k = 0; k < written.size(); ++k) {
    const at::Tensor& view = written[k].second;
    if (op.writes_out && view.sizes() != copies[k].sizes()) at::native::resize_output(view, copies[k].sizes());
    CopyFrom(copies[k], view, false);
    for (size_t r = 0; r < op.returns.size(); ++r) {
      if (op.returns[r].alias == static_cast<int>(written[k].first)) {
        (*stack)[stack->size() - op.returns.size() + r] = view;
      }
    }
  }
}

at::Tensor Resolve(const at::Tensor& t, at::MemoryFormat format) {
  if (t.is_conj()) {
    const at::Tensor plain = Resolve(t._conj(), format);
    at::Tensor out = at::empty_like(plain, format);
    return at::conj_physical_out(out, plain);
  }
  if (t.is_neg()) {
    const at::Tensor plain = t._neg_view();
    at::Tensor out = at::empty_like(plain, format);
    return at::neg_out(out, plain);
  }
  return t;
}

}  // namespace mycelya
