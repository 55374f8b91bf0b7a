// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// A device for the executor that computes on the CPU, but takes machine code for kernels, as CUDA does. The code is a
// shared library with a function for each entry, which runs all blocks of a launch. The executor's code for arguments,
// memory and order of launches is the same as for CUDA.
#include <c10/core/CPUAllocator.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

#include <string>

#include "exec/backend/Device.h"

namespace {

using mycelya::exec::CodeLaunch;

// Memory of one size begins at an address that is not a multiple of 16. No allocator of a GPU returns such an address.
struct Crooked final : c10::Allocator {
  static constexpr size_t kSize = 4004;

  c10::DataPtr allocate(size_t n) override {
    c10::DataPtr straight = c10::GetCPUAllocator()->allocate(n == kSize ? n + 8 : n);
    if (n != kSize) return straight;
    char* at = static_cast<char*>(straight.get()) + 8;
    auto* held = new c10::DataPtr(std::move(straight));
    return {at, held, [](void* p) { delete static_cast<c10::DataPtr*>(p); }, c10::Device(c10::DeviceType::CPU)};
  }
  void copy_data(void* to, const void* from, size_t n) const override { default_copy_data(to, from, n); }
};

class Emulated final : public mycelya::exec::Device {
 public:
  Emulated() : Device(c10::Device(c10::DeviceType::CPU)) {}

  bool apart() const override { return true; }
  std::string Name() const override { return "an emulation of CUDA"; }
  uint64_t MemoryBytes() const override { return uint64_t{1} << 30; }
  c10::Allocator* Memory() const override { return &memory_; }
  c10::Allocator* HostMemory() const override { return c10::GetCPUAllocator(); }
  void Synchronize() const override {}
  void EmptyCache() const override {}
  uint64_t FreeBytes() const override { return MemoryBytes(); }
  void RecordEvent(int64_t) const override {}
  void ForgetEvent(int64_t) const override {}
  double Elapsed(int64_t, int64_t) const override { return 0; }

  bool TakesCode() const override { return true; }
  std::string Arch() const override { return "sm_90"; }
  int Processors() const override { return 4; }
  void* LoadCode(const void* image, size_t bytes) const override {
    char path[] = "/tmp/emulated-XXXXXX";  // a unique name: dlopen loads a name only once
    const int file = mkstemp(path);
    TORCH_CHECK(file >= 0 && write(file, image, bytes) == static_cast<ssize_t>(bytes), "The emulation can't write ",
                path, ".");
    close(file);
    void* code = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const char* why = code == nullptr ? dlerror() : "";
    unlink(path);
    TORCH_CHECK(code != nullptr, "The emulation can't load a kernel: ", why, ".");
    return code;
  }
  void* EntryOf(void* code, const char* name) const override {
    void* entry = dlsym(code, (std::string("emulated_") + name).c_str());
    TORCH_CHECK(entry != nullptr, "The emulation finds no entry ", name, ".");
    return entry;
  }
  void UnloadCode(void* code) const override { dlclose(code); }
  // With this variable, the first launch spoils the device, as a failed assertion in a kernel does.
  std::string Broken() const override { return broken_ ? "an emulated assertion failed" : ""; }
  void Launch(const CodeLaunch& l) const override {
    broken_ = getenv("ATEN_EMULATED_BROKEN") != nullptr;
    TORCH_CHECK(!broken_, "The emulation can't launch a kernel any more.");
    using Entry = int (*)(unsigned, unsigned, unsigned, const void* const*);
    const int status = reinterpret_cast<Entry>(l.entry)(l.grid, l.block_x, l.block_y, l.arguments);
    TORCH_CHECK(status == 0, "The emulation can't launch a kernel: status ", status, ".");
  }

 private:
  mutable Crooked memory_;
  mutable bool broken_ = false;
};

}  // namespace

extern "C" __attribute__((visibility("default"))) mycelya::exec::Device* myc_exec_device(int32_t) {
  return new Emulated;
}
