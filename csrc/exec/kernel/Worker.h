// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// A worker runs units of a kernel on one thread: its memory, and the addresses of values, tiles and operands. Part of
// Run.cpp, so that its functions are inlined.
#ifndef MYCELYA_EXEC_KERNEL_WORKER_H_
#define MYCELYA_EXEC_KERNEL_WORKER_H_

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <vector>

#include "abi/mycelya.h"
#include "exec/kernel/Moves.h"
#include "exec/kernel/Prefetch.h"
#include "exec/kernel/Region.h"
#include "exec/kernel/Traversal.h"

namespace mycelya::exec::kernel {
namespace {

class Worker {
 public:
  explicit Worker(const Kernel& k)
      : k_(k),
        c_(*k.code),
        tiles_(TilesOfThisCpu()),
        reg_(c_.nodes.size() + 1),
        base_(k.operands.size() + c_.index_dims.size()) {
    regions_.resize(std::max<size_t>(k.spaces.size(), 2));
    for (const KernelOperand& o : k.operands) moves_.emplace_back(tiles_, o.dtype);
  }

  void Bind(const Traversal& traversal) {
    t_ = &traversal;
    schedule_ = traversal.schedule;
    lanes_ = traversal.lanes;
    const int64_t kept_points = k_.reduced == 0 ? 0 : traversal.spaces[1].points * lanes_;
    const auto round = [](int64_t n) { return (n + 63) / 64 * 64; };
    const int64_t uniforms = round(static_cast<int64_t>(c_.nodes.size()) * 8), rows = round(c_.row_bytes * lanes_),
                  reductions = round(c_.accumulator_bytes * lanes_),
                  tiles = round(schedule_->tile_bytes * traversal.tile),
                  pairs = traversal.loop_order == LoopOrder::kLanes && traversal.repeats > 1
                              ? round(traversal.tile / 2 * 8)
                              : 0,
                  kept = round(schedule_->kept_bytes * kept_points),
                  takes = c_.takes ? round(8 * std::max(traversal.tile, lanes_)) : 0;
    char* p = memory_.Get(static_cast<size_t>(uniforms + rows + reductions + tiles + pairs + kept + takes));
    kept_points_ = kept_points;
    uniforms_ = p;
    rows_ = p += uniforms;
    accumulators_ = p += rows;
    tiles_at_ = p += reductions;
    pairs_ = p += tiles;
    kept_ = p += pairs;
    takes_ = reinterpret_cast<int64_t*>(p + kept);
    std::fill(base_.begin(), base_.end(), 0);
    for (size_t i = 0; i < c_.nodes.size(); ++i) {
      reg_[i] = c_.nodes[i].level == Level::kRow ? rows_ + c_.row_offsets[i] * lanes_ : uniforms_ + i * 8;
    }
    reg_.back() = nullptr;
    for (const Step& s : c_.uniforms) Uniform(s);
    SetAddresses();
  }

  // Runs all passes of a unit.
  void RunUnit(int64_t unit) {
    if (k_.reduced == 0) {
      if (schedule_->passes.empty()) return;
      RunSteps(0, RegionOfMap(unit), 1);
      ahead_.NextUnit();
      return;
    }
    StartUnit(unit);
    for (size_t i = 0; i < schedule_->passes.size(); ++i) {
      const Pass& pass = schedule_->passes[i];
      Rows(pass);
      StartReductions(pass);
      RunPass(i, 0, t_->spaces[1].points);
      Finish(pass);
    }
    End();
    ahead_.NextUnit();
  }

