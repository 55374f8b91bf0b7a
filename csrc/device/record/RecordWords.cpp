// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Writes arguments as words. A number is a literal of the skeleton or a parameter.
#include <ATen/core/Generator.h>

#include "device/record/Generator.h"
#include "device/record/RecordInternal.h"

namespace mycelya {
namespace {

void RecordNumber(Recorder& r, const c10::Scalar& s) {
  if (s.isComplex()) {
    const auto v = s.toComplexDouble();
    r.Tag(MYC_W_NUMBER, MYC_N_C128);
    r.Param(v.real());
    r.Param(v.imag());
  } else if (s.isFloatingPoint()) {
    r.Tag(MYC_W_NUMBER, MYC_N_F64);
    r.Param(s.toDouble());
  } else if (s.isBoolean()) {
    r.Tag(MYC_W_NUMBER, MYC_N_BOOL);
    r.Param(static_cast<uint64_t>(s.toBool()));
  } else {
    r.Tag(MYC_W_NUMBER, MYC_N_I64);
    r.Param(static_cast<uint64_t>(s.toLong()));
  }
}

void Integer(Recorder& r, char cls, int64_t v) {
  if (cls == 's' && v >= 2) {
    r.Tag(MYC_W_SIZE);
    r.Param(static_cast<uint64_t>(v));
  } else if (cls == 'v' || (cls == 'b' && v != 0 && v != 1)) {
    RecordNumber(r, c10::Scalar(v));
  } else {
    r.Tag(MYC_W_INT);
    r.Word(static_cast<uint64_t>(v));
  }
}

void Floating(Recorder& r, char cls, double v) {
  if (cls == 'l' || (cls == 'b' && (v == 0 || v == 1))) {
    r.Tag(MYC_W_FLOAT);
    uint64_t bits;
    std::memcpy(&bits, &v, 8);
    r.Word(bits);
  } else {
    RecordNumber(r, c10::Scalar(v));
  }
}

}  // namespace

void ScalarArgument(Recorder& r, char cls, const c10::Scalar& s) {
  if (cls == 'v' || cls == 's' || s.isComplex()) {
    RecordNumber(r, s);
  } else if (s.isBoolean()) {
    r.Tag(MYC_W_BOOL, s.toBool());
  } else if (s.isFloatingPoint()) {
    Floating(r, cls, s.toDouble());
  } else {
    Integer(r, cls, s.toLong());
  }
}

void NumberArgument(Recorder& r, const at::Tensor& t) {
  if (t.unsafeGetTensorImpl()->is_wrapped_number()) {
    uint64_t bits = 0;
    std::memcpy(&bits, t.const_data_ptr(), std::min<size_t>(8, t.itemsize()));
    switch (t.scalar_type()) {
      case at::kDouble:
        r.Tag(MYC_W_NUMBER, MYC_N_F64);
        r.Param(bits);
        return;
      case at::kLong:
        r.Tag(MYC_W_NUMBER, MYC_N_I64);
        r.Param(bits);
        return;
      case at::kBool:
        r.Tag(MYC_W_NUMBER, MYC_N_BOOL);
        r.Param(bits);
        return;
      case at::kComplexDouble:
        r.Tag(MYC_W_NUMBER, MYC_N_C128);
        r.Param(bits);
        std::memcpy(&bits, static_cast<const char*>(t.const_data_ptr()) + 8, 8);
        r.Param(bits);
        return;
      default:
        break;  // a number made with another default dtype is recorded as a 0-dim tensor
    }
  }
  r.Tag(MYC_W_SCALAR, DtypeCode(t.scalar_type()));
  uint64_t bits[2] = {0, 0};
  std::memcpy(bits, t.const_data_ptr(), t.itemsize());
  r.Param(bits[0]);
  if (t.itemsize() > 8) r.Param(bits[1]);
}

namespace {

// value: a tensor or None.
void RecordTensor(Recorder& r, const c10::IValue& value, bool write) {
  if (value.isNone() || !value.toTensor().defined()) {
    r.Tag(MYC_W_NONE);
    return;
  }
  const at::Tensor& t = value.toTensor();
  const c10::TensorImpl& impl = *t.unsafeGetTensorImpl();
  if (C10_UNLIKELY(impl.device_type() != kDevice)) {
    NumberArgument(r, t);
  } else if (impl.is_contiguous()) {
    r.ContiguousOperand(impl, write);
  } else {
    r.Operand(impl, write);
  }
}

void ListHead(Recorder& r, Kind kind, size_t n) {
  const auto list = static_cast<uint32_t>(kind) - kLists;
  r.Word(MYC_W_LIST | list << 8 | static_cast<uint64_t>(n) << 16);
}

}  // namespace

void RecordArgument(Recorder& r, const Argument& a, const c10::IValue& v, bool write) {
  if (v.isNone()) {
    r.Tag(MYC_W_NONE);
    return;
  }
  switch (a.kind) {
    case Kind::kTensor:
      RecordTensor(r, v, write);
      break;
    case Kind::kTensors:
    case Kind::kOptTensors: {
      const auto list = v.toListRef();
      ListHead(r, a.kind, list.size());
      for (const auto& e : list) RecordTensor(r, e, write);
      break;
    }
    case Kind::kInt:
      Integer(r, a.number_class, v.toInt());
      break;
    case Kind::kFloat:
      Floating(r, a.number_class, v.toDouble());
      break;
    case Kind::kBool:
      r.Tag(MYC_W_BOOL, v.toBool());
      break;
    case Kind::kScalar:
      ScalarArgument(r, a.number_class, v.toScalar());
      break;
    case Kind::kInts: {
      const auto list = v.toListRef();
      ListHead(r, a.kind, list.size());
      for (const auto& e : list) Integer(r, a.number_class, e.toInt());
      break;
    }
    case Kind::kFloats: {
      const auto list = v.toListRef();
      ListHead(r, a.kind, list.size());
      for (const auto& e : list) Floating(r, a.number_class, e.toDouble());
      break;
    }
    case Kind::kBools: {
      const auto list = v.toListRef();
      ListHead(r, a.kind, list.size());
      for (const auto& e : list) r.Tag(MYC_W_BOOL, e.toBool());
      break;
    }
    case Kind::kScalars: {
      const auto list = v.toListRef();
      ListHead(r, a.kind, list.size());
      for (const auto& e : list) ScalarArgument(r, 'v', e.toScalar());
      break;
    }
    case Kind::kString: {
      r.Text(v.toStringRef());
      break;
    }
    case Kind::kDType:
      r.Tag(MYC_W_DTYPE, DtypeCode(v.toScalarType()));
      break;
    case Kind::kLayout:
    case Kind::kMemoryFormat:
      r.Tag(static_cast<uint32_t>(a.kind), static_cast<uint64_t>(v.toInt()));
      break;
    case Kind::kDevice:
      r.Tag(MYC_W_DEVICE);
      break;
    case Kind::kGenerator:
      r.Tag(MYC_W_GEN);
      r.Param(GetGeneratorId(v.toGenerator(), r.device()));
      break;
    case Kind::kOther:
      r.Tag(MYC_W_NONE);  // device_of has refused an argument that is given
      break;
  }
}

OutMeta ShapeOfWords(const std::string& op, const int64_t* word) {
  const auto refuse = [&](const char* what, int64_t value) {
    TORCH_CHECK(
        false, "The worker answered ", op, " with a result of ", what, " ", value,
        ", which no tensor has. The worker is broken or not a mycelya worker: its results are not to be trusted.");
  };
  if (word[0] <= 0 || word[0] >= MYC_DTYPES) refuse("dtype", word[0]);
  if (word[1] < 0 || word[1] > MYC_SHAPE_RANK) refuse("rank", word[1]);
  OutMeta m;
  m.defined = true;
  m.dtype = DtypeOfCode(static_cast<uint32_t>(word[0]));
  const int64_t *sizes = word + 2, *strides = sizes + MYC_SHAPE_RANK;
  m.sizes.assign(sizes, sizes + word[1]);
  m.strides.assign(strides, strides + word[1]);
  constexpr int64_t kMost = int64_t{1} << 62;  // bytes; no sum below overflows
  int64_t numel = 1, reach = static_cast<int64_t>(c10::elementSize(m.dtype));
  for (size_t i = 0; i < m.sizes.size(); ++i) {
    if (m.sizes[i] < 0) refuse("size", m.sizes[i]);
    if (m.strides[i] < 0) refuse("stride", m.strides[i]);
    int64_t step = 0;
    if (__builtin_mul_overflow(numel, m.sizes[i], &numel)) refuse("size", m.sizes[i]);
    if (m.sizes[i] > 1 && (__builtin_mul_overflow(m.sizes[i] - 1, m.strides[i], &step) ||
                           __builtin_mul_overflow(step, static_cast<int64_t>(c10::elementSize(m.dtype)), &step) ||
                           __builtin_add_overflow(reach, step, &reach) || reach > kMost)) {
      refuse("stride", m.strides[i]);
    }
  }
  if (numel > kMost / static_cast<int64_t>(c10::elementSize(m.dtype))) refuse("elements:", numel);
  return m;
}

}  // namespace mycelya
