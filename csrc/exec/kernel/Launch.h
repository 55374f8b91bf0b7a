// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// How an instance is walked: its dims merged where all operands allow, and the loop order that suits its strides.
#ifndef MYCELYA_EXEC_KERNEL_LAUNCH_H_
#define MYCELYA_EXEC_KERNEL_LAUNCH_H_

#include <cstdint>
#include <vector>

#include "abi/mycelya.h"
#include "exec/kernel/Code.h"

namespace mycelya::exec::kernel {

// An index space, row-major, and each operand's way through it. Operands that don't run in it have strides 0.
struct Walk {
  uint32_t rank = 0;
  int64_t sizes[MYC_K_MAX_RANK] = {};
  int64_t points = 1;
  std::vector<int64_t> strides;  // [operand * rank + dim]
};

enum class Way : uint8_t {
  kLine,   // a map, tiles of consecutive points
  kBlock,  // a map, tiles are rectangles of two dims
  kAlong,  // a fold, one kept point after the other, tiles of its folded points
  kLanes,  // a fold, tiles of kept points, one folded point after the other
};

struct Launch {
  const KernelInstance* at = nullptr;
  Way way = Way::kLine;
  std::vector<Walk> walks;  // of a map: by frame; of a fold: of the kept dims, of the folded dims, of both
  const Order* order = nullptr;
  int64_t tile = 0;   // values
  int64_t lanes = 1;  // of a fold: kept points at once
  // Of a fold, rows of a tile where more than one fits: kept points (along), folded points (lanes).
  int64_t repeats = 1;
  uint32_t row_dim = 0, col_dim = 0;  // of a block
  int64_t rows = 1, cols = 1;
  int64_t row_blocks = 1, col_blocks = 1;
  std::vector<uint8_t> direct;  // by store of the last pass: its step may write straight into memory
  bool fetches = false;         // a unit's memory is asked for while the one before is computed
  int64_t units = 0;            // of work, each of them whole: tiles, or kept points
  double unit_cost = 1;
  bool wide = false;  // of a fold: units are fewer than threads, which share out the folded points of each
};

// All stays bounded by what memory a kernel may take per thread.
inline constexpr int64_t kKeptBytes = 512 << 10;
inline constexpr int64_t kNearBytes = 64 << 10;  // half of them hold float32

// How many of `most` threads something is worth that costs so much, in points times instructions.
int ThreadsFor(double cost, int most);

// For at most so many threads.
void Prepare(const Kernel& kernel, const KernelInstance& at, int threads, Launch* out);

}  // namespace mycelya::exec::kernel

#endif  // MYCELYA_EXEC_KERNEL_LAUNCH_H_
