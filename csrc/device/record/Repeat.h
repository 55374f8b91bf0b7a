// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Finds loops that nothing in the program marks: inference without a read, an optimizer written by hand. Otherwise
// their traces would end only at the size limit, each time at another place of the loop, and no program would be
// reused.
#ifndef MYCELYA_DEVICE_RECORD_REPEAT_H_
#define MYCELYA_DEVICE_RECORD_REPEAT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace mycelya {

// Sees the records of one device in order. A sequence of records that occurs twice in a row is a loop, if the operators
// and the storages from before the trace are the same: layers of a network are alike, but each has its own storages.
// From then on the traces end with the loop's rounds, as long as the operators stay the same.
class RepeatDetector {
 public:
  // A shorter trace costs more than its message is worth, so a trace holds several short rounds.
  static constexpr size_t kMin = 256;
  // The records between two marks are a round, in which no loop is cut, unless they exceed the limit of a trace.
  static constexpr size_t kLong = 5000;

  // One more record: its operator, and a key of the operator with the operands from before the trace. True: the trace
  // should end with this record.
  bool Record(uint64_t op, uint64_t with_storages);

  // The trace has ended. marked: an action of the program ended it, such as a read or an optimizer's step.
  void Cut(bool marked);

 private:
  bool FollowsPattern();
  void LookForPeriod();
  bool EndsRound();

  static constexpr size_t kSlots = 1024;

  std::vector<uint64_t> ops_, keys_;           // of the trace: operator and key of each record
  std::array<uint32_t, kSlots> latest_{};      // by key: 1 + the latest record with the key
  size_t period_ = 0, run_ = 0;                // the last run_ records equal those period_ earlier
  size_t boundary_ = 0;                        // the number of records at which the trace should end; 0: not known
  std::vector<uint64_t> pattern_;              // operators of a round, if the trace before ended with one
  size_t since_mark_ = 0, between_marks_ = 0;  // records
};

}  // namespace mycelya

#endif  // MYCELYA_DEVICE_RECORD_REPEAT_H_
