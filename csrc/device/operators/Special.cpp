// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

#include "device/record/Special.h"

#include <torch/library.h>

#include <unordered_map>

namespace mycelya {
namespace {

template <void (*kernel)(const c10::OperatorHandle&, torch::jit::Stack*)>
torch::CppFunction Boxed() {
  return torch::CppFunction::makeFromBoxedFunction<kernel>();
}

}  // namespace

Special SpecialOf(std::string_view name) {
  static const auto& rows = *new std::unordered_map<std::string_view, Special>{
#define MYC_SPECIAL(name, ...) {name, Special{__VA_ARGS__}},
#include "device/rules/operators.inc"
  };
  const auto row = rows.find(name);
  return row == rows.end() ? Special{} : row->second;
}

}  // namespace mycelya
