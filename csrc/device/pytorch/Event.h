// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// A point in the work of a device. Recording an event sends the open trace and does not wait.
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

  // timed: the worker records its device's time.
  void Record(c10::DeviceIndex device, bool timed);
  // Whether the device has reached the event. Done() and Wait() throw the error of an earlier op.
  bool Done();
  void Wait();
  // Device time in milliseconds from this event to another. Both must be done and timed.
  double Elapsed(Event& to);

 private:
  void Forget() noexcept;

  c10::DeviceIndex device_ = -1;  // where it was recorded
  int64_t id_ = 0;                // its name on the worker; 0: not timed
  uint64_t ticket_ = 0;           // of its sync; 0: done
};

}  // namespace mycelya

#endif  // MYCELYA_DEVICE_PYTORCH_EVENT_H_
