// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

#include "Hooks.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

#include <map>
#include <mutex>

#include "Generator.h"
#include "Minimal.h"
#include "State.h"
#include "Storage.h"

namespace mycelya {
namespace {

// Pinned memory on one host is ordinary memory that remembers that it was asked for: uploads copy at call time, so
// nothing is gained by locking pages.
class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* data = c10::alloc_cpu(bytes);
    const std::lock_guard<std::mutex> guard(mutex_);
    blocks_[reinterpret_cast<uintptr_t>(data)] = bytes;
    return {data, data, &free, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

  bool has(const void* data) {
    const auto address = reinterpret_cast<uintptr_t>(data);
    const std::lock_guard<std::mutex> guard(mutex_);
    auto it = blocks_.upper_bound(address);
    if (it == blocks_.begin()) return false;
    --it;
    return address < it->first + it->second;
  }

 private:
  static void free(void* data);

  std::mutex mutex_;
  std::map<uintptr_t, size_t> blocks_;  // by address: bytes
};

PinnedAllocator& pinned() {
  static auto& leaked = *new PinnedAllocator();
  return leaked;
}

void PinnedAllocator::free(void* data) {
  {
    const std::lock_guard<std::mutex> guard(pinned().mutex_);
    pinned().blocks_.erase(reinterpret_cast<uintptr_t>(data));
  }
  c10::free_cpu(data);
}

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  void init() const override {}
  c10::DeviceIndex deviceCount() const override { return device_count(); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  void setCurrentDevice(c10::DeviceIndex i) const override { exchange_device(i); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex i) const override { return exchange_device(i); }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex i) const override {
    return i < 0 ? current_device() : exchange_device(i);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex i) const override { return default_generator(i); }
  at::Generator getNewGenerator(c10::DeviceIndex i) const override { return new_generator(i); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned(); }
  bool isPinnedPtr(const void* data) const override { return pinned().has(data); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    resize_bytes(*static_cast<Storage*>(storage.unsafeGetStorageImpl()), static_cast<int64_t>(bytes));
  }
};

}  // namespace

void register_hooks() {
  static auto* leaked = new Hooks();
  at::RegisterPrivateUse1HooksInterface(leaked);
}

}  // namespace mycelya
