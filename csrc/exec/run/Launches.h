// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Launches of machine code (csrc/abi/mycelya.h), decoded. All numbers that the executor uses are checked. The worker is
// responsible for the indices in the code.
#ifndef MYCELYA_EXEC_RUN_LAUNCHES_H_
#define MYCELYA_EXEC_RUN_LAUNCHES_H_

#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <vector>

#include "exec/Words.h"
#include "exec/program/Program.h"

namespace mycelya::exec {

struct Launch {
  uint32_t step = 0;  // the kernel's
  uint64_t entry = 0;
  uint32_t grid = 0;
  uint32_t block_x = 0, block_y = 0;
  bool table = false;
  uint64_t scratch = 0;  // bytes
  uint32_t scratch_word = 0;
  c10::ArrayRef<uint64_t> operands;  // their addresses are the first words of each struct
  uint32_t words = 0;                // of a struct
  uint32_t nstructs = 0;
  const uint64_t* structs = nullptr;  // each is the index of an instance, then `words` words
  c10::ArrayRef<uint64_t> chunks;

  uint64_t InstanceOf(uint32_t i) const { return structs[i * (uint64_t{words} + 1)]; }
  const uint64_t* WordsOf(uint32_t i) const { return structs + i * (uint64_t{words} + 1) + 1; }
};

// Reads the launches of a call, one fused group after the other.
class Launches {
 public:
  Launches(const uint64_t* words, uint64_t n) : in_(words, n, "the launches") {}

  // Sets `out` to the launches of a fused group. Returns false if the call has none for it. Call it with the groups in
  // program order. Throws ValueError.
  bool Take(const Program& program, uint32_t step, std::vector<Launch>* out);
  // Throws ValueError if launches remain.
  void End() const { in_.End(); }

 private:
  Launch Parse(const Program& program, uint32_t first, uint32_t plain);

  Reader in_;
  uint64_t next_ = 0;  // 1 + the step of the next group; 0: not read yet
};

}  // namespace mycelya::exec

#endif  // MYCELYA_EXEC_RUN_LAUNCHES_H_
