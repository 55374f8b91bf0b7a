// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Converts arguments to the types of schemas, once per program. Values that do not depend on parameters become
// constants.
#include <ATen/ops/full.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>

#include <bit>
#include <cstring>

#include "abi/mycelya.h"
#include "exec/Dtype.h"
#include "exec/program/Lists.h"
#include "exec/program/Program.h"

namespace mycelya::exec {
namespace {

using c10::IValue;
using c10::TypeKind;

class Fitter {
 public:
  Fitter(Reader& in, const c10::Argument& to, const std::string& op, c10::Device device, Program& program)
      : in_(in), to_(to), op_(op), device_(device), program_(program) {}

  Arg Fit(const c10::TypePtr& type) { return Fit(Next(), type); }

 private:
  Word Next() { return in_.Argument(program_.tensors.size(), program_.nparams); }

  Arg Fit(const Word& w, const c10::TypePtr& type) {
    switch (type->kind()) {
      case TypeKind::OptionalType:
        if (w.tag == MYC_W_NONE) return Constant({});
        return Fit(w, type->expectRef<c10::OptionalType>().getElementType());
      case TypeKind::TensorType:
        return FitTensor(w);
      case TypeKind::IntType:
      case TypeKind::SymIntType:
        return FitInt(w);
      case TypeKind::FloatType:
      case TypeKind::SymFloatType:
        return FitReal(w);
      case TypeKind::BoolType:
      case TypeKind::SymBoolType:
        if (w.tag == MYC_W_BOOL) return Constant(w.value != 0);
        if (w.tag == MYC_W_NUMBER && w.kind == MYC_N_BOOL) return Param(ArgKind::kBool, w);
        break;
      case TypeKind::NumberType:
        return FitScalar(w);
      case TypeKind::StringType:
        if (w.tag == MYC_W_STR) return Constant(w.text);
        break;
      case TypeKind::ScalarTypeType:
        if (w.tag == MYC_W_DTYPE) return Constant(static_cast<int64_t>(ToScalarType(w.value)));
        break;
      case TypeKind::LayoutType:
        // Tensors of other layouts are not views of one storage.
        if (w.tag == MYC_W_LAYOUT && w.value == static_cast<uint64_t>(c10::Layout::Strided))
          return Constant(int64_t{0});
        break;
      case TypeKind::MemoryFormatType:
        if (w.tag == MYC_W_MEMFMT && w.value < static_cast<uint64_t>(c10::MemoryFormat::NumOptions)) {
          return Constant(static_cast<int64_t>(w.value));
        }
        break;
      case TypeKind::DeviceObjType:
        if (w.tag == MYC_W_DEVICE) return Constant(device_);
        break;
      case TypeKind::GeneratorType:
        if (w.tag == MYC_W_GEN) return Param(ArgKind::kGenerator, w);
        break;
      case TypeKind::ListType:
        if (w.tag == MYC_W_LIST) return FitList(w, type->expectRef<c10::ListType>().getElementType());
        break;
      default:
        TORCH_CHECK_TYPE(false, "BUG: argument ", to_.name(), " of ", op_, " is a ", type->str(),
                         ", which programs don't support.");
    }
    Refuse(w, *type);
  }

  [[noreturn]] void Refuse(const Word& w, const c10::Type& type) const {
    TORCH_CHECK_TYPE(false, "BUG: argument ", to_.name(), " of ", op_, " takes ", type.str(), ", not ", NameOf(w),
                     w.tag == MYC_W_LAYOUT || w.tag == MYC_W_MEMFMT ? " numbered " + std::to_string(w.value) : "", ".");
  }

  static Arg Constant(IValue v) {
    Arg a;
    a.constant = std::move(v);
    return a;
  }
  static Arg Param(ArgKind kind, const Word& w) {
    Arg a;
    a.kind = kind;
    a.index = static_cast<uint32_t>(w.value);
    return a;
  }

  bool Written() const { return to_.alias_info() != nullptr && to_.alias_info()->isWrite(); }

  // Whether the operand must be on the device. ATen's operators of GPUs take an element in CPU memory, but addcmul
  // refuses it as its first operand, and where and copy_ copy it to the GPU and wait for that.
  bool MustBeOnDevice() const {
    if (device_.is_cpu()) return false;
    return op_.starts_with("aten::where") || op_ == "aten::copy_" ||
           (op_.starts_with("aten::addcmul") && to_.name() == "self");
  }

  // A 0-dim CPU tensor that lives as long as the program. Each run overwrites its element.
  Arg Element(const Word& w, c10::ScalarType dtype, bool wrapped) const {
    TORCH_CHECK_TYPE(!Written(), "BUG: argument ", to_.name(), " of ", op_, " is written; it can't be ", NameOf(w),
                     ".");
    c10::Allocator* memory = c10::GetCPUAllocator();
    const uint64_t bytes = c10::elementSize(dtype);
    Geometry g;
    g.dtype = dtype;
    at::Tensor t = MakeTensor(c10::Storage(c10::Storage::use_byte_size_t(), bytes, memory->allocate(bytes), memory,
                                           /*resizable=*/false),
                              g);
    t.unsafeGetTensorImpl()->set_wrapped_number(wrapped);
    Arg a = Param(MustBeOnDevice() ? ArgKind::kDeviceNumber : ArgKind::kNumber, w);
    a.constant = std::move(t);
    return a;
  }

