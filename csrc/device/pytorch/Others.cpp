// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
#include "device/pytorch/Others.h"

#include <ATen/native/CPUFallback.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>

#include "device/client/State.h"
#include "device/operators/Transfer.h"
#include "device/record/Op.h"
#include "device/record/Record.h"
#include "device/record/RecordInternal.h"
#include "device/record/Recorder.h"

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

// The arguments of a call.
at::ArrayRef<c10::IValue> ArgumentsOf(const c10::OperatorHandle& handle, const torch::jit::Stack& stack) {
  return at::ArrayRef<c10::IValue>(stack).slice(stack.size() - handle.schema().arguments().size());
}

// What a device's worker has answered, in one life of the device.
struct Answer {
  bool known = false;
  uint64_t life = 0;
  std::array<bool, std::size(kLibraryOps)> has{};
};

// Whether a device's worker has an operator of another library with the schema that this process has. Asks once for all
// of them, and waits for the answer.
bool WorkerHas(c10::DeviceIndex device, const LibraryOp& op) {
  static auto& mutex = *new std::mutex();
  static auto& answers = *new std::array<Answer, kMaxDevices>();
  const uint64_t life = RecorderOf(device).life();
  const auto index = static_cast<size_t>(&op - kLibraryOps);
  {
    const std::lock_guard<std::mutex> guard(mutex);
    const Answer& a = answers[static_cast<size_t>(device)];
    if (a.known && a.life == life) return a.has[index];
  }
  std::string schemas;
  for (const LibraryOp& row : kLibraryOps) {
    const auto found = c10::Dispatcher::singleton().findSchema({row.name, ""});
    schemas += (found ? c10::toString(found->schema()) : row.name) + "\n";
  }
  const at::Tensor numbers = MakeVector(at::kLong, std::size(kLibraryOps), device);
  RecordOwn(device, "mycelya::has_operators", {std::string_view(schemas)}, numbers);
  const at::Tensor here = ToCpu(numbers);
  const std::lock_guard<std::mutex> guard(mutex);
  Answer& a = answers[static_cast<size_t>(device)];
  a = {true, life, {}};
  for (size_t i = 0; i < a.has.size(); ++i) a.has[i] = here.const_data_ptr<int64_t>()[i] != 0;
  return a.has[index];
}

// The device of the first operand that is on one.
std::optional<c10::DeviceIndex> DeviceOf(const Op& op, at::ArrayRef<c10::IValue> args) {
  std::optional<c10::DeviceIndex> device;
  EachTensor(op, args, [&](size_t, size_t, const at::Tensor& t) {
    if (!device && Ours(t)) device = t.device().index();
  });
  return device;
}

void WarnOnce(const Op& op, at::ArrayRef<c10::IValue> args) {
  static auto& mutex = *new std::mutex();
  static auto& warned = *new std::unordered_set<std::string>();
  {
    const std::lock_guard<std::mutex> guard(mutex);
    if (!warned.insert(op.full_name).second) return;
  }
  size_t tensors = 0, bytes = 0;  // that the call reads from the device
  EachTensor(op, args, [&](size_t, size_t, const at::Tensor& t) {
    if (!Ours(t)) return;
    ++tensors;
    bytes += t.numel() * t.itemsize();
  });
  TORCH_WARN(op.full_name, " runs on the CPU of this process, because ",
             op.library != nullptr ? "the worker's environment has no library with the same operator"
                                   : "the device mycelya has no kernel for it",
             ". Each call waits for the device and reads ", tensors, " tensors from it (", bytes,
             " bytes in this call), and its results are uploaded. This warning appears once for each operator.");
}

}  // namespace

void RunHereOrRefuse(const c10::OperatorHandle& handle, torch::jit::Stack* stack) {
  if (OfPyTorch(handle)) return Refuse(handle, stack);
  const Op& op = OpFor(handle);
  if (op.library != nullptr) {
    const auto device = DeviceOf(op, ArgumentsOf(handle, *stack));
    if (device && WorkerHas(*device, *op.library)) return Record(handle, stack);
  }
  if (!handle.hasKernelForDispatchKey(c10::DispatchKey::CPU)) return Refuse(handle, stack);
  WarnOnce(op, ArgumentsOf(handle, *stack));
  at::native::cpu_fallback(handle, stack);
}

}  // namespace mycelya
