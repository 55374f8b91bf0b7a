// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
#include "exec/kernel/Launch.h"

#include <algorithm>
#include <cmath>

namespace mycelya::exec::kernel {
namespace {

// Half of a usual first-level cache: the rest is for what is read and written.
constexpr int64_t kTileMemory = 24 << 10;
constexpr int64_t kMinTile = 128, kMaxTile = 1024;
constexpr int64_t kMaxLanes = 1024;
// Several kept points along, each of which has steps of its own; not where an operand is copied for each of them.
constexpr int64_t kMaxTogether = 4096;
// Index spaces smaller than this lie in the caches.
constexpr int64_t kFetchPoints = 1 << 18;
// Folds of more points are fetched by the processor alone: what was asked for would be gone when its turn comes.
constexpr int64_t kFetchFold = 1 << 13;
// ATen's grain, in points times instructions.
constexpr double kGrain = 32768;
// Threads may share out folded points if each of them has so many.
constexpr int64_t kLeastPart = 64;
// Folds of fewer points are done in lanes: a tile of so few would be all overhead.
constexpr int64_t kShortFold = 8;

class Preparer {
 public:
  Preparer(const Kernel& kernel, const KernelInstance& at, int threads, Launch* out)
      : k_(kernel), c_(*kernel.code), at_(at), threads_(threads), l_(*out) {}

  void operator()() {
    l_.at = &at_;
    nops_ = static_cast<uint32_t>(k_.operands.size() + c_.index_dims.size());
    if (k_.folded != 0) {
      Fold();
    } else {
      Map();
    }
    CheckDirect();
  }

 private:
  // Strides of all operands along a frame's dims: [operand][dim].
  std::vector<int64_t> FrameStrides(uint32_t frame) const {
    const uint32_t rank = k_.frames[frame];
    std::vector<int64_t> strides(static_cast<size_t>(nops_) * rank);
    for (size_t i = 0; i < k_.operands.size(); ++i) {
      const KernelOperand& o = k_.operands[i];
      if (o.frame != frame) continue;
      for (size_t d = 0; d < o.along.size(); ++d) {
        if (o.along[d] >= 0) strides[i * rank + o.along[d]] = at_.operands[i].strides[d];
      }
    }
    for (size_t i = 0; frame == 0 && i < c_.index_dims.size(); ++i) {
      strides[(k_.operands.size() + i) * rank + c_.index_dims[i]] = 1;
    }
    return strides;
  }

  // Merges the dims, given in the order in which they are walked.
  Walk MakeWalk(const int64_t* sizes, const std::vector<int64_t>& strides, uint32_t rank,
                const std::vector<uint32_t>& dims) const {
    Walk w;
    uint32_t lead[MYC_K_MAX_RANK] = {};  // the innermost of the dims merged
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

  // Outer dims have large strides, of the written operands above all.
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
    // No order in the strict sense, since some operands say nothing: insertion terminates all the same.
    for (size_t i = 1; i < dims->size(); ++i) {
      for (size_t j = i; j > 0 && outer((*dims)[j], (*dims)[j - 1]); --j) std::swap((*dims)[j], (*dims)[j - 1]);
    }
  }

  // So many values that the tile after this one begins at a cache line, whatever their width.
  static int64_t Aligned(int64_t values) { return (values + 63) / 64 * 64; }

  static int64_t Clamp(int64_t bytes, int64_t most) {
    return std::clamp(kTileMemory / std::max<int64_t>(bytes, 1) / 64 * 64, kMinTile, most);
  }

  void Map() {
    l_.order = &c_.along;
    l_.tile = Clamp(c_.along.tile_bytes, kMaxTile);
    const int64_t* sizes = at_.sizes;
    for (uint32_t f = 0; f < k_.frames.size(); ++f) {
      const uint32_t rank = k_.frames[f];
      const std::vector<int64_t> strides = FrameStrides(f);
      std::vector<uint32_t> dims;
      for (uint32_t d = 0; d < rank; ++d) {
        if (sizes[d] != 1) dims.push_back(d);
      }
      if (k_.frames.size() == 1) Sort(strides, rank, &dims);
      l_.walks.push_back(MakeWalk(sizes, strides, rank, dims));
      sizes += rank;
    }
    const Walk& w = l_.walks[0];
    l_.way = Way::kLine;
    l_.units = (w.points + l_.tile - 1) / l_.tile;
    l_.unit_cost = static_cast<double>(std::min(l_.tile, w.points)) * static_cast<double>(c_.cost);
    l_.fetches = w.points >= kFetchPoints;
    if (k_.frames.size() == 1 && w.rank >= 2 && w.points > 0) Block();
  }

