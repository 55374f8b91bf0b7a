// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
#include "exec/run/InOrder.h"

#include <algorithm>

namespace mycelya::exec {
namespace {

constexpr uint32_t kNone = UINT32_MAX;

// Whether no step may go past this one: it sets a flag, or has another effect.
bool Stops(const Step& s) {
  if (s.sets_flag || s.kind == StepKind::kSeed || s.kind == StepKind::kDefaultDtype) return true;
  return s.kind == StepKind::kCall && s.spoils.begin == s.spoils.end;
}

}  // namespace

InOrder::InOrder(RunBuffers& buffers, const Call& call, uint32_t at, const std::vector<uint32_t>& fused)
    : buffers_(buffers), p_(buffers.program()), kept_(p_.nbuffers) {
  for (uint64_t i = 0; i < call.n_outputs; ++i) kept_[call.outputs[2 * i]] = true;
  for (const Version& v : p_.versions) {
    if (v.buffer != kNoBuffer) kept_[v.buffer] = true;
  }
  FindBegin(at, call, fused);
  Undo(at);
  FindSteps(begin_);
  Depend();
  for (uint32_t b = 0; b < p_.nbuffers; ++b) {
    if (uses_[b] == 0) Release(b);
  }
  buffers_.executor().device().EmptyCache();
}

// begin_ is after the last step that cannot be undone: it draws, it has another effect, or it writes or frees a buffer
// that an earlier step than begin_ has made.
void InOrder::FindBegin(uint32_t at, const Call& call, const std::vector<uint32_t>& fused) {
  constexpr uint32_t kInput = kNone - 1;
  std::vector<uint32_t> maker(p_.nbuffers, kNone);  // by buffer: the step that has made it, or kInput; kNone: none has
  for (uint64_t i = 0; i < call.n_inputs; ++i) maker[call.inputs[2 * i]] = kInput;
  auto kernels = fused.begin();
  for (uint32_t i = 0; i < at; ++i) {
    const uint32_t number = i;
    const Step& s = p_.steps[i];
    if (s.kind == StepKind::kFused) {
      const bool ran = kernels != fused.end() && *kernels == i;
      i += s.a + (ran ? s.b : 0);
      if (!ran) continue;
      ++kernels;
    }
    bool stays = Stops(s) || s.draws;
    const auto touch = [&](uint32_t b) { stays |= maker[b] != kNone && (maker[b] == kInput || maker[b] < begin_); };
    if (s.kind == StepKind::kFree) {
      touch(s.a);
      maker[s.a] = kNone;
    }
    for (uint32_t j = s.spoils.begin; j < s.spoils.end; ++j) touch(p_.buffers[j]);
    if (stays) begin_ = i + 1;
    for (uint32_t j = s.spoils.begin; j < s.spoils.end; ++j) {
      const uint32_t b = p_.buffers[j];
      if (maker[b] == kNone) maker[b] = number;
    }
  }
  begin_ = std::min(begin_, at);
}

void InOrder::Undo(uint32_t at) {
  for (uint32_t i = begin_; i < at; ++i) {
    const Step& s = p_.steps[i];
    for (uint32_t j = s.spoils.begin; j < s.spoils.end; ++j) buffers_.SetStorage(p_.buffers[j], c10::Storage());
  }
}

// Leaves out the kernels of fused groups: their plain steps follow.
void InOrder::FindSteps(uint32_t first) {
  key_.resize(p_.steps.size());
  for (uint32_t i = first; i < p_.steps.size(); ++i) {
    if (p_.steps[i].kind == StepKind::kFused) {
      i += p_.steps[i].a;
    } else {
      steps_.push_back(i);
    }
  }
  // A step without an op is for the op of the next step that uses its buffer.
  std::vector<uint32_t> next(p_.nbuffers, kNone);
  for (auto i = steps_.rbegin(); i != steps_.rend(); ++i) {
    const Step& s = p_.steps[*i];
    uint32_t key = s.record != 0 ? s.record : kNone;
    if (s.kind == StepKind::kFree) key = 0;  // as early as possible
    if (key == kNone) EachUse(*i, [&](uint32_t b, bool) { key = std::min(key, next[b]); });
    key_[*i] = key;
    if (key != 0) EachUse(*i, [&](uint32_t b, bool) { next[b] = key; });
  }
}

template <typename F>
void InOrder::EachUse(uint32_t step, F f) const {
  const Step& s = p_.steps[step];
  if (s.kind == StepKind::kFree) return f(s.a, true);
  for (uint32_t i = s.reads.begin; i < s.reads.end; ++i) f(p_.buffers[i], false);
  for (uint32_t i = s.spoils.begin; i < s.spoils.end; ++i) f(p_.buffers[i], true);
}

// A step waits for the last write of what it uses, and for the reads of what it writes. Steps that draw random numbers
// keep their order.
void InOrder::Depend() {
  const size_t n = p_.steps.size();
  waits_for_.resize(n);
  before_.resize(n);
  uses_.resize(p_.nbuffers);
  std::vector<uint32_t> writer(p_.nbuffers, kNone);
  std::vector<std::vector<uint32_t>> readers(p_.nbuffers);
  uint32_t drew = kNone, stop = kNone;
  const auto wait = [&](uint32_t step, uint32_t other) {
    if (other == kNone || other == step) return;
    before_[other].push_back(step);
    ++waits_for_[step];
  };
  std::vector<uint32_t> since;  // steps since the last one that none goes past
  for (const uint32_t i : steps_) {
    const Step& s = p_.steps[i];
    EachUse(i, [&](uint32_t b, bool writes) {
      ++uses_[b];
      wait(i, writer[b]);
      if (!writes) return readers[b].push_back(i);
      for (const uint32_t reader : readers[b]) wait(i, reader);
      readers[b].clear();
      writer[b] = i;
    });
    wait(i, stop);
    if (s.draws) wait(i, std::exchange(drew, i));
    since.push_back(i);
    if (!Stops(s)) continue;
    for (const uint32_t other : since) wait(i, other);
    since.clear();
    stop = i;
  }
  for (const uint32_t i : steps_) {
    if (waits_for_[i] == 0) ready_.emplace(key_[i], i);
  }
}

std::optional<uint32_t> InOrder::Next() {
  for (const auto& [key, step] : ready_) {
    if (short_.empty() || MayPass(step)) return step;
  }
  return std::nullopt;
}

// Whether a step may run before one that lacks memory. If that one fails after all, it must be as if no later op had
// run.
bool InOrder::MayPass(uint32_t step) const {
  const Step& s = p_.steps[step];
  if (s.kind == StepKind::kFree) return !kept_[s.a];
  return !s.draws && !Stops(s) && buffers_.WritesOnlyNew(s);
}

void InOrder::Done(uint32_t step) {
  ready_.erase({key_[step], step});
  short_.erase({key_[step], step});
  EachUse(step, [&](uint32_t b, bool) {
    if (--uses_[b] == 0) Release(b);
  });
  if (p_.steps[step].kind == StepKind::kFree) ready_.merge(short_);
  for (const uint32_t other : before_[step]) {
    if (--waits_for_[other] == 0) ready_.emplace(key_[other], other);
  }
}

void InOrder::Short(uint32_t step) {
  ready_.erase({key_[step], step});
  short_.emplace(key_[step], step);
}

std::optional<uint32_t> InOrder::Stuck() const {
  if (short_.empty()) return std::nullopt;
  return short_.begin()->second;
}

// Drops an input that the session has freed and that no step uses any more.
void InOrder::Release(uint32_t buffer) {
  const Buffer& b = buffers_.At(buffer);
  if (kept_[buffer] || b.input == 0 || !b.storage || buffers_.executor().Find(b.input) != nullptr) return;
  buffers_.SetStorage(buffer, c10::Storage());
  ready_.merge(short_);
}

}  // namespace mycelya::exec
