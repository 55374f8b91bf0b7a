// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
#include "exec/kernel/Traversal.h"

#include <algorithm>
#include <cmath>

namespace mycelya::exec::kernel {
namespace {

// Bytes. Half of a common first-level cache; the other half is for operands.
constexpr int64_t kTileMemory = 24 << 10;
constexpr int64_t kMinTile = 128, kMaxTile = 1024;
constexpr int64_t kMaxLanes = 1024;
// The largest tile with several kept points along. Not used if an operand would be copied for each kept point.
constexpr int64_t kMaxTogether = 4096;
// Smaller index spaces fit into the caches and are not prefetched.
constexpr int64_t kFetchPoints = 1 << 18;
// Reductions of more points are left to the processor's prefetcher: prefetched lines would be evicted before their use.
constexpr int64_t kFetchReduced = 1 << 13;
// ATen's grain size, in points times instructions.
constexpr double kGrain = 32768;
// Threads may share reduced points if each of them gets at least this many.
constexpr int64_t kLeastPart = 64;
// Reductions of at most so many points run in lanes, because tiles of so few points are mostly overhead.
constexpr int64_t kShortReduction = 8;

class Preparer {
 public:
  Preparer(const Kernel& kernel, const KernelInstance& at, int threads, Traversal* out)
      : k_(kernel), c_(*kernel.code), at_(at), threads_(threads), t_(*out) {}

  void operator()() {
    t_.at = &at_;
    nops_ = static_cast<uint32_t>(k_.operands.size() + c_.index_dims.size());
    if (k_.reduced != 0) {
      Reduction();
    } else {
      Map();
    }
    CheckDirect();
  }

 private:
  // Strides of all operands along the dims of an index space: [operand][dim].
  std::vector<int64_t> SpaceStrides(uint32_t space) const {
    const uint32_t rank = k_.spaces[space];
    std::vector<int64_t> strides(static_cast<size_t>(nops_) * rank);
    for (size_t i = 0; i < k_.operands.size(); ++i) {
      const KernelOperand& o = k_.operands[i];
      if (o.space != space) continue;
      for (size_t d = 0; d < o.along.size(); ++d) {
        if (o.along[d] >= 0) strides[i * rank + o.along[d]] = at_.operands[i].strides[d];
      }
    }
    for (size_t i = 0; space == 0 && i < c_.index_dims.size(); ++i) {
      strides[(k_.operands.size() + i) * rank + c_.index_dims[i]] = 1;
    }
    return strides;
  }

  // Merges the dims, which are given from outer to inner.
  Space MakeSpace(const int64_t* sizes, const std::vector<int64_t>& strides, uint32_t rank,
                  const std::vector<uint32_t>& dims) const {
    Space w;
    uint32_t lead[MYC_K_MAX_RANK] = {};  // the innermost of the merged dims
    for (const uint32_t d : dims) {
      w.points *= sizes[d];
      if (sizes[d] == 1) continue;
      bool merges = w.rank > 0;
      for (uint32_t i = 0; merges && i < nops_; ++i) {
        merges = strides[i * rank + lead[w.rank - 1]] == strides[i * rank + d] * sizes[d];
      }
      if (merges) {
        w.sizes[w.rank - 1] *= sizes[d];
      } else {
        w.sizes[w.rank++] = sizes[d];
      }
      lead[w.rank - 1] = d;
    }
    w.strides.resize(static_cast<size_t>(nops_) * w.rank);
    for (uint32_t i = 0; i < nops_; ++i) {
      for (uint32_t d = 0; d < w.rank; ++d) w.strides[i * w.rank + d] = strides[i * rank + lead[d]];
    }
    return w;
  }

