// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Building blocks of the operators on sparse COO tensors.
#ifndef MYCELYA_DEVICE_SPARSE_COO_H_
#define MYCELYA_DEVICE_SPARSE_COO_H_

#include "device/sparse/Sparse.h"

namespace mycelya::coo {

// The indices of each element as one row-major number. i64[nnz]
at::Tensor Numbers(const at::Tensor& sparse);

// The inverse of Numbers() for the sizes of the sparse dims. i64[nnz] -> i64[dims, nnz]
at::Tensor Unflatten(const at::Tensor& flat, at::IntArrayRef sizes);

// Keeps the rows where `found` holds and replaces the others by zeros.
at::Tensor OrZero(const at::Tensor& found, const at::Tensor& rows);

// The rows of `values` at the matched positions; zeros where there is no match.
at::Tensor Take(const at::Tensor& values, const Match& m);

struct Pairs {
  at::Tensor left, right;
};

// All (l, r) with left[l] == right[r], in the order of `left`. `right` is sorted. Waits for the number of pairs.
Pairs Join(const at::Tensor& left, const at::Tensor& right);

at::Tensor Make(at::IntArrayRef sizes, int64_t sparse_dim, const at::Tensor& indices, const at::Tensor& values,
                bool coalesced);

// Gives an out= operand a new shape and content, converted to its dtype.
at::Tensor& Put(at::Tensor& out, at::IntArrayRef sizes, int64_t sparse_dim, const at::Tensor& indices,
                const at::Tensor& values, bool coalesced);

// Waits for the number of distinct indices.
at::Tensor Coalesce(const at::Tensor& self);

// The rows of `t` at the indices of `mask`; zeros where `t` has no element.
at::Tensor ValuesAt(const at::Tensor& t, const at::Tensor& mask);

}  // namespace mycelya::coo

#endif  // MYCELYA_DEVICE_SPARSE_COO_H_
