// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
#include "exec/run/RandomState.h"

#include <algorithm>
#include <mutex>

namespace mycelya::exec {

void RandomState::Save(RunBuffers& buffers, uint32_t begin, uint32_t end) {
  saved_.clear();
  const Program& p = buffers.program();
  for (uint32_t i = begin; i < end; ++i) {
    const Step& s = p.steps[i];
    if (!s.draws || s.kind != StepKind::kCall) continue;
    bool named = false;
    for (uint32_t j = s.args.begin; j < s.args.end; ++j) {
      if (p.args[j].kind != ArgKind::kGenerator) continue;
      named = true;
      Add(buffers.executor().GeneratorOf(buffers.params()[p.args[j].index]));
    }
    if (!named) Add(buffers.executor().GeneratorOf(0));
  }
}

void RandomState::Add(const at::Generator& generator) {
  if (std::any_of(saved_.begin(), saved_.end(), [&](const Saved& s) { return s.generator == generator; })) return;
  Saved& s = saved_.emplace_back();
  s.generator = generator;
  const std::lock_guard<std::mutex> lock(s.generator.mutex());
  if (!generator.device().is_cpu()) {
    s.other = s.generator.get_state();
    return;
  }
  auto* cpu = generator.get<at::CPUGeneratorImpl>();
  s.engine = cpu->engine();
  s.next_float = cpu->next_float_normal_sample();
  s.next_double = cpu->next_double_normal_sample();
}

void RandomState::Restore() const {
  for (const Saved& s : saved_) {
    at::Generator generator = s.generator;
    const std::lock_guard<std::mutex> lock(generator.mutex());
    if (s.other.defined()) {
      generator.set_state(s.other);
      continue;
    }
    auto* cpu = generator.get<at::CPUGeneratorImpl>();
    cpu->set_engine(s.engine);
    cpu->set_next_float_normal_sample(s.next_float);
    cpu->set_next_double_normal_sample(s.next_double);
  }
}

}  // namespace mycelya::exec
