// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// How an instance is traversed: its dims merged where all operands allow it, and the loop order that suits its strides.
#ifndef MYCELYA_EXEC_KERNEL_TRAVERSAL_H_
#define MYCELYA_EXEC_KERNEL_TRAVERSAL_H_

#include <cstdint>
#include <vector>

#include "abi/mycelya.h"
#include "exec/kernel/Code.h"

namespace mycelya::exec::kernel {

// An index space with merged dims, row-major, and the strides of the operands. Operands of other spaces have strides 0.
struct Space {
  uint32_t rank = 0;
  int64_t sizes[MYC_K_MAX_RANK] = {};
  int64_t points = 1;
  std::vector<int64_t> strides;  // [operand * rank + dim]
};

enum class LoopOrder : uint8_t {
  kLine,   // a map; tiles are consecutive points
  kBlock,  // a map; tiles are rectangles of two dims
  kAlong,  // a reduction, one kept point after the other; tiles are its reduced points
  kLanes,  // a reduction, one reduced point after the other; tiles are kept points
};

struct Traversal {
  const KernelInstance* at = nullptr;
  LoopOrder loop_order = LoopOrder::kLine;
  std::vector<Space> spaces;  // map: by index space; reduction: kept dims, reduced dims, all dims
  const Schedule* schedule = nullptr;
  int64_t tile = 0;   // values
  int64_t lanes = 1;  // reduction: kept points in a tile
  // Reduction: rows of a tile if several fit, which are kept points (along) or reduced points (lanes).
  int64_t repeats = 1;
  uint32_t row_dim = 0, col_dim = 0;  // block
  int64_t rows = 1, cols = 1;
  int64_t row_blocks = 1, col_blocks = 1;
  std::vector<uint8_t> direct;  // by store of the last pass: its step may write directly to memory
  bool fetches = false;         // prefetch a unit's memory while the unit before it is computed
  int64_t units = 0;            // independent units of work: tiles, or kept points
  double unit_cost = 1;
  bool wide = false;  // reduction: fewer units than threads, so threads share the reduced points of each unit
};

// Bounds of the memory that a thread keeps across passes, in bytes.
inline constexpr int64_t kKeptBytes = 512 << 10;
inline constexpr int64_t kNearBytes = 64 << 10;  // kept values take 8 bytes each, of which f32 uses 4

// The number of threads, at most `most`, for work of this cost in points times instructions.
int ThreadsFor(double cost, int most);

// Chooses the traversal for at most `threads` threads.
void Prepare(const Kernel& kernel, const KernelInstance& at, int threads, Traversal* out);

}  // namespace mycelya::exec::kernel

#endif  // MYCELYA_EXEC_KERNEL_TRAVERSAL_H_
