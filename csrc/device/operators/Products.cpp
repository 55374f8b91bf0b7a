// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Products of vectors and matrices.
#include <ATen/ExpandUtils.h>
#include <ATen/ops/dot.h>
#include <ATen/ops/vdot.h>

#include "device/record/Special.h"

namespace mycelya {
namespace {

// Whether a product is of conjugate views and of no negative ones.
bool Conjugate(const at::Tensor& a, const at::Tensor& b) {
  return !a.is_neg() && !b.is_neg() && (a.is_conj() || b.is_conj());
}

// Replaces the two operands on the stack by their product.
bool Put(torch::jit::Stack* stack, at::Tensor product) {
  torch::jit::drop(*stack, 2);
  stack->push_back(std::move(product));
  return true;
}

}  // namespace

bool DotOfConjugates(torch::jit::Stack* stack) {
  const at::Tensor a = (*stack)[stack->size() - 2].toTensor(), b = stack->back().toTensor();
  if (!Conjugate(a, b)) return false;
  return Put(stack, a.is_conj() && b.is_conj() ? at::dot(a.conj(), b.conj()).conj()
                    : a.is_conj()              ? at::vdot(a.conj(), b)
                                               : at::vdot(b.conj(), a));
}

bool VdotOfConjugates(torch::jit::Stack* stack) {
  const at::Tensor a = (*stack)[stack->size() - 2].toTensor(), b = stack->back().toTensor();
  if (!Conjugate(a, b)) return false;
  return Put(stack, a.is_conj() && b.is_conj() ? at::vdot(b.conj(), a.conj())
                    : a.is_conj()              ? at::dot(a.conj(), b)
                                               : at::dot(a, b.conj()).conj());
}

void CheckProduct(Arguments args, const OutMetas&) {
  const auto a = args[0].toTensor().dtype(), b = args[1].toTensor().dtype();
  TORCH_CHECK(a == b, "expected m1 and m2 to have the same dtype, but got: ", a, " != ", b);
}

void CheckBiasedProduct(Arguments args, const OutMetas& results) {
  const at::Tensor &self = args[0].toTensor(), &a = args[1].toTensor(), &b = args[2].toTensor();
  TORCH_CHECK(self.dtype() == b.dtype(), "self and mat2 must have the same dtype, but got ", self.scalar_type(),
              " and ", b.scalar_type());
  TORCH_CHECK(a.dtype() == b.dtype(), "mat1 and mat2 must have the same dtype, but got ", a.scalar_type(), " and ",
              b.scalar_type());
  if (results.empty()) return;  // in place: of the result's shape
  const at::IntArrayRef sizes(results[0].sizes);
  TORCH_CHECK(self.dim() <= static_cast<int64_t>(sizes.size()), "expand(torch.", self.toString(), "{", self.sizes(),
              "}, size=", sizes, "): the number of sizes provided (", sizes.size(),
              ") must be greater or equal to the number of ", "dimensions in the tensor (", self.dim(), ")");
  at::inferExpandGeometry_dimvector(self.sizes(), self.strides(), sizes);
}

}  // namespace mycelya