  // Sorts dims by descending stride, first by those of the written operands.
  void Sort(const std::vector<int64_t>& strides, uint32_t rank, std::vector<uint32_t>* dims) const {
    const auto outer = [&](uint32_t a, uint32_t b) {
      for (const uint32_t access : {static_cast<uint32_t>(MYC_K_WRITE), 0u}) {
        for (size_t i = 0; i < k_.operands.size(); ++i) {
          if ((k_.operands[i].access & MYC_K_WRITE) != access) continue;
          const int64_t x = strides[i * rank + a], y = strides[i * rank + b];
          if (x != 0 && y != 0 && x != y) return x > y;
        }
      }
      return a < b;
    };
    // Not a strict weak order, because strides of 0 do not decide. Insertion sort terminates nevertheless.
    for (size_t i = 1; i < dims->size(); ++i) {
      for (size_t j = i; j > 0 && outer((*dims)[j], (*dims)[j - 1]); --j) std::swap((*dims)[j], (*dims)[j - 1]);
    }
  }

  // Rounds up so that the next tile begins at a cache line, whatever the width of a value.
  static int64_t Aligned(int64_t values) { return (values + 63) / 64 * 64; }

  static int64_t Clamp(int64_t bytes, int64_t most) {
    return std::clamp(kTileMemory / std::max<int64_t>(bytes, 1) / 64 * 64, kMinTile, most);
  }

  void Map() {
    t_.schedule = &c_.along;
    t_.tile = Clamp(c_.along.tile_bytes, kMaxTile);
    const int64_t* sizes = at_.sizes;
    for (uint32_t f = 0; f < k_.spaces.size(); ++f) {
      const uint32_t rank = k_.spaces[f];
      const std::vector<int64_t> strides = SpaceStrides(f);
      std::vector<uint32_t> dims;
      for (uint32_t d = 0; d < rank; ++d) {
        if (sizes[d] != 1) dims.push_back(d);
      }
      if (k_.spaces.size() == 1) Sort(strides, rank, &dims);
      t_.spaces.push_back(MakeSpace(sizes, strides, rank, dims));
      sizes += rank;
    }
    const Space& w = t_.spaces[0];
    t_.loop_order = LoopOrder::kLine;
    t_.units = (w.points + t_.tile - 1) / t_.tile;
    t_.unit_cost = static_cast<double>(std::min(t_.tile, w.points)) * static_cast<double>(c_.cost);
    t_.fetches = w.points >= kFetchPoints;
    if (k_.spaces.size() == 1 && w.rank >= 2 && w.points > 0) Block();
  }

  // The size of equal parts of `size`, with as few parts as parts of size `most` would give.
  static int64_t Part(int64_t size, int64_t most) {
    const int64_t parts = (size + most - 1) / most;
    return std::min(size, ((size + parts - 1) / parts + 15) / 16 * 16);
  }

  void Block() {
    const Space& w = t_.spaces[0];
    const uint32_t inner = w.rank - 1;
    uint32_t row = w.rank - 2;
    bool crossed = false;
    for (size_t i = 0; i < k_.operands.size() && !crossed; ++i) {
      const int64_t* s = &w.strides[i * w.rank];
      if (s[inner] <= 1) continue;
      for (uint32_t d = 0; d < inner && !crossed; ++d) {
        if (s[d] != 1 || w.sizes[d] < 8) continue;
        row = d;
        crossed = true;
      }
    }
    int64_t cols = Part(w.sizes[inner], t_.tile), rows = 1;
    if (crossed) {
      cols = Part(w.sizes[inner], t_.tile >= 1024 ? 64 : t_.tile >= 256 ? 32 : 16);
    }
    rows = std::min(w.sizes[row], std::max<int64_t>(1, t_.tile / cols));
    if (rows * cols < 64 && w.points > rows * cols) return;
    t_.loop_order = LoopOrder::kBlock;
    t_.row_dim = row;
    t_.col_dim = inner;
    t_.rows = rows;
    t_.cols = cols;
    t_.row_blocks = (w.sizes[row] + rows - 1) / rows;
    t_.col_blocks = (w.sizes[inner] + cols - 1) / cols;
    t_.units = w.points / w.sizes[row] / w.sizes[inner] * t_.row_blocks * t_.col_blocks;
    t_.unit_cost = static_cast<double>(w.points) / static_cast<double>(t_.units) * static_cast<double>(c_.cost);
  }

