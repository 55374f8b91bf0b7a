// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// The cost of a step without its kernel: a program of 100 adds of f32[4,4] against the same calls of at::add and of the
// boxed kernel under InferenceMode. Prints ns per step; "+" is relative to boxed.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/add.h>
#include <ATen/ops/full.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>

#include "exec/test/Session.h"

namespace mycelya::exec::test {
namespace {

constexpr int kSteps = 100, kRuns = 50, kRepeats = 60;

// Returns the minimum time of each. Repeats are interleaved, so that noise affects all of them.
std::vector<double> NsPerStep(const std::vector<std::function<void()>>& variants) {
  std::vector<double> best(variants.size(), 1e30);
  for (int r = 0; r < kRepeats; ++r) {
    for (size_t v = 0; v < variants.size(); ++v) {
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < kRuns; ++i) variants[v]();
      const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
      best[v] = std::min(best[v], took.count() / (kRuns * kSteps));
    }
  }
  return best;
}

// chained: each result is an operand of the next step. Otherwise all steps add the same two tensors.
Builder Adds(bool chained, bool frees) {
  Builder b;
  uint64_t x = b.Fresh(MYC_F32, {4, 4});
  const uint64_t y = x;
  for (int i = 0; i < kSteps; ++i) {
    const uint64_t buffer = b.Buffer();
    const uint64_t r = b.Tensor(buffer, MYC_F32, {4, 4});
    b.Call("aten::add.Tensor", {T(x), T(y), Int(1)}, {r});
    if (frees && i > 0) b.Free(buffer - 1);
    if (chained) x = r;
  }
  return b;
}

}  // namespace

int Main() {
  Session s;
  s.Upload(1, at::full({4, 4}, 1.0f));
  myc_prog* chain = s.Prepare(Adds(true, true));
  myc_prog* keep = s.Prepare(Adds(false, false));
  Builder in_place;
  const uint64_t x = in_place.Fresh(MYC_F32, {4, 4});
  for (int i = 0; i < kSteps; ++i) in_place.Call("aten::add_.Tensor", {T(x), T(x), Int(1)});
  myc_prog* writes = s.Prepare(in_place);
  const uint64_t in[] = {0, 1}, out[] = {kSteps, 2};
  myc_fused fused;
  const auto run = [&](myc_prog* p, uint64_t outputs) {
    const int32_t failed = myc_exec_run(s.get(), p, nullptr, 0, in, 1, out, outputs, nullptr, 0, nullptr, 0, 1, nullptr,
                                        0, &fused, nullptr);
    if (failed != 0) std::abort();
  };
  c10::InferenceMode inference;
  const at::Tensor one = at::full({4, 4}, 1.0f);
  torch::jit::Stack stack;
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::add", "Tensor");
  const std::vector<double> ns = NsPerStep({
      [&] {
        at::Tensor t = one;
        for (int i = 0; i < kSteps; ++i) t = at::add(t, one);
      },
      [&] {
        at::Tensor t = one;
        for (int i = 0; i < kSteps; ++i) {
          stack.clear();
          for (const c10::IValue& v : {c10::IValue(t), c10::IValue(one), c10::IValue(1)}) stack.push_back(v);
          op.callBoxed(stack);
          t = std::move(stack[0]).toTensor();
        }
      },
      [&] { run(chain, 1); },
      [&] { run(keep, 1); },
      [&] {
        at::Tensor t = one;
        for (int i = 0; i < kSteps; ++i) t.add_(one);
      },
      [&] { run(writes, 0); },
  });
  std::printf("add   at::add %.0f ns, boxed %.0f; program with frees %.0f (+%.0f), all kept %.0f (+%.0f)\n", ns[0],
              ns[1], ns[2], ns[2] - ns[1], ns[3], ns[3] - ns[1]);
  std::printf("add_  direct %.0f ns; program %.0f (+%.0f)\n", ns[4], ns[5], ns[5] - ns[4]);
  return 0;
}

}  // namespace mycelya::exec::test

int main() { return mycelya::exec::test::Main(); }
