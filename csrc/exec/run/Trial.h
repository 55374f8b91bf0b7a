// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// The first run of a group's machine code, beside its operators (RATIONALE.md).
#ifndef MYCELYA_EXEC_RUN_TRIAL_H_
#define MYCELYA_EXEC_RUN_TRIAL_H_

#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <string>
#include <unordered_map>

#include "exec/run/Buffers.h"
#include "exec/run/Launches.h"

namespace mycelya::exec {

// Names a group with the machine code that its launches run.
uint64_t TrialOf(uint32_t group, c10::ArrayRef<Launch> launches);

class TrialRun {
 public:
  // group: the number of its MYC_S_FUSED.
  TrialRun(RunBuffers& buffers, uint32_t group);

  // Gives the kernels copies of what they write. Throws OutOfMemoryError.
  void Begin();
  // Takes what the kernels have made, and leaves the buffers as they were before.
  void End();
  // Compares the kernels' results with those of the operators, which have run. Returns the difference, "" if there is
  // none.
  std::string Difference();

 private:
  void Note(uint32_t buffer);
  void Replace(uint32_t buffer, Buffer with);
  template <typename F>
  void EachOperand(uint32_t access, F f);

  RunBuffers& buffers_;
  const Program& p_;
  const Step& fused_;
  uint32_t first_, plain_;                           // steps
  std::unordered_map<uint32_t, Buffer> before_;      // the buffers that the group uses
  std::unordered_map<uint32_t, c10::Storage> made_;  // by buffer: what the kernels have left there
  double large_ = 0;                                 // the largest float that the kernels read
};

}  // namespace mycelya::exec

#endif  // MYCELYA_EXEC_RUN_TRIAL_H_