  void Reduction() {
    const uint32_t rank = k_.spaces[0], kept = rank - k_.reduced;
    const std::vector<int64_t> strides = SpaceStrides(0);
    std::vector<uint32_t> kept_dims, reduced_dims;
    for (uint32_t d = 0; d < rank; ++d) (d < kept ? kept_dims : reduced_dims).push_back(d);
    t_.spaces.push_back(MakeSpace(at_.sizes, strides, rank, kept_dims));
    // Points may be reduced in any order.
    Sort(strides, rank, &reduced_dims);
    t_.spaces.push_back(MakeSpace(at_.sizes, strides, rank, reduced_dims));
    const Space rows = t_.spaces[0], points = t_.spaces[1];
    const double total =
        static_cast<double>(rows.points) * static_cast<double>(points.points) * static_cast<double>(c_.cost);
    Space both;
    both.rank = rows.rank + points.rank;
    std::copy_n(rows.sizes, rows.rank, both.sizes);
    std::copy_n(points.sizes, points.rank, both.sizes + rows.rank);
    both.points = rows.points * points.points;
    for (uint32_t i = 0; i < nops_; ++i) {
      for (const Space* w : {&rows, &points}) {
        const int64_t* strides = w->strides.data() + static_cast<size_t>(i) * w->rank;
        both.strides.insert(both.strides.end(), strides, strides + w->rank);
      }
    }
    if (Lanes(rows, points)) {
      t_.loop_order = LoopOrder::kLanes;
      const int64_t bytes = c_.lanes.tile_bytes + c_.row_bytes + c_.accumulator_bytes;
      t_.lanes = std::clamp(kTileMemory / bytes / 64 * 64, static_cast<int64_t>(64), kMaxLanes);
      // Make enough tiles for all threads unless they become too narrow. But if threads can share the reduced points,
      // keep all columns in a tile: whole rows are read twice as fast as parts of rows.
      const bool parts =
          rows.points <= t_.lanes && points.points >= kLeastPart * threads_ && c_.lanes.passes.size() == 1;
      const int64_t share = (rows.points + threads_ - 1) / threads_;
      if (!parts) t_.lanes = std::min(t_.lanes, std::max<int64_t>(64, (share + 63) / 64 * 64));
      t_.lanes = std::max<int64_t>(1, std::min(t_.lanes, rows.points));
      if (rows.rank == 1 && points.rank > 0) {
        t_.repeats = std::clamp(Clamp(c_.lanes.tile_bytes, kMaxTile) / t_.lanes, static_cast<int64_t>(1),
                                points.sizes[points.rank - 1]);
      }
      t_.tile = Aligned(t_.lanes * t_.repeats);
      t_.units = (rows.points + t_.lanes - 1) / t_.lanes;
      t_.schedule = Fewer(c_.lanes, t_.lanes, points.points, kKeptBytes) ? &c_.lanes : &c_.lanes_anew;
    } else {
      t_.loop_order = LoopOrder::kAlong;
      t_.tile = Clamp(c_.along.tile_bytes, kMaxTile);
      t_.units = rows.points;
      if (rows.rank > 0 && points.rank == 1 && points.points > 0) {
        const int64_t run = rows.sizes[rows.rank - 1];
        t_.repeats =
            std::min({Clamp(c_.along.tile_bytes, Shared(rows, points) ? kMaxTile : kMaxTogether) / points.points, run,
                      rows.points / threads_});
        t_.repeats = std::max<int64_t>(1, t_.repeats);
        if (t_.repeats > 1) {
          t_.lanes = t_.repeats;
          t_.tile = Aligned(t_.repeats * points.points);
          t_.units = rows.points / run * ((run + t_.repeats - 1) / t_.repeats);
        }
      }
      t_.schedule = Fewer(c_.along, t_.lanes, points.points, kKeptBytes) ? &c_.along : &c_.along_anew;
      if (Fewer(c_.along_near, t_.lanes, points.points, kNearBytes)) t_.schedule = &c_.along_near;
      // The first pass waits for memory, and the other passes leave the memory bus idle.
      t_.fetches =
          c_.along.passes.size() > 1 && points.points <= kFetchReduced && rows.points * points.points >= kFetchPoints;
    }
    t_.wide = t_.units > 0 && t_.units < ThreadsFor(total, threads_) && points.points > 0;
    if (t_.wide) {  // a kept value may belong to another thread's points
      t_.schedule = t_.loop_order == LoopOrder::kLanes ? &c_.lanes_anew : &c_.along_anew;
      t_.fetches = false;
    }
    t_.spaces.push_back(std::move(both));
    t_.unit_cost = t_.units == 0 ? 1 : std::max(1.0, total / static_cast<double>(t_.units));
  }

