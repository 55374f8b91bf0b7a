// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

#include "device/record/Repeat.h"

#include <algorithm>

namespace mycelya {
namespace {

// The number of records of a trace: a whole number of rounds.
size_t WholeRounds(size_t period) { return (RepeatDetector::kMin + period - 1) / period * period; }

}  // namespace

bool RepeatDetector::Record(uint64_t op, uint64_t with_storages) {
  ops_.push_back(op);
  keys_.push_back(with_storages);
  ++since_mark_;
  const bool expected = FollowsPattern();
  LookForPeriod();
  if (expected) return ops_.size() == WholeRounds(pattern_.size());
  return EndsRound();
}

// For a known loop the operators suffice: storages from before the trace may now be made in it.
bool RepeatDetector::FollowsPattern() {
  if (pattern_.empty()) return false;
  if (ops_.back() == pattern_[(ops_.size() - 1) % pattern_.size()]) return true;
  pattern_.clear();
  return false;
}

void RepeatDetector::LookForPeriod() {
  const size_t i = keys_.size() - 1;
  const uint64_t key = keys_[i];
  uint32_t& latest = latest_[key >> 54];
  if (period_ != 0 && keys_[i - period_] == key) {
    ++run_;
  } else {
    boundary_ = 0;
    const bool seen = latest != 0 && latest <= i && keys_[latest - 1] == key;
    period_ = seen ? i - (latest - 1) : 0;
    run_ = seen ? 1 : 0;
  }
  latest = static_cast<uint32_t>(i + 1);
}

bool RepeatDetector::EndsRound() {
  // A few records come twice in a row in any program.
  if (period_ == 0 || run_ < std::max(period_, kMin / 2)) return false;
  if (between_marks_ < kLong && since_mark_ <= 2 * between_marks_) return false;
  const size_t n = ops_.size();
  if (boundary_ == 0) {
    // The second round begins with the first record that has the operator of the record one period before. Only
    // operators are compared: the operands of the first round may all be from before the trace, those of the second
    // not.
    size_t begin = n - run_;
    while (begin > period_ && ops_[begin - 1] == ops_[begin - 1 - period_]) --begin;
    const size_t least = std::max(n, kMin);
    boundary_ = begin + (least - std::min(begin, least) + period_ - 1) / period_ * period_;
  }
  if (n != boundary_) return false;
  pattern_.assign(ops_.end() - static_cast<std::ptrdiff_t>(period_), ops_.end());
  return true;
}

void RepeatDetector::Cut(bool marked) {
  if (marked) {
    if (since_mark_ != 0) between_marks_ = since_mark_;
    since_mark_ = 0;  // the loop continues if its next record fits
  }
  ops_.clear();
  keys_.clear();
  period_ = run_ = boundary_ = 0;
}

}  // namespace mycelya
