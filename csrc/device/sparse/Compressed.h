// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Building blocks of the operators on sparse compressed tensors.
#ifndef MYCELYA_DEVICE_SPARSE_COMPRESSED_H_
#define MYCELYA_DEVICE_SPARSE_COMPRESSED_H_

#include <ATen/SparseCsrTensorUtils.h>

#include "device/sparse/Sparse.h"

namespace mycelya::compressed {

struct Members {
  at::Tensor compressed, plain, values;
};

Members MembersOf(const at::Tensor& t);

inline bool ByRows(at::Layout layout) { return layout == at::kSparseCsr || layout == at::kSparseBsr; }
inline bool InBlocks(at::Layout layout) { return layout == at::kSparseBsr || layout == at::kSparseBsc; }

at::Tensor Make(const Members& m, at::IntArrayRef sizes, at::Layout layout);

// Gives an out= operand a new shape and content, converted to its dtypes.
at::Tensor& Put(at::Tensor& out, const Members& m, at::IntArrayRef sizes);

// The coordinates of the elements or blocks: batch dims, row, column. [batch + 2, elements]
at::Tensor Coordinates(const at::Tensor& t);

// Whether the tensor is a CSR or CSC matrix without batch dims and dense dims.
bool IsPlain(const at::Tensor& t);

// The elements of a strided matrix at the places of a sparse one.
at::Tensor ValuesAt(const at::Tensor& dense, const at::Tensor& mask);

// The sizes of the two sparse dims, in elements or blocks.
Dims Grid(const at::Tensor& t);

// self + alpha * other for two matrices of one layout. Waits for the number of distinct places.
at::Tensor& AddMatrices(const at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha, at::Tensor& out);

// As on the CPU, f16 and bf16 are reduced in f32.
inline at::ScalarType ReduceDtype(const at::Tensor& t) {
  return at::isReducedFloatingType(t.scalar_type()) ? at::kFloat : t.scalar_type();
}

}  // namespace mycelya::compressed

#endif  // MYCELYA_DEVICE_SPARSE_COMPRESSED_H_
