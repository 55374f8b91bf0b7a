// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Counts the reads of values: those that the program waits for, and those that saved it a round trip.
#ifndef MYCELYA_DEVICE_RECORD_READS_H_
#define MYCELYA_DEVICE_RECORD_READS_H_

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <vector>

#include "abi/mycelya.h"
#include "device/record/Origin.h"

namespace mycelya {

// Why a read has saved a round trip: the client knew the values (Known.h), had read them ahead (Series.h), or the
// thread that began the read did not wait for it. If a thread waits for it later, before the values are there, it is
// also a blocking one.
enum class Saved { kKnown, kAhead, kLater };

// Reads since the last reset.
struct ReadCounters {
  std::atomic<uint64_t> blocking{0}, blocking_nanoseconds{0};
  std::array<std::atomic<uint64_t>, 3> saved{};  // by Saved

  uint64_t operator[](Saved why) const { return saved[static_cast<size_t>(why)].load(std::memory_order_relaxed); }
};
const ReadCounters& GetReadCounters();
void ResetReadCounters();

// Counts a read that has saved a round trip, in total and for a place.
void CountSaved(Saved why, Origin at);

// The counts of each place.
std::vector<myc_saved> SavedTrips();

// Counts a read that a thread of the program has waited for. Only Python knows of some: those for a future's result.
void CountBlockingRead(std::chrono::nanoseconds took);

// Counts a blocking read and its time when it goes out of scope, also if the read has failed.
class BlockingRead {
 public:
  BlockingRead() = default;
  BlockingRead(const BlockingRead&) = delete;
  BlockingRead& operator=(const BlockingRead&) = delete;
  ~BlockingRead() { CountBlockingRead(std::chrono::steady_clock::now() - begun_); }

 private:
  const std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
};

}  // namespace mycelya

#endif  // MYCELYA_DEVICE_RECORD_READS_H_
