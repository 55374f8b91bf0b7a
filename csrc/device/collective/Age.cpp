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
#include <utility>

#include "device/client/Client.h"
#include "device/record/Recorder.h"

namespace mycelya {
namespace {

// A program that records a step records something more often than this.
constexpr std::chrono::milliseconds kMoment{50};

using Clock = std::chrono::steady_clock;

class Sender {
 public:
  Sender() {
    std::thread([this] { Run(); }).detach();
  }

  void Note(c10::DeviceIndex device, uint64_t epoch, uint64_t records) {
    const std::lock_guard<std::mutex> guard(mutex_);
    auto& waits = waits_[device];
    if (waits && waits->epoch == epoch) return;
    waits = {epoch, records, Clock::now() + kMoment};
    changed_.notify_one();
  }

 private:
  struct Wait {
    uint64_t epoch;    // of the trace
    uint64_t records;  // that it had
    Clock::time_point until;
  };

  void Run() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      std::optional<Clock::time_point> next;
      for (size_t i = 0; i < waits_.size(); ++i) {
        if (!waits_[i]) continue;
        if (waits_[i]->until <= Clock::now()) {
          const Wait wait = *std::exchange(waits_[i], std::nullopt);
          lock.unlock();
          const uint64_t more = SendIfIdle(static_cast<c10::DeviceIndex>(i), wait);
          lock.lock();
          if (more != 0 && !waits_[i]) waits_[i] = {wait.epoch, more, Clock::now() + kMoment};
        }
        if (waits_[i] && (!next || waits_[i]->until < *next)) next = waits_[i]->until;
      }
      if (next) {
        changed_.wait_until(lock, *next);
      } else {
        changed_.wait(lock);
      }
    }
  }

  // Sends the trace unless it has more records than before: their number. 0: there is nothing more to wait for.
  static uint64_t SendIfIdle(c10::DeviceIndex device, const Wait& before) {
    Recorder& r = RecorderOf(device);
    const std::lock_guard<SpinLock> guard(r.lock);
    if (r.epoch() != before.epoch) return 0;
    if (r.records() != before.records) return r.records();
    r.Cut(MYC_CUT_COMM, {});
    return 0;
  }

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::array<std::optional<Wait>, kMaxDevices> waits_;
};

}  // namespace

void SendSoon(c10::DeviceIndex device) {
  static auto& leaked = *new Sender();
  Recorder& r = RecorderOf(device);
  uint64_t epoch = 0, records = 0;
  {
    const std::lock_guard<SpinLock> guard(r.lock);
    epoch = r.epoch(), records = r.records();
  }
  leaked.Note(device, epoch, records);
}

}  // namespace mycelya
