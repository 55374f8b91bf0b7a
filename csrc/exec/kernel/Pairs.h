// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Two operations on f32 in one loop over the tiles. Part of Tile.cpp, whose rules apply here too. Each operation is
// rounded as if it were alone; the loop saves the store and load of the first result.
#ifndef MYCELYA_EXEC_KERNEL_PAIRS_H_
#define MYCELYA_EXEC_KERNEL_PAIRS_H_

#include "exec/kernel/Tile.h"

namespace mycelya::exec::kernel {
namespace {

// The second operation with swapped operands: kFromOp.
struct From {
  template <class T>
  static inline T Do(T a, T b, T) {
    return b - a;
  }
};

// then(op(a, b), c). d may be an operand, as in Plain.
template <class Op, class Then, uint32_t shape>
void Pair(void* d, const void* a, const void* b, const void* c, int64_t n) {
  auto* out = static_cast<float*>(d);
  const auto *x = static_cast<const float*>(a), *y = static_cast<const float*>(b), *z = static_cast<const float*>(c);
  if (n <= 0) return;
  const float x0 = *x, y0 = *y, z0 = *z;
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const float v = Op::template Do<float>(shape & kOneA ? x0 : x[i], shape & kOneB ? y0 : y[i], 0);
    out[i] = Then::template Do<float>(v, shape & kOneC ? z0 : z[i], 0);
  }
}

template <class Op, class Then>
Fn PairShaped(uint32_t shape) {
  switch (shape) {
    case 0:
      return Pair<Op, Then, 0>;
    case kOneA:
      return Pair<Op, Then, kOneA>;
    case kOneB:
      return Pair<Op, Then, kOneB>;
    case kOneC:
      return Pair<Op, Then, kOneC>;
    case kOneA | kOneC:
      return Pair<Op, Then, kOneA | kOneC>;
    case kOneB | kOneC:
      return Pair<Op, Then, kOneB | kOneC>;
  }
  return nullptr;
}

}  // namespace
}  // namespace mycelya::exec::kernel

#endif  // MYCELYA_EXEC_KERNEL_PAIRS_H_