  // How many of `size` go into a part so that there are as few parts as if each were `most`, and they are alike.
  static int64_t Part(int64_t size, int64_t most) {
    const int64_t parts = (size + most - 1) / most;
    return std::min(size, ((size + parts - 1) / parts + 15) / 16 * 16);
  }

  void Block() {
    const Walk& w = l_.walks[0];
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
    int64_t cols = Part(w.sizes[inner], l_.tile), rows = 1;
    if (crossed) {
      cols = Part(w.sizes[inner], l_.tile >= 1024 ? 64 : l_.tile >= 256 ? 32 : 16);
    }
    rows = std::min(w.sizes[row], std::max<int64_t>(1, l_.tile / cols));
    if (rows * cols < 64 && w.points > rows * cols) return;
    l_.way = Way::kBlock;
    l_.row_dim = row;
    l_.col_dim = inner;
    l_.rows = rows;
    l_.cols = cols;
    l_.row_blocks = (w.sizes[row] + rows - 1) / rows;
    l_.col_blocks = (w.sizes[inner] + cols - 1) / cols;
    l_.units = w.points / w.sizes[row] / w.sizes[inner] * l_.row_blocks * l_.col_blocks;
    l_.unit_cost = static_cast<double>(w.points) / static_cast<double>(l_.units) * static_cast<double>(c_.cost);
  }

  void Fold() {
    const uint32_t rank = k_.frames[0], kept = rank - k_.folded;
    const std::vector<int64_t> strides = FrameStrides(0);
    std::vector<uint32_t> kept_dims, folded_dims;
    for (uint32_t d = 0; d < rank; ++d) (d < kept ? kept_dims : folded_dims).push_back(d);
    l_.walks.push_back(MakeWalk(at_.sizes, strides, rank, kept_dims));
    // The order in which points are folded is free, that of an index's values is not asked for.
    Sort(strides, rank, &folded_dims);
    l_.walks.push_back(MakeWalk(at_.sizes, strides, rank, folded_dims));
    const Walk rows = l_.walks[0], points = l_.walks[1];
    const double total =
        static_cast<double>(rows.points) * static_cast<double>(points.points) * static_cast<double>(c_.cost);
    Walk both;
    both.rank = rows.rank + points.rank;
    std::copy_n(rows.sizes, rows.rank, both.sizes);
    std::copy_n(points.sizes, points.rank, both.sizes + rows.rank);
    both.points = rows.points * points.points;
    for (uint32_t i = 0; i < nops_; ++i) {
      for (const Walk* w : {&rows, &points}) {
        const int64_t* strides = w->strides.data() + static_cast<size_t>(i) * w->rank;
        both.strides.insert(both.strides.end(), strides, strides + w->rank);
      }
    }
    if (Lanes(rows, points)) {
      l_.way = Way::kLanes;
      const int64_t bytes = c_.lanes.tile_bytes + c_.row_bytes + c_.fold_bytes;
      l_.lanes = std::clamp(kTileMemory / bytes / 64 * 64, static_cast<int64_t>(64), kMaxLanes);
      // Enough tiles for all threads, if they don't get too narrow by that; but parts of all columns are read twice as
      // fast as all rows of a part of them.
      const bool parts =
          rows.points <= l_.lanes && points.points >= kLeastPart * threads_ && c_.lanes.passes.size() == 1;
      const int64_t share = (rows.points + threads_ - 1) / threads_;
      if (!parts) l_.lanes = std::min(l_.lanes, std::max<int64_t>(64, (share + 63) / 64 * 64));
      l_.lanes = std::max<int64_t>(1, std::min(l_.lanes, rows.points));
      if (rows.rank == 1 && points.rank > 0) {
        l_.repeats = std::clamp(Clamp(c_.lanes.tile_bytes, kMaxTile) / l_.lanes, static_cast<int64_t>(1),
                                points.sizes[points.rank - 1]);
      }
      l_.tile = Aligned(l_.lanes * l_.repeats);
      l_.units = (rows.points + l_.lanes - 1) / l_.lanes;
      l_.order = Fewer(c_.lanes, l_.lanes, points.points, kKeptBytes) ? &c_.lanes : &c_.lanes_anew;
    } else {
      l_.way = Way::kAlong;
      l_.tile = Clamp(c_.along.tile_bytes, kMaxTile);
      l_.units = rows.points;
      if (rows.rank > 0 && points.rank == 1 && points.points > 0) {
        const int64_t run = rows.sizes[rows.rank - 1];
        l_.repeats =
            std::min({Clamp(c_.along.tile_bytes, Shared(rows, points) ? kMaxTile : kMaxTogether) / points.points, run,
                      rows.points / threads_});
        l_.repeats = std::max<int64_t>(1, l_.repeats);
        if (l_.repeats > 1) {
          l_.lanes = l_.repeats;
          l_.tile = Aligned(l_.repeats * points.points);
          l_.units = rows.points / run * ((run + l_.repeats - 1) / l_.repeats);
        }
      }
      l_.order = Fewer(c_.along, l_.lanes, points.points, kKeptBytes) ? &c_.along : &c_.along_anew;
      if (Fewer(c_.along_near, l_.lanes, points.points, kNearBytes)) l_.order = &c_.along_near;
      // The first pass waits for memory, which the others leave idle.
      l_.fetches =
          c_.along.passes.size() > 1 && points.points <= kFetchFold && rows.points * points.points >= kFetchPoints;
    }
    l_.wide = l_.units > 0 && l_.units < ThreadsFor(total, threads_) && points.points > 0;
    if (l_.wide) {  // what a thread would keep is another's
      l_.order = l_.way == Way::kLanes ? &c_.lanes_anew : &c_.along_anew;
      l_.fetches = false;
    }
    l_.walks.push_back(std::move(both));
    l_.unit_cost = l_.units == 0 ? 1 : std::max(1.0, total / static_cast<double>(l_.units));
  }

