// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// The namespace `mycelya` in PyTorch's dispatcher: operators that programs call like those of aten. csrc/abi/mycelya.h
// describes them, except for those that no client records. MYCELYA_CHECK=3 adds expect_close, after and iota to
// programs; groups of kernels begin with dropout_mask, expect_within and expect_nonzero. All of them run only inside
// Run(), which sets the current executor.
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "abi/mycelya.h"
#include "exec/memory/Geometry.h"
#include "exec/operators/Close.h"
#include "exec/program/Library.h"
#include "exec/session/Executor.h"
#include "exec/session/Flags.h"

namespace mycelya::exec {
namespace {

// Through memory from which the device copies without a wait.
at::Tensor ToDevice(const at::Tensor& cpu) {
  const Executor& executor = Executor::Current();
  if (!executor.device().apart()) return cpu;
  Geometry g;
  g.dtype = cpu.scalar_type();
  g.sizes.assign(cpu.sizes().begin(), cpu.sizes().end());
  g.SetContiguous();
  const at::Tensor host = MakeTensor(executor.AllocateHost(g.Bytes()), g);
  host.copy_(cpu);
  return MakeTensor(executor.Allocate(g.Bytes()), g).copy_(host, /*non_blocking=*/true);
}

// Schemas only have optional generators.
void CheckGiven(const at::Generator& generator) {
  TORCH_CHECK_TYPE(generator.defined(), "BUG: no generator is given.");
}

at::Tensor GetRngState(at::Generator generator) {
  CheckGiven(generator);
  std::lock_guard<std::mutex> lock(generator.mutex());
  return ToDevice(generator.get_state());
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
  return ToDevice(at::scalar_tensor(Executor::Current().device().Elapsed(from, to), at::kDouble));
}

at::Tensor PairOf(int64_t first, int64_t second) {
  at::Tensor pair = at::empty({2}, at::kLong);
  auto* words = pair.mutable_data_ptr<int64_t>();
  words[0] = first;
  words[1] = second;
  return ToDevice(pair);
}

at::Tensor MemoryInfo() {
  const Device& device = Executor::Current().device();
  return PairOf(static_cast<int64_t>(device.FreeBytes()), static_cast<int64_t>(device.MemoryBytes()));
}

void EmptyCache() { Executor::Current().device().EmptyCache(); }

at::Tensor MemoryStats() {
  const c10::CachingDeviceAllocator::DeviceStats stats = Executor::Current().device().MemoryStats();
  at::Tensor numbers = at::empty({MYC_M_NUMBERS}, at::kLong);
  auto* number = numbers.mutable_data_ptr<int64_t>();
  for (const auto* pools : {&stats.allocation, &stats.segment, &stats.active, &stats.inactive_split,
                            &stats.reserved_bytes, &stats.active_bytes, &stats.inactive_split_bytes}) {
    for (const auto& stat : *pools) {
      for (const int64_t value : {stat.current, stat.peak, stat.allocated, stat.freed}) *number++ = value;
    }
  }
  for (const int64_t value : {stats.num_alloc_retries, stats.num_ooms, stats.num_device_alloc, stats.num_device_free}) {
    *number++ = value;
  }
  return ToDevice(numbers);
}

void ResetMemoryStats(int64_t what) {
  const Device& device = Executor::Current().device();
  TORCH_CHECK_VALUE(what == MYC_M_PEAKS || what == MYC_M_TOTALS, "BUG: there are no memory statistics of kind ", what,
                    ".");
  what == MYC_M_PEAKS ? device.ResetPeakMemory() : device.ResetMemoryTotals();
}

at::Tensor Capability() {
  const auto [major, minor] = Executor::Current().device().Capability();
  return PairOf(major, minor);
}

// For each line, whether it is the schema of an operator of another library that this worker can run: 1 or 0.
at::Tensor HasOperators(c10::string_view schemas) {
  const bool cuda = Executor::Current().device().device().is_cuda();
  const auto key = cuda ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU;
  std::vector<int64_t> answers;
  std::istringstream lines(std::string(schemas.data(), schemas.size()));
  for (std::string line; std::getline(lines, line);) {
    const std::string name = line.substr(0, line.find('('));
    const auto op = FindLibraryOperator(name);
    answers.push_back(op && c10::toString(op->schema()) == line && op->hasKernelForDispatchKey(key));
  }
  return ToDevice(at::tensor(answers, at::kLong));
}

// b8[size], true with probability 1 - p: the mask that PyTorch's CPU dropout draws, in memory order. stride: empty if
// it is contiguous.
at::Tensor DropoutMask(at::IntArrayRef size, double p, at::IntArrayRef stride) {
  const auto options = at::TensorOptions(at::kBool).device(Executor::Current().device().device());
  at::Tensor mask = stride.empty() ? at::empty(size, options) : at::empty_strided(size, stride, options);
  return mask.bernoulli_(1. - p);
}

// Fails if `got` and `want` differ by more than rounding. Each comparison is declared to write `first`, so a failure
// poisons all later ones. operands: the operands of `want`. tolerance: relative to the largest element.
void ExpectClose(at::Tensor& /*first*/, const at::Tensor& got, const at::Tensor& want,
                 c10::ArrayRef<at::Tensor> operands, c10::string_view what, double tolerance) {
  // Large terms of a reduction may cancel, so the error is relative to the largest operand.
  double large = 0;
  for (const at::Tensor& t : operands) large = std::max(large, LargestOf(t));
  const std::string difference = DifferenceOf(got, want, large, tolerance);
  TORCH_CHECK(difference.empty(), what, " as the kernels would compute it, and by itself: ", difference, ".");
}

// Does nothing. Declared to write `self` and read `first`, it poisons `self` if `first` is poisoned.
void After(at::Tensor& /*self*/, const at::Tensor& /*first*/) {}

// i64[size]: the position of each element along a dim.
at::Tensor Iota(at::IntArrayRef size, int64_t dim) {
  const auto options = at::TensorOptions(at::kLong).device(Executor::Current().device().device());
  if (size.empty()) return at::zeros({}, options);
  dim = at::maybe_wrap_dim(dim, static_cast<int64_t>(size.size()));
  std::vector<int64_t> line(size.size(), 1);
  line[dim] = size[dim];
  return at::arange(size[dim], options).view(line).expand(size).contiguous();
}

// The elements of `x` at positions along a dim. `x`, with size 1 along that dim, and `index` broadcast.
at::Tensor Take(const at::Tensor& x, const at::Tensor& index, int64_t dim) {
  const int64_t rank = std::max(x.dim(), index.dim()), at = dim + rank - x.dim(), n = x.size(dim);
  std::vector<int64_t> from(rank, 1), sizes(rank, 1);
  for (int64_t d = 0; d < rank; ++d) {
    const int64_t own = d - rank + x.dim(), other = d - rank + index.dim();
    if (own >= 0) from[d] = x.size(own);
    if (own >= 0 && d != at) sizes[d] = from[d];
    if (other >= 0 && sizes[d] == 1) sizes[d] = index.size(other);
  }
  const at::Tensor places = index.to(at::kLong).clamp(0, n - 1).expand(sizes);
  const at::Tensor all = x.reshape(from);
  sizes[at] = n;
  return all.expand(sizes).gather(at, places);
}

// Fails unless each index is at least 0 and less than `size`, or ignored. The guard of the operator does it.
void ExpectWithin(const at::Tensor& /*indices*/, int64_t /*size*/, std::optional<int64_t> /*ignored*/) {}

// Fails if an element is 0 in a dtype.
void ExpectNonzero(const at::Tensor& divisor, at::ScalarType dtype) {
  TORCH_CHECK(divisor.to(dtype).all().item<bool>(), "ZeroDivisionError");
}
void ExpectNonzeroNumber(const at::Scalar& divisor, at::ScalarType dtype) {
  ExpectNonzero(at::scalar_tensor(divisor, at::TensorOptions(divisor.type())), dtype);
}

TORCH_LIBRARY(mycelya, m) {
  m.def("set_flag(str flag) -> ()", [](c10::string_view flag) { SetFlag({flag.data(), flag.size()}); });
  m.def("get_rng_state(Generator? generator) -> Tensor", &GetRngState);
  m.def("set_rng_state(Generator? generator, Tensor state) -> ()", &SetRngState);
  m.def("record_event(int id) -> ()", &RecordEvent);
  m.def("forget_event(int id) -> ()", &ForgetEvent);
  m.def("elapsed(int start, int end) -> Tensor", &Elapsed);
  m.def("memory_info() -> Tensor", &MemoryInfo);
  m.def("empty_cache() -> ()", &EmptyCache);
  m.def("memory_stats() -> Tensor", &MemoryStats);
  m.def("reset_memory_stats(int what) -> ()", &ResetMemoryStats);
  m.def("capability() -> Tensor", &Capability);
  m.def("has_operators(str schemas) -> Tensor", &HasOperators);
  m.def("iota(int[] size, int dim) -> Tensor", &Iota);
  m.def("take(Tensor x, Tensor index, int dim) -> Tensor", &Take);
  m.def("expect_within(Tensor indices, int size, int? ignored) -> ()", &ExpectWithin);
  m.def("expect_nonzero(Tensor divisor, ScalarType dtype) -> ()", &ExpectNonzero);
  m.def("expect_nonzero.number(Scalar divisor, ScalarType dtype) -> ()", &ExpectNonzeroNumber);
  m.def("dropout_mask(int[] size, float p, int[] stride=[]) -> Tensor", &DropoutMask);
  m.def("expect_close(Tensor(a!) first, Tensor got, Tensor want, Tensor[] operands, str what, float tolerance) -> ()",
        &ExpectClose);
  m.def("after(Tensor(a!) self, Tensor first) -> ()", &After);
}

}  // namespace
}  // namespace mycelya::exec
