// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

#include "device/pytorch/Hooks.h"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>

#include "device/client/State.h"
#include "device/record/Generator.h"
#include "device/record/Record.h"
#include "device/tensor/Pinned.h"
#include "device/tensor/Storage.h"

namespace mycelya {
namespace {

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  void init() const override {}
  c10::DeviceIndex deviceCount() const override { return DeviceCount(); }
  c10::DeviceIndex getCurrentDevice() const override { return CurrentDevice(); }
  void setCurrentDevice(c10::DeviceIndex i) const override { ExchangeDevice(i); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex i) const override { return ExchangeDevice(i); }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex i) const override {
    return i < 0 ? CurrentDevice() : ExchangeDevice(i);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex i) const override { return DefaultGenerator(i); }
  at::Generator getNewGenerator(c10::DeviceIndex i) const override { return NewGenerator(i); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &PinnedAllocator(); }
  // PyTorch's factories take pinned memory of CUDA where the host has a GPU.
  bool isPinnedPtr(const void* data) const override {
    return IsPinned(data) || (at::globalContext().hasCUDA() && at::detail::getCUDAHooks().isPinnedPtr(data));
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    ResizeBytes(*static_cast<Storage*>(storage.unsafeGetStorageImpl()), static_cast<int64_t>(bytes));
  }
};

}  // namespace

void RegisterHooks() {
  static auto* leaked = new Hooks();
  at::RegisterPrivateUse1HooksInterface(leaked);
  at::globalContext().lazyInitDevice(kDevice);  // without it PyTorch asks isPinnedPtr only after other uses
}

}  // namespace mycelya
