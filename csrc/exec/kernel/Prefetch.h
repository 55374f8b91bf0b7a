// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// While a unit is computed from the caches, each of its steps prefetches a part of the memory of the unit after the
// next.
#ifndef MYCELYA_EXEC_KERNEL_PREFETCH_H_
#define MYCELYA_EXEC_KERNEL_PREFETCH_H_

#include <algorithm>
#include <cstdint>
#include <vector>

namespace mycelya::exec::kernel {

class Prefetch {
 public:
  void Start(int64_t steps) {
    steps_ = steps;
    for (auto& s : streams_) s.clear();
  }
  // always_inline, because compilers drop calls of a function that only prefetches.
  __attribute__((always_inline)) void Step() {
    for (Stream& s : streams_[now_]) {
      const int64_t part = std::min<int64_t>(s.part, s.end - s.next);
      for (int64_t at = 0; at < part; at += 64) __builtin_prefetch(s.next + at, 0, 2);
      s.next += part;
    }
  }
  // Memory that the unit after the next will use.
  void Follow(const char* at, int64_t bytes) {
    std::vector<Stream>& found = streams_[1 - now_];
    if (!found.empty() && found.back().end == at) {
      found.back().end += bytes;
    } else {
      found.push_back({at, at + bytes, 0});
    }
  }
  void NextUnit() {
    streams_[now_].clear();
    now_ = 1 - now_;
    for (Stream& s : streams_[now_]) s.part = ((s.end - s.next) / steps_ + 63) / 64 * 64;
  }

 private:
  struct Stream {
    const char *next, *end;
    int64_t part;  // bytes to prefetch with each step
  };
  std::vector<Stream> streams_[2];  // [now_]: prefetched now, found by the unit before; [1 - now_]: found by this unit
  int now_ = 0;
  int64_t steps_ = 0;  // steps per unit
};

}  // namespace mycelya::exec::kernel

#endif  // MYCELYA_EXEC_KERNEL_PREFETCH_H_
