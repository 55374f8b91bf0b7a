// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// The instructions of tile programs: functions on all values of a tile. Tile.cpp is compiled once per CPU capability of
// ATen, and TilesOfThisCpu chooses as ATen does.
#ifndef MYCELYA_EXEC_KERNEL_TILE_H_
#define MYCELYA_EXEC_KERNEL_TILE_H_

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace mycelya::exec::kernel {

// d[i] = f(a[i], b[i], c[i]) for n values. d may be a, b or c.
using Fn = void (*)(void* d, const void* a, const void* b, const void* c, int64_t n);

// Moves n1 rows of n0 values between a dense tile and memory. Strides are in elements. For `index`, `from` points to
// the first index.
using MoveFn = void (*)(void* to, const void* from, int64_t n0, int64_t s0, int64_t n1, int64_t s1);

// to[i] = from[at[i]] for n values, from memory to a dense tile.
using GatherFn = void (*)(void* to, const void* from, const int64_t* at, int64_t n);

// Bits of a shape: the operand is one value and not a tile.
inline constexpr uint32_t kOneA = 1, kOneB = 2, kOneC = 4;

// Ops that no instruction has: kCopyOp copies one value (kOneA) or a tile to a tile; kFromOp is b - a.
inline constexpr uint32_t kCopyOp = 255, kFromOp = 254;

// Classes are MYC_K_F32 … MYC_K_B8. A combination without a function gives null.
struct Tiles {
  Fn (*compute)(uint32_t op, uint32_t cls, uint32_t shape);  // cls: of the operands; of WHERE: of b and c
  // compute of f32, rounded to a dtype. Few ops have it.
  Fn (*rounded)(uint32_t op, c10::ScalarType dtype, uint32_t shape);
  // then(op(a, b), c) on f32.
  Fn (*pair)(uint32_t op, uint32_t then, uint32_t shape);
  Fn (*cast)(uint32_t from, uint32_t to);
  Fn (*round)(uint32_t cls, c10::ScalarType dtype);
  // reduce: combines the n values of a with the accumulator d. reduce_lanes: combines a[i] with d[i]. A sum of f32 has
  // f64 accumulators.
  Fn (*reduce)(uint32_t op, uint32_t cls);
  Fn (*reduce_lanes)(uint32_t op, uint32_t cls);
  MoveFn (*load)(c10::ScalarType dtype);
  MoveFn (*store)(c10::ScalarType dtype);
  MoveFn index;
  GatherFn (*gather)(c10::ScalarType dtype);
};

const Tiles& TilesDefault();
const Tiles& TilesAvx2();
const Tiles& TilesAvx512();
const Tiles& TilesOfThisCpu();

}  // namespace mycelya::exec::kernel

#endif  // MYCELYA_EXEC_KERNEL_TILE_H_
