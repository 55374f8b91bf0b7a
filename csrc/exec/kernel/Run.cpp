// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Runs tile programs. A worker is one thread's memory and pointers; what it does is cut into units that don't depend on
// each other, or, where a fold has too few of them, into parts of the folded points, whose results are folded in order.
#include <ATen/Parallel.h>
#include <ATen/Version.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <thread>

#include "exec/kernel/Launch.h"
#include "exec/kernel/Spot.h"

namespace mycelya::exec {
namespace kernel {
namespace {

// Calls fn(begin, end) on ATen's threads for parts of 0 to n. ThreadSanitizer doesn't see what libgomp's threads wait
// for: for it the threads are the standard library's.
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

class Worker {
 public:
  explicit Worker(const Kernel& k)
      : k_(k),
        c_(*k.code),
        tiles_(TilesOfThisCpu()),
        reg_(c_.nodes.size() + 1),
        base_(k.operands.size() + c_.index_dims.size()) {
    spots_.resize(std::max<size_t>(k.frames.size(), 2));
    for (const KernelOperand& o : k.operands) {
      const bool exact =
          o.dtype == c10::ScalarType::Float || o.dtype == c10::ScalarType::Double || o.dtype == c10::ScalarType::Long;
      moves_.push_back({tiles_.load(o.dtype), tiles_.store(o.dtype), static_cast<int64_t>(c10::elementSize(o.dtype)),
                        ClassBytes(ClassOfDtype(o.dtype)), exact, 0});
    }
  }

  void Bind(const Launch& l) {
    l_ = &l;
    o_ = l.order;
    lanes_ = l.lanes;
    const int64_t kept_points = k_.folded == 0 ? 0 : l.walks[1].points * lanes_;
    const auto round = [](int64_t n) { return (n + 63) / 64 * 64; };
    const int64_t uniforms = round(static_cast<int64_t>(c_.nodes.size()) * 8), rows = round(c_.row_bytes * lanes_),
                  folds = round(c_.fold_bytes * lanes_), tiles = round(o_->tile_bytes * l.tile),
                  pairs = l.way == Way::kLanes && l.repeats > 1 ? round(l.tile / 2 * 8) : 0,
                  kept = round(o_->kept_bytes * kept_points);
    char* p = memory_.Get(static_cast<size_t>(uniforms + rows + folds + tiles + pairs + kept));
    kept_points_ = kept_points;
    uniforms_ = p;
    rows_ = p += uniforms;
    folds_ = p += rows;
    tiles_at_ = p += folds;
    pairs_ = p += tiles;
    kept_ = p + pairs;
    std::fill(base_.begin(), base_.end(), 0);
    for (size_t i = 0; i < c_.nodes.size(); ++i) {
      reg_[i] = c_.nodes[i].level == Level::kRow ? rows_ + c_.row_offsets[i] * lanes_ : uniforms_ + i * 8;
    }
    reg_.back() = nullptr;
    for (const Step& s : c_.uniforms) Uniform(s);
    Places();
  }

  // A unit from begin to end.
  void RunUnit(int64_t unit) {
    if (k_.folded == 0) {
      if (o_->passes.empty()) return;
      RunSteps(0, SpotOfMap(unit), 1);
      NextRound();
      return;
    }
    StartUnit(unit);
    for (size_t i = 0; i < o_->passes.size(); ++i) {
      const Pass& pass = o_->passes[i];
      Rows(pass);
      StartFolds(pass);
      RunPass(i, 0, l_->walks[1].points);
      Finish(pass);
    }
    End();
    NextRound();
  }

