// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// The executor's CUDA part: one class behind one symbol. Kernels are ATen's; this only asks about the device, hands out
// its memory and waits for it.
#include <ATen/Context.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/PinnedMemoryAllocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include "Device.h"

namespace mycelya::exec {
namespace {

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

 private:
  cudaDeviceProp* Properties() const { return at::cuda::getDeviceProperties(device().index()); }
};

}  // namespace
}  // namespace mycelya::exec

extern "C" __attribute__((visibility("default"))) mycelya::exec::Device* myc_exec_cuda_device(int32_t index) {
  return new mycelya::exec::Cuda(static_cast<c10::DeviceIndex>(index));
}
