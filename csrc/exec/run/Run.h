// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
#ifndef MYCELYA_EXEC_RUN_RUN_H_
#define MYCELYA_EXEC_RUN_RUN_H_

#include <cstdint>

#include "exec/program/Program.h"
#include "exec/session/Executor.h"

namespace mycelya::exec {

// One call of a program. Pairs are (buffer, storage id), two words each.
struct Call {
  const uint64_t* params;
  uint64_t n_params;
  const uint64_t* inputs;
  uint64_t n_inputs;  // pairs
  const uint64_t* outputs;
  uint64_t n_outputs;     // pairs; id 0: the output is not used
  const uint64_t* frees;  // storages that end once the inputs are bound
  uint64_t n_frees;
  const uint64_t* launches;
  uint64_t n_launches;  // words
  uint64_t id;
};

// Runs the steps up to a failure, and after it those of earlier ops. Returns the number of failed steps and describes
// the first `capacity` of them. A call that does not match the program runs nothing, counts as one failure of step
// kNoStep, and poisons the storages that it would have made. Throws only bad_alloc.
int32_t Run(Executor& executor, Program& program, const Call& call, myc_step_error* errors, int32_t capacity,
            myc_fused* fused);

// Runs only the steps of a program that set flags: those of a call that is skipped because an earlier one has failed.
void SetFlags(Executor& executor, Program& program, const uint64_t* params, uint64_t n_params);

}  // namespace mycelya::exec

#endif  // MYCELYA_EXEC_RUN_RUN_H_