  // The parts of a unit of a fold.
  void StartUnit(int64_t unit) {
    const Walk& kept = l_->walks[0];
    if (l_->way == Way::kLanes) {
      std::fill(base_.begin(), base_.end(), 0);
      const int64_t p = unit * lanes_;
      n_ = std::min(lanes_, kept.points - p);
      spots_[0].Line(&kept, p, n_);
      return;
    }
    if (l_->repeats > 1) {
      const int64_t run = kept.sizes[kept.rank - 1], blocks = (run + lanes_ - 1) / lanes_, at = unit % blocks * lanes_;
      n_ = std::min(lanes_, run - at);
      spots_[0].Line(&kept, unit / blocks * run + at, n_);
      return;
    }
    n_ = 1;
    int64_t at[MYC_K_MAX_RANK];
    spots_[0].walk = &kept;
    spots_[0].Decode(unit, at);
    const int64_t* strides = kept.strides.data();
    for (int64_t& base : base_) {
      base = 0;
      for (uint32_t d = 0; d < kept.rank; ++d) base += at[d] * *strides++;
    }
  }
  void Rows(const Pass& pass) {
    for (const Step& s : pass.rows) {
      if (s.fn == nullptr) {
        ReadRow(s);
      } else {
        Call(s, n_, 1);
      }
    }
  }
  void StartFolds(const Pass& pass) {
    for (const FoldStep& f : pass.folds) f.fill(Sums(f), &f.start, nullptr, nullptr, n_);
  }
  void RunPass(size_t pass, int64_t begin, int64_t end) {
    const Walk& points = l_->walks[1];
    if (l_->way == Way::kAlong && l_->repeats > 1) {
      Rectangle(points.points, n_, l_->walks[0].rank, l_->walks[0].rank - 1);
      Keep(0);
      RunSteps(pass, points.points, n_);
      return;
    }
    if (l_->way == Way::kAlong) {
      for (int64_t p = begin; p < end; p += l_->tile) {
        const int64_t n = std::min(l_->tile, end - p);
        spots_[1].Line(&points, p, n);
        Keep(p);
        RunSteps(pass, n, 1);
      }
      return;
    }
    int64_t at[MYC_K_MAX_RANK] = {};
    spots_[1].walk = &points;
    if (begin < end) spots_[1].Decode(begin, at);
    int64_t m = 1;
    for (int64_t p = begin; p < end; p += m) {
      if (l_->repeats > 1) {
        const uint32_t last = points.rank - 1;
        m = std::min({l_->repeats, end - p, points.sizes[last] - at[last]});
        Rectangle(n_, m, 0, points.rank);
        std::copy_n(at, points.rank, spots_[1].parts[0].at + 1);
      } else {
        for (size_t i = 0; i < base_.size(); ++i) {
          int64_t offset = 0;
          for (uint32_t d = 0; d < points.rank; ++d) offset += at[d] * points.strides[i * points.rank + d];
          base_[i] = offset;
        }
      }
      Keep(p * lanes_);
      RunSteps(pass, n_, m);
      for (int d = static_cast<int>(points.rank) - 1; d >= 0; --d) {
        at[d] += d == static_cast<int>(points.rank) - 1 ? m : 1;
        if (at[d] < points.sizes[d] || d == 0) break;
        at[d] = 0;
      }
    }
    std::fill(base_.begin(), base_.end(), 0);
  }
  void Merge(const Pass& pass, const Worker& other) {
    for (const FoldStep& f : pass.folds) f.merge(Sums(f), Sums(f), other.Sums(f), nullptr, n_);
  }
  void Finish(const Pass& pass) {
    for (const FoldStep& f : pass.folds) f.finish(reg_[f.node], Sums(f), nullptr, nullptr, n_);
  }
  void End() {
    Rows(o_->end);
    for (const StoreStep& s : o_->end.stores) Write(s.operand, reg_[s.from], spots_[0], OneRow());
  }
  void TakeRows(const Worker& other) { std::memcpy(rows_, other.rows_, static_cast<size_t>(c_.row_bytes * lanes_)); }

 private:
  // How an operand's elements go between memory and tiles.
  struct Moves {
    MoveFn load, store;
    int64_t bytes, width;  // of an element in memory, in a tile
    bool exact;            // a tile is as memory is
    int64_t two_on;        // from what a unit has to what the one after the next has, bytes; 0: not fetched ahead
  };
  struct Stream {
    const char *next, *end;
    int64_t part;  // with each step
  };

  char* Sums(const FoldStep& f) const { return folds_ + f.at * lanes_; }

