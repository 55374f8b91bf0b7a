// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// A kernel's code as tile programs. A node is an instruction, or a copy that gives a value as many elements as its user
// has.
//
// Nodes have a level: uniform (one value for an instance), row (one for each kept point) or element. An element that is
// made of the result of a fold can only be made when that fold is done, so the folded points are walked several times:
// in passes. All loads of a point come before its stores, since its stores are the last thing of the last pass.
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
  uint32_t cls = 0;  // of its value
  uint32_t in = 0;   // class of the operands, of WHERE: of b and c
  Level level = Level::kUniform;
  uint32_t stage = 0;                        // how many passes are over before it can be made
  uint32_t from[3] = {kNone, kNone, kNone};  // nodes
  uint32_t operand = kNone;                  // of LOAD, STORE, INDEX
  uint64_t bits = 0;                         // of NUMBER: its index; of CONST: its value; of ROUND: the dtype
  c10::ScalarType rounds = c10::ScalarType::Undefined;  // the dtype to which the op's result is rounded at once
  uint32_t then = 0;                                    // an op on the op's result and the last operand; 0: none
};

// One step for all values of a tile. fn is null where memory is read.
struct Step {
  Fn fn = nullptr;
  uint32_t node = kNone;
  uint32_t from[3] = {kNone, kNone, kNone};  // as many as there are nodes: none
  bool copied = false;                       // a load that is not left where it is
  bool of_row = false;                       // it makes an element of a row's value
};

struct FoldStep {
  uint32_t node = kNone;  // the fold
  uint32_t from = kNone;
  Fn fold = nullptr;       // folds a tile, or lane by lane
  Fn pair = nullptr;       // one value with another
  Fn merge = nullptr;      // one accumulator into another, lane by lane
  Fn finish = nullptr;     // accumulator to value
  Fn fill = nullptr;       // one value into all accumulators
  uint32_t after = kNone;  // the step it comes after; kNone: all
  uint64_t start = 0;      // first value, of the accumulator's class
  uint32_t at = 0;         // offset of the accumulator among the kernel's, bytes per lane
  uint32_t bytes = 0;      // of the accumulator
};

struct StoreStep {
  uint32_t operand = kNone;
  uint32_t from = kNone;
  uint32_t made = kNone;  // the step that may write straight into the operand's memory
};

struct Pass {
  std::vector<Step> rows;         // before the pass: values for each kept point
  std::vector<Step> steps;        // for each point
  std::vector<uint32_t> offsets;  // by step: where its tile lies, bytes per value; kNone: it is kept
  std::vector<uint32_t> last;     // by step: the last step or fold that uses it
  std::vector<FoldStep> folds;
  std::vector<StoreStep> stores;
};

// A kernel's passes for one loop order. After the last one, `rows` and `stores` of `end` remain.
struct Order {
  std::vector<Pass> passes;
  Pass end;
  std::vector<uint32_t> kept;          // nodes whose tiles live from pass to pass
  std::vector<uint32_t> kept_offsets;  // bytes per point
  uint32_t kept_bytes = 0;
  uint32_t tile_bytes = 8;  // per value, of what lives at once
};

}  // namespace mycelya::exec::kernel

namespace mycelya::exec {

struct Kernel::Code {
  std::vector<kernel::Node> nodes;
  std::vector<uint32_t> index_dims;  // the operands after the kernel's: dim of frame 0 whose index they are
  std::vector<kernel::Step> uniforms;
  std::vector<uint32_t> row_offsets;  // by node, of row nodes: bytes per lane
  uint32_t row_bytes = 0;
  uint32_t fold_bytes = 0;  // of all accumulators, per lane
  // By loop order: along folded points, or along kept ones (lanes), where row values are tiles; then with whatever is
  // computed kept (near), and with nothing kept, so that all is made anew in each pass.
  kernel::Order along, lanes, along_near, along_anew, lanes_anew;
  bool picks = false;  // a maximum or minimum is folded
  uint64_t cost = 1;   // of a point, in simple instructions
};

namespace kernel {

inline uint32_t ClassBytes(uint32_t cls) { return cls == 1 ? 4 : cls == 4 ? 1 : 8; }  // MYC_K_F32, MYC_K_B8
uint32_t ClassOfDtype(c10::ScalarType dtype);                                         // 0: no kernel has such operands

// Fills in everything of the code that follows from its nodes.
void PlanCode(const Kernel& kernel, Kernel::Code* code);

}  // namespace kernel
}  // namespace mycelya::exec

#endif  // MYCELYA_EXEC_KERNEL_CODE_H_
