// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// A kernel's code as tile programs. A node is an instruction, or a copy that broadcasts a value for its user.
//
// A node has a level: uniform (one value per instance), row (one per kept point) or element (one per point). An element
// that depends on a reduction can only be computed after that reduction, so the reduced points are traversed several
// times, in passes. All loads of a point come before its stores, because stores end the last pass.
#ifndef MYCELYA_EXEC_KERNEL_CODE_H_
#define MYCELYA_EXEC_KERNEL_CODE_H_

#include <cstdint>
#include <vector>

#include "exec/kernel/Kernel.h"
#include "exec/kernel/Tile.h"

namespace mycelya::exec::kernel {

enum class Level : uint8_t { kUniform, kRow, kElement };

inline constexpr uint32_t kNone = UINT32_MAX;

struct Node {
  uint32_t op = 0;   // MYC_K_* or kCopyOp
  uint32_t cls = 0;  // class of its value
  uint32_t in = 0;   // class of its operands; of WHERE: of b and c
  Level level = Level::kUniform;
  uint32_t stage = 0;                                   // the number of passes before it can be computed
  uint32_t from[3] = {kNone, kNone, kNone};             // nodes
  uint32_t operand = kNone;                             // LOAD, STORE, INDEX, TAKE
  uint64_t bits = 0;                                    // NUMBER: its index; CONST: its value; ROUND: the dtype
  c10::ScalarType rounds = c10::ScalarType::Undefined;  // the dtype to which the result is rounded
  uint32_t then = 0;                                    // a second op, on the result and the last operand; 0: none
  // Of WHERE: the condition can hold at one point of a row only. The row value `spot` is that point's index along the
  // only reduced dim. The condition holds there if the row value `only` is true (kNone: always). A reduction of such a
  // WHERE has the same `spot` if the last operand of the WHERE has no effect on it.
  uint32_t spot = kNone, only = kNone;
  uint32_t run = kNone;  // of a TAKE: the INDEX operand from which its positions differ by a uniform value
};

// One step for all values of a tile. fn is null for a load or a TAKE, and for a PointStep. Of a WHERE with a spot, fn
// copies the last operand, and the one point is set afterwards.
struct Step {
  Fn fn = nullptr;
  uint32_t node = kNone;
  uint32_t from[3] = {kNone, kNone, kNone};  // the number of nodes: none
  bool copied = false;                       // a load that must copy its elements to a tile
  bool of_row = false;                       // an operand is a row value and the result an element
  bool has_spot = false;                     // a WHERE with a spot
  uint32_t point = kNone;                    // a reduction at one point, of the schedule's `points`
};

struct ReduceStep {
  uint32_t node = kNone;  // the reduction
  uint32_t from = kNone;
  Fn reduce = nullptr;     // adds a tile to an accumulator, or to the accumulators of lanes
  Fn pair = nullptr;       // combines two values
  Fn merge = nullptr;      // combines the accumulators of lanes
  Fn finish = nullptr;     // accumulator to value
  Fn fill = nullptr;       // sets all accumulators to one value
  uint32_t after = kNone;  // the step before it; kNone: all steps
  uint64_t start = 0;      // initial value, of the accumulator's class
  uint32_t at = 0;         // offset of the accumulator, bytes per lane
  uint32_t bytes = 0;      // size of the accumulator
};

// A reduction that is computed at one point of each row, because its operand has no effect at the other points.
struct PointStep {
  uint32_t spot = kNone;    // the row value that is the point's index
  std::vector<Step> steps;  // element values at the point
  ReduceStep reduction;
};

struct StoreStep {
  uint32_t operand = kNone;
  uint32_t from = kNone;
  uint32_t made = kNone;  // the step that may write directly to the operand's memory
};

struct Pass {
  std::vector<Step> rows;         // before the pass: row values
  std::vector<Step> steps;        // element values
  std::vector<uint32_t> offsets;  // by step: offset of its tile, bytes per value; kNone: the value is kept
  std::vector<uint32_t> last;     // by step: the last step or reduction that uses it
  std::vector<ReduceStep> reductions;
  std::vector<StoreStep> stores;
};

// A kernel's passes for one loop order. `rows` and `stores` of `end` run after the last pass.
struct Schedule {
  std::vector<Pass> passes;
  Pass end;
  std::vector<PointStep> points;
  std::vector<uint32_t> kept;          // nodes whose tiles live across passes
  std::vector<uint32_t> kept_offsets;  // bytes per point
  uint32_t kept_bytes = 0;
  uint32_t tile_bytes = 8;  // per value, of all tiles that are live at once
};

}  // namespace mycelya::exec::kernel

namespace mycelya::exec {

struct Kernel::Code {
  std::vector<kernel::Node> nodes;
  std::vector<uint32_t> index_dims;  // further operands: each is the index along this dim of space 0
  std::vector<kernel::Step> uniforms;
  std::vector<uint32_t> row_offsets;  // by row node: offset of its value, bytes per lane
  uint32_t row_bytes = 0;
  uint32_t accumulator_bytes = 0;  // all accumulators, bytes per lane
  // By loop order: along the reduced points, or along the kept points (lanes), where row values are tiles. `near` keeps
  // all values across passes; `anew` keeps none and computes them again in each pass.
  kernel::Schedule along, lanes, along_near, along_anew, lanes_anew;
  bool picks = false;  // some reduction is a maximum or minimum
  bool takes = false;  // there is a TAKE
  uint64_t cost = 1;   // per point, in simple instructions
};

namespace kernel {

inline uint32_t ClassBytes(uint32_t cls) { return cls == 1 ? 4 : cls == 4 ? 1 : 8; }  // MYC_K_F32, MYC_K_B8

// Computes the schedules and everything else that follows from the nodes.
void MakeSchedules(const Kernel& kernel, Kernel::Code* code);

}  // namespace kernel
}  // namespace mycelya::exec

#endif  // MYCELYA_EXEC_KERNEL_CODE_H_
