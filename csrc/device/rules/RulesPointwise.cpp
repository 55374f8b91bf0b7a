// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Elementwise ops without a structured form in PyTorch.

#include <ATen/ExpandUtils.h>
#include <c10/core/DefaultDtype.h>

#include "device/rules/RulesInternal.h"

namespace mycelya::rules {
namespace {

constexpr ScalarType kBool = ScalarType::Bool;

void unary(Args args, OutMetas& out) { elementwise(out, {tensor(args, 0)}, Promote::kNone); }

void unary_float(Args args, OutMetas& out) { elementwise(out, {tensor(args, 0)}, Promote::kFloat); }

void unary_bool(Args args, OutMetas& out) { elementwise(out, {tensor(args, 0)}, Promote::kAny, kBool); }

// Complex in, real out.
void magnitude(Args args, OutMetas& out) {
  const Tensor self = tensor(args, 0);
  self.is_complex() ? add_like(out, self, real_type(self.scalar_type())) : unary(args, out);
}

void angle(Args args, OutMetas& out) {
  const Tensor self = tensor(args, 0);
  if (self.is_complex()) {
    add_like_contiguous(out, self, real_type(self.scalar_type()));  // the real part of a complex result
  } else {
    unary_float(args, out);
  }
}

void relu(Args args, OutMetas& out) {
  TORCH_CHECK_NOT_IMPLEMENTED(tensor(args, 0).scalar_type() != kBool, "Boolean inputs not supported for relu");
  TORCH_CHECK_NOT_IMPLEMENTED(!tensor(args, 0).is_complex(), "clamp is not supported for complex types");
  unary(args, out);
}

void like(Args args, OutMetas& out) { add_like(out, tensor(args, 0)); }

void like_contiguous(Args args, OutMetas& out) { add_like_contiguous(out, tensor(args, 0)); }

void hardtanh(Args args, OutMetas& out) {
  TORCH_CHECK_NOT_IMPLEMENTED(tensor(args, 0).scalar_type() != kBool, "Bool inputs not supported for hardtanh");
  like(args, out);
}

void binary(Args args, OutMetas& out) { elementwise(out, {tensor(args, 0), tensor(args, 1)}, Promote::kTypes); }

// `binary` of a tensor and a number.
void binary_scalar(Args args, OutMetas& out) {
  elementwise(out, {tensor(args, 0), wrapped(args[1].toScalar())}, Promote::kTypes);
}

void power(Args args, OutMetas& out) {
  const Tensor base = tensor(args, 0);
  const c10::Scalar exponent = args[1].toScalar();
  TORCH_CHECK(!(c10::isIntegralType(base.scalar_type(), /*includeBool=*/true) && exponent.isIntegral(true) &&
                exponent.toLong() < 0),
              "Integers to negative integer powers are not allowed.");
  elementwise(out, {base}, Promote::kAny, at::result_type(base, exponent));
}

void scalar_binary(Args args, OutMetas& out) {
  elementwise(out, {wrapped(args[0].toScalar()), tensor(args, 1)}, Promote::kTypes);
}

void binary_reversed(Args args, OutMetas& out) {
  elementwise(out, {tensor(args, 1), tensor(args, 0)}, Promote::kTypes);
}

void subtract_reversed(Args args, OutMetas& out) {
  TORCH_CHECK(tensor(args, 0).scalar_type() != kBool && tensor(args, 1).scalar_type() != kBool,
              "Subtraction, the `-` operator, with two bool tensors is not supported. "
              "Use the `^` or `logical_xor()` operator instead.");
  binary_reversed(args, out);
}

void logical(Args args, OutMetas& out) { elementwise(out, {tensor(args, 0), tensor(args, 1)}, Promote::kTypes, kBool); }

// self [n, m] vec1 [n] vec2 [m] …
void outer_sum(Args args, OutMetas& out) {
  const Tensor self = tensor(args, 0), a = tensor(args, 1), b = tensor(args, 2);
  TORCH_CHECK(a.dim() == 1, "addr: Expected 1-D argument vec1, but got ", a.dim(), "-D");
  TORCH_CHECK(b.dim() == 1, "addr: Expected 1-D argument vec2, but got ", b.dim(), "-D");
  const int64_t sizes[] = {a.numel(), b.numel()};
  TORCH_CHECK(at::is_expandable_to(self.sizes(), sizes), "The expanded size of the tensor (", IntArrayRef(sizes),
              ") must match the existing size ", self.sizes());
  elementwise(out, {self.expand(sizes), a.unsqueeze(1).expand(sizes), b.unsqueeze(0).expand(sizes)}, Promote::kTypes);
}

void where(Args args, OutMetas& out) {
  const Tensor condition = tensor(args, 0), a = tensor(args, 1), b = tensor(args, 2);
  TORCH_CHECK(condition.scalar_type() == kBool || condition.scalar_type() == ScalarType::Byte,
              "where expected condition to be a boolean tensor, but got a tensor with dtype ", condition.scalar_type());
  const ScalarType type = common_type({a, b});
  elementwise(out, {meta_like(condition), copied(a, type), copied(b, type)}, Promote::kAny, type);
}

void complex(Args args, OutMetas& out) {
  const Tensor real = tensor(args, 0), imag = tensor(args, 1);
  const auto fits = [](ScalarType t) {
    return t == ScalarType::Float || t == ScalarType::Double || t == ScalarType::Half;
  };
  TORCH_CHECK_NOT_IMPLEMENTED(fits(real.scalar_type()) && fits(imag.scalar_type()),
                              "Expected both inputs to be Half, Float or Double tensors but got ", real.scalar_type(),
                              " and ", imag.scalar_type());
  TORCH_CHECK(real.scalar_type() == imag.scalar_type(), "Expected object of scalar type ", real.scalar_type(),
              " but got scalar type ", imag.scalar_type(), " for second argument");
  elementwise(out, {real, imag}, Promote::kAny, c10::toComplexType(real.scalar_type()));
}

void frexp(Args args, OutMetas& out) {
  const Tensor self = tensor(args, 0);
  TORCH_CHECK(c10::isFloatingType(self.scalar_type()), "torch.frexp() only supports floating-point dtypes");
  add_like(out, self);
  add_like(out, self, ScalarType::Int);
}

void fill_tensor(Args args, OutMetas& out) {
  const Tensor value = tensor(args, 1);
  TORCH_CHECK(value.dim() == 0, "fill_ only supports 0-dimension value tensor but got tensor with ", value.dim(),
              " dimensions.");
  like(args, out);
}

void prelu_backward(Args args, OutMetas& out) {
  // grad self weight -> grad of self and of weight, both of the broadcast shape
  elementwise(out, {tensor(args, 1), tensor(args, 2), tensor(args, 0)}, Promote::kNone, std::nullopt, /*n=*/2);
}

void glu_backward(Args args, OutMetas& out) { add_like_contiguous(out, tensor(args, 1)); }

void dropout(Args args, OutMetas& out) {
  const Tensor input = tensor(args, 0);
  add_like(out, input);
  add_like(out, input, kBool);
}

void dropout_backward(Args args, OutMetas& out) {
  const Tensor grad = tensor(args, 0), mask = tensor(args, 1);
  TORCH_CHECK(mask.scalar_type() == kBool, "Mask should be Bool Scalar Type ", mask.scalar_type());
  if (on_cuda()) {
    add_like_suggested(out, grad);
  } else {
    elementwise(out, {grad, mask, wrapped(args[2].toDouble())}, Promote::kTypes);
  }
}

void gamma_grad(Args args, OutMetas& out) { add_like_contiguous(out, tensor(args, 0)); }

void no_result(Args, OutMetas&) {}

constexpr RuleRow kRows[] = {
    {"__lshift__.Scalar", binary_scalar},
    {"__lshift__.Tensor", binary},
    {"__rshift__.Scalar", binary_scalar},
    {"__rshift__.Tensor", binary},
    {"_add_relu.Scalar", binary_scalar},
    {"_add_relu.Tensor", binary},
    {"_assert_async", no_result},
    {"_assert_async.msg", no_result},
    {"_conj_physical", like},
    {"_dirichlet_grad", gamma_grad},
    {"_prelu_kernel", like},
    {"_prelu_kernel_backward", prelu_backward},
    {"_standard_gamma_grad", gamma_grad},
    {"abs", magnitude},
    {"angle", angle},
    {"addr", outer_sum},
    {"complex", complex},
    {"conj_physical", unary},
    {"fill.Scalar", like},
    {"fill.Tensor", fill_tensor},
    {"floor_divide", binary},
    {"frexp.Tensor", frexp},
    {"glu_backward", glu_backward},
    {"glu_backward_jvp", like},
    {"glu_jvp", like},
    {"hardswish", unary},
    {"hardswish_backward", binary},
    {"hardtanh", hardtanh},
    {"hardtanh_backward", binary},
    {"isnan", unary_bool},
    {"log_sigmoid_backward", like},
    {"logical_and", logical},
    {"logical_not", unary_bool},
    {"logical_or", logical},
    {"logical_xor", logical},
    {"logit", unary_float},
    {"mvlgamma", unary_float},
    {"nan_to_num", like},
    {"native_dropout", dropout},
    {"native_dropout_backward", dropout_backward},
    {"mish_backward", binary},
    {"polar", complex},
    {"pow.Tensor_Scalar", power},
    {"relu", relu},
    {"remainder.Scalar_Tensor", scalar_binary},
    {"rrelu_with_noise", like_contiguous},
    {"rsub.Tensor", subtract_reversed},
    {"where.self", where},
};

}  // namespace

RuleRows pointwise_rules() { return kRows; }

}  // namespace mycelya::rules
