// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// A fused loop: the kernel of csrc/abi/mycelya.h, decoded and checked, so that no instance that fits can access memory
// outside of its operands.
#ifndef MYCELYA_EXEC_KERNEL_KERNEL_H_
#define MYCELYA_EXEC_KERNEL_KERNEL_H_

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "exec/Words.h"

namespace mycelya::exec {

struct KernelOperand {
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  uint32_t access = 0;  // MYC_K_READ | MYC_K_WRITE
  uint32_t space = 0;
  std::vector<int8_t> along;  // by dim of its tensor: the dim of the space, -1 if the size is 1, or kTaken
  int taken = -1;             // the dim of its tensor that is kTaken
};

// Along such a dim, each TAKE has its own position.
inline constexpr int8_t kTaken = -2;

struct Kernel {
  std::vector<uint32_t> spaces;  // ranks of the index spaces
  uint32_t reduced = 0;          // the number of reduced dims, the last dims of space 0
  std::vector<KernelOperand> operands;
  bool narrow = false;  // an operand has 16-bit floats
  bool jumps = false;   // it compares floats, or rounds them to whole numbers, so rounding may change a value by much
  uint32_t numbers = 0;
  std::vector<std::pair<uint32_t, c10::ScalarType>> held;  // numbers, and the dtypes that must be able to hold them
  struct Code;                                             // the tile programs (kernel/Code.h)
  std::shared_ptr<const Code> code;
};

// A Python number or the element of a 0-dim tensor.
struct KernelNumber {
  bool integral = false;  // also bools
  double real = 0;
  int64_t whole = 0;
};

// One instance of a kernel: the sizes of all spaces, one after the other; for each operand its first element and its
// tensor's geometry in elements; and the numbers.
struct KernelOperandAt {
  char* data = nullptr;
  const int64_t* sizes = nullptr;
  const int64_t* strides = nullptr;
};
struct KernelInstance {
  const int64_t* sizes = nullptr;
  const KernelOperandAt* operands = nullptr;
  const KernelNumber* numbers = nullptr;
};

// Throws ValueError if the words are not a kernel.
std::unique_ptr<const Kernel> ParseKernel(Reader& in);

// Whether a kernel can run on an instance: the sizes of each operand are those of the dims along which it runs (1 where
// it runs along none), the spaces have the same number of points, nothing overflows, and dtypes can hold the numbers
// that they must. Otherwise sets `why`.
bool Fits(const Kernel& kernel, const KernelInstance& at, const char** why);

// Runs a kernel on instances that fit, on ATen's threads. An instance may write memory that it reads through an operand
// with the same geometry. Instances must not overlap.
void RunKernel(const Kernel& kernel, c10::ArrayRef<KernelInstance> instances);

}  // namespace mycelya::exec

#endif  // MYCELYA_EXEC_KERNEL_KERNEL_H_
