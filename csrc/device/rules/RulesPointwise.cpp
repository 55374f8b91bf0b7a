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

void Unary(Args args, OutMetas& out) { Elementwise(out, {TensorAt(args, 0)}, Promote::kNone); }

void UnaryFloat(Args args, OutMetas& out) { Elementwise(out, {TensorAt(args, 0)}, Promote::kFloat); }

void UnaryBool(Args args, OutMetas& out) { Elementwise(out, {TensorAt(args, 0)}, Promote::kAny, kBool); }

// Complex in, real out.
void Magnitude(Args args, OutMetas& out) {
  const Tensor self = TensorAt(args, 0);
  self.is_complex() ? AddLike(out, self, RealType(self.scalar_type())) : Unary(args, out);
}

void Angle(Args args, OutMetas& out) {
  const Tensor self = TensorAt(args, 0);
  if (self.is_complex()) {
    AddLikeContiguous(out, self, RealType(self.scalar_type()));  // the real part of a complex result
  } else {
    UnaryFloat(args, out);
  }
}

void Relu(Args args, OutMetas& out) {
  TORCH_CHECK_NOT_IMPLEMENTED(TensorAt(args, 0).scalar_type() != kBool, "Boolean inputs not supported for relu");
  TORCH_CHECK_NOT_IMPLEMENTED(!TensorAt(args, 0).is_complex(), "clamp is not supported for complex types");
  Unary(args, out);
}

void Hardtanh(Args args, OutMetas& out) {
  TORCH_CHECK_NOT_IMPLEMENTED(TensorAt(args, 0).scalar_type() != kBool, "Bool inputs not supported for hardtanh");
  Like(args, out);
}

void Binary(Args args, OutMetas& out) { Elementwise(out, {TensorAt(args, 0), TensorAt(args, 1)}, Promote::kTypes); }

// `binary` of a tensor and a number.
void BinaryScalar(Args args, OutMetas& out) {
  Elementwise(out, {TensorAt(args, 0), Wrapped(args[1].toScalar())}, Promote::kTypes);
}

void Power(Args args, OutMetas& out) {
  const Tensor base = TensorAt(args, 0);
  const c10::Scalar exponent = args[1].toScalar();
  TORCH_CHECK(!(c10::isIntegralType(base.scalar_type(), /*includeBool=*/true) && exponent.isIntegral(true) &&
                exponent.toLong() < 0),
              "Integers to negative integer powers are not allowed.");
  // Every device copies the base into the dtype of the result before it computes.
  const c10::ScalarType type = at::result_type(base, exponent);
  Elementwise(out, {Copied(base, type)}, Promote::kAny, type);
}

void ScalarBinary(Args args, OutMetas& out) {
  Elementwise(out, {Wrapped(args[0].toScalar()), TensorAt(args, 1)}, Promote::kTypes);
}

void BinaryReversed(Args args, OutMetas& out) {
  Elementwise(out, {TensorAt(args, 1), TensorAt(args, 0)}, Promote::kTypes);
}

void SubtractReversed(Args args, OutMetas& out) {
  TORCH_CHECK(TensorAt(args, 0).scalar_type() != kBool && TensorAt(args, 1).scalar_type() != kBool,
              "Subtraction, the `-` operator, with two bool tensors is not supported. "
              "Use the `^` or `logical_xor()` operator instead.");
  BinaryReversed(args, out);
}

void Logical(Args args, OutMetas& out) {
  Elementwise(out, {TensorAt(args, 0), TensorAt(args, 1)}, Promote::kTypes, kBool);
}

// self [n, m] vec1 [n] vec2 [m] …
void OuterSum(Args args, OutMetas& out) {
  const Tensor self = TensorAt(args, 0), a = TensorAt(args, 1), b = TensorAt(args, 2);
  TORCH_CHECK(a.dim() == 1, "addr: Expected 1-D argument vec1, but got ", a.dim(), "-D");
  TORCH_CHECK(b.dim() == 1, "addr: Expected 1-D argument vec2, but got ", b.dim(), "-D");
  const int64_t sizes[] = {a.numel(), b.numel()};
  TORCH_CHECK(at::is_expandable_to(self.sizes(), sizes), "The expanded size of the tensor (", IntArrayRef(sizes),
              ") must match the existing size ", self.sizes());
  Elementwise(out, {self.expand(sizes), a.unsqueeze(1).expand(sizes), b.unsqueeze(0).expand(sizes)}, Promote::kTypes);
}

void Where(Args args, OutMetas& out) {
  const Tensor condition = TensorAt(args, 0), a = TensorAt(args, 1), b = TensorAt(args, 2);
  TORCH_CHECK(condition.scalar_type() == kBool || condition.scalar_type() == ScalarType::Byte,
              "where expected condition to be a boolean tensor, but got a tensor with dtype ", condition.scalar_type());
  const ScalarType type = CommonType({a, b});
  Elementwise(out, {MetaLike(condition), Copied(a, type), Copied(b, type)}, Promote::kAny, type);
}

