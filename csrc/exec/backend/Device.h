// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Device functions that ATen does not have. The CPU is in Device.cpp. CUDA is in a separate library (backend/Cuda.cpp),
// so that this one loads without libtorch_cuda.
#ifndef MYCELYA_EXEC_BACKEND_DEVICE_H_
#define MYCELYA_EXEC_BACKEND_DEVICE_H_

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace mycelya::exec {

// One launch of a kernel's machine code.
struct CodeLaunch {
  void* entry = nullptr;
  uint32_t grid = 0;                       // blocks
  uint32_t block_x = 0, block_y = 0;       // threads of a block
  const void* const* arguments = nullptr;  // addresses of the entry's arguments, in CPU memory
  int count = 0;
};

// The stream in which a device runs what it is given, and a second one beside it, for collectives.
enum class Stream : uint8_t { kCurrent, kSide };

class Device {
 public:
  explicit Device(c10::Device device) : device_(device) {}
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  virtual ~Device() = default;

  c10::Device device() const { return device_; }
  bool is_cpu() const { return device_.is_cpu(); }
  // Whether the host can't access its memory. Then uploads go through HostMemory(), and a kernel that finds a wrong
  // index may spoil the device, so the indices of all operators are checked before they run.
  virtual bool apart() const { return !is_cpu(); }

  // The product name: "NVIDIA H200", "AMD EPYC 9654".
  virtual std::string Name() const = 0;
  virtual uint64_t MemoryBytes() const = 0;
  // Allocates storages.
  virtual c10::Allocator* Memory() const = 0;
  // Allocates CPU memory for fast transfers to and from the device.
  virtual c10::Allocator* HostMemory() const = 0;
  // Waits until all submitted work has run.
  virtual void Synchronize() const = 0;
  // Returns the memory in the allocator's cache to the system.
  virtual void EmptyCache() const = 0;
  // Statistics of Memory(), which for all devices except the CPU is a c10::DeviceAllocator.
  virtual c10::CachingDeviceAllocator::DeviceStats MemoryStats() const { return Caching()->getDeviceStats(index()); }
  // Peaks restart from the current values, totals from 0.
  virtual void ResetPeakMemory() const { Caching()->resetPeakStats(index()); }
  virtual void ResetMemoryTotals() const { Caching()->resetAccumulatedStats(index()); }
  // CUDA's compute capability; zeros for a CPU.
  virtual std::pair<int, int> Capability() const { return {0, 0}; }
  // The free part of MemoryBytes().
  virtual uint64_t FreeBytes() const = 0;
  // The bytes of the last request for memory that has failed since the last call; 0: it is not known.
  virtual uint64_t TakeRefused() const { return 0; }
  // Why this process cannot use the device any more; "" if it can. The executor asks after each failure.
  virtual std::string Broken() const { return ""; }
  // Records the device's time when all work submitted so far has run. Recording an id again replaces its time.
  virtual void RecordEvent(int64_t id) const = 0;
  virtual void ForgetEvent(int64_t id) const = 0;
  // Milliseconds between two events. Waits for both. Throws RuntimeError if one was not recorded.
  virtual double Elapsed(int64_t from, int64_t to) const = 0;

  // A point in the work of a stream, and: what a stream gets from now on runs after a point. Only for devices with
  // streams.
  virtual std::shared_ptr<void> Mark(Stream stream) const { NoStreams(); }
  virtual void After(Stream stream, const std::shared_ptr<void>& mark) const { NoStreams(); }
  virtual void* SideStream() const { NoStreams(); }

  // Whether kernels run as machine code that the worker provides; otherwise they run as tile programs. The functions
  // below are only for devices with machine code, and throw RuntimeError with the driver's message.
  virtual bool TakesCode() const { return false; }
  // The architecture of the code, "sm_90", and the number of multiprocessors.
  virtual std::string Arch() const { return ""; }
  virtual int Processors() const { return 0; }
  // Any thread may call these three, at any time. UnloadCode waits for the device.
  virtual void* LoadCode(const void* image, size_t bytes) const { NoCode(); }
  virtual void* EntryOf(void* code, const char* name) const { NoCode(); }
  virtual void UnloadCode(void* code) const { NoCode(); }
  // Runs after all work submitted so far.
  virtual void Launch(const CodeLaunch& launch) const { NoCode(); }

 private:
  [[noreturn]] void NoCode() const { TORCH_CHECK(false, "BUG: the device ", device_, " takes no machine code."); }
  [[noreturn]] void NoStreams() const { TORCH_CHECK(false, "BUG: the device ", device_, " has no streams."); }
  c10::DeviceAllocator* Caching() const { return c10::getDeviceAllocator(device_.type()); }
  c10::DeviceIndex index() const { return device_.index(); }

  c10::Device device_;
};

// text: "cpu", "cuda" or "cuda:<index>". Throws ValueError on another text, and RuntimeError if the device can't be
// used.
std::unique_ptr<Device> MakeDevice(const std::string& text);

// Each device except the CPU has a library beside this one, libmycelya_exec_<name>.so, that exports one function. Only
// CUDA's is installed; tests have one that emulates CUDA. The caller owns the result.
inline constexpr char kPlugin[] = "libmycelya_exec_";
inline constexpr char kFactory[] = "myc_exec_device";
using DeviceFactory = Device* (*)(int32_t index);

}  // namespace mycelya::exec

#endif  // MYCELYA_EXEC_BACKEND_DEVICE_H_
