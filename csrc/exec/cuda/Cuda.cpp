// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// The executor's CUDA part: one class behind one symbol. Kernels are ATen's; this only asks about the device, hands out
// its memory and waits for it.
#include <ATen/Context.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/PinnedMemoryAllocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <unordered_map>

#include "Device.h"

namespace mycelya::exec {
namespace {

// Its class moved from ATen to c10; either has the other in its scope or is not there.
using namespace at::cuda;
using namespace c10::cuda;

class Cuda final : public Device {
 public:
  explicit Cuda(c10::DeviceIndex index) : Device(c10::Device(c10::DeviceType::CUDA, index)) {
    const int count = c10::cuda::device_count_ensure_non_zero();
    TORCH_CHECK_VALUE(index < count, "There is no cuda:", static_cast<int>(index), ": this host has ", count,
                      " CUDA devices.");
    at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
    // The context is made now, so that the first step of a session doesn't pay for it.
    Synchronize();
  }

  std::string Name() const override { return Properties()->name; }
  uint64_t MemoryBytes() const override { return Properties()->totalGlobalMem; }
  c10::Allocator* Memory() const override { return c10::cuda::CUDACachingAllocator::get(); }
  c10::Allocator* HostMemory() const override { return at::cuda::getPinnedMemoryAllocator(); }
  void Synchronize() const override {
    c10::cuda::CUDAGuard guard(device());
    c10::cuda::device_synchronize();
  }
  void EmptyCache() const override { c10::cuda::CUDACachingAllocator::emptyCache(); }
  std::pair<int, int> Capability() const override { return {Properties()->major, Properties()->minor}; }
  uint64_t FreeBytes() const override {
    return c10::cuda::CUDACachingAllocator::get()->getMemoryInfo(device().index()).first;
  }
  void RecordEvent(int64_t id) const override {
    events_.try_emplace(id, cudaEventDefault).first->second.record();  // the current stream's
  }
  void ForgetEvent(int64_t id) const override { events_.erase(id); }
  double Elapsed(int64_t from, int64_t to) const override {
    const CUDAEvent &begin = At(from), &end = At(to);
    begin.synchronize();
    end.synchronize();
    return begin.elapsed_time(end);
  }

 private:
  const CUDAEvent& At(int64_t id) const {
    const auto it = events_.find(id);
    TORCH_CHECK(it != events_.end(), "Event ", id, " was not recorded.");
    return it->second;
  }

  mutable std::unordered_map<int64_t, CUDAEvent> events_;

  cudaDeviceProp* Properties() const { return at::cuda::getDeviceProperties(device().index()); }
};

}  // namespace
}  // namespace mycelya::exec

extern "C" __attribute__((visibility("default"))) mycelya::exec::Device* myc_exec_cuda_device(int32_t index) {
  return new mycelya::exec::Cuda(static_cast<c10::DeviceIndex>(index));
}