  // On m rows of n values.
  void Call(const Step& s, int64_t n, int64_t m) {
    if (m == 1 || !s.of_row) return s.fn(reg_[s.node], reg_[s.from[0]], reg_[s.from[1]], reg_[s.from[2]], n * m);
    const char* from[3];
    int64_t step[3];
    for (int i = 0; i < 3; ++i) {
      from[i] = reg_[s.from[i]];
      step[i] = from[i] == nullptr ? 0 : StepOf(c_.nodes[s.from[i]], n);
    }
    char* to = reg_[s.node];
    const int64_t width = StepOf(c_.nodes[s.node], n);
    for (int64_t i = 0; i < m; ++i) {
      s.fn(to, from[0], from[1], from[2], n);
      to += width;
      for (int j = 0; j < 3; ++j) from[j] += step[j];
    }
  }
  // From a row of a tile to the next one, in bytes.
  int64_t StepOf(const Node& n, int64_t values) const {
    if (n.level == Level::kElement) return values * ClassBytes(n.cls);
    return n.level == Level::kRow && l_->way == Way::kAlong ? ClassBytes(n.cls) : 0;
  }
  void Fold(const FoldStep& f, int64_t n, int64_t m) {
    char* to = Sums(f);
    const char* from = reg_[f.from];
    const int64_t width = n * ClassBytes(c_.nodes[f.from].cls);
    if (l_->way == Way::kAlong) {
      for (int64_t i = 0; i < m; ++i) f.fold(to + i * f.bytes, from + i * width, nullptr, nullptr, n);
      return;
    }
    // Lanes: one half of the rows with the other, until one is left.
    while (m > 1) {
      const int64_t half = m / 2;
      if (m % 2 != 0) f.fold(to, from + (m - 1) * width, nullptr, nullptr, n);
      f.pair(pairs_, from, from + half * width, nullptr, half * n);
      from = pairs_;
      m = half;
    }
    f.fold(to, from, nullptr, nullptr, n);
  }

  void Uniform(const Step& s) {
    const Node& n = c_.nodes[s.node];
    switch (n.op) {
      case MYC_K_LOAD:
        moves_[n.operand].load(reg_[s.node], l_->at->operands[n.operand].data, 1, 1, 1, 1);
        return;
      case MYC_K_NUMBER: {
        const KernelNumber& v = l_->at->numbers[n.bits];
        return v.integral ? Put(s.node, v.whole) : Put(s.node, v.real);
      }
      case MYC_K_CONST:
        return n.cls == MYC_K_F32 || n.cls == MYC_K_F64 ? Put(s.node, std::bit_cast<double>(n.bits))
                                                        : Put(s.node, static_cast<int64_t>(n.bits));
      case MYC_K_COUNT:
        return Put(s.node, l_->walks[1].points);
      default:
        Call(s, 1, 1);
    }
  }
  template <class T>
  void Put(uint32_t node, T v) {
    const auto put = [this, node](auto value) { std::memcpy(reg_[node], &value, sizeof value); };
    switch (c_.nodes[node].cls) {
      case MYC_K_F32:
        return put(static_cast<float>(v));
      case MYC_K_F64:
        return put(static_cast<double>(v));
      case MYC_K_I64:
        return put(Whole(v));
      default:
        return put(static_cast<uint8_t>(v != 0));
    }
  }
  static int64_t Whole(int64_t v) { return v; }
  static int64_t Whole(double v) {  // what doesn't fit is what x86 makes of it
    return v >= -0x1p63 && v < 0x1p63 ? static_cast<int64_t>(v) : std::numeric_limits<int64_t>::min();
  }

  // Where the tiles of the steps are, null for those that are kept, and which way operands go from unit to unit.
  void Places() {
    slots_.clear();
    slots_of_.clear();
    steps_ = 0;
    for (const Pass& pass : o_->passes) {
      slots_of_.push_back(slots_.size());
      for (const uint32_t at : pass.offsets) slots_.push_back(at == kNone ? nullptr : tiles_at_ + at * l_->tile);
      steps_ += static_cast<int64_t>(pass.steps.size());
    }
    const Walk& w = l_->walks[0];
    for (size_t i = 0; l_->fetches && i < moves_.size(); ++i) {
      int64_t next = l_->way == Way::kBlock ? l_->rows * l_->cols : l_->tile;
      if (l_->way == Way::kAlong) next = w.rank == 0 ? 0 : w.strides[i * w.rank + w.rank - 1] * l_->repeats;
      moves_[i].two_on = 2 * next * moves_[i].bytes;
    }
    if (l_->way == Way::kAlong) steps_ *= (l_->walks[1].points + l_->tile - 1) / l_->tile;
    for (auto& s : streams_) s.clear();
  }
  void Keep(int64_t point) {
    for (size_t i = 0; i < o_->kept.size(); ++i) {
      const uint32_t node = o_->kept[i];
      reg_[node] = kept_ + o_->kept_offsets[i] * kept_points_ + point * ClassBytes(c_.nodes[node].cls);
    }
  }

