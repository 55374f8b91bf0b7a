// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// The machine that tile programs run on: functions that do one thing to all values of a tile. Tile.cpp is compiled once
// for each CPU capability that ATen knows, and TilesOfThisCpu chooses as ATen does.
#ifndef MYCELYA_EXEC_KERNEL_TILE_H_
#define MYCELYA_EXEC_KERNEL_TILE_H_

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace mycelya::exec::kernel {

// d[i] = f(a[i], b[i], c[i]) for n values. d may be a, b or c.
using Fn = void (*)(void* d, const void* a, const void* b, const void* c, int64_t n);

// Between a dense tile of n1 rows of n0 values and memory, whose strides are in elements. For Index, `from` is the
// address of the first value.
using MoveFn = void (*)(void* to, const void* from, int64_t n0, int64_t s0, int64_t n1, int64_t s1);

// Bits of a shape: these operands are one value, not a tile.
inline constexpr uint32_t kOneA = 1, kOneB = 2, kOneC = 4;

// Ops of our own beside MYC_K_*: a single value (kOneA) or a tile becomes a tile; b - a.
inline constexpr uint32_t kCopyOp = 255, kFromOp = 254;

// Classes are MYC_K_F32 … MYC_K_B8. A function that doesn't exist is null: so the table says which ops a class has.
struct Tiles {
  Fn (*compute)(uint32_t op, uint32_t cls, uint32_t shape);  // class of the operands; of WHERE: of b and c
  // The same of f32 and rounded to a dtype; few ops have it.
  Fn (*rounded)(uint32_t op, c10::ScalarType dtype, uint32_t shape);
  // then(op(a, b), c) of f32.
  Fn (*pair)(uint32_t op, uint32_t then, uint32_t shape);
  Fn (*cast)(uint32_t from, uint32_t to);
  Fn (*round)(uint32_t cls, c10::ScalarType dtype);
  // Folds n values a into the one at d; lanes: a[i] into d[i]. d has the class FoldClass.
  Fn (*fold)(uint32_t op, uint32_t cls);
  Fn (*lanes)(uint32_t op, uint32_t cls);
  MoveFn (*load)(c10::ScalarType dtype);
  MoveFn (*store)(c10::ScalarType dtype);
  MoveFn index;
};

const Tiles& TilesDefault();
const Tiles& TilesAvx2();
const Tiles& TilesAvx512();
const Tiles& TilesOfThisCpu();

}  // namespace mycelya::exec::kernel

#endif  // MYCELYA_EXEC_KERNEL_TILE_H_
