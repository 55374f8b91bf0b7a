// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
#include "exec/Dtype.h"

#include <c10/util/Exception.h>

#include <array>

#include "abi/mycelya.h"

namespace mycelya::exec {
namespace {

struct Row {
  c10::ScalarType type = c10::ScalarType::Undefined;
  const char* name = nullptr;
};

constexpr std::array<Row, MYC_DTYPES> MakeRows() {
  using T = c10::ScalarType;
  std::array<Row, MYC_DTYPES> r{};
  r[MYC_U8] = {T::Byte, "u8"};
  r[MYC_I8] = {T::Char, "i8"};
  r[MYC_I16] = {T::Short, "i16"};
  r[MYC_I32] = {T::Int, "i32"};
  r[MYC_I64] = {T::Long, "i64"};
  r[MYC_F16] = {T::Half, "f16"};
  r[MYC_F32] = {T::Float, "f32"};
  r[MYC_F64] = {T::Double, "f64"};
  r[MYC_C32] = {T::ComplexHalf, "c32"};
  r[MYC_C64] = {T::ComplexFloat, "c64"};
  r[MYC_C128] = {T::ComplexDouble, "c128"};
  r[MYC_BOOL] = {T::Bool, "b8"};
  r[MYC_BF16] = {T::BFloat16, "bf16"};
  r[MYC_F8E5M2] = {T::Float8_e5m2, "f8e5m2"};
  r[MYC_F8E4M3FN] = {T::Float8_e4m3fn, "f8e4m3fn"};
  r[MYC_F8E5M2FNUZ] = {T::Float8_e5m2fnuz, "f8e5m2fnuz"};
  r[MYC_F8E4M3FNUZ] = {T::Float8_e4m3fnuz, "f8e4m3fnuz"};
  r[MYC_U16] = {T::UInt16, "u16"};
  r[MYC_U32] = {T::UInt32, "u32"};
  r[MYC_U64] = {T::UInt64, "u64"};
  return r;
}
constexpr std::array<Row, MYC_DTYPES> kRows = MakeRows();

constexpr bool AllFilled() {
  for (size_t i = 1; i < kRows.size(); ++i) {
    if (kRows[i].name == nullptr) return false;
  }
  return true;
}
static_assert(AllFilled(), "a dtype of the ABI has no row");

}  // namespace

c10::ScalarType ToScalarType(uint64_t dtype) {
  TORCH_CHECK_VALUE(dtype > 0 && dtype < MYC_DTYPES, "BUG: ", dtype, " is not the number of a dtype.");
  return kRows[dtype].type;
}

uint64_t ToCode(c10::ScalarType type) {
  for (size_t i = 1; i < kRows.size(); ++i) {
    if (kRows[i].type == type) return i;
  }
  TORCH_CHECK_NOT_IMPLEMENTED(false, "A tensor of dtype ", type, " can't be sent.");
}

std::string ListText(c10::IntArrayRef values) {
  std::string s = "[";
  for (size_t i = 0; i < values.size(); ++i) {
    if (i != 0) s += ',';
    s += std::to_string(values[i]);
  }
  return s + "]";
}

std::string TypeText(c10::ScalarType dtype, c10::IntArrayRef sizes) {
  for (const Row& row : kRows) {
    if (row.name != nullptr && row.type == dtype) return row.name + ListText(sizes);
  }
  return c10::toString(dtype) + ListText(sizes);
}

}  // namespace mycelya::exec
