// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Writes arguments as words. A number is a literal of the skeleton or a parameter.
#include <ATen/core/Generator.h>

#include "device/pytorch/Generator.h"
#include "device/record/RecordInternal.h"

namespace mycelya {
namespace {

void number(Recorder& r, const c10::Scalar& s) {
  if (s.isComplex()) {
    const auto v = s.toComplexDouble();
    r.tag(MYC_W_NUMBER, MYC_N_C128);
    r.param(v.real());
    r.param(v.imag());
  } else if (s.isFloatingPoint()) {
    r.tag(MYC_W_NUMBER, MYC_N_F64);
    r.param(s.toDouble());
  } else if (s.isBoolean()) {
    r.tag(MYC_W_NUMBER, MYC_N_BOOL);
    r.param(static_cast<uint64_t>(s.toBool()));
  } else {
    r.tag(MYC_W_NUMBER, MYC_N_I64);
    r.param(static_cast<uint64_t>(s.toLong()));
  }
}

void integer(Recorder& r, char cls, int64_t v) {
  if (cls == 's' && v >= 2) {
    r.tag(MYC_W_SIZE);
    r.param(static_cast<uint64_t>(v));
  } else if (cls == 'v' || (cls == 'b' && v != 0 && v != 1)) {
    number(r, c10::Scalar(v));
  } else {
    r.tag(MYC_W_INT);
    r.word(static_cast<uint64_t>(v));
  }
}

void floating(Recorder& r, char cls, double v) {
  if (cls == 'l' || (cls == 'b' && (v == 0 || v == 1))) {
    r.tag(MYC_W_FLOAT);
    uint64_t bits;
    std::memcpy(&bits, &v, 8);
    r.word(bits);
  } else {
    number(r, c10::Scalar(v));
  }
}

}  // namespace

void scalar_argument(Recorder& r, char cls, const c10::Scalar& s) {
  if (cls == 'v' || cls == 's' || s.isComplex()) {
    number(r, s);
  } else if (s.isBoolean()) {
    r.tag(MYC_W_BOOL, s.toBool());
  } else if (s.isFloatingPoint()) {
    floating(r, cls, s.toDouble());
  } else {
    integer(r, cls, s.toLong());
  }
}

void number_argument(Recorder& r, const at::Tensor& t) {
  if (t.unsafeGetTensorImpl()->is_wrapped_number()) {
    uint64_t bits = 0;
    std::memcpy(&bits, t.const_data_ptr(), std::min<size_t>(8, t.itemsize()));
    switch (t.scalar_type()) {
      case at::kDouble:
        r.tag(MYC_W_NUMBER, MYC_N_F64);
        r.param(bits);
        return;
      case at::kLong:
        r.tag(MYC_W_NUMBER, MYC_N_I64);
        r.param(bits);
        return;
      case at::kBool:
        r.tag(MYC_W_NUMBER, MYC_N_BOOL);
        r.param(bits);
        return;
      case at::kComplexDouble:
        r.tag(MYC_W_NUMBER, MYC_N_C128);
        r.param(bits);
        std::memcpy(&bits, static_cast<const char*>(t.const_data_ptr()) + 8, 8);
        r.param(bits);
        return;
      default:
        break;  // a number made with another default dtype is recorded as a 0-dim tensor
    }
  }
  r.tag(MYC_W_SCALAR, dtype_code(t.scalar_type()));
  uint64_t bits[2] = {0, 0};
  std::memcpy(bits, t.const_data_ptr(), t.itemsize());
  r.param(bits[0]);
  if (t.itemsize() > 8) r.param(bits[1]);
}

namespace {

// value: a tensor or None.
void tensor(Recorder& r, const c10::IValue& value, bool write) {
  if (value.isNone() || !value.toTensor().defined()) {
    r.tag(MYC_W_NONE);
    return;
  }
  const at::Tensor& t = value.toTensor();
  const c10::TensorImpl& impl = *t.unsafeGetTensorImpl();
  if (C10_UNLIKELY(impl.device_type() != kDevice)) {
    number_argument(r, t);
  } else if (impl.is_contiguous()) {
    r.contiguous_operand(impl, write);
  } else {
    r.operand(impl, write);
  }
}

void list_head(Recorder& r, Kind kind, size_t n) {
  const auto list = static_cast<uint32_t>(kind) - kLists;
  r.word(MYC_W_LIST | list << 8 | static_cast<uint64_t>(n) << 16);
}

}  // namespace

void argument(Recorder& r, const Argument& a, const c10::IValue& v, bool write) {
  if (v.isNone()) {
    r.tag(MYC_W_NONE);
    return;
  }
  switch (a.kind) {
    case Kind::kTensor:
      tensor(r, v, write);
      break;
    case Kind::kTensors:
    case Kind::kOptTensors: {
      const auto list = v.toListRef();
      list_head(r, a.kind, list.size());
      for (const auto& e : list) tensor(r, e, write);
      break;
    }
    case Kind::kInt:
      integer(r, a.number_class, v.toInt());
      break;
    case Kind::kFloat:
      floating(r, a.number_class, v.toDouble());
      break;
    case Kind::kBool:
      r.tag(MYC_W_BOOL, v.toBool());
      break;
    case Kind::kScalar:
      scalar_argument(r, a.number_class, v.toScalar());
      break;
    case Kind::kInts: {
      const auto list = v.toListRef();
      list_head(r, a.kind, list.size());
      for (const auto& e : list) integer(r, a.number_class, e.toInt());
      break;
    }
    case Kind::kFloats: {
      const auto list = v.toListRef();
      list_head(r, a.kind, list.size());
      for (const auto& e : list) floating(r, a.number_class, e.toDouble());
      break;
    }
    case Kind::kBools: {
      const auto list = v.toListRef();
      list_head(r, a.kind, list.size());
      for (const auto& e : list) r.tag(MYC_W_BOOL, e.toBool());
      break;
    }
    case Kind::kScalars: {
      const auto list = v.toListRef();
      list_head(r, a.kind, list.size());
      for (const auto& e : list) scalar_argument(r, 'v', e.toScalar());
      break;
    }
    case Kind::kString: {
      r.text(v.toStringRef());
      break;
    }
    case Kind::kDType:
      r.tag(MYC_W_DTYPE, dtype_code(v.toScalarType()));
      break;
    case Kind::kLayout:
    case Kind::kMemoryFormat:
      r.tag(static_cast<uint32_t>(a.kind), static_cast<uint64_t>(v.toInt()));
      break;
    case Kind::kDevice:
      r.tag(MYC_W_DEVICE);
      break;
    case Kind::kGenerator:
      r.tag(MYC_W_GEN);
      r.param(generator_id(v.toGenerator(), r.device()));
      break;
    case Kind::kOther:
      r.tag(MYC_W_NONE);  // device_of has refused an argument that is given
      break;
  }
}

}  // namespace mycelya
