// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Checks of operands before a call. Some kernels of ATen trust their callers: they read or write outside of their
// operands if sizes do not fit together or if an index is out of range, and kernels of CUDA then end the process's
// context. A guard raises an error instead. An operator without such kernels has no guard.
#ifndef MYCELYA_EXEC_GUARDS_GUARDS_H_
#define MYCELYA_EXEC_GUARDS_GUARDS_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <string>

namespace mycelya::exec {

struct Guard;

// The guard of an operator, null if it needs none. apart: that of the device. name: with namespace and overload. Looked
// up once per program.
const Guard* GuardOf(const std::string& name, bool apart);

// Whether it reads the elements of integer tensors.
bool ReadsIndices(const Guard& guard);

// Throws RuntimeError or IndexError if the operator must not run on these arguments.
void CheckOperands(const Guard& guard, const std::string& name, const torch::jit::Stack& arguments);

// Throws RuntimeError if an out= operand has several elements at one place: kernels write it as if it were dense.
void CheckOut(const std::string& name, const at::Tensor& out);

}  // namespace mycelya::exec

#endif  // MYCELYA_EXEC_GUARDS_GUARDS_H_
