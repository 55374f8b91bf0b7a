// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Strided windows on byte storages: what they need, and the one place where a tensor over a storage is made. Sizes,
// strides and offsets come from the client, so nothing here trusts them.
#ifndef MYCELYA_EXEC_MEMORY_GEOMETRY_H_
#define MYCELYA_EXEC_MEMORY_GEOMETRY_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/util/SmallVector.h>

#include <cstdint>

namespace mycelya::exec {

// The trace format has 8 bits for a rank.
inline constexpr uint64_t kMaxRank = 255;

struct Geometry {
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  c10::SmallVector<int64_t, 6> sizes;
  c10::SmallVector<int64_t, 6> strides;  // elements
  int64_t offset = 0;                    // elements

  // Strides of a row-major tensor with these sizes, as PyTorch counts them (a dim of size 0 counts as 1).
  // Throws ValueError if they don't fit 64 bits.
  void SetContiguous();

  // Bytes from the start of the storage to the end of the last element; 0 if there are no elements. Throws ValueError
  // on a negative size, stride or offset, and when numel * itemsize or the answer doesn't fit 63 bits.
  uint64_t Bytes() const;

  // Whether strides differ at most in dims of size 1, where they mean nothing. Ranks must be equal.
  bool SameLayout(c10::IntArrayRef other) const;

  // "f32[2,3] with strides [3,1] and offset 0"
  std::string Text() const;
};

// A tensor over the storage; the check against the storage's size is made first. Throws IndexError naming the values.
at::Tensor MakeTensor(const c10::Storage& storage, const Geometry& g);

// All the bytes of a storage as u8[n].
at::Tensor BytesOf(const c10::Storage& storage);

}  // namespace mycelya::exec

#endif  // MYCELYA_EXEC_MEMORY_GEOMETRY_H_
