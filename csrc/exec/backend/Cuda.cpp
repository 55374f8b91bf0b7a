// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// The CUDA device: one class behind one exported function. ATen provides the kernels of operators. This library
// provides device properties, memory, synchronisation, and launches of fused kernels.
#include <ATen/Context.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/PinnedMemoryAllocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <dlfcn.h>

#include <atomic>
#include <string>
#include <unordered_map>

#include "exec/backend/Device.h"

namespace mycelya::exec {
namespace {

// CUDAEvent and its helpers moved from at::cuda to c10::cuda between versions of PyTorch.
using namespace at::cuda;
using namespace c10::cuda;

// Functions of the CUDA driver library, which a process with CUDA has loaded. Their names and types have been the same
// since CUDA 4. ATen's own table of them is not in a public header.
struct Driver {
  int (*load)(void** module, const void* image);
  int (*unload)(void* module);
  int (*entry)(void** function, void* module, const char* name);
  int (*launch)(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                unsigned block_z, unsigned shared, void* stream, void** arguments, void** extra);
  int (*text)(int status, const char** text);

  static const Driver& Get() {
    static const Driver driver;
    return driver;
  }
  void Check(int status, const char* what) const {
    const char* words = nullptr;
    if (status != 0) text(status, &words);
    TORCH_CHECK(status == 0, "CUDA can't ", what, ": ", words != nullptr ? words : "unknown error", " (", status, ").");
  }

 private:
  Driver() {
    void* lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    TORCH_CHECK(lib != nullptr, "CUDA's driver could not be loaded: ", dlerror(), ".");
    Find(lib, "cuModuleLoadData", &load);
    Find(lib, "cuModuleUnload", &unload);
    Find(lib, "cuModuleGetFunction", &entry);
    Find(lib, "cuLaunchKernel", &launch);
    Find(lib, "cuGetErrorString", &text);
  }
  template <typename F>
  static void Find(void* lib, const char* name, F* f) {
    *f = reinterpret_cast<F>(dlsym(lib, name));
    TORCH_CHECK(*f != nullptr, "CUDA's driver has no function ", name, ".");
  }
};

constexpr int kOutOfMemory = 2;  // CUDA_ERROR_OUT_OF_MEMORY

std::atomic<uint64_t> refused{0};  // the process has one device

class Cuda final : public Device {
 public:
  explicit Cuda(c10::DeviceIndex index) : Device(c10::Device(c10::DeviceType::CUDA, index)) {
    const int count = c10::cuda::device_count_ensure_non_zero();
    TORCH_CHECK_VALUE(index < count, "There is no cuda:", static_cast<int>(index), ": this host has ", count,
                      " CUDA devices.");
    at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
    c10::cuda::CUDACachingAllocator::attachOutOfMemoryObserver(
        [](int64_t, size_t bytes, size_t, size_t) { refused.store(bytes, std::memory_order_relaxed); });
    // Create the context now, so that the first step of a session does not wait for it.
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
  uint64_t TakeRefused() const override { return refused.exchange(0, std::memory_order_relaxed); }
  // A kernel that fails spoils the process's context: from then on every call returns its error.
  std::string Broken() const override {
    const c10::cuda::CUDAGuard guard(device());
    const cudaError_t status = cudaStreamQuery(c10::cuda::getCurrentCUDAStream(device().index()).stream());
    (void)cudaGetLastError();  // forgets an error that does not last
    return status == cudaSuccess || status == cudaErrorNotReady ? "" : cudaGetErrorString(status);
  }
  void RecordEvent(int64_t id) const override {
    events_.try_emplace(id, cudaEventDefault).first->second.record();  // on the current stream
  }
  void ForgetEvent(int64_t id) const override { events_.erase(id); }
  double Elapsed(int64_t from, int64_t to) const override {
    const CUDAEvent &begin = At(from), &end = At(to);
    begin.synchronize();
    end.synchronize();
    return begin.elapsed_time(end);
  }

  std::shared_ptr<void> Mark(Stream stream) const override {
    auto event = std::make_shared<CUDAEvent>(cudaEventDisableTiming);
    event->record(Of(stream));
    return event;
  }
  void After(Stream stream, const std::shared_ptr<void>& mark) const override {
    static_cast<CUDAEvent*>(mark.get())->block(Of(stream));
  }
  void* SideStream() const override { return Of(Stream::kSide).stream(); }

  bool TakesCode() const override { return true; }
  std::string Arch() const override {
    return "sm_" + std::to_string(Properties()->major) + std::to_string(Properties()->minor);
  }
  int Processors() const override { return Properties()->multiProcessorCount; }
  void* LoadCode(const void* image, size_t bytes) const override {
    const Current current(device());
    const std::string copy(static_cast<const char*>(image), bytes);  // a copy has a suitable alignment
    void* module = nullptr;
    int status = Driver::Get().load(&module, copy.data());
    if (status == kOutOfMemory) {  // the allocator's cache may hold what is missing
      EmptyCache();
      status = Driver::Get().load(&module, copy.data());
    }
    Driver::Get().Check(status, "load a kernel");
    return module;
  }
  void* EntryOf(void* code, const char* name) const override {
    const Current current(device());
    void* function = nullptr;
    Driver::Get().Check(Driver::Get().entry(&function, code, name), "find an entry of a kernel");
    return function;
  }
  void UnloadCode(void* code) const override {
    const Current current(device());
    c10::cuda::device_synchronize();
    Driver::Get().Check(Driver::Get().unload(code), "unload a kernel");
  }
  void Launch(const CodeLaunch& l) const override {
    void* stream = c10::cuda::getCurrentCUDAStream(device().index()).stream();
    const int status = Driver::Get().launch(l.entry, l.grid, 1, 1, l.block_x, l.block_y, 1, 0, stream,
                                            const_cast<void**>(l.arguments), nullptr);
    Driver::Get().Check(status, "launch a kernel");
  }

 private:
  // Makes the device's context current on this thread, which may never have called CUDA. Unlike the runtime, the driver
  // does not do this by itself.
  class Current {
   public:
    explicit Current(c10::Device device) : guard_(device) { C10_CUDA_CHECK(cudaFree(nullptr)); }

   private:
    c10::cuda::CUDAGuard guard_;
  };

  CUDAStream Of(Stream stream) const {
    static const CUDAStream side = getStreamFromPool(/*isHighPriority=*/true, device().index());
    return stream == Stream::kSide ? side : getCurrentCUDAStream(device().index());
  }

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

extern "C" __attribute__((visibility("default"))) mycelya::exec::Device* myc_exec_device(int32_t index) {
  return new mycelya::exec::Cuda(static_cast<c10::DeviceIndex>(index));
}