  // The stages of a unit of a reduction, also called by RunWide.
  void StartUnit(int64_t unit) {
    const Space& kept = t_->spaces[0];
    if (t_->loop_order == LoopOrder::kLanes) {
      std::fill(base_.begin(), base_.end(), 0);
      const int64_t p = unit * lanes_;
      n_ = std::min(lanes_, kept.points - p);
      regions_[0].Line(&kept, p, n_);
      return;
    }
    if (t_->repeats > 1) {
      const int64_t run = kept.sizes[kept.rank - 1], blocks = (run + lanes_ - 1) / lanes_, at = unit % blocks * lanes_;
      n_ = std::min(lanes_, run - at);
      regions_[0].Line(&kept, unit / blocks * run + at, n_);
      return;
    }
    n_ = 1;
    int64_t at[MYC_K_MAX_RANK];
    regions_[0].space = &kept;
    regions_[0].Decode(unit, at);
    const int64_t* strides = kept.strides.data();
    for (int64_t& base : base_) {
      base = 0;
      for (uint32_t d = 0; d < kept.rank; ++d) base += at[d] * *strides++;
    }
  }
  void Rows(const Pass& pass) {
    for (const Step& s : pass.rows) {
      if (s.point != kNone) {
        ReduceAtPoint(schedule_->points[s.point]);
      } else if (s.fn == nullptr) {
        ReadRow(s);
      } else {
        Call(s, n_, 1);
      }
    }
  }
  void StartReductions(const Pass& pass) {
    for (const ReduceStep& f : pass.reductions) f.fill(AccumulatorOf(f), &f.start, nullptr, nullptr, n_);
  }
  void RunPass(size_t pass, int64_t begin, int64_t end) {
    const Space& points = t_->spaces[1];
    const Pass& steps = schedule_->passes[pass];
    if (steps.reductions.empty() && steps.stores.empty()) return;  // it only computes row values
    first_ = 0;
    if (t_->loop_order == LoopOrder::kAlong && t_->repeats > 1) {
      Rectangle(points.points, n_, t_->spaces[0].rank, t_->spaces[0].rank - 1);
      Keep(0);
      RunSteps(pass, points.points, n_);
      return;
    }
    if (t_->loop_order == LoopOrder::kAlong) {
      for (int64_t p = begin; p < end; p += t_->tile) {
        const int64_t n = std::min(t_->tile, end - p);
        regions_[1].Line(&points, p, n);
        first_ = p;
        Keep(p);
        RunSteps(pass, n, 1);
      }
      return;
    }
    int64_t at[MYC_K_MAX_RANK] = {};
    regions_[1].space = &points;
    if (begin < end) regions_[1].Decode(begin, at);
    int64_t m = 1;
    for (int64_t p = begin; p < end; p += m) {
      if (t_->repeats > 1) {
        const uint32_t last = points.rank - 1;
        m = std::min({t_->repeats, end - p, points.sizes[last] - at[last]});
        Rectangle(n_, m, 0, points.rank);
        std::copy_n(at, points.rank, regions_[1].parts[0].at + 1);
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
    for (const ReduceStep& f : pass.reductions)
      f.merge(AccumulatorOf(f), AccumulatorOf(f), other.AccumulatorOf(f), nullptr, n_);
  }
  void Finish(const Pass& pass) {
    for (const ReduceStep& f : pass.reductions) f.finish(reg_[f.node], AccumulatorOf(f), nullptr, nullptr, n_);
  }
  void End() {
    Rows(schedule_->end);
    for (const StoreStep& s : schedule_->end.stores) Write(s.operand, reg_[s.from], regions_[0], OneRow());
  }
  void TakeRows(const Worker& other) { std::memcpy(rows_, other.rows_, static_cast<size_t>(c_.row_bytes * lanes_)); }

 private:
  char* AccumulatorOf(const ReduceStep& f) const { return accumulators_ + f.at * lanes_; }

  // Runs a step on m rows of n values.
  void Call(const Step& s, int64_t n, int64_t m) {
    if (s.has_spot) return CallWithSpot(s, n, m);
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
  // Bytes from a row of a tile to the next row.
  int64_t StepOf(const Node& n, int64_t values) const {
    if (n.level == Level::kElement) return values * ClassBytes(n.cls);
    return n.level == Level::kRow && t_->loop_order == LoopOrder::kAlong ? ClassBytes(n.cls) : 0;
  }
  // A node's value, or its n values, in row i of a tile.
  char* OfRow(uint32_t node, int64_t i, int64_t n) const { return reg_[node] + i * StepOf(c_.nodes[node], n); }

  // A WHERE whose condition holds at one point of a row at most.
  void CallWithSpot(const Step& s, int64_t n, int64_t m) {
    const Node& node = c_.nodes[s.node];
    const int64_t width = ClassBytes(node.cls);
    for (int64_t i = 0; i < m; ++i) {
      int64_t at = 0;
      std::memcpy(&at, OfRow(node.spot, i, n), sizeof at);
      const bool here = at >= first_ && at - first_ < n && (node.only == kNone || *OfRow(node.only, i, n) != 0);
      int64_t value = 0;  // read first, because the result may replace it
      if (here) {
        const bool tile = c_.nodes[s.from[1]].level == Level::kElement;
        std::memcpy(&value, OfRow(s.from[1], i, n) + (tile ? (at - first_) * width : 0), static_cast<size_t>(width));
      }
      char* to = OfRow(s.node, i, n);
      s.fn(to, OfRow(s.from[2], i, n), nullptr, nullptr, n);
      if (here) std::memcpy(to + (at - first_) * width, &value, static_cast<size_t>(width));
    }
  }

  // Computes a reduction of each row of the unit at one point. Element values are where uniform values would be.
  void ReduceAtPoint(const PointStep& p) {
    const auto value = [this](uint32_t node, int64_t i) {
      if (node >= c_.nodes.size()) return static_cast<char*>(nullptr);
      return c_.nodes[node].level == Level::kElement ? uniforms_ + static_cast<int64_t>(node) * 8 : OfRow(node, i, 1);
    };
    const ReduceStep& f = p.reduction;
    for (int64_t i = 0; i < n_; ++i) {
      int64_t at = 0;
      std::memcpy(&at, OfRow(p.spot, i, 1), sizeof at);
      alignas(8) char accumulator[8];
      f.fill(accumulator, &f.start, nullptr, nullptr, 1);
      if (at >= 0 && at < t_->spaces[1].points) {
        for (const Step& s : p.steps) {
          if (s.fn == nullptr) {
            LoadPoint(s, i, at, value(s.from[0], i), value(s.node, i));
          } else {
            s.fn(value(s.node, i), value(s.from[0], i), value(s.from[1], i), value(s.from[2], i), 1);
          }
        }
        f.reduce(accumulator, value(f.from, i), nullptr, nullptr, 1);
      }
      f.finish(OfRow(f.node, i, 1), accumulator, nullptr, nullptr, 1);
    }
  }
  // Loads or takes the element of an operand at row i of the unit and index `at` of the reduced dim.
  void LoadPoint(const Step& s, int64_t i, int64_t at, const char* position, char* to) const {
    const uint32_t operand = c_.nodes[s.node].operand;
    const Space &kept = t_->spaces[0], &points = t_->spaces[1];
    int64_t offset = base_[operand];
    for (uint32_t d = 0; !OneRow() && d < kept.rank; ++d) {
      const int64_t point = regions_[0].parts[0].at[d] + (d + 1 == kept.rank ? i : 0);
      offset += point * kept.strides[operand * kept.rank + d];
    }
    if (points.rank > 0) offset += at * points.strides[operand];
    if (operand >= moves_.size()) {
      std::memcpy(to, &offset, sizeof offset);
      return;
    }
    LoadOne(c_.nodes[s.node], offset, position, to);
  }
  void LoadOne(const Node& n, int64_t offset, const char* position, char* to) const {
    if (n.op == MYC_K_TAKE) offset += Shift(n.operand, position);
    const Moves& m = moves_[n.operand];
    m.load(to, t_->at->operands[n.operand].data + offset * m.bytes, 1, 1, 1, 1);
  }

  // The offset of a position along the dim of an operand from which a TAKE takes.
  int64_t Shift(uint32_t operand, const char* position) const {
    const KernelOperandAt& at = t_->at->operands[operand];
    const int d = k_.operands[operand].taken;
    int64_t p = 0;
    std::memcpy(&p, position, sizeof p);
    return std::clamp<int64_t>(p, 0, at.sizes[d] - 1) * at.strides[d];
  }
  // A TAKE at one position for each row of n values, or for all: loads at another offset.
  C10_NOINLINE void TakeOfRows(const Step& s, const Region& region, int64_t n) {
    const uint32_t operand = c_.nodes[s.node].operand;
    const Moves& m = moves_[operand];
    int64_t done = 0;
    for (const Part& part : region.parts) {
      const Area r = region.AreaOf(part, operand, base_[operand]);
      for (int64_t i = 0, count; i < r.n0 * r.n1; i += count, done += count) {
        count = std::min(r.n0 - i % r.n0, n - done % n);  // an area may hold parts of several rows
        const int64_t at = r.offset + i % r.n0 * r.s0 + i / r.n0 * r.s1 + Shift(operand, OfRow(s.from[0], done / n, n));
        m.load(reg_[s.node] + done * m.width, t_->at->operands[operand].data + at * m.bytes, count, r.s0, 1, 1);
      }
    }
  }
  // A TAKE of m rows of n values. A position is a tile, or one value for each row or for all.
  void Take(const Step& s, const Region& region, int64_t n, int64_t m) {
    const uint32_t operand = c_.nodes[s.node].operand, from = s.from[0];
    if (c_.nodes[s.node].run != kNone && c_.nodes[from].level == Level::kElement) return TakeRuns(s, region);
    const Level level = c_.nodes[from].level;
    const bool of_rows = c_.nodes[s.node].level == Level::kRow;  // then the position of each row is one of n values
    const bool tile =
        level == Level::kElement || (level == Level::kRow && (of_rows || t_->loop_order == LoopOrder::kLanes));
    if (!tile) return TakeOfRows(s, region, n);
    int64_t* to = takes_;
    for (const Part& part : region.parts) {
      const Area r = region.AreaOf(part, operand, base_[operand]);
      tiles_.index(to, &r.offset, r.n0, r.s0, r.n1, r.s1);
      to += part.n0 * part.n1;
    }
    const KernelOperandAt& at = t_->at->operands[operand];
    const int d = k_.operands[operand].taken;
    const int64_t last = at.sizes[d] - 1, stride = at.strides[d];
    to = takes_;
    for (int64_t i = 0; i < m; ++i, to += n) {
      const auto* positions = reinterpret_cast<const int64_t*>(of_rows ? reg_[from] : OfRow(from, i, n));
      for (int64_t j = 0; j < n; ++j) to[j] += std::clamp<int64_t>(positions[j], 0, last) * stride;
    }
    moves_[operand].gather(reg_[s.node], at.data, takes_, n * m);
  }
  // A TAKE at positions that are neighbours, or one, in each row of a part.
  void TakeRuns(const Step& s, const Region& region) {
    const Node& node = c_.nodes[s.node];
    const KernelOperandAt& at = t_->at->operands[node.operand];
    const Moves& m = moves_[node.operand];
    const int d = k_.operands[node.operand].taken;
    const auto* positions = reinterpret_cast<const int64_t*>(reg_[s.from[0]]);
    char* to = reg_[s.node];
    for (const Part& part : region.parts) {
      const int64_t step = region.StrideOf(node.operand, region.d0), next = region.StrideOf(node.operand, region.d1);
      int64_t offset = region.OffsetOf(part, node.operand, base_[node.operand]);
      for (int64_t i = 0; i < part.n1; ++i) {
        m.Take(to, at.data + offset * m.bytes, part.n0, step, positions, region.StrideOf(node.run, region.d0),
               at.sizes[d], at.strides[d]);
        to += part.n0 * m.width;
        positions += part.n0;
        offset += next;
      }
    }
  }
  void Reduce(const ReduceStep& f, int64_t n, int64_t m) {
    char* to = AccumulatorOf(f);
    const char* from = reg_[f.from];
    const int64_t width = n * ClassBytes(c_.nodes[f.from].cls);
    if (t_->loop_order == LoopOrder::kAlong) {
      for (int64_t i = 0; i < m; ++i) f.reduce(to + i * f.bytes, from + i * width, nullptr, nullptr, n);
      return;
    }
    // Lanes: combine one half of the rows with the other until one row is left.
    while (m > 1) {
      const int64_t half = m / 2;
      if (m % 2 != 0) f.reduce(to, from + (m - 1) * width, nullptr, nullptr, n);
      f.pair(pairs_, from, from + half * width, nullptr, half * n);
      from = pairs_;
      m = half;
    }
    f.reduce(to, from, nullptr, nullptr, n);
  }

  void Uniform(const Step& s) {
    const Node& n = c_.nodes[s.node];
    switch (n.op) {
      case MYC_K_LOAD:
      case MYC_K_TAKE:
        return LoadOne(n, 0, reg_[s.from[0]], reg_[s.node]);
      case MYC_K_NUMBER: {
        const KernelNumber& v = t_->at->numbers[n.bits];
        return v.integral ? Put(s.node, v.whole) : Put(s.node, v.real);
      }
      case MYC_K_CONST:
        return n.cls == MYC_K_F32 || n.cls == MYC_K_F64 ? Put(s.node, std::bit_cast<double>(n.bits))
                                                        : Put(s.node, static_cast<int64_t>(n.bits));
      case MYC_K_COUNT:
        return Put(s.node, t_->spaces[1].points);
      default:
        Call(s, 1, 1);
    }
  }
  template <class T>
  void Put(uint32_t node, T v) {
    PutNumber(reg_[node], c_.nodes[node].cls, v);
  }

  // Sets the addresses of the steps' tiles (null for kept values) and the distances for prefetches.
  void SetAddresses() {
    slots_.clear();
    slots_of_.clear();
    int64_t steps = 0;
    for (const Pass& pass : schedule_->passes) {
      slots_of_.push_back(slots_.size());
      for (const uint32_t at : pass.offsets) slots_.push_back(at == kNone ? nullptr : tiles_at_ + at * t_->tile);
      steps += static_cast<int64_t>(pass.steps.size());
    }
    const Space& w = t_->spaces[0];
    for (size_t i = 0; t_->fetches && i < moves_.size(); ++i) {
      int64_t next = t_->loop_order == LoopOrder::kBlock ? t_->rows * t_->cols : t_->tile;
      if (t_->loop_order == LoopOrder::kAlong)
        next = w.rank == 0 ? 0 : w.strides[i * w.rank + w.rank - 1] * t_->repeats;
      moves_[i].two_on = 2 * next * moves_[i].bytes;
    }
    if (t_->loop_order == LoopOrder::kAlong) steps *= (t_->spaces[1].points + t_->tile - 1) / t_->tile;
    ahead_.Start(steps);
  }
  void Keep(int64_t point) {
    for (size_t i = 0; i < schedule_->kept.size(); ++i) {
      const uint32_t node = schedule_->kept[i];
      reg_[node] = kept_ + schedule_->kept_offsets[i] * kept_points_ + point * ClassBytes(c_.nodes[node].cls);
    }
  }

  int64_t RegionOfMap(int64_t unit) {
    if (t_->loop_order == LoopOrder::kLine) {
      const int64_t p = unit * t_->tile, n = std::min(t_->tile, t_->spaces[0].points - p);
      for (size_t f = 0; f < t_->spaces.size(); ++f) regions_[f].Line(&t_->spaces[f], p, n);
      return n;
    }
    const Space& w = t_->spaces[0];
    Region& s = regions_[0];
    s.space = &w;
    s.d0 = static_cast<int>(t_->col_dim);
    s.d1 = static_cast<int>(t_->row_dim);
    s.parts.resize(1);
    Part& part = s.parts[0];
    const int64_t col = unit % t_->col_blocks * t_->cols;
    unit /= t_->col_blocks;
    const int64_t row = unit % t_->row_blocks * t_->rows;
    unit /= t_->row_blocks;
    for (int d = static_cast<int>(w.rank) - 1; d >= 0; --d) {
      part.at[d] = 0;
      if (d == s.d0 || d == s.d1) continue;
      part.at[d] = unit % w.sizes[d];
      unit /= w.sizes[d];
    }
    part.at[s.d0] = col;
    part.at[s.d1] = row;
    part.n0 = std::min(t_->cols, w.sizes[s.d0] - col);
    part.n1 = std::min(t_->rows, w.sizes[s.d1] - row);
    return part.n0 * part.n1;
  }

  bool OneRow() const { return t_->loop_order == LoopOrder::kAlong && t_->repeats == 1; }

  // Sets the tile's region to n1 points along d1 by n0 points along d0 of the space of all dims, from the unit's first
  // kept point.
  void Rectangle(int64_t n0, int64_t n1, uint32_t d0, uint32_t d1) {
    Region& s = regions_[1];
    s.space = &t_->spaces[2];
    s.d0 = static_cast<int>(d0);
    s.d1 = static_cast<int>(d1);
    s.parts.resize(1);
    s.parts[0].n0 = n0;
    s.parts[0].n1 = n1;
    std::fill_n(s.parts[0].at, s.space->rank, 0);
    std::copy_n(regions_[0].parts[0].at, t_->spaces[0].rank, s.parts[0].at);
  }

  const Region& RegionOf(uint32_t operand) const {
    if (t_->loop_order == LoopOrder::kLanes) return regions_[t_->repeats > 1 ? 1 : 0];
    if (t_->loop_order == LoopOrder::kAlong) return regions_[1];
    return operand < k_.operands.size() ? regions_[k_.operands[operand].space] : regions_[0];
  }

  // Reads a tile into `slot` and returns it, or returns the address in memory if the elements can be used there.
  char* Read(uint32_t operand, const Region& region, bool may_stay, char* slot) {
    char* to = slot;
    if (operand >= k_.operands.size()) {
      for (const Part& part : region.parts) {
        const Area r = region.AreaOf(part, operand, base_[operand]);
        tiles_.index(to, &r.offset, r.n0, r.s0, r.n1, r.s1);
        to += part.n0 * part.n1 * 8;
      }
      return slot;
    }
    const Moves& m = moves_[operand];
    char* data = t_->at->operands[operand].data;
    for (const Part& part : region.parts) {
      const Area r = region.AreaOf(part, operand, base_[operand]);
      char* from = data + r.offset * m.bytes;
      if (region.parts.size() == 1 && r.Dense()) {
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
      if (n.op == MYC_K_TAKE) return Take(s, regions_[0], n_, 1);
      Read(n.operand, regions_[0], false, reg_[s.node]);
    } else if (n.operand >= k_.operands.size()) {
      std::memcpy(reg_[s.node], &base_[n.operand], 8);
    } else {
      LoadOne(n, base_[n.operand], reg_[s.from[0]], reg_[s.node]);
    }
  }

  void Write(uint32_t operand, const char* from, const Region& region, bool one) {
    const Moves& m = moves_[operand];
    char* data = t_->at->operands[operand].data;
    if (one) {
      m.store(data + base_[operand] * m.bytes, from, 1, 1, 1, 1);
      return;
    }
    for (const Part& part : region.parts) {
      const Area r = region.AreaOf(part, operand, base_[operand]);
      m.store(data + r.offset * m.bytes, from, r.n0, r.s0, r.n1, r.s1);
      from += part.n0 * part.n1 * m.width;
    }
  }

  // The address of a store's tile in memory, or null if it is not dense.
  char* DirectAt(uint32_t operand) {
    const Region& region = RegionOf(operand);
    if (region.parts.size() != 1) return nullptr;
    const Area r = region.AreaOf(region.parts[0], operand, base_[operand]);
    if (!r.Dense()) return nullptr;
    const Moves& m = moves_[operand];
    char* at = t_->at->operands[operand].data + r.offset * m.bytes;
    Follow(m, at, r.n0);
    return at;
  }

  void Follow(const Moves& m, const char* at, int64_t n) {
    if (t_->fetches && m.two_on != 0) ahead_.Follow(at + m.two_on, n * m.bytes);
  }

  // Runs a pass on tiles of m rows of n values.
  void RunSteps(size_t index, int64_t n, int64_t m) {
    const Pass& pass = schedule_->passes[index];
    char* const* slots = slots_.data() + slots_of_[index];
    for (size_t i = 0; i < pass.steps.size(); ++i) {
      if (slots[i] != nullptr) reg_[pass.steps[i].node] = slots[i];
    }
    for (size_t i = 0; i < pass.stores.size(); ++i) {
      const StoreStep& s = pass.stores[i];
      if (s.made == kNone || t_->direct[i] == 0) continue;
      if (char* at = DirectAt(s.operand)) reg_[s.from] = at;
    }
    const ReduceStep* reduction = pass.reductions.data();
    const ReduceStep* const reductions_end = reduction + pass.reductions.size();
    for (uint32_t i = 0; i < pass.steps.size(); ++i) {
      const Step& s = pass.steps[i];
      if (s.fn != nullptr) {
        Call(s, n, m);
      } else if (c_.nodes[s.node].op == MYC_K_TAKE) {
        Take(s, RegionOf(c_.nodes[s.node].operand), n, m);
      } else {
        char* to = reg_[s.node];
        const uint32_t operand = c_.nodes[s.node].operand;
        reg_[s.node] = Read(operand, RegionOf(operand), slots[i] != nullptr && !s.copied, to);
      }
      ahead_.Step();
      for (; reduction != reductions_end && reduction->after == i; ++reduction) Reduce(*reduction, n, m);
    }
    for (; reduction != reductions_end; ++reduction) Reduce(*reduction, n, m);
    for (size_t i = 0; i < pass.stores.size(); ++i) {
      const StoreStep& s = pass.stores[i];
      const bool done = s.made != kNone && t_->direct[i] != 0 && reg_[s.from] != slots[s.made];
      if (!done) Write(s.operand, reg_[s.from], RegionOf(s.operand), false);
    }
  }

  const Kernel& k_;
  const Kernel::Code& c_;
  const Tiles& tiles_;
  std::vector<Moves> moves_;
  std::vector<char*> slots_;      // by pass and step
  std::vector<size_t> slots_of_;  // by pass
  Prefetch ahead_;
  const Traversal* t_ = nullptr;
  const Schedule* schedule_ = nullptr;
  Memory memory_;
  std::vector<char*> reg_;       // by node: address of its value or tile
  std::vector<int64_t> base_;    // by operand: offset of the region's origin, in elements
  std::vector<Region> regions_;  // map: by index space; reduction: kept, reduced
  int64_t lanes_ = 1, n_ = 1, kept_points_ = 0;
  int64_t first_ = 0;  // along: the index of the tile's first reduced point
  char *uniforms_ = nullptr, *rows_ = nullptr, *accumulators_ = nullptr, *tiles_at_ = nullptr, *pairs_ = nullptr,
       *kept_ = nullptr;
  int64_t* takes_ = nullptr;  // offsets of a tile's elements
};

}  // namespace
}  // namespace mycelya::exec::kernel

#endif  // MYCELYA_EXEC_KERNEL_WORKER_H_
