// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
#include "exec/backend/Device.h"

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <limits>
#include <unordered_map>

#include "exec/memory/Allocator.h"
#include "exec/memory/System.h"

namespace mycelya::exec {
namespace {

class Cpu final : public Device {
 public:
  Cpu() : Device(c10::Device(c10::DeviceType::CPU)) { CpuMemory(); }

  std::string Name() const override {
    // Linux names the processor here only on x86; otherwise return the architecture.
    std::ifstream info("/proc/cpuinfo");
    for (std::string line; std::getline(info, line);) {
      const size_t colon = line.find(": ");
      if (line.rfind("model name", 0) == 0 && colon != std::string::npos) return line.substr(colon + 2);
    }
    utsname u{};
    return uname(&u) == 0 ? u.machine : "CPU";
  }
  uint64_t MemoryBytes() const override { return MemoryOfProcess(); }
  c10::Allocator* Memory() const override { return c10::GetCPUAllocator(); }
  c10::Allocator* HostMemory() const override { return c10::GetCPUAllocator(); }
  void Synchronize() const override {}
  void EmptyCache() const override { EmptyCpuMemory(); }
  c10::CachingDeviceAllocator::DeviceStats MemoryStats() const override { return CpuMemory().Stats(); }
  void ResetPeakMemory() const override { CpuMemory().ResetPeaks(); }
  void ResetMemoryTotals() const override { CpuMemory().ResetTotals(); }
  uint64_t FreeBytes() const override { return FreeMemory(); }
  uint64_t TakeRefused() const override { return CpuMemory().TakeRefused(); }
  // Each step has run before the next begins, so the host's clock is the device's clock.
  void RecordEvent(int64_t id) const override { events_[id] = Clock::now(); }
  void ForgetEvent(int64_t id) const override { events_.erase(id); }
  double Elapsed(int64_t from, int64_t to) const override {
    return std::chrono::duration<double, std::milli>(At(to) - At(from)).count();
  }

 private:
  using Clock = std::chrono::steady_clock;

  Clock::time_point At(int64_t id) const {
    const auto it = events_.find(id);
    TORCH_CHECK(it != events_.end(), "Event ", id, " was not recorded.");
    return it->second;
  }

  mutable std::unordered_map<int64_t, Clock::time_point> events_;
};

std::string OwnFolder() {
  Dl_info info{};
  TORCH_CHECK(dladdr(reinterpret_cast<void*>(&MakeDevice), &info) != 0 && info.dli_fname != nullptr,
              "The executor library can't find its own path.");
  const std::string path = info.dli_fname;
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

// The path of a device's library.
std::string PluginOf(const std::string& name) { return OwnFolder() + "/" + kPlugin + name + ".so"; }

std::unique_ptr<Device> MakePlugged(const std::string& name, int32_t index) {
  const std::string path = PluginOf(name);
  void* plugin = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);  // never closed: its registrations with ATen stay
  TORCH_CHECK(plugin != nullptr, "The executor's library for ", name, " could not be loaded: ", dlerror(), ".");
  auto make = reinterpret_cast<DeviceFactory>(dlsym(plugin, kFactory));
  TORCH_CHECK(make != nullptr, path, " has no symbol ", kFactory, ".");
  return std::unique_ptr<Device>(make(index));
}

}  // namespace

std::unique_ptr<Device> MakeDevice(const std::string& text) {
  if (text == "cpu") return std::make_unique<Cpu>();
  const size_t colon = text.find(':');
  const std::string name = text.substr(0, colon);
  const std::string digits = colon == std::string::npos ? "0" : text.substr(colon + 1);
  const bool numbered = !digits.empty() && digits.size() <= 3 &&
                        digits.find_first_not_of("0123456789") == std::string::npos &&
                        std::stoi(digits) <= std::numeric_limits<c10::DeviceIndex>::max();
  const bool named = !name.empty() && name.find_first_not_of("abcdefghijklmnopqrstuvwxyz") == std::string::npos;
  if (numbered && named && (name == "cuda" || access(PluginOf(name).c_str(), R_OK) == 0)) {
    return MakePlugged(name, std::stoi(digits));
  }
  TORCH_CHECK_VALUE(false, "\"", text, "\" is not a device of a worker; it takes cpu, cuda or cuda:<index>.");
}

}  // namespace mycelya::exec
