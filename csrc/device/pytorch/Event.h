// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// A point in the work of a device. A timed event sends the open trace when it is recorded. Another one sends it when
// the program asks for the event or waits for it: libraries that order streams by events, as FSDP2, never do.
#ifndef MYCELYA_DEVICE_PYTORCH_EVENT_H_
#define MYCELYA_DEVICE_PYTORCH_EVENT_H_

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>

#include "device/record/Recorder.h"

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
  void Send();

  c10::DeviceIndex device_ = -1;  // where it was recorded
  int64_t id_ = 0;                // its name on the worker; 0: not timed
  std::shared_ptr<Point> point_;  // null: not recorded
};

}  // namespace mycelya

#endif  // MYCELYA_DEVICE_PYTORCH_EVENT_H_
