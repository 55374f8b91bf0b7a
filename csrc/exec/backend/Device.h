// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// What the executor needs from a device beyond ATen. The CPU's is in Device.cpp; CUDA's is in a library of its own
// (backend/Cuda.cpp), so that this one loads where libtorch_cuda is absent.
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

// One start of a kernel's machine code.
struct CodeLaunch {
  void* entry = nullptr;
  uint32_t grid = 0;                       // blocks
  uint32_t block_x = 0, block_y = 0;       // threads of one
  const void* const* arguments = nullptr;  // addresses of the entry's, in CPU memory
  int count = 0;
};

class Device {
 public:
  explicit Device(c10::Device device) : device_(device) {}
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  virtual ~Device() = default;

  c10::Device device() const { return device_; }
  bool is_cpu() const { return device_.is_cpu(); }

  // As its maker calls it: "NVIDIA H200", "AMD EPYC 9654".
  virtual std::string Name() const = 0;
  virtual uint64_t MemoryBytes() const = 0;
  // For storages.
  virtual c10::Allocator* Memory() const = 0;
  // CPU memory that transfers to and from the device are fastest with.
  virtual c10::Allocator* HostMemory() const = 0;
  // Waits until everything submitted has run.
  virtual void Synchronize() const = 0;
  // Gives memory that only the allocator's cache holds back to the system.
  virtual void EmptyCache() const = 0;
  // Of Memory(). Any device's but the CPU's is a DeviceAllocator of PyTorch's.
  virtual c10::CachingDeviceAllocator::DeviceStats MemoryStats() const { return Caching()->getDeviceStats(index()); }
  // Peaks begin again from what there is, totals from 0.
  virtual void ResetPeakMemory() const { Caching()->resetPeakStats(index()); }
  virtual void ResetMemoryTotals() const { Caching()->resetAccumulatedStats(index()); }
  // CUDA's compute capability; zeros for a CPU.
  virtual std::pair<int, int> Capability() const { return {0, 0}; }
  // What is left of MemoryBytes().
  virtual uint64_t FreeBytes() const = 0;
  // Notes the device's time when it has done what was submitted so far; an id that is recorded again moves.
  virtual void RecordEvent(int64_t id) const = 0;
  virtual void ForgetEvent(int64_t id) const = 0;
  // Milliseconds between two events; waits for both. Throws RuntimeError for one that was not recorded.
  virtual double Elapsed(int64_t from, int64_t to) const = 0;

  // Whether kernels are machine code, which it has to be given. Else they run as tile programs. The others are only for
  // a device for which they are, and throw RuntimeError with the device's own words.
  virtual bool TakesCode() const { return false; }
  // What the code has to be for, "sm_90", and how many multiprocessors run it.
  virtual std::string Arch() const { return ""; }
  virtual int Processors() const { return 0; }
  // Any thread may call these three, at any time. UnloadCode waits for the device.
  virtual void* LoadCode(const void* image, size_t bytes) const { NoCode(); }
  virtual void* EntryOf(void* code, const char* name) const { NoCode(); }
  virtual void UnloadCode(void* code) const { NoCode(); }
  // After what was submitted so far.
  virtual void Launch(const CodeLaunch& launch) const { NoCode(); }

 private:
  [[noreturn]] void NoCode() const { TORCH_CHECK(false, "BUG: the device ", device_, " takes no machine code."); }
  c10::DeviceAllocator* Caching() const { return c10::getDeviceAllocator(device_.type()); }
  c10::DeviceIndex index() const { return device_.index(); }

  c10::Device device_;
};

// "cpu", "cuda" or "cuda:<index>". Throws ValueError on another text, RuntimeError if the device can't be used.
std::unique_ptr<Device> MakeDevice(const std::string& text);

// A device but the CPU has a library of its own beside this one, libmycelya_exec_<name>.so, with one symbol. CUDA's is
// the only one that is installed; tests have one that emulates it. The caller owns the result.
inline constexpr char kPlugin[] = "libmycelya_exec_";
inline constexpr char kFactory[] = "myc_exec_device";
using DeviceFactory = Device* (*)(int32_t index);

}  // namespace mycelya::exec

#endif  // MYCELYA_EXEC_BACKEND_DEVICE_H_
