// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// The namespace `mycelya` in PyTorch's dispatcher: operators that programs call like those of aten. csrc/abi/mycelya.h
// describes them, except for three that no client records. MYCELYA_CHECK=3 adds expect_close and after to programs;
// kernels with a dropout use dropout_mask. All of them run only inside Run(), which sets the current executor.
#include <ATen/ops/abs.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/gt.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/logical_or.h>
#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include "abi/mycelya.h"
#include "exec/operators/Flags.h"
#include "exec/session/Executor.h"

namespace mycelya::exec {
namespace {

at::Tensor ToDevice(const at::Tensor& cpu) { return cpu.to(Executor::Current().device().device()); }

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

// b8[size], true with probability 1 - p: the mask that PyTorch's CPU dropout draws.
at::Tensor DropoutMask(at::IntArrayRef size, double p) {
  return at::empty(size, at::TensorOptions(at::kBool).device(Executor::Current().device().device())).bernoulli_(1. - p);
}

// Element i of a tensor as text.
std::string Element(const at::Tensor& t, int64_t i) { return c10::str(t.flatten()[i].item()); }

// Fails if `got` and `want` differ by more than rounding. Each comparison is declared to write `first`, so a failure
// poisons all later ones. operands: the operands of `want`. tolerance: relative to the largest element.
void ExpectClose(at::Tensor& /*first*/, const at::Tensor& got, const at::Tensor& want,
                 c10::ArrayRef<at::Tensor> operands, c10::string_view what, double tolerance) {
  TORCH_CHECK(got.sizes() == want.sizes() && got.scalar_type() == want.scalar_type(), what, " gives ",
              got.scalar_type(), got.sizes(), " as the kernels would compute it, and ", want.scalar_type(),
              want.sizes(), " by itself.");
  if (want.numel() == 0) return;
  at::Tensor off;  // per element: the error beyond the tolerance
  if (want.is_floating_point() || want.is_complex()) {
    const auto wide = want.is_complex() ? at::kComplexDouble : at::kDouble;
    const at::Tensor a = got.to(wide), b = want.to(wide);
    const at::Tensor finite = at::isfinite(b);
    const at::Tensor size = at::where(finite, b, at::zeros_like(b)).abs();
    // Large terms of a reduction may cancel, so the error is relative to the largest operand.
    double large = 0;
    for (const at::Tensor& t : operands) {
      if (t.numel() == 0) continue;
      const at::Tensor value = t.to(at::kDouble).abs();
      large = std::max(large, at::where(at::isfinite(value), value, at::zeros_like(value)).max().item<double>());
    }
    // Infinities and NaNs must be equal, except that an infinity may stand for a finite value that overflows by
    // rounding.
    const at::Tensor same = at::logical_or(at::eq(a, b), at::logical_and(at::isnan(a), at::isnan(b)));
    const at::Tensor far =
        at::nan_to_num(at::sub(a, b).abs(), /*nan=*/HUGE_VAL).sub(size.add(size.max()).add(large / 64).mul(tolerance));
    off = at::where(same, at::zeros_like(far), at::where(finite, far, at::full_like(far, HUGE_VAL)));
  } else {
    off = at::ne(got, want).to(at::kDouble);
  }
  const auto [worst, at] = off.flatten().max(0);
  if (worst.item<double>() <= 0) return;
  const int64_t i = at.item<int64_t>();
  TORCH_CHECK(false, what, " gives other values as the kernels would compute it: element ", i, " of ", want.numel(),
              " is ", Element(got, i), ", and ", Element(want, i), " by itself; ", at::gt(off, 0).sum().item<int64_t>(),
              " elements differ by more than rounding.");
}

// Does nothing. Declared to write `self` and read `first`, it poisons `self` if `first` is poisoned.
void After(at::Tensor& /*self*/, const at::Tensor& /*first*/) {}

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
  m.def("dropout_mask(int[] size, float p) -> Tensor", &DropoutMask);
  m.def("expect_close(Tensor(a!) first, Tensor got, Tensor want, Tensor[] operands, str what, float tolerance) -> ()",
        &ExpectClose);
  m.def("after(Tensor(a!) self, Tensor first) -> ()", &After);
}

}  // namespace
}  // namespace mycelya::exec