  int64_t SpotOfMap(int64_t unit) {
    if (l_->way == Way::kLine) {
      const int64_t p = unit * l_->tile, n = std::min(l_->tile, l_->walks[0].points - p);
      for (size_t f = 0; f < l_->walks.size(); ++f) spots_[f].Line(&l_->walks[f], p, n);
      return n;
    }
    const Walk& w = l_->walks[0];
    Spot& s = spots_[0];
    s.walk = &w;
    s.d0 = static_cast<int>(l_->col_dim);
    s.d1 = static_cast<int>(l_->row_dim);
    s.parts.resize(1);
    Part& part = s.parts[0];
    const int64_t col = unit % l_->col_blocks * l_->cols;
    unit /= l_->col_blocks;
    const int64_t row = unit % l_->row_blocks * l_->rows;
    unit /= l_->row_blocks;
    for (int d = static_cast<int>(w.rank) - 1; d >= 0; --d) {
      part.at[d] = 0;
      if (d == s.d0 || d == s.d1) continue;
      part.at[d] = unit % w.sizes[d];
      unit /= w.sizes[d];
    }
    part.at[s.d0] = col;
    part.at[s.d1] = row;
    part.n0 = std::min(l_->cols, w.sizes[s.d0] - col);
    part.n1 = std::min(l_->rows, w.sizes[s.d1] - row);
    return part.n0 * part.n1;
  }

  // One rectangle of an operand, its dims merged if they can be.
  struct Area {
    int64_t offset, n0, s0, n1, s1;
    bool Dense() const { return n1 == 1 && (s0 == 1 || n0 == 1); }
  };
  Area AreaOf(uint32_t operand, const Spot& spot, const Part& part) const {
    const Walk& w = *spot.walk;
    const int64_t* strides = w.strides.data() + static_cast<size_t>(operand) * w.rank;
    Area r{base_[operand], part.n0, spot.d0 < 0 ? 0 : strides[spot.d0], part.n1, spot.d1 < 0 ? 0 : strides[spot.d1]};
    for (uint32_t d = 0; d < w.rank; ++d) r.offset += part.at[d] * strides[d];
    if (r.n0 == 1) {
      r.n0 = r.n1;
      r.s0 = r.s1;
      r.n1 = 1;
    }
    if (r.n1 != 1 && r.s1 == r.n0 * r.s0) {
      r.n0 *= r.n1;
      r.n1 = 1;
    }
    return r;
  }

  bool OneRow() const { return l_->way == Way::kAlong && l_->repeats == 1; }

  // The tile's points as rows of n0 points along dim d0 of both walks and n1 along d1, from the unit's first kept
  // point.
  void Rectangle(int64_t n0, int64_t n1, uint32_t d0, uint32_t d1) {
    Spot& s = spots_[1];
    s.walk = &l_->walks[2];
    s.d0 = static_cast<int>(d0);
    s.d1 = static_cast<int>(d1);
    s.parts.resize(1);
    s.parts[0].n0 = n0;
    s.parts[0].n1 = n1;
    std::fill_n(s.parts[0].at, s.walk->rank, 0);
    std::copy_n(spots_[0].parts[0].at, l_->walks[0].rank, s.parts[0].at);
  }

  const Spot& SpotOf(uint32_t operand) const {
    if (l_->way == Way::kLanes) return spots_[l_->repeats > 1 ? 1 : 0];
    if (l_->way == Way::kAlong) return spots_[1];
    return operand < k_.operands.size() ? spots_[k_.operands[operand].frame] : spots_[0];
  }

