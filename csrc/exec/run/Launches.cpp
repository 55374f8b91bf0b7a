// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
#include "exec/run/Launches.h"

#include <c10/util/Exception.h>

namespace mycelya::exec {
namespace {

constexpr uint64_t kMaxThreads = 1024;    // of a block
constexpr uint64_t kMaxGrid = 1u << 31;   // blocks
constexpr uint64_t kMaxWords = 1u << 16;  // of a struct
constexpr uint64_t kMaxByValue = 512;     // words of a struct that is passed by value

}  // namespace

bool Launches::Take(const Program& program, uint32_t step, std::vector<Launch>* out) {
  out->clear();
  if (next_ == 0) {
    if (in_.ended()) return false;
    next_ = uint64_t{in_.Index("a fused step", program.steps.size())} + 1;
  }
  if (next_ != uint64_t{step} + 1) return false;
  next_ = 0;
  const uint32_t first = step + 1, plain = first + program.steps[step].a;
  for (uint32_t i = first; i < plain; ++i) {
    const Step& s = program.steps[i];
    TORCH_CHECK_VALUE(s.kind != StepKind::kCall || s.results.begin == s.results.end, "BUG: step ", step,
                      " has launches, but its group begins with calls that have results.");
  }
  const uint32_t n = in_.Count("launches", 11);
  out->reserve(n);
  for (uint32_t i = 0; i < n; ++i) {
    out->push_back(Parse(program, first, plain));
    TORCH_CHECK_VALUE(i == 0 || (*out)[i - 1].step <= out->back().step, "BUG: launches of step ", out->back().step,
                      " come after those of a later one.");
  }
  return true;
}

Launch Launches::Parse(const Program& program, uint32_t first, uint32_t plain) {
  Launch l;
  l.step = in_.Index("a kernel's step", plain);
  TORCH_CHECK_VALUE(l.step >= first && program.steps[l.step].kind == StepKind::kKernel, "BUG: step ", l.step,
                    " has a launch, but is not a kernel of its group.");
  const Step& step = program.steps[l.step];
  const size_t noperands = program.kernels[step.a]->operands.size();
  l.entry = in_.Next("an entry");
  l.grid = in_.Index("a number of blocks", kMaxGrid);
  l.block_x = in_.Index("a number of threads", kMaxThreads + 1);
  l.block_y = in_.Index("a number of threads", kMaxThreads + 1);
  TORCH_CHECK_VALUE(l.entry != 0 && l.grid > 0 && l.block_x * l.block_y > 0 && l.block_x * l.block_y <= kMaxThreads,
                    "BUG: entry ", l.entry, " is launched with ", l.grid, " blocks of ", l.block_x, " x ", l.block_y,
                    " threads.");
  l.table = in_.Index("whether arguments are in a table", 2) != 0;
  l.scratch = in_.Next("bytes of scratch memory");
  l.scratch_word = in_.Index("the word of the scratch memory", kMaxWords);
  const uint32_t npointers = in_.Count("operands of a launch");
  l.operands = {in_.Span("operands of a launch", npointers), npointers};
  for (const uint64_t operand : l.operands) {
    TORCH_CHECK_VALUE(operand < noperands, "BUG: a launch names operand ", operand, " of ", noperands, ".");
  }
  l.words = in_.Index("words of a struct", (l.table ? kMaxWords : kMaxByValue) + 1);
  TORCH_CHECK_VALUE(
      npointers <= l.words && (l.scratch == 0 || (l.scratch_word >= npointers && l.scratch_word < l.words)),
      "BUG: a struct of ", l.words, " words has ", npointers, " addresses, and the address of scratch memory in word ",
      l.scratch_word, ".");
  l.nstructs = in_.Count("structs", uint64_t{l.words} + 1);
  TORCH_CHECK_VALUE(l.nstructs == 1 || (l.table && l.nstructs > 0), "BUG: a launch has ", l.nstructs, " structs.");
  l.structs = in_.Span("structs", l.nstructs * (uint64_t{l.words} + 1));
  for (uint32_t i = 0; i < l.nstructs; ++i) {
    TORCH_CHECK_VALUE(l.InstanceOf(i) < step.args.end - step.args.begin, "BUG: a launch names instance ",
                      l.InstanceOf(i), " of ", step.args.end - step.args.begin, ".");
  }
  const uint32_t nchunks = in_.Count("chunks");
  l.chunks = {in_.Span("chunks", nchunks), nchunks};
  TORCH_CHECK_VALUE(nchunks == (l.table ? l.grid : 0), "BUG: a launch of ", l.grid, " blocks has ", nchunks,
                    " chunks.");
  for (const uint64_t chunk : l.chunks) {
    TORCH_CHECK_VALUE((chunk & UINT32_MAX) < l.nstructs, "BUG: a block uses struct ", chunk & UINT32_MAX, " of ",
                      l.nstructs, ".");
  }
  return l;
}

}  // namespace mycelya::exec
