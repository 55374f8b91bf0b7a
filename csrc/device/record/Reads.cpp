// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

#include "device/record/Reads.h"

#include <mutex>
#include <unordered_map>

namespace mycelya {
namespace {

ReadCounters counters;

struct Tally {
  std::mutex mutex;  // guards what follows, and is held for one access
  std::unordered_map<uint64_t, myc_saved> places;
};
Tally& GetTally() {
  static auto& leaked = *new Tally;
  return leaked;
}

}  // namespace

const ReadCounters& GetReadCounters() { return counters; }

void ResetReadCounters() {
  counters.blocking = counters.blocking_nanoseconds = 0;
  for (auto& n : counters.saved) n = 0;
  Tally& tally = GetTally();
  const std::lock_guard<std::mutex> guard(tally.mutex);
  tally.places.clear();
}

void CountBlockingRead(std::chrono::nanoseconds took) {
  counters.blocking.fetch_add(1, std::memory_order_relaxed);
  counters.blocking_nanoseconds.fetch_add(static_cast<uint64_t>(took.count()), std::memory_order_relaxed);
}

void CountSaved(Saved why, Origin at) {
  counters.saved[static_cast<size_t>(why)].fetch_add(1, std::memory_order_relaxed);
  Tally& tally = GetTally();
  const std::lock_guard<std::mutex> guard(tally.mutex);
  myc_saved& s = tally.places[static_cast<uint64_t>(at.code) << 32 | at.offset];
  s.at = at;
  ++(why == Saved::kKnown ? s.known : why == Saved::kAhead ? s.ahead : s.later);
}

std::vector<myc_saved> SavedTrips() {
  Tally& tally = GetTally();
  const std::lock_guard<std::mutex> guard(tally.mutex);
  std::vector<myc_saved> out;
  for (const auto& [key, saved] : tally.places) out.push_back(saved);
  return out;
}

}  // namespace mycelya
