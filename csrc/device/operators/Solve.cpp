// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Solvers of linear systems.
#include <ATen/ExpandUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/conj_physical.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_solve_triangular.h>
#include <c10/util/strides.h>

#include "device/record/Record.h"
#include "device/record/Special.h"

namespace mycelya {

// From the right the adjoint is solved, and the unknowns are conjugated lazily; if they stand where LAPACK put them.
void RecordSolve(const c10::OperatorHandle& handle, torch::jit::Stack* stack) {
  const auto& schema = handle.schema();
  const bool left = torch::jit::peek(*stack, *schema.argumentIndexWithName("left"), schema.arguments().size()).toBool();
  Record(handle, stack);
  at::Tensor x = torch::jit::peek(*stack, 0, schema.returns().size()).toTensor();
  if (left || !x.is_complex() || x.numel() == 0 || x.strides() != c10::contiguous_strides(x.sizes())) return;
  at::conj_physical_(x);
  x._set_conj(true);
}

// A column-major conjugate is the adjoint of a row-major matrix: LAPACK is told so, instead of making a copy, and
// solves for row-major unknowns.
void RecordSolveTriangular(const c10::OperatorHandle& handle, torch::jit::Stack* stack) {
  const size_t n = handle.schema().arguments().size();
  const at::Tensor a = torch::jit::peek(*stack, 0, n).toTensor(), b = torch::jit::peek(*stack, 1, n).toTensor();
  if (!a.is_conj() || a.dim() < 2 || b.dim() < 2) return Record(handle, stack);
  const auto batch = at::infer_size_dimvector(a.sizes().slice(0, a.dim() - 2), b.sizes().slice(0, b.dim() - 2));
  const auto batched = [&](const at::Tensor& t) {
    auto sizes = batch;
    sizes.append({t.size(-2), t.size(-1)});
    return sizes;
  };
  if (!a.expand(batched(a)).mT().is_contiguous()) return Record(handle, stack);
  const bool writes_out = n > 5;
  at::Tensor out = writes_out ? stack->back().toTensor() : at::empty({0}, a.options());
  at::native::resize_output(out, batched(b));
  if (writes_out) return Record(handle, stack);
  const bool upper = torch::jit::peek(*stack, 2, n).toBool(), left = torch::jit::peek(*stack, 3, n).toBool(),
             unitriangular = torch::jit::peek(*stack, 4, n).toBool();
  at::linalg_solve_triangular_out(out, a, b, upper, left, unitriangular);
  torch::jit::drop(*stack, n);
  stack->push_back(out);
}

}  // namespace mycelya
