// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Nodes to passes: the order of steps, their tile memory, and the values kept across passes.
#include <algorithm>
#include <bit>
#include <limits>

#include "abi/mycelya.h"
#include "exec/kernel/Code.h"
#include "exec/kernel/OpTable.h"

namespace mycelya::exec::kernel {
namespace {

// The cost of an instruction per value, in additions.
uint32_t CostOf(uint32_t op) {
  switch (RowOf(op).cost) {
    case Cost::kFree:  // also kCopyOp, which has no row
      return 0;
    case Cost::kSimple:
      return 1;
    case Cost::kDivide:
      return 2;
    case Cost::kFunction:
      return 8;
  }
  return 0;
}

uint32_t CostOf(const Node& n) { return CostOf(n.op) + (n.then != 0 ? CostOf(n.then) : 0); }

// If kept values exceed the first-level cache, values of at most this cost are computed again instead of kept.
constexpr uint32_t kCheap = 3;
constexpr uint32_t kAnew = std::numeric_limits<uint32_t>::max();  // keep nothing

bool IsReduction(const Node& n) { return Reduces(n.op); }

uint64_t StartOf(uint32_t op, uint32_t cls) {
  const Start start = RowOf(op).start;
  if (start == Start::kZero) return 0;
  const bool least = start == Start::kLowest;
  switch (cls) {
    case MYC_K_F32:
      return std::bit_cast<uint32_t>(least ? -std::numeric_limits<float>::infinity()
                                           : std::numeric_limits<float>::infinity());
    case MYC_K_F64:
      return std::bit_cast<uint64_t>(least ? -std::numeric_limits<double>::infinity()
                                           : std::numeric_limits<double>::infinity());
    case MYC_K_I64:
      return static_cast<uint64_t>(least ? std::numeric_limits<int64_t>::min() : std::numeric_limits<int64_t>::max());
    default:
      return least ? 0 : 1;
  }
}

class Scheduler {
 public:
  Scheduler(const Kernel& kernel, Kernel::Code* code) : k_(kernel), c_(*code), tiles_(TilesOfThisCpu()) {}

  void operator()() {
    MarkNeeded();
    MergeRounds();
    MarkNeeded();
    MergePairs();
    MarkNeeded();
    if (k_.reduced == 1) FindSpots();
    c_.row_offsets.assign(c_.nodes.size(), 0);
    for (uint32_t i = 0; i < c_.nodes.size(); ++i) {
      const Node& n = c_.nodes[i];
      if (!needed_[i]) continue;
      if (n.level == Level::kElement) c_.cost += CostOf(n) + (n.op == MYC_K_LOAD || n.op == MYC_K_STORE ? 1 : 0);
      if (n.op == MYC_K_STORE) continue;
      if (n.level == Level::kUniform) c_.uniforms.push_back(StepOf(i, false));
      if (n.level == Level::kRow) {
        c_.row_offsets[i] = c_.row_bytes;
        c_.row_bytes += 8;
      }
      if (IsReduction(n)) c_.cost += 1;
    }
    c_.along_near = MakeSchedule(false, 0);
    c_.along = MakeSchedule(false, kCheap);
    c_.lanes = MakeSchedule(true, kCheap);
    c_.along_anew = MakeSchedule(false, kAnew);
    c_.lanes_anew = MakeSchedule(true, kAnew);
  }

 private:
  // By node: the number of its uses.
  std::vector<uint32_t> Uses() const {
    std::vector<uint32_t> uses(c_.nodes.size());
    for (size_t i = 0; i < c_.nodes.size(); ++i) {
      for (const uint32_t f : c_.nodes[i].from) {
        if (needed_[i] && f != kNone) ++uses[f];
      }
    }
    return uses;
  }

  // Merges an op and a ROUND if the ROUND is the only use of the result.
  void MergeRounds() {
    const std::vector<uint32_t> uses = Uses();
    for (Node& n : c_.nodes) {
      if (n.op != MYC_K_ROUND || uses[n.from[0]] != 1) continue;
      const auto dtype = static_cast<c10::ScalarType>(n.bits);
      const Node& of = c_.nodes[n.from[0]];
      if (of.cls != MYC_K_F32 || tiles_.rounded(of.op, dtype, 0) == nullptr) continue;
      n = of;
      n.rounds = dtype;
    }
  }