  // Whether some operand is the same for all kept points.
  bool Shared(const Space& rows, const Space& points) const {
    for (size_t i = 0; i < k_.operands.size(); ++i) {
      if (points.strides[i * points.rank] != 0 && rows.strides[i * rows.rank + rows.rank - 1] == 0) return true;
    }
    return false;
  }

  static bool Fewer(const Schedule& o, int64_t lanes, int64_t points, int64_t bytes) {
    return o.kept_bytes == 0 || points <= bytes / lanes / o.kept_bytes;
  }

  bool Lanes(const Space& rows, const Space& points) const {
    if (rows.points >= 16 && points.points <= kShortReduction) return true;
    int along = 0, lanes = 0;
    for (size_t i = 0; i < k_.operands.size(); ++i) {
      const int64_t bytes = static_cast<int64_t>(c10::elementSize(k_.operands[i].dtype));
      if (points.rank > 0 && points.strides[i * points.rank + points.rank - 1] == 1) along += static_cast<int>(bytes);
      if (rows.rank > 0 && rows.strides[i * rows.rank + rows.rank - 1] == 1 && points.rank > 0 &&
          points.strides[i * points.rank + points.rank - 1] != 0) {
        lanes += static_cast<int>(bytes);
      }
    }
    return lanes > along && (rows.points >= 16 || (rows.points > 1 && rows.rank == 1));
  }

  // A step may write directly to memory unless a later load, or a later user of an earlier load, needs that memory.
  void CheckDirect() {
    if (t_.schedule->passes.empty()) return;
    const Pass& pass = t_.schedule->passes.back();
    for (const StoreStep& s : pass.stores) {
      bool direct = s.made != kNone;
      for (size_t i = 0; direct && i < pass.steps.size(); ++i) {
        const Node& n = c_.nodes[pass.steps[i].node];
        if (n.op != MYC_K_LOAD || !Meet(s.operand, n.operand)) continue;
        direct = Alike(s.operand, n.operand) && pass.last[i] <= s.made;
      }
      t_.direct.push_back(direct);
    }
  }

  std::pair<const char*, const char*> Range(uint32_t operand) const {
    const KernelOperand& o = k_.operands[operand];
    const KernelOperandAt& at = at_.operands[operand];
    int64_t reach = 1;
    for (size_t d = 0; d < o.along.size(); ++d) {
      if (at.sizes[d] == 0) return {at.data, at.data};
      reach += (at.sizes[d] - 1) * at.strides[d];
    }
    return {at.data, at.data + reach * static_cast<int64_t>(c10::elementSize(o.dtype))};
  }
  bool Meet(uint32_t a, uint32_t b) const {
    const auto x = Range(a), y = Range(b);
    return x.first < y.second && y.first < x.second;
  }
  bool Alike(uint32_t a, uint32_t b) const {
    const KernelOperand &x = k_.operands[a], &y = k_.operands[b];
    if (x.space != y.space || x.dtype != y.dtype || at_.operands[a].data != at_.operands[b].data) return false;
    for (const Space& w : t_.spaces) {
      for (uint32_t d = 0; d < w.rank; ++d) {
        if (w.strides[a * w.rank + d] != w.strides[b * w.rank + d]) return false;
      }
    }
    return true;
  }

  const Kernel& k_;
  const Kernel::Code& c_;
  const KernelInstance& at_;
  const int threads_;
  Traversal& t_;
  uint32_t nops_ = 0;
};

}  // namespace

int ThreadsFor(double cost, int most) {
  return std::max(1, static_cast<int>(std::min(static_cast<double>(most), cost / kGrain)));
}

void Prepare(const Kernel& kernel, const KernelInstance& at, int threads, Traversal* out) {
  Preparer(kernel, at, threads, out)();
}

}  // namespace mycelya::exec::kernel
