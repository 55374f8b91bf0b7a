// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// One loop nest as it is run: the kernel of csrc/abi/mycelya.h, decoded and checked, so that nothing it does can go out
// of bounds of the operands that it is bound to.
#ifndef MYCELYA_EXEC_KERNEL_KERNEL_H_
#define MYCELYA_EXEC_KERNEL_KERNEL_H_

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "exec/program/Words.h"

namespace mycelya::exec {

struct KernelOperand {
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  uint32_t access = 0;  // MYC_K_READ | MYC_K_WRITE
  uint32_t frame = 0;
  std::vector<int8_t> along;  // by dim of its tensor: the dim of the frame, -1: size 1
};

struct Kernel {
  std::vector<uint32_t> frames;  // ranks
  uint32_t folded = 0;           // of the last dims of frame 0
  std::vector<KernelOperand> operands;
  uint32_t numbers = 0;
  std::vector<std::pair<uint32_t, c10::ScalarType>> held;  // numbers, and what has to have them
  struct Code;  // what is run at each point; only Kernel.cpp and the tiles know it
  std::shared_ptr<const Code> code;
};

// A Python number or a 0-dim tensor's element.
struct KernelNumber {
  bool integral = false;  // also bools
  double real = 0;
  int64_t whole = 0;
};

// Where a kernel runs once: sizes of all frames, one after the other; for each operand its first element and its
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

// Throws ValueError if the words are no kernel.
std::unique_ptr<const Kernel> ParseKernel(Reader& in);

// Whether the sizes fit: each operand's are those of the dims along which it runs (and 1 where it runs along none), the
// frames have the same number of points, nothing overflows, and dtypes have the numbers that they must. Else a kernel
// must not run there. `why` is set then.
bool Fits(const Kernel& kernel, const KernelInstance& at, const char** why);

// Runs a kernel on instances that fit, on ATen's threads. Memory that an instance writes may be memory that it reads
// through an operand that runs in the same way; instances don't overlap.
void RunKernel(const Kernel& kernel, c10::ArrayRef<KernelInstance> instances);

}  // namespace mycelya::exec

#endif  // MYCELYA_EXEC_KERNEL_KERNEL_H_
