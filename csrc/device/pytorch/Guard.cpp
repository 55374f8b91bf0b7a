// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Device guard: the current device and stream, and events. A device has one ordered queue, and streams are only names
// for it. Work that a stream waits for has been submitted earlier, so such a wait does nothing.

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>

#include "device/client/Client.h"
#include "device/client/State.h"
#include "device/pytorch/Event.h"
#include "device/record/Recorder.h"
#include "device/record/Transfer.h"
#include "device/tensor/Storage.h"

namespace mycelya {
namespace {

// The number of stream ids, as in CUDA's pool; then they repeat.
constexpr c10::StreamId kPool = 32;
std::atomic<c10::StreamId> next_stream{0};

c10::StreamId& CurrentStream(c10::DeviceIndex device) {
  static thread_local std::array<c10::StreamId, kMaxDevices> ids{};
  return ids.at(device);
}

c10::Stream MakeStream(c10::Device d, c10::StreamId id) {
  if (!d.has_index()) d.set_index(CurrentDevice());
  return c10::Stream(c10::Stream::UNSAFE, d, id);
}

Event* EventOf(void* event) { return static_cast<Event*>(event); }

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kDevice; }
  c10::Device exchangeDevice(c10::Device d) const override { return {kDevice, ExchangeDevice(d.index())}; }
  c10::Device getDevice() const override { return {kDevice, CurrentDevice()}; }
  void setDevice(c10::Device d) const override { ExchangeDevice(d.index()); }
  void uncheckedSetDevice(c10::Device d) const noexcept override {
    if (d.index() >= 0 && d.index() < DeviceCount()) ExchangeDevice(d.index());
  }
  c10::DeviceIndex deviceCount() const noexcept override { return DeviceCount(); }
  c10::DeviceCapability getDeviceCapability(c10::Device) const override {
    c10::DeviceCapability all;
    c10::DeviceCapability ours = all;
    ours.capability_data.capability_bits = 0;
    all.forEachSupportedScalarType([&](c10::ScalarType t) {
      if (HasDtype(t)) ours.capability_data.capability_bits |= uint64_t{1} << static_cast<int>(t);
    });
    return ours;
  }
  void synchronizeDevice(const c10::DeviceIndex index) const override { Synchronize(index); }

  c10::Stream getStream(c10::Device d) const override {
    return MakeStream(d, CurrentStream(d.has_index() ? d.index() : CurrentDevice()));
  }
  c10::Stream getDefaultStream(c10::Device d) const override { return MakeStream(d, 0); }
  c10::Stream getNewStream(c10::Device d, int) const override { return MakeStream(d, next_stream++ % kPool + 1); }
  c10::Stream getStreamFromGlobalPool(c10::Device d, bool) const override { return getNewStream(d, 0); }
  c10::Stream exchangeStream(c10::Stream s) const override {
    c10::StreamId& current = CurrentStream(s.device_index());
    const c10::Stream old = MakeStream(s.device(), current);
    current = s.id();
    return old;
  }
  bool queryStream(const c10::Stream& s) const override { return Query(s.device_index()); }
  void synchronizeStream(const c10::Stream& s) const override { Synchronize(s.device_index()); }

  void record(void** event, const c10::Stream& s, const c10::DeviceIndex index,
              const c10::EventFlag flag) const override {
    TORCH_CHECK(index < 0 || index == s.device_index(), "Event device index ", static_cast<int>(index),
                " does not match recording stream's device index ", static_cast<int>(s.device_index()), ".");
    if (*event == nullptr) *event = new Event();
    EventOf(*event)->Record(s.device_index(), flag == c10::EventFlag::BACKEND_DEFAULT);
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void* event) const override { return event == nullptr || EventOf(event)->Done(); }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) EventOf(event)->Wait();
  }
  double elapsedTime(void* from, void* to, const c10::DeviceIndex) const override {
    TORCH_CHECK(from != nullptr && to != nullptr, "Both events must be recorded before calculating elapsed time.");
    return EventOf(from)->Elapsed(*EventOf(to));
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete EventOf(event); }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

}  // namespace
}  // namespace mycelya
