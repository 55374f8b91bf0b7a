// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Operators made of one other operator: foreach forms with their numbers in a CPU tensor; addbmm_, which resizes its
// result; scalar_tensor, which accepts numbers that fill_ refuses; and the functional form of assertions.

#include <ATen/core/Tensor.h>
#include <ATen/native/ForeachUtils.h>
#include <ATen/ops/_assert_async.h>
#include <ATen/ops/_foreach_addcdiv.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/addbmm.h>
#include <ATen/ops/empty.h>
#include <c10/core/TensorOptions.h>
#include <torch/library.h>

#include <algorithm>
#include <limits>

namespace mycelya {
namespace {

using at::TensorList;

std::vector<at::Scalar> Numbers(const at::Tensor& scalars, TensorList self) {
  return at::native::convert_tensor_to_scalar_list(scalars, static_cast<int64_t>(self.size()));
}

std::vector<at::Tensor> Addcdiv(TensorList self, TensorList a, TensorList b, const at::Tensor& scalars) {
  return at::_foreach_addcdiv(self, a, b, Numbers(scalars, self));
}

void AddcdivInPlace(TensorList self, TensorList a, TensorList b, const at::Tensor& scalars) {
  at::_foreach_addcdiv_(self, a, b, Numbers(scalars, self));
}

std::vector<at::Tensor> Addcmul(TensorList self, TensorList a, TensorList b, const at::Tensor& scalars) {
  return at::_foreach_addcmul(self, a, b, Numbers(scalars, self));
}

void AddcmulInPlace(TensorList self, TensorList a, TensorList b, const at::Tensor& scalars) {
  at::_foreach_addcmul_(self, a, b, Numbers(scalars, self));
}

at::Tensor& AddbmmInPlace(at::Tensor& self, const at::Tensor& a, const at::Tensor& b, const at::Scalar& beta,
                          const at::Scalar& alpha) {
  const at::Tensor result = at::addbmm(self, a, b, beta, alpha);
  TORCH_CHECK(result.scalar_type() == self.scalar_type(), "addbmm_: expected self to have dtype ", result.scalar_type(),
              ", got ", self.scalar_type());
  if (self.sizes() != result.sizes()) self.resize_(result.sizes());
  return self.copy_(result);
}

// As on the CPU, a number too large for f16 or bf16 becomes an infinity: torch.where(mask, x, -1e9) makes one.
at::Tensor ScalarTensor(const at::Scalar& number, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                        std::optional<at::Device> device, std::optional<bool> pin) {
  const auto options = at::TensorOptions().dtype(dtype).layout(layout).device(device).pinned_memory(pin);
  const auto type = c10::typeMetaToScalarType(options.dtype());
  at::Scalar held = number;
  if (!number.isComplex() && c10::isReducedFloatingType(type)) {
    constexpr double kMost = std::numeric_limits<float>::max();
    const auto v = static_cast<float>(std::clamp(number.toDouble(), -kMost, kMost));
    held = type == at::kHalf ? static_cast<double>(at::Half(v)) : static_cast<double>(at::BFloat16(v));
  }
  return at::empty({}, options).fill_(held);
}

// The token only orders assertions in a functional graph. The record is an effect, and so in order without it.
at::Tensor FunctionalAssert(const at::Tensor& condition, c10::string_view text, const at::Tensor& token) {
  at::_assert_async(condition, text);
  return token.clone();
}

at::Tensor MakeToken(std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                     std::optional<at::Device> device, std::optional<bool> pin,
                     std::optional<at::MemoryFormat> format) {
  return at::empty({}, dtype, layout, device, pin, format);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("addbmm_", &AddbmmInPlace);
  m.impl("_foreach_addcdiv.Tensor", &Addcdiv);
  m.impl("_foreach_addcdiv_.Tensor", &AddcdivInPlace);
  m.impl("_foreach_addcmul.Tensor", &Addcmul);
  m.impl("_foreach_addcmul_.Tensor", &AddcmulInPlace);
  m.impl("scalar_tensor", &ScalarTensor);
  m.impl("_functional_assert_async.msg", &FunctionalAssert);
  m.impl("_make_dep_token", &MakeToken);
}

}  // namespace
}  // namespace mycelya
