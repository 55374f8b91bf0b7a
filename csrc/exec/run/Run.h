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
  uint64_t n_outputs;  // pairs; id 0: not wanted
  const uint64_t* launches;
  uint64_t n_launches;  // words
  uint64_t id;
};

// Runs all steps that can run; returns how many failed and describes the first `cap` of them. A call that doesn't fit
// the program runs nothing and counts as one failure, of step kNoStep; whatever it would have made or written is
// poisoned. Throws nothing but bad_alloc.
int32_t Run(Executor& executor, Program& program, const Call& call, myc_step_error* errors, int32_t cap,
            myc_fused* fused);

}  // namespace mycelya::exec

#endif  // MYCELYA_EXEC_RUN_RUN_H_
