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
  uint32_t register_class = 0;
};

// The rows of the catalogue, by number; row 0 is empty.
constexpr std::array<Row, MYC_DTYPES> kRows = [] {
  std::array<Row, MYC_DTYPES> rows{};
#define MYC_ROW(number, name, type, register_class, rounds) \
  rows[number] = {c10::ScalarType::type, name, register_class};
  MYC_DTYPE_TABLE(MYC_ROW)
#undef MYC_ROW
  return rows;
}();

// Our numbers by PyTorch's; 0 for a dtype that we have no number of.
constexpr std::array<uint8_t, static_cast<size_t>(c10::ScalarType::NumOptions)> kNumbers = [] {
  std::array<uint8_t, static_cast<size_t>(c10::ScalarType::NumOptions)> numbers{};
  for (uint8_t i = 1; i < MYC_DTYPES; ++i) numbers[static_cast<size_t>(kRows[i].type)] = i;
  return numbers;
}();

const Row& RowOf(c10::ScalarType type) { return kRows[kNumbers[static_cast<size_t>(type)]]; }

}  // namespace

c10::ScalarType ToScalarType(uint64_t dtype) {
  TORCH_CHECK_VALUE(dtype > 0 && dtype < MYC_DTYPES, "BUG: ", dtype, " is not the number of a dtype.");
  return kRows[dtype].type;
}

uint64_t ToCode(c10::ScalarType type) {
  const uint64_t number = kNumbers[static_cast<size_t>(type)];
  TORCH_CHECK_NOT_IMPLEMENTED(number != 0, "A tensor of dtype ", type, " can't be sent.");
  return number;
}

uint32_t RegisterClass(c10::ScalarType type) { return RowOf(type).register_class; }

std::string ListText(c10::IntArrayRef values) {
  std::string s = "[";
  for (size_t i = 0; i < values.size(); ++i) {
    if (i != 0) s += ',';
    s += std::to_string(values[i]);
  }
  return s + "]";
}

std::string TypeText(c10::ScalarType dtype, c10::IntArrayRef sizes) {
  const char* name = RowOf(dtype).name;
  return (name != nullptr ? name : c10::toString(dtype)) + ListText(sizes);
}

}  // namespace mycelya::exec
