// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Strided views of byte storages. MakeTensor is the only function that makes a tensor over a storage. Sizes, strides
// and offsets come from the client and are checked here.
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

  // Sets the strides of a row-major tensor with these sizes, as PyTorch does (a dim of size 0 counts as 1).
  // Throws ValueError if they do not fit into 64 bits.
  void SetContiguous();

  // Bytes from the start of the storage to the end of the last element; 0 if there are no elements. Throws ValueError
  // on a negative size, stride or offset, and if numel * itemsize or the result does not fit into 63 bits.
  uint64_t Bytes() const;

  // Whether the strides are equal, ignoring dims of size 0 or 1. Ranks must be equal.
  bool SameLayout(c10::IntArrayRef other) const;

  // "f32[2,3] with strides [3,1] and offset 0"
  std::string Text() const;
};

// Bytes of the storage up to the end of the view. Throws IndexError if the storage is too small.
uint64_t CheckWithin(const c10::Storage& storage, const Geometry& g);

// The address of the view's first element. Throws IndexError if the storage is too small.
char* AddressIn(const c10::Storage& storage, const Geometry& g);

// A tensor over the storage. Throws IndexError if the storage is too small.
at::Tensor MakeTensor(const c10::Storage& storage, const Geometry& g);

// All bytes of a storage as u8[n].
at::Tensor BytesOf(const c10::Storage& storage);

}  // namespace mycelya::exec

#endif  // MYCELYA_EXEC_MEMORY_GEOMETRY_H_
