// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// How to move an operand's elements between memory and tiles, and numbers to registers.
#ifndef MYCELYA_EXEC_KERNEL_MOVES_H_
#define MYCELYA_EXEC_KERNEL_MOVES_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>

#include "abi/mycelya.h"
#include "exec/Dtype.h"
#include "exec/kernel/Code.h"

namespace mycelya::exec::kernel {

struct Moves {
  Moves(const Tiles& tiles, c10::ScalarType dtype)
      : load(tiles.load(dtype)),
        store(tiles.store(dtype)),
        gather(tiles.gather(dtype)),
        bytes(static_cast<int64_t>(c10::elementSize(dtype))),
        width(ClassBytes(RegisterClass(dtype))),
        exact(dtype == c10::ScalarType::Float || dtype == c10::ScalarType::Double || dtype == c10::ScalarType::Long) {}

  MoveFn load, store;
  GatherFn gather;
  int64_t bytes, width;  // of an element in memory; of a value in a tile
  bool exact;            // memory and tile have the same format
  int64_t two_on = 0;    // bytes between the elements of a unit and of the second next unit; 0: no prefetch

  // Takes n elements whose places before the take are `step` from each other. They are taken along a dim of `size`
  // elements, `stride` from each other. slope: the positions are neighbours (1), or one (0).
  void Take(char* to, const char* from, int64_t n, int64_t step, const int64_t* positions, int64_t slope, int64_t size,
            int64_t stride) const {
    const auto one = [&](int64_t begin, int64_t end, int64_t position, int64_t move) {
      if (begin == end) return;
      const int64_t at = std::clamp<int64_t>(position, 0, size - 1) * stride;
      load(to + begin * width, from + (begin * step + at) * bytes, end - begin, step + move * stride, 1, 1);
    };
    const int64_t p = positions[0];
    if (slope == 0 || p < -n) return one(0, n, p, 0);
    if (p > std::numeric_limits<int64_t>::max() - n) {  // the next positions may wrap around
      for (int64_t i = 0; i < n; ++i) one(i, i + 1, positions[i], 0);
      return;
    }
    const int64_t begin = std::clamp<int64_t>(-p, 0, n), end = std::clamp(size - p, begin, n);
    one(0, begin, 0, 0);
    one(begin, end, p + begin, 1);
    one(end, n, size - 1, 0);
  }
};

inline int64_t Whole(int64_t v) { return v; }
inline int64_t Whole(double v) {  // values out of range convert as on x86
  return v >= -0x1p63 && v < 0x1p63 ? static_cast<int64_t>(v) : std::numeric_limits<int64_t>::min();
}

// Puts a number into a register of a class.
template <class T>
void PutNumber(char* to, uint32_t cls, T v) {
  const auto put = [to](auto value) { std::memcpy(to, &value, sizeof value); };
  switch (cls) {
    case MYC_K_F32:
      return put(static_cast<float>(v));
    case MYC_K_F64:
      return put(static_cast<double>(v));
    case MYC_K_I64:
      return put(Whole(v));
    default:
      return put(static_cast<uint8_t>(v != 0));
  }
}

}  // namespace mycelya::exec::kernel

#endif  // MYCELYA_EXEC_KERNEL_MOVES_H_
