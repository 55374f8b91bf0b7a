// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Runs tile programs on threads. Work is divided into independent units. If a reduction has too few units, threads
// share its reduced points, and their results are combined in order.
#include <ATen/Parallel.h>
#include <ATen/Version.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <thread>

#include "exec/kernel/Traversal.h"
#include "exec/kernel/Worker.h"

namespace mycelya::exec {
namespace kernel {
namespace {

// Calls fn(begin, end) on ATen's threads for parts of 0 to n. ThreadSanitizer does not understand libgomp's
// synchronisation, so under it the threads are those of the standard library.
template <typename F>
void OnThreads(int n, const F& fn) {
#ifdef __SANITIZE_THREAD__
  std::vector<std::thread> others;
  for (int part = 1; part < n; ++part) others.emplace_back([&fn, part] { fn(part, part + 1); });
  fn(0, 1);
  for (std::thread& t : others) t.join();
#else
  at::parallel_for(0, n, 1, [&](int64_t begin, int64_t end) { fn(static_cast<int>(begin), static_cast<int>(end)); });
#endif
}

void RunWide(const Kernel& kernel, const Traversal& traversal, int threads) {
  std::vector<std::unique_ptr<Worker>> workers;
  for (int t = 0; t < threads; ++t) {
    workers.push_back(std::make_unique<Worker>(kernel));
    workers.back()->Bind(traversal);
  }
  const int64_t points = traversal.spaces[1].points;
  int64_t part = (points + threads - 1) / threads;
  if (traversal.loop_order == LoopOrder::kAlong) part = (part + 63) / 64 * 64;  // tiles begin at cache lines
  for (int64_t unit = 0; unit < traversal.units; ++unit) {
    for (const auto& w : workers) w->StartUnit(unit);
    for (size_t i = 0; i < traversal.schedule->passes.size(); ++i) {
      const Pass& pass = traversal.schedule->passes[i];
      workers[0]->Rows(pass);
      for (int t = 1; t < threads; ++t) workers[t]->TakeRows(*workers[0]);
      OnThreads(threads, [&](int begin, int end) {
        for (int t = begin; t < end; ++t) {
          workers[t]->StartReductions(pass);
          workers[t]->RunPass(i, std::min(points, t * part), std::min(points, (t + 1) * part));
        }
      });
      for (int t = 1; t < threads; ++t) workers[0]->Merge(pass, *workers[t]);
      workers[0]->Finish(pass);
    }
    workers[0]->End();
  }
}

}  // namespace

const Tiles& TilesOfThisCpu() {
  static const Tiles& tiles = []() -> const Tiles& {
#if defined(__x86_64__)
    const std::string capability = at::get_cpu_capability();
    if (capability == "AVX512") return TilesAvx512();
    if (capability == "AVX2") return TilesAvx2();
#endif
    return TilesDefault();
  }();
  return tiles;
}

}  // namespace kernel

void RunKernel(const Kernel& kernel, c10::ArrayRef<KernelInstance> instances) {
  using namespace kernel;
  const int all = at::in_parallel_region() ? 1 : at::get_num_threads();
  std::vector<Traversal> traversals(instances.size());
  std::vector<double> starts;  // by cost; of the instances that are divided by units
  std::vector<const Traversal*> divided;
  double total = 0;
  for (size_t i = 0; i < instances.size(); ++i) {
    Traversal& traversal = traversals[i];
    Prepare(kernel, instances[i], all, &traversal);
    const double cost = traversal.unit_cost * static_cast<double>(traversal.units);
    if (traversal.wide) {
      RunWide(kernel, traversal, ThreadsFor(cost, all));
      continue;
    }
    divided.push_back(&traversal);
    starts.push_back(total);
    total += cost;
  }
  if (divided.empty()) return;
  const int threads = ThreadsFor(total, all);
  OnThreads(threads, [&](int begin, int end) {
    Worker worker(kernel);
    const double from = total * begin / threads, to = total * end / threads;
    for (size_t i = 0; i < divided.size(); ++i) {
      const Traversal& traversal = *divided[i];
      // The end of one thread's units and the start of the next one's are computed by the same expression.
      const auto unit = [&](double at) {
        return std::clamp(static_cast<int64_t>(std::ceil((at - starts[i]) / traversal.unit_cost)),
                          static_cast<int64_t>(0), traversal.units);
      };
      const int64_t first = begin == 0 ? 0 : unit(from), last = end == threads ? traversal.units : unit(to);
      if (first >= last) continue;
      worker.Bind(traversal);
      for (int64_t u = first; u < last; ++u) worker.RunUnit(u);
    }
  });
}

}  // namespace mycelya::exec
