// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// The rows of kernel instructions, generated from the catalogue (catalogue/own.go explains the columns).
#ifndef MYCELYA_EXEC_KERNEL_OPTABLE_H_
#define MYCELYA_EXEC_KERNEL_OPTABLE_H_

#include <cstdint>

#include "abi/mycelya.h"

namespace mycelya::exec::kernel {

enum class Group : uint8_t { kNone, kMemory, kValue, kConvert, kReduce, kCompute };
enum class Cost : uint8_t { kFree, kSimple, kDivide, kFunction };
enum class Start : uint8_t { kZero, kLowest, kHighest };

struct OpRow {
  Group group = Group::kNone;  // kNone: there is no such instruction
  uint8_t operands = 0;        // registers that it uses
  bool condition = false;      // the first one is B8, whatever the others are
  uint8_t takes = 0;           // bit 1 << class: classes of its operands, which are of one class
  bool truth = false;          // the result is B8; else it has the operands' class
  bool keeps = false;          // the result is one of the operands or 0
  Cost cost = Cost::kFree;
  uint8_t combine = 0;  // of a reduction: the instruction that combines two values
  Start start = Start::kZero;
};

inline constexpr OpRow kOpRows[] = {
#include "exec/kernel/OpTable.inc"
};

// The row of any op, of an op that no instruction has too.
inline const OpRow& RowOf(uint32_t op) {
  static constexpr OpRow kNoRow;
  return op < sizeof kOpRows / sizeof *kOpRows ? kOpRows[op] : kNoRow;
}

// Whether an op combines the values of several points.
inline bool Reduces(uint32_t op) { return RowOf(op).group == Group::kReduce; }

}  // namespace mycelya::exec::kernel

#endif  // MYCELYA_EXEC_KERNEL_OPTABLE_H_
