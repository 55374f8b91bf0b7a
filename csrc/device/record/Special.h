// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Functions for operators that need more than inference and a record. The catalogue's rows name them
// (catalogue/capture.go), and the files of operators/ define them.
#ifndef MYCELYA_DEVICE_RECORD_SPECIAL_H_
#define MYCELYA_DEVICE_RECORD_SPECIAL_H_

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <span>
#include <string_view>
#include <vector>

#include "device/rules/Rules.h"

namespace torch {
class CppFunction;
}

namespace mycelya {

struct Op;
using Arguments = at::ArrayRef<c10::IValue>;

// The functions of one operator; null where it has none.
struct Special {
  // Makes the boxed kernel that is registered instead of Record().
  torch::CppFunction (*kernel)() = nullptr;
  // Does a call in other operators. Its result is then argument 0. False: nothing is done.
  bool (*instead)(Arguments args) = nullptr;
  // Does a call with conjugate or negative views, and puts the result on the stack. False: nothing is done.
  bool (*on_lazy_views)(torch::jit::Stack* stack) = nullptr;
  // Refuses what shape functions let pass. results is empty for an in-place form.
  void (*check)(Arguments args, const OutMetas& results) = nullptr;
  // Makes the arguments of the operator that is recorded from the original's.
  void (*rewrites)(std::vector<c10::IValue>& args) = nullptr;
};

// The functions of an overload by its name without "aten::".
Special SpecialOf(std::string_view name);

// ---- Fill.cpp ----

// fill_ with a number on the CPU is fill_ with that number. args: self value
bool FillWithTensor(Arguments args);
// A number that the dtype of self does not hold is an error at the call, as on every device. args: self … value
void CheckFill(Arguments args);

// ---- Index.cpp ----

// Writes one value under a mask. That needs no indices, so the client does not wait for their number.
// args: self indices values accumulate …
bool FillUnderMask(Arguments args);
// Masks become the indices of what they select, as on every device.
void ExpandMasks(const Op& op, std::span<c10::IValue> args);
// CPU index tensors are legal on CUDA: they become uploads.
void UploadIndices(const Op& op, std::span<c10::IValue> args, c10::DeviceIndex device);
// Add rows of the storage that self is in, without the dims of size 1. args: self dim index source …
bool IndexAddOwnRows(Arguments args);
bool IndexReduceOwnRows(Arguments args);

// ---- Transfer.cpp ----

// clone of a conjugate or negative view. args: self memory_format
bool CloneLazyView(torch::jit::Stack* stack);

// ---- Products.cpp ----

// dot and vdot of conjugate views are each other, or lazily conjugate, as on every device.
bool DotOfConjugates(torch::jit::Stack* stack);
bool VdotOfConjugates(torch::jit::Stack* stack);
// Refuse what the CPU kernels of matrix products refuse, in their words. args: a b, or self a b
void CheckProduct(Arguments args, const OutMetas& results);
void CheckBiasedProduct(Arguments args, const OutMetas& results);

// ---- Solve.cpp ----

// Solvers whose result shows how LAPACK was called: in its conjugate bit, or in its strides.
void RecordSolve(const c10::OperatorHandle& handle, torch::jit::Stack* stack);
void RecordSolveTriangular(const c10::OperatorHandle& handle, torch::jit::Stack* stack);

// ---- GroupNorm.cpp ----

// Group norms for CUDA get operands in a layout that its kernels support.
void RecordGroupNorm(const c10::OperatorHandle& handle, torch::jit::Stack* stack);

// ---- Convolution.cpp ----

// convolution_backward needs the sizes of the bias, which the channels of its gradient give.
void ConvolutionBackwardArgs(std::vector<c10::IValue>& args);

}  // namespace mycelya

#endif  // MYCELYA_DEVICE_RECORD_SPECIAL_H_