  // A Python number that is the same in every call.
  Arg Literal(const Word& w, c10::ScalarType dtype) const {
    Arg a = Element(w, dtype, /*wrapped=*/true);
    const at::Tensor& t = a.constant.toTensor();
    std::memcpy(t.mutable_data_ptr(), &w.value, t.itemsize());
    if (MustBeOnDevice()) a.constant = FilledLike(t, device_);
    a.kind = ArgKind::kConstant;
    a.index = 0;
    return a;
  }

  Arg FitTensor(const Word& w) const {
    switch (w.tag) {
      case MYC_W_TENSOR:
        return Param(ArgKind::kTensor, w);
      case MYC_W_NUMBER:
        return Element(w, ToScalarType(NumberDtype(w.kind)), /*wrapped=*/true);
      case MYC_W_SCALAR:
        return Element(w, ToScalarType(w.kind), /*wrapped=*/false);
      case MYC_W_INT:
        return Literal(w, c10::ScalarType::Long);
      case MYC_W_FLOAT:
        return Literal(w, c10::ScalarType::Double);
      case MYC_W_BOOL:
        return Literal(w, c10::ScalarType::Bool);
      default:
        Refuse(w, *c10::TensorType::get());
    }
  }

  Arg FitInt(const Word& w) const {
    if (w.tag == MYC_W_INT) return Constant(static_cast<int64_t>(w.value));
    if (w.tag == MYC_W_SIZE) return Param(ArgKind::kInt, w);
    if (w.tag == MYC_W_NUMBER && (w.kind == MYC_N_I64 || w.kind == MYC_N_BOOL)) return Param(ArgKind::kInt, w);
    Refuse(w, *c10::IntType::get());
  }

  Arg FitReal(const Word& w) const {
    if (w.tag == MYC_W_FLOAT) return Constant(std::bit_cast<double>(w.value));
    if (w.tag == MYC_W_INT) return Constant(static_cast<double>(static_cast<int64_t>(w.value)));
    if (w.tag == MYC_W_SIZE) return Param(ArgKind::kIntAsReal, w);
    if (w.tag == MYC_W_NUMBER && w.kind == MYC_N_F64) return Param(ArgKind::kReal, w);
    if (w.tag == MYC_W_NUMBER && w.kind != MYC_N_C128) return Param(ArgKind::kIntAsReal, w);
    Refuse(w, *c10::FloatType::get());
  }

  // An IValue holds a Scalar as a primitive value.
  Arg FitScalar(const Word& w) const {
    switch (w.tag) {
      case MYC_W_INT:
        return Constant(static_cast<int64_t>(w.value));
      case MYC_W_FLOAT:
        return Constant(std::bit_cast<double>(w.value));
      case MYC_W_BOOL:
        return Constant(w.value != 0);
      case MYC_W_SIZE:
        return Param(ArgKind::kInt, w);
      case MYC_W_NUMBER: {
        static constexpr ArgKind kKinds[] = {ArgKind::kConstant, ArgKind::kReal, ArgKind::kInt, ArgKind::kBool,
                                             ArgKind::kComplex};
        return Param(kKinds[w.kind], w);
      }
      default:
        Refuse(w, *c10::NumberType::get());
    }
  }

  ListOf ListKind(const c10::TypePtr& element) const {
    switch (element->kind()) {
      case TypeKind::TensorType:
        return ListOf::kTensor;
      case TypeKind::OptionalType:
        if (element->expectRef<c10::OptionalType>().getElementType()->kind() == TypeKind::TensorType) {
          return ListOf::kOptionalTensor;
        }
        break;
      case TypeKind::IntType:
      case TypeKind::SymIntType:
        return ListOf::kInt;
      case TypeKind::FloatType:
        return ListOf::kReal;
      case TypeKind::BoolType:
        return ListOf::kBool;
      case TypeKind::NumberType:
        return ListOf::kScalar;
      case TypeKind::StringType:
        return ListOf::kString;
      default:
        break;
    }
    TORCH_CHECK_TYPE(false, "BUG: argument ", to_.name(), " of ", op_, " is a list of ", element->str(),
                     ", which programs don't support.");
  }

  Arg FitList(const Word& w, const c10::TypePtr& element) {
    Arg a;
    a.kind = ArgKind::kList;
    a.list = ListKind(element);
    a.index = static_cast<uint32_t>(program_.items.size());
    a.count = static_cast<uint32_t>(w.value);
    bool constant = true;
    for (uint32_t i = 0; i < a.count; ++i) {
      const Word item = Next();
      TORCH_CHECK_VALUE(item.tag != MYC_W_LIST, "BUG: argument ", to_.name(), " of ", op_, " is a list in a list.");
      // Kernels use the tensors of a list without checking that they are defined.
      if (a.list == ListOf::kTensor && item.tag == MYC_W_NONE) Refuse(item, *element);
      program_.items.push_back(Fit(item, element));
      constant = constant && program_.items.back().kind == ArgKind::kConstant;
    }
    if (!constant) return a;
    Arg whole = Constant(MakeList(a.list, a.count, [&](uint32_t i) { return program_.items[a.index + i].constant; }));
    program_.items.resize(a.index);
    return whole;
  }

  Reader& in_;
  const c10::Argument& to_;
  const std::string& op_;
  c10::Device device_;
  Program& program_;
};

}  // namespace

at::Tensor FilledLike(const at::Tensor& element, c10::Device device) {
  at::Tensor t = at::full({}, element.item(), element.options().device(device));
  t.unsafeGetTensorImpl()->set_wrapped_number(element.unsafeGetTensorImpl()->is_wrapped_number());
  return t;
}

Arg FitArg(Reader& in, const c10::Argument& to, const std::string& op, c10::Device device, Program& program) {
  return Fitter(in, to, op, device, program).Fit(to.real_type());
}

}  // namespace mycelya::exec
