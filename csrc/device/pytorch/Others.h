// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
#ifndef MYCELYA_DEVICE_PYTORCH_OTHERS_H_
#define MYCELYA_DEVICE_PYTORCH_OTHERS_H_

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace mycelya {

// The fallback for operators without a kernel for the device. Those of other libraries are recorded, if the worker has
// them: those of csrc/abi/library_ops.inc, and of libraries that its owner allows. Else they run in this process on
// copies of their tensors, with one warning per operator, if they have a kernel for the CPU. All others are refused.
void RunHereOrRefuse(const c10::OperatorHandle& handle, torch::jit::Stack* stack);

}  // namespace mycelya

#endif  // MYCELYA_DEVICE_PYTORCH_OTHERS_H_