  // Merges two ops into one pair if the second is the only use of the first.
  void MergePairs() {
    const std::vector<uint32_t> uses = Uses();
    const auto single = [this](const Node& n) {
      return n.level == Level::kElement && n.cls == MYC_K_F32 && n.in == MYC_K_F32 && n.then == 0 &&
             n.rounds == c10::ScalarType::Undefined && tiles_.pair(n.op, MYC_K_ADD, 0) != nullptr;
    };
    for (size_t i = 0; i < c_.nodes.size(); ++i) {
      Node& n = c_.nodes[i];
      if (!needed_[i] || !single(n)) continue;
      for (const int side : {0, 1}) {
        const Node& first = c_.nodes[n.from[side]];
        if (uses[n.from[side]] != 1 || !single(first)) continue;
        n.then = side == 1 && n.op == MYC_K_SUB ? kFromOp : n.op;
        n.op = first.op;
        n.from[2] = n.from[1 - side];
        n.from[1] = first.from[1];
        n.from[0] = first.from[0];
        break;
      }
    }
  }

  // Finds the WHEREs whose condition compares the index along the reduced dim with a row value, and their reductions.
  void FindSpots() {
    const auto index = [this](uint32_t i) {
      return c_.nodes[i].op == MYC_K_INDEX && c_.nodes[i].level == Level::kElement;
    };
    const auto single = [this](uint32_t i) { return c_.nodes[i].level != Level::kElement; };
    const auto spot = [&](const Node& n) {  // the row value, or kNone
      for (const int side : {0, 1}) {
        if (n.op == MYC_K_EQ && index(n.from[side]) && single(n.from[1 - side])) return n.from[1 - side];
      }
      return kNone;
    };
    for (Node& n : c_.nodes) {
      if (IsReduction(n)) n.spot = SpotOf(n);
      if (n.op != MYC_K_WHERE || n.level != Level::kElement) continue;
      const Node& condition = c_.nodes[n.from[0]];
      n.spot = spot(condition);
      for (const int side : {0, 1}) {
        if (condition.op != MYC_K_AND || !single(condition.from[1 - side])) continue;
        n.spot = spot(c_.nodes[condition.from[side]]);
        n.only = condition.from[1 - side];
        if (n.spot != kNone) break;
      }
    }
  }

  // The spot of a reduction, or kNone.
  uint32_t SpotOf(const Node& reduction) const {
    const Node* n = &c_.nodes[reduction.from[0]];
    const bool real = n->cls == MYC_K_F32 || n->cls == MYC_K_F64;
    if (n->op == MYC_K_ROUND && real) n = &c_.nodes[n->from[0]];  // keeps zero and infinities
    if (n->op != MYC_K_WHERE || n->spot == kNone || n->cls != reduction.cls) return kNone;
    const Node& other = c_.nodes[n->from[2]];
    if (other.op != MYC_K_CONST) return kNone;
    const uint64_t start = StartOf(reduction.op, real ? static_cast<uint32_t>(MYC_K_F64) : n->cls);
    return other.bits == start ? n->spot : kNone;
  }
  // Whether a schedule computes node i at one point.
  bool AtPoint(uint32_t i, bool lanes) const { return !lanes && IsReduction(c_.nodes[i]) && c_.nodes[i].spot != kNone; }

  // The first operand that a pass computes for a node: a WHERE with a spot does without its condition.
  static uint32_t FirstOf(const Node& n, bool lanes) {
    return n.op == MYC_K_WHERE && n.spot != kNone && !lanes ? 1 : 0;
  }

  void MarkNeeded() {
    needed_.assign(c_.nodes.size(), false);
    for (uint32_t i = c_.nodes.size(); i-- > 0;) {
      const Node& n = c_.nodes[i];
      if (n.op == MYC_K_STORE) needed_[i] = true;
      for (const uint32_t f : n.from) {
        if (needed_[i] && f != kNone) needed_[f] = true;
      }
    }
  }

