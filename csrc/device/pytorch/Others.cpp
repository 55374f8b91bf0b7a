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
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "device/client/State.h"
#include "device/record/Op.h"
#include "device/record/Record.h"
#include "device/record/RecordInternal.h"
#include "device/record/Recorder.h"
#include "device/record/Transfer.h"

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

// What a device's worker has answered, in one life of the device: by the name of an operator, whether it has it.
struct Answers {
  uint64_t life = 0;
  std::unordered_map<std::string, bool> has;
};

// Whether a device's worker has an operator of another library with the schema that this process has. Asks once, for
// all those of csrc/abi/library_ops.inc together, and waits for the answer.
bool WorkerHas(c10::DeviceIndex device, const Op& op) {
  static auto& mutex = *new std::mutex();
  static auto& answers = *new std::array<Answers, kMaxDevices>();
  const uint64_t life = RecorderOf(device).life();
  {
    const std::lock_guard<std::mutex> guard(mutex);
    Answers& a = answers[static_cast<size_t>(device)];
    if (a.life != life) a = {life, {}};
    const auto known = a.has.find(op.full_name);
    if (known != a.has.end()) return known->second;
  }
  std::vector<std::string> names;
  std::string schemas;
  const auto ask = [&](const std::string& name, const std::string& schema) {
    names.push_back(name);
    schemas += schema + "\n";
  };
  if (op.library == nullptr) {
    ask(op.full_name, c10::toString(op.handle.schema()));
  } else {
    for (const LibraryOp& row : kLibraryOps) {
      const auto found = c10::Dispatcher::singleton().findSchema({row.name, ""});
      ask(row.name, found ? c10::toString(found->schema()) : row.name);
    }
  }
  const at::Tensor numbers = MakeVector(at::kLong, static_cast<int64_t>(names.size()), device);
  RecordOwn(device, "mycelya::has_operators", {std::string_view(schemas)}, numbers);
  const at::Tensor here = ToCpu(numbers);
  const std::lock_guard<std::mutex> guard(mutex);
  Answers& a = answers[static_cast<size_t>(device)];
  if (a.life != life) a = {life, {}};
  for (size_t i = 0; i < names.size(); ++i) a.has[names[i]] = here.const_data_ptr<int64_t>()[i] != 0;
  return a.has[op.full_name];
}

// The device of the first operand that is on one.
std::optional<c10::DeviceIndex> DeviceOf(const Op& op, at::ArrayRef<c10::IValue> args) {
  std::optional<c10::DeviceIndex> device;
  EachTensor(op, args, [&](size_t, size_t, const at::Tensor& t) {
    if (!device && Ours(t)) device = t.device().index();
  });
  return device;
}

// Whether a program can call the operator with these arguments.
bool IsRecordable(const Op& op, at::ArrayRef<c10::IValue> args) {
  for (size_t i = 0; op.takes_other && i < args.size(); ++i) {
    if (op.args[i].kind == Kind::kOther && !args[i].isNone()) return false;
  }
  return op.refusal.empty();
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
  const char* const why =
      op.library != nullptr ? "the worker's environment has no library with the same operator"
      : op.refusal.empty()
          ? "the device mycelya has no kernel for it, nor has a library in the worker's MYCELYA_LIBRARIES"
          : "the device mycelya has no kernel for it";
  TORCH_WARN(op.full_name, " runs on the CPU of this process, because ", why,
             ". Each call waits for the device and reads ", tensors, " tensors from it (", bytes,
             " bytes in this call), and its results are uploaded. This warning appears once for each operator.");
}

}  // namespace

void RunHereOrRefuse(const c10::OperatorHandle& handle, torch::jit::Stack* stack) {
  if (OfPyTorch(handle)) return Refuse(handle, stack);
  const Op& op = OpFor(handle);
  const auto args = ArgumentsOf(handle, *stack);
  const auto device = DeviceOf(op, args);
  if (device && IsRecordable(op, args) && WorkerHas(*device, op)) return Record(handle, stack);
  if (!handle.hasKernelForDispatchKey(c10::DispatchKey::CPU)) return Refuse(handle, stack);
  WarnOnce(op, args);
  at::native::cpu_fallback(handle, stack);
}

}  // namespace mycelya
