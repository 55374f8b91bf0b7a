// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// A worker's memory, and the region of an index space that a tile covers.
#ifndef MYCELYA_EXEC_KERNEL_REGION_H_
#define MYCELYA_EXEC_KERNEL_REGION_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "exec/kernel/Traversal.h"

namespace mycelya::exec::kernel {

struct Memory {
  struct Free {
    void operator()(char* p) const { ::operator delete(p, std::align_val_t(64)); }
  };
  std::unique_ptr<char, Free> data;
  size_t bytes = 0;

  char* Get(size_t n) {
    if (n > bytes) {
      data.reset();
      bytes = 0;
      data.reset(static_cast<char*>(::operator new(n, std::align_val_t(64))));
      bytes = n;
    }
    return data.get();
  }
};

// A rectangle along one or two dims of a space. at: its first point.
struct Part {
  int64_t at[MYC_K_MAX_RANK];
  int64_t n0, n1;
};
// A rectangle of an operand: n1 rows of n0 elements, with their strides.
struct Area {
  int64_t offset, n0, s0, n1, s1;
  bool Dense() const { return n1 == 1 && (s0 == 1 || n0 == 1); }
};
struct Region {
  const Space* space = nullptr;
  int d0 = -1, d1 = -1;  // inner and outer dim of the rectangles; -1: none
  std::vector<Part> parts;

  void Decode(int64_t p, int64_t* at) const {
    for (int d = static_cast<int>(space->rank) - 1; d > 0; --d) {
      at[d] = p % space->sizes[d];
      p /= space->sizes[d];
    }
    if (space->rank > 0) at[0] = p;
  }

  // Covers points p to p + n in row-major order.
  void Line(const Space* w, int64_t p, int64_t n) {
    space = w;
    if (w->rank <= 1) {
      parts.resize(1);
      parts[0].at[0] = p;
      parts[0].n0 = n;
      parts[0].n1 = 1;
      d0 = static_cast<int>(w->rank) - 1;
      d1 = -1;
      return;
    }
    parts.clear();
    d0 = static_cast<int>(w->rank) - 1;
    d1 = d0 - 1;
    while (n > 0) {
      Part& part = parts.emplace_back();
      Decode(p, part.at);
      part.n1 = 1;
      const int64_t size = w->sizes[d0], at = part.at[d0];
      part.n0 = std::min(n, size - at);
      if (at == 0 && n >= size) part.n1 = std::min(n / size, w->sizes[d1] - part.at[d1]);
      const int64_t done = part.n0 * part.n1;
      p += done;
      n -= done;
    }
  }

  // The distance between neighbours along a dim in an operand; 0 without that dim.
  int64_t StrideOf(uint32_t operand, int d) const {
    return d < 0 ? 0 : space->strides[static_cast<size_t>(operand) * space->rank + static_cast<size_t>(d)];
  }
  // The place of a part's first point in an operand whose region begins at an offset.
  int64_t OffsetOf(const Part& part, uint32_t operand, int64_t base) const {
    const int64_t* strides = space->strides.data() + static_cast<size_t>(operand) * space->rank;
    for (uint32_t d = 0; d < space->rank; ++d) base += part.at[d] * strides[d];
    return base;
  }
  // A part in such an operand, with its dims merged if possible.
  Area AreaOf(const Part& part, uint32_t operand, int64_t base) const {
    Area r{OffsetOf(part, operand, base), part.n0, StrideOf(operand, d0), part.n1, StrideOf(operand, d1)};
    if (r.n0 == 1) {
      r.n0 = r.n1;
      r.s0 = r.s1;
      r.n1 = 1;
    }
    if (r.n1 != 1 && r.s1 == r.n0 * r.s0) {
      r.n0 *= r.n1;
      r.n1 = 1;
    }
    return r;
  }
};

}  // namespace mycelya::exec::kernel

#endif  // MYCELYA_EXEC_KERNEL_REGION_H_
