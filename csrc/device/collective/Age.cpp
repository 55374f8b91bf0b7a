// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

#include "device/collective/Age.h"

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <thread>

#include "device/client/Client.h"
#include "device/record/Recorder.h"

namespace mycelya {
namespace {

// Longer than a step takes to record, so that a step with collectives remains one program.
constexpr std::chrono::milliseconds kMoment{50};

using Clock = std::chrono::steady_clock;

class Sender {
 public:
  Sender() {
    std::thread([this] { Run(); }).detach();
  }

  void Note(c10::DeviceIndex device, uint64_t epoch) {
    const std::lock_guard<std::mutex> guard(mutex_);
    auto& waits = waits_[device];
    if (waits && waits->epoch == epoch) return;
    waits = {epoch, Clock::now() + kMoment};
    changed_.notify_one();
  }

 private:
  struct Wait {
    uint64_t epoch;  // of the trace
    Clock::time_point until;
  };

  void Run() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      std::optional<Clock::time_point> next;
      for (size_t i = 0; i < waits_.size(); ++i) {
        if (!waits_[i]) continue;
        if (waits_[i]->until <= Clock::now()) {
          const uint64_t epoch = waits_[i]->epoch;
          waits_[i].reset();
          lock.unlock();
          Send(static_cast<c10::DeviceIndex>(i), epoch);
          lock.lock();
        } else if (!next || waits_[i]->until < *next) {
          next = waits_[i]->until;
        }
      }
      if (next) {
        changed_.wait_until(lock, *next);
      } else {
        changed_.wait(lock);
      }
    }
  }

  static void Send(c10::DeviceIndex device, uint64_t epoch) {
    Recorder& r = RecorderOf(device);
    const std::lock_guard<SpinLock> guard(r.lock);
    if (r.epoch() == epoch) r.Cut(MYC_CUT_COMM, {});
  }

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::array<std::optional<Wait>, kMaxDevices> waits_;
};

}  // namespace

void SendSoon(c10::DeviceIndex device) {
  static auto& leaked = *new Sender();
  Recorder& r = RecorderOf(device);
  uint64_t epoch = 0;
  {
    const std::lock_guard<SpinLock> guard(r.lock);
    epoch = r.epoch();
  }
  leaked.Note(device, epoch);
}

}  // namespace mycelya