  // Whether all kept points read the same folded points of an operand.
  bool Shared(const Walk& rows, const Walk& points) const {
    for (size_t i = 0; i < k_.operands.size(); ++i) {
      if (points.strides[i * points.rank] != 0 && rows.strides[i * rows.rank + rows.rank - 1] == 0) return true;
    }
    return false;
  }

  static bool Fewer(const Order& o, int64_t lanes, int64_t points, int64_t bytes) {
    return o.kept_bytes == 0 || points <= bytes / lanes / o.kept_bytes;
  }

  bool Lanes(const Walk& rows, const Walk& points) const {
    if (rows.points >= 16 && points.points <= kShortFold) return true;
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

  // A step may write straight into memory unless that is memory that a load still reads, or has read for a later step.
  void CheckDirect() {
    if (l_.order->passes.empty()) return;
    const Pass& pass = l_.order->passes.back();
    for (const StoreStep& s : pass.stores) {
      bool direct = s.made != kNone;
      for (size_t i = 0; direct && i < pass.steps.size(); ++i) {
        const Node& n = c_.nodes[pass.steps[i].node];
        if (n.op != MYC_K_LOAD || !Meet(s.operand, n.operand)) continue;
        direct = Alike(s.operand, n.operand) && pass.last[i] <= s.made;
      }
      l_.direct.push_back(direct);
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
    if (x.frame != y.frame || x.dtype != y.dtype || at_.operands[a].data != at_.operands[b].data) return false;
    for (const Walk& w : l_.walks) {
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
  Launch& l_;
  uint32_t nops_ = 0;
};

}  // namespace

int ThreadsFor(double cost, int most) {
  return std::max(1, static_cast<int>(std::min(static_cast<double>(most), cost / kGrain)));
}

void Prepare(const Kernel& kernel, const KernelInstance& at, int threads, Launch* out) {
  Preparer(kernel, at, threads, out)();
}

}  // namespace mycelya::exec::kernel
