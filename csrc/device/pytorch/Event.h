// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// A point in the work of a device. Recording sends what came before and does not wait.
#ifndef MYCELYA_DEVICE_PYTORCH_EVENT_H_
#define MYCELYA_DEVICE_PYTORCH_EVENT_H_

#include <c10/core/Device.h>

#include <cstdint>

namespace mycelya {

class Event {
 public:
  Event() = default;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event();

  // timed: the worker notes its device's time.
  void record(c10::DeviceIndex device, bool timed);
  // Whether the device has got there. Both throw what an op before it has failed with.
  bool done();
  void wait();
  // Milliseconds of the device from this one to another; both must be done and timed.
  double elapsed(Event& to);

 private:
  void forget() noexcept;

  c10::DeviceIndex device_ = -1;  // where it was recorded
  int64_t id_ = 0;                // its name on the worker; 0: it isn't timed
  uint64_t ticket_ = 0;           // of the wait for it; 0: done
};

}  // namespace mycelya

#endif  // MYCELYA_DEVICE_PYTORCH_EVENT_H_