  // Reads a tile into `slot`, or returns where it lies if it can stay there.
  char* Read(uint32_t operand, const Spot& spot, bool may_stay, char* slot) {
    char* to = slot;
    if (operand >= k_.operands.size()) {
      for (const Part& part : spot.parts) {
        const Area r = AreaOf(operand, spot, part);
        tiles_.index(to, &r.offset, r.n0, r.s0, r.n1, r.s1);
        to += part.n0 * part.n1 * 8;
      }
      return slot;
    }
    const Moves& m = moves_[operand];
    char* data = l_->at->operands[operand].data;
    for (const Part& part : spot.parts) {
      const Area r = AreaOf(operand, spot, part);
      char* from = data + r.offset * m.bytes;
      if (spot.parts.size() == 1 && r.Dense()) {
        Follow(m, from, r.n0);
        if (may_stay && m.exact) return from;
      }
      m.load(to, from, r.n0, r.s0, r.n1, r.s1);
      to += part.n0 * part.n1 * m.width;
    }
    return slot;
  }

  void ReadRow(const Step& s) {
    const Node& n = c_.nodes[s.node];
    if (!OneRow()) {
      Read(n.operand, spots_[0], false, reg_[s.node]);
    } else if (n.operand >= k_.operands.size()) {
      std::memcpy(reg_[s.node], &base_[n.operand], 8);
    } else {
      const Moves& m = moves_[n.operand];
      m.load(reg_[s.node], l_->at->operands[n.operand].data + base_[n.operand] * m.bytes, 1, 1, 1, 1);
    }
  }

  void Write(uint32_t operand, const char* from, const Spot& spot, bool one) {
    const Moves& m = moves_[operand];
    char* data = l_->at->operands[operand].data;
    if (one) {
      m.store(data + base_[operand] * m.bytes, from, 1, 1, 1, 1);
      return;
    }
    for (const Part& part : spot.parts) {
      const Area r = AreaOf(operand, spot, part);
      m.store(data + r.offset * m.bytes, from, r.n0, r.s0, r.n1, r.s1);
      from += part.n0 * part.n1 * m.width;
    }
  }

  // Where a store's tile lies in memory, or null if it isn't dense there.
  char* DirectAt(uint32_t operand) {
    const Spot& spot = SpotOf(operand);
    if (spot.parts.size() != 1) return nullptr;
    const Area r = AreaOf(operand, spot, spot.parts[0]);
    if (!r.Dense()) return nullptr;
    const Moves& m = moves_[operand];
    char* at = l_->at->operands[operand].data + r.offset * m.bytes;
    Follow(m, at, r.n0);
    return at;
  }

  // While a unit is computed, which needs no memory, a part of what the next one reads and writes is fetched with each
  // step. Inline, for compilers drop calls of a function that does nothing else.
  __attribute__((always_inline)) void FetchAhead() {
    for (Stream& s : streams_[now_]) {
      const int64_t part = std::min<int64_t>(s.part, s.end - s.next);
      for (int64_t at = 0; at < part; at += 64) __builtin_prefetch(s.next + at, 0, 2);
      s.next += part;
    }
  }
  void Follow(const Moves& m, const char* at, int64_t n) {
    if (!l_->fetches || m.two_on == 0) return;
    std::vector<Stream>& found = streams_[1 - now_];
    const char* next = at + m.two_on;
    if (!found.empty() && found.back().end == next) {
      found.back().end += n * m.bytes;
    } else {
      found.push_back({next, next + n * m.bytes, 0});
    }
  }
  void NextRound() {
    streams_[now_].clear();
    now_ = 1 - now_;
    for (Stream& s : streams_[now_]) s.part = ((s.end - s.next) / steps_ + 63) / 64 * 64;
  }

  // Tiles of m rows of n values.
  void RunSteps(size_t index, int64_t n, int64_t m) {
    const Pass& pass = o_->passes[index];
    char* const* slots = slots_.data() + slots_of_[index];
    for (size_t i = 0; i < pass.steps.size(); ++i) {
      if (slots[i] != nullptr) reg_[pass.steps[i].node] = slots[i];
    }
    for (size_t i = 0; i < pass.stores.size(); ++i) {
      const StoreStep& s = pass.stores[i];
      if (s.made == kNone || l_->direct[i] == 0) continue;
      if (char* at = DirectAt(s.operand)) reg_[s.from] = at;
    }
    const FoldStep* fold = pass.folds.data();
    const FoldStep* const folds_end = fold + pass.folds.size();
    for (uint32_t i = 0; i < pass.steps.size(); ++i) {
      const Step& s = pass.steps[i];
      if (s.fn != nullptr) {
        Call(s, n, m);
      } else {
        char* to = reg_[s.node];
        const uint32_t operand = c_.nodes[s.node].operand;
        reg_[s.node] = Read(operand, SpotOf(operand), slots[i] != nullptr && !s.copied, to);
      }
      FetchAhead();
      for (; fold != folds_end && fold->after == i; ++fold) Fold(*fold, n, m);
    }
    for (; fold != folds_end; ++fold) Fold(*fold, n, m);
    for (size_t i = 0; i < pass.stores.size(); ++i) {
      const StoreStep& s = pass.stores[i];
      const bool done = s.made != kNone && l_->direct[i] != 0 && reg_[s.from] != slots[s.made];
      if (!done) Write(s.operand, reg_[s.from], SpotOf(s.operand), false);
    }
  }

