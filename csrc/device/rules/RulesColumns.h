// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// What the catalogue knows about an ATen operator beside its schema: the columns of catalogue/capture.go.
#ifndef MYCELYA_DEVICE_RULES_RULESCOLUMNS_H_
#define MYCELYA_DEVICE_RULES_RULESCOLUMNS_H_

#include <cstdint>
#include <string_view>

namespace mycelya {

// Facts about operators, each one bit.
enum Fact : uint32_t {
#define MYC_FACT(name, bit) name = (bit),
#include "device/rules/operators.inc"
};

// Why a call of an operator may be simple enough for RecordShort.cpp.
enum class Shortcut : uint8_t {
  kNone,
  kElementwise,    // it takes only tensors and numbers
  kProduct,        // mm
  kBiasedProduct,  // addmm
};

struct Columns {
  uint32_t facts = 0;  // a set of Fact
  Shortcut shortcut = Shortcut::kNone;
  int8_t running_stats = 0;           // argument: the running mean, with the running variance after it; 0: none
  int8_t if_training = 0;             // argument: these two are written only where it is true; 0: always
  int8_t size_argument = 0;           // argument: if given, it tells the size of a dynamic result; 0: none
  const char* recorded_as = nullptr;  // the operator that the worker runs, "aten::convolution"; null: this one
  const char* classes = nullptr;      // the classes of its arguments, as in optable.inc

  bool Has(Fact fact) const { return (facts & fact) != 0; }
};

// The columns of an overload by its name without "aten::", as "add.Tensor".
Columns ColumnsOf(std::string_view name);

}  // namespace mycelya

#endif  // MYCELYA_DEVICE_RULES_RULESCOLUMNS_H_
