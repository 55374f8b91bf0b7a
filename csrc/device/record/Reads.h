// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Counts the reads of values, by whether the program waits for them.
#ifndef MYCELYA_DEVICE_RECORD_READS_H_
#define MYCELYA_DEVICE_RECORD_READS_H_

#include <atomic>
#include <chrono>
#include <cstdint>

namespace mycelya {

// Reads since the last reset. A read that a thread begins and does not wait for is asynchronous. If a thread waits for
// it later, before the values are there, it is also a blocking one. A local one needed no worker, and one that
// was read ahead (Series.h) was asked for before: they are neither.
struct ReadCounters {
  std::atomic<uint64_t> blocking{0}, blocking_nanoseconds{0}, asynchronous{0}, local{0}, ahead{0};
};
ReadCounters& GetReadCounters();

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