  // Whether a value of level `of` is one value, not a tile, for a user of level `user`.
  static bool Single(Level of, Level user, bool lanes) {
    return user == Level::kElement && (of == Level::kUniform || (of == Level::kRow && !lanes));
  }

  Step StepOf(uint32_t node, bool lanes) const {
    const Node& n = c_.nodes[node];
    Step s;
    s.node = node;
    for (uint32_t i = 0; i < 3; ++i) s.from[i] = std::min(n.from[i], static_cast<uint32_t>(c_.nodes.size()));
    s.has_spot = FirstOf(n, lanes) != 0;
    uint32_t shape = 0;
    for (uint32_t i = 0; i < 3 && n.from[i] != kNone; ++i) {
      const Level of = c_.nodes[n.from[i]].level;
      const bool one = Single(of, n.level, lanes) || (n.level == Level::kRow && of == Level::kUniform);
      s.of_row = s.of_row || (n.level == Level::kElement && of == Level::kRow);
      shape |= one ? 1u << i : 0;
    }
    switch (RowOf(n.op).group) {
      case Group::kMemory:
      case Group::kValue:
        break;
      case Group::kConvert:
        s.fn =
            n.op == MYC_K_CAST ? tiles_.cast(n.in, n.cls) : tiles_.round(n.cls, static_cast<c10::ScalarType>(n.bits));
        break;
      default:
        if (s.has_spot) {
          s.fn = tiles_.compute(kCopyOp, n.cls, (shape & kOneC) != 0 ? kOneA : 0);
          break;
        }
        s.fn = n.then != 0                              ? tiles_.pair(n.op, n.then, shape)
               : n.rounds != c10::ScalarType::Undefined ? tiles_.rounded(n.op, n.rounds, shape)
                                                        : tiles_.compute(n.op, n.in, shape);
    }
    return s;
  }

  ReduceStep ReduceStepOf(uint32_t node, bool lanes) {
    const Node& n = c_.nodes[node];
    const uint32_t cls = n.op == MYC_K_SUM && n.cls == MYC_K_F32 ? static_cast<uint32_t>(MYC_K_F64) : n.cls;
    const uint32_t pair = RowOf(n.op).combine;
    ReduceStep f;
    f.node = node;
    f.from = n.from[0];
    f.reduce = lanes ? tiles_.reduce_lanes(n.op, n.cls) : tiles_.reduce(n.op, n.cls);
    f.pair = tiles_.compute(pair, n.cls, 0);
    f.bytes = ClassBytes(cls);
    f.merge = tiles_.compute(pair, cls, 0);
    f.finish = tiles_.cast(cls, n.cls);
    f.start = StartOf(n.op, n.cls);
    f.fill = tiles_.compute(kCopyOp, cls, kOneA);
    return f;
  }

  // The cost of computing a node again. Exact up to `cheap`; otherwise some larger number.
  uint32_t Remake(uint32_t node, uint32_t cheap, bool lanes) const {
    const Node& n = c_.nodes[node];
    if (n.level != Level::kElement) return 0;
    uint32_t cost = CostOf(n);
    for (uint32_t i = FirstOf(n, lanes); i < 3; ++i) {
      if (n.from[i] != kNone && cost <= cheap) cost += Remake(n.from[i], cheap, lanes);
    }
    return cost;
  }

  // Marks the nodes that a pass must compute for `node`.
  void Need(uint32_t node, uint32_t cheap, bool lanes, std::vector<bool>& now) {
    const Node& n = c_.nodes[node];
    if (n.level != Level::kElement || now[node]) return;
    if (cheap != kAnew && made_[node] && Remake(node, cheap, lanes) > cheap) {
      kept_[node] = true;
      return;
    }
    now[node] = true;
    for (uint32_t i = FirstOf(n, lanes); i < 3; ++i) {
      if (n.from[i] != kNone) Need(n.from[i], cheap, lanes, now);
    }
  }

  // Marks the element values that `node` depends on, and itself.
  void Closure(uint32_t node, std::vector<bool>& marked) const {
    if (c_.nodes[node].level != Level::kElement || marked[node]) return;
    marked[node] = true;
    for (const uint32_t f : c_.nodes[node].from) {
      if (f != kNone) Closure(f, marked);
    }
  }

