// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Shape rules: which tensors a call returns, without running it. A rule reads only metadata (sizes, strides, dtype,
// device, numbers), never data, and gives what PyTorch's CPU kernel gives, strides included, because users see
// strides. The few results whose dtype or layout differs between PyTorch's CPU and CUDA kernels follow the worker of
// the call's device.
#ifndef MYCELYA_DEVICE_RULES_RULES_H_
#define MYCELYA_DEVICE_RULES_RULES_H_

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>
#include <torch/headeronly/version.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "device/client/State.h"
#include "device/rules/RulesColumns.h"

namespace mycelya {

// One fresh result. Sizes and strides in elements.
struct OutMeta {
  bool defined = false;
  at::ScalarType dtype = at::ScalarType::Undefined;
  c10::SmallVector<int64_t, 6> sizes, strides;
};
using OutMetas = c10::SmallVector<OutMeta, 4>;  // fresh results in schema order, lists flattened

// Sets the function that says what the worker of a device index computes on. It affects the results that OnCuda() of
// RulesInternal.h is for. Without it, all workers are kCpu.
void SetWorkers(Worker (*of)(c10::DeviceIndex));

// The rules that this thread applies during its lifetime are for a call on this device.
class CallOn {
 public:
  explicit CallOn(c10::DeviceIndex device);
  ~CallOn();
  CallOn(const CallOn&) = delete;
  CallOn& operator=(const CallOn&) = delete;

 private:
  c10::DeviceIndex before_;
};

// Whether CUDA's group norm has kernels for channels-last operands, and gives such results.
inline constexpr bool kGroupNormKeepsFormat = TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 15;

// Infers the results of a functional overload ("add.Tensor") from its arguments; of an in-place or out= overload only
// where the op table names that overload itself. Returns false if there is no own rule. Throws PyTorch's errors.
bool InferByRule(std::string_view functional_name, at::ArrayRef<c10::IValue> args, OutMetas& out);

// The same by PyTorch's structured shape function, from the generated table. It gets the tensors as they are.
bool InferByMeta(std::string_view functional_name, const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> args,
                 OutMetas& out);

// Whether an overload has an own rule.
bool HasRule(std::string_view functional_name);

// Calls PyTorch's structured function of an in-place or out= overload, which checks the written tensors and resizes an
// out= tensor. False if there is none.
bool RunMeta(std::string_view name, const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> args);

// The last resort: runs the op on meta tensors in Python. It takes 0.1 to 1 ms, and 1.4 s for the first in a process.
void InferByMetaKey(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> args, OutMetas& out);

// Appends the indices of the arguments that this call writes although the schema does not mark them (running
// statistics of batch norms).
inline void UnmarkedWrites(const Columns& columns, at::ArrayRef<c10::IValue> args, c10::SmallVector<int, 4>& out) {
  if (columns.running_stats == 0 || (columns.if_training != 0 && !args[columns.if_training].toBool())) return;
  for (int i = columns.running_stats; i < columns.running_stats + 2; ++i) {
    if (args[i].isTensor() && args[i].toTensor().defined()) out.push_back(i);
  }
}

}  // namespace mycelya

#endif  // MYCELYA_DEVICE_RULES_RULES_H_