  const Kernel& k_;
  const Kernel::Code& c_;
  const Tiles& tiles_;
  std::vector<Moves> moves_;
  std::vector<char*> slots_;        // by pass and step
  std::vector<size_t> slots_of_;    // by pass
  std::vector<Stream> streams_[2];  // now_: what is fetched, found in the unit before; the other: found in this one
  int now_ = 0;
  int64_t steps_ = 0;  // of a unit
  const Launch* l_ = nullptr;
  const Order* o_ = nullptr;
  Memory memory_;
  std::vector<char*> reg_;     // by node: where its value or tile is
  std::vector<int64_t> base_;  // by operand: offset of the spot's origin, in elements
  std::vector<Spot> spots_;    // of a map: by frame; of a fold: kept, folded
  int64_t lanes_ = 1, n_ = 1, kept_points_ = 0;
  char *uniforms_ = nullptr, *rows_ = nullptr, *folds_ = nullptr, *tiles_at_ = nullptr, *pairs_ = nullptr,
       *kept_ = nullptr;
};

void RunWide(const Kernel& kernel, const Launch& l, int threads) {
  std::vector<std::unique_ptr<Worker>> workers;
  for (int t = 0; t < threads; ++t) {
    workers.push_back(std::make_unique<Worker>(kernel));
    workers.back()->Bind(l);
  }
  const int64_t points = l.walks[1].points;
  int64_t part = (points + threads - 1) / threads;
  if (l.way == Way::kAlong) part = (part + 63) / 64 * 64;  // tiles begin at cache lines
  for (int64_t unit = 0; unit < l.units; ++unit) {
    for (const auto& w : workers) w->StartUnit(unit);
    for (size_t i = 0; i < l.order->passes.size(); ++i) {
      const Pass& pass = l.order->passes[i];
      workers[0]->Rows(pass);
      for (int t = 1; t < threads; ++t) workers[t]->TakeRows(*workers[0]);
      OnThreads(threads, [&](int begin, int end) {
        for (int t = begin; t < end; ++t) {
          workers[t]->StartFolds(pass);
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
  std::vector<Launch> launches(instances.size());
  std::vector<double> starts;  // in cost, of those that are cut by units
  std::vector<const Launch*> cut;
  double total = 0;
  for (size_t i = 0; i < instances.size(); ++i) {
    Launch& l = launches[i];
    Prepare(kernel, instances[i], all, &l);
    const double cost = l.unit_cost * static_cast<double>(l.units);
    if (l.wide) {
      RunWide(kernel, l, ThreadsFor(cost, all));
      continue;
    }
    cut.push_back(&l);
    starts.push_back(total);
    total += cost;
  }
  if (cut.empty()) return;
  const int threads = ThreadsFor(total, all);
  OnThreads(threads, [&](int begin, int end) {
    Worker worker(kernel);
    const double from = total * begin / threads, to = total * end / threads;
    for (size_t i = 0; i < cut.size(); ++i) {
      const Launch& l = *cut[i];
      // The same sum for the end of one thread's units and the start of the next one's.
      const auto unit = [&](double at) {
        return std::clamp(static_cast<int64_t>(std::ceil((at - starts[i]) / l.unit_cost)), static_cast<int64_t>(0),
                          l.units);
      };
      const int64_t first = begin == 0 ? 0 : unit(from), last = end == threads ? l.units : unit(to);
      if (first >= last) continue;
      worker.Bind(l);
      for (int64_t u = first; u < last; ++u) worker.RunUnit(u);
    }
  });
}

}  // namespace mycelya::exec
