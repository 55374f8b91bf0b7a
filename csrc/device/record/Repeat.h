// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Finds the loops that nothing in the program marks: inference without a read, an optimizer written by hand. Their
// traces would only end where they are too long, each time at another place of the loop, and no program would fit
// twice.
#ifndef MYCELYA_DEVICE_RECORD_REPEAT_H_
#define MYCELYA_DEVICE_RECORD_REPEAT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace mycelya {

// Sees the records of one device in their order. Where a stretch of records comes a second time in a row, of the same
// operators on the same storages from before the trace (layers of a network are alike, but each has its own), that is
// a loop: its traces end with its rounds from then on, for as long as the operators stay the same.
class RepeatDetector {
 public:
  // A trace of fewer records is not worth a message of its own: it holds several rounds.
  static constexpr size_t kMin = 256;
  // What lies between two marks is a round itself, and has no loops to be cut; unless no trace could hold it.
  static constexpr size_t kLong = 5000;

  // One more record: which operator it is, and that with the storages from before the trace that it has as operands.
  // True: the trace should end with it.
  bool record(uint64_t op, uint64_t with_storages);

  // The trace has ended; marked: by something that the program did, as a read or an optimizer's step.
  void cut(bool marked);

 private:
  bool follows_pattern();
  void look_for_period();
  bool ends_round();

  static constexpr size_t kSlots = 1024;

  std::vector<uint64_t> ops_, keys_;           // of the trace: the two numbers of each record
  std::array<uint32_t, kSlots> latest_{};      // by key: one past the latest record with it, if it is that
  size_t period_ = 0, run_ = 0;                // the last run_ records are those period_ before
  size_t boundary_ = 0;                        // records of the trace when it should end; 0: not known
  std::vector<uint64_t> pattern_;              // operators of a round, if the trace before ended with one
  size_t since_mark_ = 0, between_marks_ = 0;  // records
};

}  // namespace mycelya

#endif  // MYCELYA_DEVICE_RECORD_REPEAT_H_
