// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Operators of the worker's own, in PyTorch's dispatcher beside aten's, so that programs call them alike. What they do
// is written in csrc/abi/mycelya.h. They run only inside Run(), where there is a current executor.
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/library.h>

#include "Executor.h"
#include "Flags.h"

namespace mycelya::exec {
namespace {

at::Tensor Here(const at::Tensor& cpu) { return cpu.to(Executor::Current().device().device()); }

// The dispatcher knows only optional generators.
void CheckGiven(const at::Generator& generator) {
  TORCH_CHECK_TYPE(generator.defined(), "BUG: no generator is given.");
}

at::Tensor GetRngState(at::Generator generator) {
  CheckGiven(generator);
  std::lock_guard<std::mutex> lock(generator.mutex());
  return Here(generator.get_state());
}

void SetRngState(at::Generator generator, const at::Tensor& state) {
  CheckGiven(generator);
  const at::Tensor cpu = state.cpu().contiguous();
  std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(cpu);
}

void RecordEvent(int64_t id) { Executor::Current().device().RecordEvent(id); }

void ForgetEvent(int64_t id) { Executor::Current().device().ForgetEvent(id); }

at::Tensor Elapsed(int64_t from, int64_t to) {
  return Here(at::scalar_tensor(Executor::Current().device().Elapsed(from, to), at::kDouble));
}

at::Tensor Two(int64_t first, int64_t second) {
  at::Tensor pair = at::empty({2}, at::kLong);
  auto* words = pair.mutable_data_ptr<int64_t>();
  words[0] = first;
  words[1] = second;
  return Here(pair);
}

at::Tensor MemoryInfo() {
  const Device& device = Executor::Current().device();
  return Two(static_cast<int64_t>(device.FreeBytes()), static_cast<int64_t>(device.MemoryBytes()));
}

at::Tensor Capability() {
  const auto [major, minor] = Executor::Current().device().Capability();
  return Two(major, minor);
}

TORCH_LIBRARY(mycelya, m) {
  m.def("set_flag(str flag) -> ()", [](c10::string_view flag) { SetFlag({flag.data(), flag.size()}); });
  m.def("get_rng_state(Generator? generator) -> Tensor", &GetRngState);
  m.def("set_rng_state(Generator? generator, Tensor state) -> ()", &SetRngState);
  m.def("record_event(int id) -> ()", &RecordEvent);
  m.def("forget_event(int id) -> ()", &ForgetEvent);
  m.def("elapsed(int start, int end) -> Tensor", &Elapsed);
  m.def("memory_info() -> Tensor", &MemoryInfo);
  m.def("capability() -> Tensor", &Capability);
}

}  // namespace
}  // namespace mycelya::exec
