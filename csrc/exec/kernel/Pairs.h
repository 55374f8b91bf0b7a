// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Two operations on f32 in one walk over the tiles, for Tile.cpp, whose rules hold here too. Each is rounded as if it
// were alone; what is saved is that the first one's result is written and read.
#ifndef MYCELYA_EXEC_KERNEL_PAIRS_H_
#define MYCELYA_EXEC_KERNEL_PAIRS_H_

#include "abi/mycelya.h"
#include "exec/kernel/Tile.h"

namespace mycelya::exec::kernel {
namespace {

template <uint32_t op>
inline float Apply(float a, float b) {
  if constexpr (op == MYC_K_ADD) return a + b;
  if constexpr (op == MYC_K_SUB) return a - b;
  if constexpr (op == MYC_K_MUL) return a * b;
  if constexpr (op == kFromOp) return b - a;
}

// d may be an operand, as in Plain.
template <uint32_t op, uint32_t then, uint32_t shape>
void Pair(void* d, const void* a, const void* b, const void* c, int64_t n) {
  auto* out = static_cast<float*>(d);
  const auto *x = static_cast<const float*>(a), *y = static_cast<const float*>(b), *z = static_cast<const float*>(c);
  if (n <= 0) return;
  const float x0 = *x, y0 = *y, z0 = *z;
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const float v = Apply<op>(shape & kOneA ? x0 : x[i], shape & kOneB ? y0 : y[i]);
    out[i] = Apply<then>(v, shape & kOneC ? z0 : z[i]);
  }
}

template <uint32_t op, uint32_t then>
Fn PairShaped(uint32_t shape) {
  switch (shape) {
    case 0:
      return Pair<op, then, 0>;
    case kOneA:
      return Pair<op, then, kOneA>;
    case kOneB:
      return Pair<op, then, kOneB>;
    case kOneC:
      return Pair<op, then, kOneC>;
    case kOneA | kOneC:
      return Pair<op, then, kOneA | kOneC>;
    case kOneB | kOneC:
      return Pair<op, then, kOneB | kOneC>;
  }
  return nullptr;
}

template <uint32_t op>
Fn PairThen(uint32_t then, uint32_t shape) {
  switch (then) {
    case MYC_K_ADD:
      return PairShaped<op, MYC_K_ADD>(shape);
    case MYC_K_SUB:
      return PairShaped<op, MYC_K_SUB>(shape);
    case MYC_K_MUL:
      return PairShaped<op, MYC_K_MUL>(shape);
    case kFromOp:
      return PairShaped<op, kFromOp>(shape);
  }
  return nullptr;
}

Fn PairOf(uint32_t op, uint32_t then, uint32_t shape) {
  switch (op) {
    case MYC_K_ADD:
      return PairThen<MYC_K_ADD>(then, shape);
    case MYC_K_SUB:
      return PairThen<MYC_K_SUB>(then, shape);
    case MYC_K_MUL:
      return PairThen<MYC_K_MUL>(then, shape);
  }
  return nullptr;
}

}  // namespace
}  // namespace mycelya::exec::kernel

#endif  // MYCELYA_EXEC_KERNEL_PAIRS_H_
