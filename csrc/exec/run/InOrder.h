// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// The rest of a run after memory has run out: the remaining steps in the order of the user's ops, without kernels, each
// buffer freed after its last use. So what fits in eager PyTorch fits here.
#ifndef MYCELYA_EXEC_RUN_INORDER_H_
#define MYCELYA_EXEC_RUN_INORDER_H_

#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "exec/run/Buffers.h"
#include "exec/run/Run.h"

namespace mycelya::exec {

class InOrder {
 public:
  // Memory has run out in step `at`, or in the fused group that begins there; all steps before it have run, the groups
  // in `fused` as kernels. Steps whose effects can be undone are undone, back to begin(): what they have made is freed,
  // and they run again.
  InOrder(RunBuffers& buffers, const Call& call, uint32_t at, const std::vector<uint32_t>& fused);

  uint32_t begin() const { return begin_; }

  // The step to run next; none at the end, or if all steps that could run lack memory.
  std::optional<uint32_t> Next();
  // A step has run, or will not run.
  void Done(uint32_t step);
  // There was no memory for a step. It is next again after something was freed.
  void Short(uint32_t step);
  // The step that lacks memory and comes first; none if all steps are done.
  std::optional<uint32_t> Stuck() const;

 private:
  using Key = std::pair<uint32_t, uint32_t>;  // the op that a step is for, and the step

  void FindBegin(uint32_t at, const Call& call, const std::vector<uint32_t>& fused);
  void Undo(uint32_t at);
  void FindSteps(uint32_t first);
  void Depend();
  template <typename F>
  void EachUse(uint32_t step, F f) const;  // f(buffer, writes)
  bool MayPass(uint32_t step) const;
  void Release(uint32_t buffer);

  RunBuffers& buffers_;
  const Program& p_;
  uint32_t begin_ = 0;
  std::vector<bool> kept_;           // by buffer: an output, or a version of one, which a later failure may need
  std::vector<uint32_t> steps_;      // that run, in the order of the program
  std::vector<uint32_t> key_;        // by step: the op that it is for
  std::vector<uint32_t> waits_for_;  // by step: the number of steps that must be done before
  std::vector<std::vector<uint32_t>> before_;  // by step: the steps that wait for it
  std::vector<uint32_t> uses_;                 // by buffer: the steps left that use it
  std::set<Key> ready_, short_;
};

}  // namespace mycelya::exec

#endif  // MYCELYA_EXEC_RUN_INORDER_H_