  // The step of a row that computes reduction i at one point.
  Step PointStepOf(uint32_t i, Schedule* o) {
    const Node& n = c_.nodes[i];
    PointStep point;
    point.spot = n.spot;
    point.reduction = ReduceStepOf(i, false);
    std::vector<bool> marked(c_.nodes.size());
    Closure(n.from[0], marked);
    for (uint32_t j = 0; j < c_.nodes.size(); ++j) {
      if (marked[j]) point.steps.push_back(StepOf(j, true));  // with the condition; a tile of one value is one value
    }
    Step s;
    s.node = i;
    s.point = static_cast<uint32_t>(o->points.size());
    o->points.push_back(std::move(point));
    return s;
  }

  // Elements are stored in the last pass, perhaps to memory that a point loads. So all points come before that pass.
  void CountPasses(bool lanes) {
    uint32_t reductions = 0, points = 0, stores = 0;
    for (uint32_t i = 0; i < c_.nodes.size(); ++i) {
      const Node& n = c_.nodes[i];
      if (!needed_[i]) continue;
      if (n.op == MYC_K_STORE && n.level == Level::kElement) stores = std::max(stores, n.stage + 1);
      if (IsReduction(n)) {
        uint32_t& count = AtPoint(i, lanes) ? points : reductions;
        count = std::max(count, n.stage);
      }
    }
    npasses_ = std::max({reductions, stores, stores > 0 ? points : 0});
  }

  // Keeps values that cost more than `cheap` across passes.
  Schedule MakeSchedule(bool lanes, uint32_t cheap) {
    Schedule o;
    made_.assign(c_.nodes.size(), false);
    kept_.assign(c_.nodes.size(), false);
    CountPasses(lanes);
    std::vector<std::vector<bool>> makes(npasses_, std::vector<bool>(c_.nodes.size()));
    for (uint32_t p = 0; p < npasses_; ++p) {
      for (uint32_t i = 0; i < c_.nodes.size(); ++i) {
        if (needed_[i] && Roots(i, p, lanes)) Need(c_.nodes[i].from[0], cheap, lanes, makes[p]);
      }
      for (uint32_t i = 0; i < c_.nodes.size(); ++i) made_[i] = made_[i] || makes[p][i];
    }
    for (uint32_t i = 0; i < c_.nodes.size(); ++i) {
      if (!kept_[i]) continue;
      o.kept.push_back(i);
      o.kept_offsets.push_back(o.kept_bytes);
      o.kept_bytes += 8;
    }
    c_.accumulator_bytes = 0;
    for (uint32_t p = 0; p < npasses_; ++p) o.passes.push_back(MakePass(makes[p], p, lanes, &o));
    for (uint32_t i = 0; i < c_.nodes.size(); ++i) {
      const Node& n = c_.nodes[i];
      if (!needed_[i] || n.level != Level::kRow) continue;
      if (IsReduction(n)) {
        if (AtPoint(i, lanes) && n.stage > npasses_) o.end.rows.push_back(PointStepOf(i, &o));
      } else if (n.op == MYC_K_STORE) {
        o.end.stores.push_back({n.operand, n.from[0], kNone});
      } else if (n.stage >= npasses_) {
        o.end.rows.push_back(StepOf(i, lanes));
      }
    }
    return o;
  }

  // Whether node i is a reduction or store of pass p.
  bool Roots(uint32_t i, uint32_t p, bool lanes) const {
    const Node& n = c_.nodes[i];
    if (IsReduction(n)) return n.stage == p + 1 && !AtPoint(i, lanes);
    return n.op == MYC_K_STORE && n.level == Level::kElement && p + 1 == npasses_;
  }

