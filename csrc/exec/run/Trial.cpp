// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
#include "exec/run/Trial.h"

#include <c10/util/hash.h>

#include <algorithm>
#include <utility>

#include "abi/mycelya.h"
#include "exec/operators/Close.h"

namespace mycelya::exec {
namespace {

// What a group of ops may differ by: some hundred times the dtype's own rounding, because errors add up and grow.
double RoundingOf(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Double:
      return 1e-11;
    case c10::ScalarType::Float:
      return 5e-4;
    case c10::ScalarType::Half:
      return 3e-2;
    default:
      return 1e-1;
  }
}

// In a tensor of fewer elements, no one may differ by more than rounding: a wrong sum would pass otherwise.
constexpr int64_t kMany = 16;

}  // namespace

uint64_t TrialOf(uint32_t group, c10::ArrayRef<Launch> launches) {
  size_t hash = group;
  for (const Launch& l : launches) hash = c10::hash_combine(hash, l.entry);
  return hash;
}

TrialRun::TrialRun(RunBuffers& buffers, uint32_t group)
    : buffers_(buffers),
      p_(buffers.program()),
      fused_(p_.steps[group]),
      first_(group + 1),
      plain_(group + 1 + fused_.a) {
  for (const Range r : {fused_.reads, fused_.spoils}) {
    for (uint32_t i = r.begin; i < r.end; ++i) Note(p_.buffers[i]);
  }
  for (uint32_t i = first_; i < plain_; ++i) {
    if (p_.steps[i].kind == StepKind::kFree) Note(p_.steps[i].a);
  }
}

void TrialRun::Note(uint32_t buffer) { before_.emplace(buffer, buffers_.At(buffer)); }

void TrialRun::Replace(uint32_t buffer, Buffer with) {
  buffers_.DropTensors(buffer);
  buffers_.At(buffer) = std::move(with);
}

// Calls f with the tensor of each operand of the kernels that is accessed so, and with its kernel.
template <typename F>
void TrialRun::EachOperand(uint32_t access, F f) {
  for (uint32_t i = first_; i < plain_; ++i) {
    const Step& s = p_.steps[i];
    if (s.kind != StepKind::kKernel) continue;
    const Kernel& kernel = *p_.kernels[s.a];
    for (uint32_t j = s.args.begin; j < s.args.end; ++j) {
      for (size_t k = 0; k < kernel.operands.size(); ++k) {
        if ((kernel.operands[k].access & access) == 0) continue;
        f(p_.kernel_uses[p_.kernel_ats[j].uses + k].tensor, kernel);
      }
    }
  }
}

void TrialRun::Begin() {
  EachOperand(MYC_K_READ, [&](uint32_t tensor, const Kernel&) {
    const TensorRow& row = p_.tensors[tensor];
    if (!c10::isFloatingType(row.dtype) || !buffers_.At(row.buffer).storage) return;
    large_ = std::max(large_, LargestOf(buffers_.TensorOf(tensor)));
  });
  for (uint32_t i = fused_.spoils.begin; i < fused_.spoils.end; ++i) {
    const Buffer& was = before_.at(p_.buffers[i]);
    if (was.storage) Replace(p_.buffers[i], {buffers_.CloneOf(was.storage), nullptr, was.input, {}});
  }
}

void TrialRun::End() {
  for (uint32_t i = fused_.spoils.begin; i < fused_.spoils.end; ++i) {
    const Buffer& b = buffers_.At(p_.buffers[i]);
    if (b.storage) made_[p_.buffers[i]] = b.storage;
  }
  for (auto& [buffer, was] : before_) Replace(buffer, std::move(was));
  before_.clear();
}

std::string TrialRun::Difference() {
  std::string difference;
  EachOperand(MYC_K_WRITE, [&](uint32_t tensor, const Kernel& kernel) {
    const TensorRow& row = p_.tensors[tensor];
    const auto made = made_.find(row.buffer);
    if (!difference.empty() || made == made_.end() || !buffers_.At(row.buffer).storage) return;
    const at::Tensor ours = MakeTensor(made->second, buffers_.GeometryOf(row));
    const int64_t few = kernel.jumps && ours.numel() >= kMany ? 1 + ours.numel() / 256 : 0;
    difference = DifferenceOf(ours, buffers_.TensorOf(tensor), large_, RoundingOf(row.dtype), few);
  });
  return difference;
}

}  // namespace mycelya::exec
