// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

#include "device/record/Reads.h"

namespace mycelya {

ReadCounters& GetReadCounters() {
  static ReadCounters counters;
  return counters;
}

void CountBlockingRead(std::chrono::nanoseconds took) {
  ReadCounters& n = GetReadCounters();
  n.blocking.fetch_add(1, std::memory_order_relaxed);
  n.blocking_nanoseconds.fetch_add(static_cast<uint64_t>(took.count()), std::memory_order_relaxed);
}

}  // namespace mycelya