void Complex(Args args, OutMetas& out) {
  const Tensor real = TensorAt(args, 0), imag = TensorAt(args, 1);
  const auto fits = [](ScalarType t) {
    return t == ScalarType::Float || t == ScalarType::Double || t == ScalarType::Half;
  };
  TORCH_CHECK_NOT_IMPLEMENTED(fits(real.scalar_type()) && fits(imag.scalar_type()),
                              "Expected both inputs to be Half, Float or Double tensors but got ", real.scalar_type(),
                              " and ", imag.scalar_type());
  TORCH_CHECK(real.scalar_type() == imag.scalar_type(), "Expected object of scalar type ", real.scalar_type(),
              " but got scalar type ", imag.scalar_type(), " for second argument");
  Elementwise(out, {real, imag}, Promote::kAny, c10::toComplexType(real.scalar_type()));
}

void Frexp(Args args, OutMetas& out) {
  const Tensor self = TensorAt(args, 0);
  TORCH_CHECK(c10::isFloatingType(self.scalar_type()), "torch.frexp() only supports floating-point dtypes");
  AddLike(out, self);
  AddLike(out, self, ScalarType::Int);
}

void FillTensor(Args args, OutMetas& out) {
  const Tensor value = TensorAt(args, 1);
  TORCH_CHECK(value.dim() == 0, "fill_ only supports 0-dimension value tensor but got tensor with ", value.dim(),
              " dimensions.");
  Like(args, out);
}

void PreluBackward(Args args, OutMetas& out) {
  // grad self weight -> grad of self and of weight, both of the broadcast shape
  Elementwise(out, {TensorAt(args, 1), TensorAt(args, 2), TensorAt(args, 0)}, Promote::kNone, std::nullopt, /*n=*/2);
}

void GluBackward(Args args, OutMetas& out) { AddLikeContiguous(out, TensorAt(args, 1)); }

void Dropout(Args args, OutMetas& out) {
  const Tensor input = TensorAt(args, 0);
  AddLike(out, input);
  AddLike(out, input, kBool);
}

void DropoutBackward(Args args, OutMetas& out) {
  const Tensor grad = TensorAt(args, 0), mask = TensorAt(args, 1);
  TORCH_CHECK(mask.scalar_type() == kBool, "Mask should be Bool Scalar Type ", mask.scalar_type());
  if (OnCuda()) {
    AddLikeSuggested(out, grad);
  } else {
    Elementwise(out, {grad, mask, Wrapped(args[2].toDouble())}, Promote::kTypes);
  }
}

void GammaGrad(Args args, OutMetas& out) { AddLikeContiguous(out, TensorAt(args, 0)); }

// The text is that of every device; the value is checked on the worker.
void Assertion(Args args, OutMetas&) {
  const Tensor condition = TensorAt(args, 0);
  TORCH_CHECK(condition.numel() != 0, "Boolean value of Tensor with no values is ambiguous");
  TORCH_CHECK(condition.numel() == 1, "Boolean value of Tensor with more than one value is ambiguous");
}

constexpr RuleRow kPointwiseRows[] = {
    {"__lshift__.Scalar", BinaryScalar},
    {"__lshift__.Tensor", Binary},
    {"__rshift__.Scalar", BinaryScalar},
    {"__rshift__.Tensor", Binary},
    {"_add_relu.Scalar", BinaryScalar},
    {"_add_relu.Tensor", Binary},
    {"_assert_async", Assertion},
    {"_assert_async.msg", Assertion},
    {"_conj_physical", Like},
    {"_dirichlet_grad", GammaGrad},
    {"_prelu_kernel", Like},
    {"_prelu_kernel_backward", PreluBackward},
    {"_standard_gamma_grad", GammaGrad},
    {"abs", Magnitude},
    {"angle", Angle},
    {"addr", OuterSum},
    {"complex", Complex},
    {"conj_physical", Unary},
    {"fill.Scalar", Like},
    {"fill.Tensor", FillTensor},
    {"floor_divide", Binary},
    {"frexp.Tensor", Frexp},
    {"glu_backward", GluBackward},
    {"glu_backward_jvp", Like},
    {"glu_jvp", Like},
    {"hardswish", Unary},
    {"hardswish_backward", Binary},
    {"hardtanh", Hardtanh},
    {"hardtanh_backward", Binary},
    {"isnan", UnaryBool},
    {"log_sigmoid_backward", Like},
    {"logical_and", Logical},
    {"logical_not", UnaryBool},
    {"logical_or", Logical},
    {"logical_xor", Logical},
    {"logit", UnaryFloat},
    {"mvlgamma", UnaryFloat},
    {"nan_to_num", Like},
    {"native_dropout", Dropout},
    {"native_dropout_backward", DropoutBackward},
    {"mish_backward", Binary},
    {"polar", Complex},
    {"pow.Tensor_Scalar", Power},
    {"relu", Relu},
    {"remainder.Scalar_Tensor", ScalarBinary},
    {"rrelu_with_noise", LikeContiguous},
    {"rsub.Tensor", SubtractReversed},
    {"where.self", Where},
};

}  // namespace

RuleRows PointwiseRules() { return kPointwiseRows; }

}  // namespace mycelya::rules
