// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Conjugate and negative views, which the worker doesn't have.
#include <ATen/ExpandUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_conj.h>
#include <ATen/ops/_neg_view.h>
#include <ATen/ops/conj_physical.h>
#include <ATen/ops/dot.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linalg_solve_triangular.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/vdot.h>
#include <c10/util/strides.h>

#include "device/operators/Transfer.h"
#include "device/record/RecordInternal.h"

namespace mycelya {

void resolve_views(const Op& op, std::span<c10::IValue> args, WrittenViews& written) {
  for (size_t i = 0; i < args.size(); ++i) {
    if (op.args[i].kind == Kind::kTensor && args[i].isTensor() && is_lazy_view(args[i].toTensor())) {
      if (op.args[i].write) written.emplace_back(i, args[i].toTensor());
      args[i] = resolve(args[i].toTensor());
    } else if (op.args[i].kind == Kind::kTensors && !op.args[i].write && args[i].isTensorList()) {
      c10::List<at::Tensor> list;
      for (const auto& e : args[i].toListRef())
        list.push_back(is_lazy_view(e.toTensor()) ? resolve(e.toTensor()) : e.toTensor());
      args[i] = std::move(list);
    }
  }
}

bool conjugate_product(const Op& op, torch::jit::Stack* stack) {
  if (op.name != "dot" && op.name != "vdot") return false;
  const at::Tensor a = (*stack)[stack->size() - 2].toTensor(), b = stack->back().toTensor();
  if (a.is_neg() || b.is_neg() || !(a.is_conj() || b.is_conj())) return false;
  at::Tensor result;
  if (op.name == "dot") {
    result = a.is_conj() && b.is_conj() ? at::dot(a.conj(), b.conj()).conj()
             : a.is_conj()              ? at::vdot(a.conj(), b)
                                        : at::vdot(b.conj(), a);
  } else {
    result = a.is_conj() && b.is_conj() ? at::vdot(b.conj(), a.conj())
             : a.is_conj()              ? at::dot(a.conj(), b)
                                        : at::dot(a, b.conj()).conj();
  }
  torch::jit::drop(*stack, 2);
  stack->push_back(std::move(result));
  return true;
}

void record_through(const Op& op, torch::jit::Stack* stack, const WrittenViews& written) {
  const size_t n = op.args.size();
  c10::SmallVector<at::Tensor, 2> copies;
  for (const auto& [i, view] : written) copies.push_back((*stack)[stack->size() - n + i].toTensor());
  record(op.handle, stack);
  for (size_t k = 0; k < written.size(); ++k) {
    const at::Tensor& view = written[k].second;
    if (op.writes_out && view.sizes() != copies[k].sizes()) at::native::resize_output(view, copies[k].sizes());
    copy_from(copies[k], view, false);
    for (size_t r = 0; r < op.returns.size(); ++r) {
      if (op.returns[r].alias == static_cast<int>(written[k].first)) {
        (*stack)[stack->size() - op.returns.size() + r] = view;
      }
    }
  }
}

// From the right the adjoint is solved, and the unknowns are conjugated lazily; if they stand where LAPACK put them.
void record_solve(const c10::OperatorHandle& handle, torch::jit::Stack* stack) {
  const auto& schema = handle.schema();
  const bool left = torch::jit::peek(*stack, *schema.argumentIndexWithName("left"), schema.arguments().size()).toBool();
  record(handle, stack);
  at::Tensor x = torch::jit::peek(*stack, 0, schema.returns().size()).toTensor();
  if (left || !x.is_complex() || x.numel() == 0 || x.strides() != c10::contiguous_strides(x.sizes())) return;
  at::conj_physical_(x);
  x._set_conj(true);
}

// A column-major conjugate is the adjoint of a row-major matrix: LAPACK is told so, instead of making a copy, and
// solves for row-major unknowns.
void record_solve_triangular(const c10::OperatorHandle& handle, torch::jit::Stack* stack) {
  const size_t n = handle.schema().arguments().size();
  const at::Tensor a = torch::jit::peek(*stack, 0, n).toTensor(), b = torch::jit::peek(*stack, 1, n).toTensor();
  if (!a.is_conj() || a.dim() < 2 || b.dim() < 2) return record(handle, stack);
  const auto batch = at::infer_size_dimvector(a.sizes().slice(0, a.dim() - 2), b.sizes().slice(0, b.dim() - 2));
  const auto batched = [&](const at::Tensor& t) {
    auto sizes = batch;
    sizes.append({t.size(-2), t.size(-1)});
    return sizes;
  };
  if (!a.expand(batched(a)).mT().is_contiguous()) return record(handle, stack);
  const bool writes_out = n > 5;
  at::Tensor out = writes_out ? stack->back().toTensor() : at::empty({0}, a.options());
  at::native::resize_output(out, batched(b));
  if (writes_out) return record(handle, stack);
  const bool upper = torch::jit::peek(*stack, 2, n).toBool(), left = torch::jit::peek(*stack, 3, n).toBool(),
             unitriangular = torch::jit::peek(*stack, 4, n).toBool();
  at::linalg_solve_triangular_out(out, a, b, upper, left, unitriangular);
  torch::jit::drop(*stack, n);
  stack->push_back(out);
}

at::Tensor resolve(const at::Tensor& t) {
  // Into memory laid out as a clone's would be.
  if (t.is_conj()) {
    const at::Tensor plain = resolve(t._conj());
    at::Tensor out = at::empty_like(plain, at::MemoryFormat::Preserve);
    return at::conj_physical_out(out, plain);
  }
  if (t.is_neg()) {
    const at::Tensor plain = t._neg_view();
    at::Tensor out = at::empty_like(plain, at::MemoryFormat::Preserve);
    return at::neg_out(out, plain);
  }
  return t;
}

}  // namespace mycelya
