// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

#include "device/record/Turns.h"

#include <algorithm>

namespace mycelya {
namespace {

bool Same(Origin a, Origin b) { return a.code == b.code && a.offset == b.offset; }

}  // namespace

Turns::Place* Turns::Known(Origin where) {
  const auto at = std::find_if(places_.begin(), places_.end(), [&](const Place& p) { return Same(p.where, where); });
  return at == places_.end() ? nullptr : &*at;
}

// A round of records_ records has ended at the place where it began.
void Turns::Learn(Origin where) {
  Place* p = Known(where);
  if (p == nullptr) {
    if (records_ < kMin || places_.size() == kPlaces) return;
    p = &places_.emplace_back(Place{.where = where});
  } else if (records_ <= 2 * p->end && 2 * records_ >= p->end) {
    return;  // parts of another length would be other programs
  }
  // Rounds of varying length would be cut at varying places, so they are not cut.
  p->end = records_;
  p->parts = p->part = 0;
  if (p->changes == kChanges || records_ < kMin) return;
  ++p->changes;
  p->parts = std::min(records_ / kMinPart, kMaxParts);
  double all = 0, size = 1;
  for (uint64_t i = 0; i < p->parts; ++i, size *= kGrow) all += size;
  p->part = static_cast<uint64_t>(static_cast<double>(records_) / all);
}

void Turns::Part() {
  part_ = static_cast<uint64_t>(static_cast<double>(part_) * kGrow);
  next_ = --parts_ > 1 ? next_ + part_ : 0;
}

void Turns::Cut(bool waits, Origin where) {
  if (waits && where.code != 0 && Same(from_, where)) Learn(where);
  from_ = waits ? where : Origin{};
  const Place* p = from_.code != 0 ? Known(where) : nullptr;
  part_ = p != nullptr ? p->part : 0;
  parts_ = p != nullptr ? p->parts : 0;
  records_ = 0;
  next_ = part_;
}

}  // namespace mycelya