  Pass MakePass(const std::vector<bool>& makes, uint32_t p, bool lanes, Schedule* o) {
    Pass pass;
    std::vector<uint32_t> step_of(c_.nodes.size(), kNone);
    for (uint32_t i = 0; i < c_.nodes.size(); ++i) {
      const Node& n = c_.nodes[i];
      if (!needed_[i]) continue;
      if (n.level == Level::kRow && n.stage == p && !IsReduction(n) && n.op != MYC_K_STORE)
        pass.rows.push_back(StepOf(i, lanes));
      if (n.stage == p + 1 && AtPoint(i, lanes)) pass.rows.push_back(PointStepOf(i, o));
      if (!makes[i]) continue;
      step_of[i] = static_cast<uint32_t>(pass.steps.size());
      pass.steps.push_back(StepOf(i, lanes));
    }
    const auto end = static_cast<uint32_t>(pass.steps.size());
    pass.last.assign(end, 0);
    for (uint32_t s = 0; s < end; ++s) {
      pass.last[s] = s;
      for (uint32_t i = pass.steps[s].has_spot ? 1 : 0; i < 3; ++i) {
        const uint32_t f = pass.steps[s].from[i];
        if (f < c_.nodes.size() && step_of[f] != kNone) pass.last[step_of[f]] = s;
      }
    }
    for (uint32_t i = 0; i < c_.nodes.size(); ++i) {
      if (!needed_[i] || !Roots(i, p, lanes)) continue;
      const uint32_t made = step_of[c_.nodes[i].from[0]];
      if (!IsReduction(c_.nodes[i])) {
        pass.stores.push_back({c_.nodes[i].operand, c_.nodes[i].from[0], kNone});
        if (made != kNone) pass.last[made] = end;
        continue;
      }
      pass.reductions.push_back(ReduceStepOf(i, lanes));
      pass.reductions.back().after = made;
      pass.reductions.back().at = c_.accumulator_bytes;
      c_.accumulator_bytes += 8;
    }
    // Reductions of kept values have kNone, the largest number, so they come last.
    std::stable_sort(pass.reductions.begin(), pass.reductions.end(),
                     [](const ReduceStep& a, const ReduceStep& b) { return a.after < b.after; });
    FindDirect(&pass, step_of);
    PlaceTiles(&pass, o);
    return pass;
  }

  // Finds the steps that may write directly to a store's memory, and the loads that must be copied because an earlier
  // store might change their memory.
  void FindDirect(Pass* pass, const std::vector<uint32_t>& step_of) const {
    std::vector<bool> claimed(pass->steps.size());
    for (StoreStep& s : pass->stores) {
      const uint32_t made = step_of[s.from];
      if (made == kNone || claimed[made] || kept_[s.from]) continue;
      Step& step = pass->steps[made];
      if (step.fn == nullptr) {
        step.copied = pass->stores.size() > 1;
        continue;
      }
      const c10::ScalarType dtype = k_.operands[s.operand].dtype;
      if (dtype != c10::ScalarType::Float && dtype != c10::ScalarType::Double && dtype != c10::ScalarType::Long &&
          dtype != c10::ScalarType::Bool) {
        continue;
      }
      s.made = made;
      claimed[made] = true;
    }
  }

  // Tiles of values of one width share memory if they are never live at the same time.
  void PlaceTiles(Pass* pass, Schedule* o) const {
    std::vector<uint32_t> free[9];
    uint32_t bytes = 0;
    std::vector<std::vector<uint32_t>> ends(pass->steps.size() + 2);  // by step: the steps whose tiles are free then
    pass->offsets.assign(pass->steps.size(), kNone);
    for (uint32_t s = 0; s < pass->steps.size(); ++s) {
      for (const uint32_t e : ends[s]) {
        free[ClassBytes(c_.nodes[pass->steps[e].node].cls)].push_back(pass->offsets[e]);
      }
      const uint32_t node = pass->steps[s].node;
      if (kept_[node]) continue;
      ends[std::max(pass->last[s], s + 1)].push_back(s);
      const uint32_t width = ClassBytes(c_.nodes[node].cls);
      if (free[width].empty()) {
        pass->offsets[s] = bytes;
        bytes += width;
      } else {
        pass->offsets[s] = free[width].back();
        free[width].pop_back();
      }
    }
    o->tile_bytes = std::max(o->tile_bytes, bytes);
  }

  const Kernel& k_;
  Kernel::Code& c_;
  const Tiles& tiles_;
  uint32_t npasses_ = 0;
  std::vector<bool> needed_, made_, kept_;
};

}  // namespace

void MakeSchedules(const Kernel& kernel, Kernel::Code* code) { Scheduler(kernel, code)(); }

}  // namespace mycelya::exec::kernel
