// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
#ifndef MYCELYA_DEVICE_RECORD_TURNS_H_
#define MYCELYA_DEVICE_RECORD_TURNS_H_

#include <cstdint>
#include <vector>

#include "device/record/Origin.h"

namespace mycelya {

// Finds loops that wait for each round, as the generation of text waits for each token. Client and worker would take
// turns: one records while the other idles. A round that is cut into parts begins to run while it is still being
// recorded.
//
// A round is the records between two reads that wait at the same place of the program, with no other cut in between.
// The lengths of a place's parts stay the same, so that the parts are the same programs as long as the loop's operators
// are the same.
class Turns {
 public:
  // One more record. True: a part should end with it.
  bool Record() { return ++records_ == next_; }
  // A part has ended.
  void Part();
  // The trace has ended in another way. waits: by a read at `where` that waits.
  void Cut(bool waits, Origin where);

 private:
  static constexpr uint64_t kMin = 160;     // a round of fewer records is not worth two messages
  static constexpr uint64_t kMinPart = 64;  // about ten times what a message costs
  static constexpr uint64_t kMaxParts = 3;
  // The length of a part, relative to the previous one. The worker begins soon, and gets the next part before it has
  // run the last one, because running takes about as long as recording.
  static constexpr double kGrow = 1.3;
  static constexpr size_t kPlaces = 64;
  static constexpr int kChanges = 3;

  struct Place {
    Origin where;
    uint64_t part = 0, parts = 0;  // records of the first part; how many there are
    uint64_t end = 0;              // records of a round when the parts were chosen
    int changes = 0;
  };
  Place* Known(Origin where);
  void Learn(Origin where);

  std::vector<Place> places_;
  Origin from_{};         // where the round began, if a read began it
  uint64_t records_ = 0;  // of the round
  uint64_t part_ = 0, parts_ = 0;
  uint64_t next_ = 0;  // records of the round when a part should end; 0: never
};

}  // namespace mycelya

#endif  // MYCELYA_DEVICE_RECORD_TURNS_H_
