// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
#include "device/pytorch/Others.h"

#include <ATen/native/CPUFallback.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_set>

#include "device/record/Record.h"
#include "device/record/RecordInternal.h"

namespace mycelya {
namespace {

// PyTorch's own namespaces. An operator of these without a kernel for the device is refused: it needs another layout,
// or is private.
constexpr std::array<std::string_view, 24> kPyTorch{"aten",
                                                    "prim",
                                                    "prims",
                                                    "mycelya",
                                                    "quantized",
                                                    "_quantized",
                                                    "quantized_decomposed",
                                                    "mkldnn",
                                                    "onednn",
                                                    "xnnpack",
                                                    "prepacked",
                                                    "c10d",
                                                    "_c10d_functional",
                                                    "c10d_functional",
                                                    "inductor",
                                                    "rngprims",
                                                    "profiler",
                                                    "sparse",
                                                    "static_runtime",
                                                    "_c10d_functional_autograd",
                                                    "symm_mem",
                                                    "fsdp",
                                                    "higher_order",
                                                    "debugprims"};

bool OfPyTorch(const c10::OperatorHandle& handle) {
  const auto space = handle.operator_name().getNamespace();
  return !space || std::find(kPyTorch.begin(), kPyTorch.end(), std::string_view(*space)) != kPyTorch.end();
}

// What a call costs, for the warning.
struct Cost {
  size_t tensors = 0;
  size_t bytes = 0;

  void Add(const at::Tensor& t) {
    if (!Ours(t)) return;
    ++tensors;
    bytes += t.numel() * t.itemsize();
  }
  void Add(const c10::IValue& value) {
    if (value.isTensor()) Add(value.toTensor());
    if (value.isTensorList()) {
      for (const at::Tensor& t : value.toTensorVector()) Add(t);
    }
  }
};

void WarnOnce(const c10::OperatorHandle& handle, const torch::jit::Stack& stack) {
  static auto& mutex = *new std::mutex();
  static auto& warned = *new std::unordered_set<std::string>();
  const std::string name = c10::toString(handle.operator_name());
  {
    const std::lock_guard<std::mutex> guard(mutex);
    if (!warned.insert(name).second) return;
  }
  Cost cost;
  const size_t n = handle.schema().arguments().size();
  for (size_t i = stack.size() - n; i < stack.size(); ++i) cost.Add(stack[i]);
  TORCH_WARN(name,
             " runs on the CPU of this process, because the device mycelya has no kernel for it. Each call waits ",
             "for the device and reads ", cost.tensors, " tensors from it (", cost.bytes,
             " bytes in this call), and its ", "results are uploaded. This warning appears once for each operator.");
}

}  // namespace

void RunHereOrRefuse(const c10::OperatorHandle& handle, torch::jit::Stack* stack) {
  if (OfPyTorch(handle) || !handle.hasKernelForDispatchKey(c10::DispatchKey::CPU)) return Refuse(handle, stack);
  WarnOnce(handle, *stack);
  at::native::cpu_fallback(handle, stack);
}

}  // namespace mycelya
