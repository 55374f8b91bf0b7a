// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Matrix products of sparse COO tensors.

#include <ATen/core/Tensor.h>
#include <ATen/ops/_unique2.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "device/sparse/Coo.h"

namespace mycelya::coo {

using at::Scalar;
using at::Tensor;

namespace {

// ---- Matrix products ----

void CheckMatrices(const char* op, const Tensor& sparse, const Tensor& dense) {
  TORCH_CHECK(dense.dim() == 2, op, ": 2D tensor expected, got ", dense.dim(), "D tensor");
  const int64_t sparse_dim = sparse.is_sparse() ? sparse.sparse_dim() : 0;
  TORCH_CHECK(sparse_dim == 2, op, ": expected first two dims to be sparse (indices has size 2 at first dim), but got ",
              sparse_dim, " sparse dims");
  TORCH_CHECK(sparse.dense_dim() == 0, op, ": scalar values expected, got ", sparse.dense_dim(), "D values");
  TORCH_CHECK(dense.layout() == at::kStrided, op, ": expected 'mat2' to be dense, but it is ", dense.layout(), ".");
  TORCH_CHECK(dense.size(0) == sparse.size(1), op, ": Argument #3 (dense): Expected dim 0 size ", sparse.size(1),
              ", got ", dense.size(0));
}

// For each element of a sparse matrix: its value times the row of `dense` that its column selects. [nnz, columns]
Tensor ScaledRows(const char* op, const Tensor& column, const Tensor& values, const Tensor& dense) {
  TORCH_CHECK(values.scalar_type() == dense.scalar_type(), op,
              ": expected 'mat1' and 'mat2' to have the same dtype, but got ", values.scalar_type(), " and ",
              dense.scalar_type(), ".");
  return dense.index_select(0, column).mul(values.unsqueeze(1));
}

Tensor& AddmmOut(const Tensor& self, const Tensor& sparse, const Tensor& dense, const Scalar& beta, const Scalar& alpha,
                 Tensor& out) {
  CheckDevices("addmm", {out, self, sparse, dense});
  CheckMatrices("addmm", sparse, dense);
  const Tensor t = self.expand({sparse.size(0), dense.size(1)});
  const bool in_place = out.is_same(self);
  if (in_place) {
    TORCH_CHECK(t.sizes() == self.sizes(), "addmm: Argument #1 (t): Expected size ", t.sizes(), ", got ", self.sizes());
  } else {
    out.resize_(t.sizes());
  }
  if (beta.equal(0)) {
    out.zero_();
  } else {
    if (!in_place) out.copy_(t);
    if (!beta.equal(1)) out.mul_(beta);
  }
  const Tensor indices = sparse._indices();
  return out.index_add_(0, indices.select(0, 0), ScaledRows("addmm", indices.select(0, 1), sparse._values(), dense),
                        alpha);
}

Tensor Addmm(const Tensor& self, const Tensor& sparse, const Tensor& dense, const Scalar& beta, const Scalar& alpha) {
  Tensor out = at::empty({0}, self.options());
  return AddmmOut(self, sparse, dense, beta, alpha, out);
}

Tensor& AddmmInPlace(Tensor& self, const Tensor& sparse, const Tensor& dense, const Scalar& beta, const Scalar& alpha) {
  return AddmmOut(self, sparse, dense, beta, alpha, self);
}

Tensor& BmmOut(const Tensor& sparse, const Tensor& dense, Tensor& out) {
  CheckDevices("bmm", {out, sparse, dense});
  TORCH_CHECK(sparse.is_sparse() && dense.layout() == at::kStrided,
              "bmm_sparse: expected 'self' to be sparse and 'mat2' to be dense");
  TORCH_CHECK(sparse.dense_dim() == 0, "bmm_sparse: Tensor 'self' must have 0 dense dims, but has ",
              sparse.dense_dim());
  TORCH_CHECK(sparse.sparse_dim() == 3, "bmm_sparse: Tensor 'self' must have 3 sparse dims, but has ",
              sparse.sparse_dim());
  TORCH_CHECK(dense.dim() == 3, "bmm_sparse: Tensor 'mat2' must have 3 dims, but has ", dense.dim());
  TORCH_CHECK(sparse.size(0) == dense.size(0), "bmm_sparse: 'self.size(0)' and 'mat2.size(0)' must match");
  TORCH_CHECK(sparse.size(2) == dense.size(1), "bmm_sparse: 'self.size(2)' and 'mat2.size(1)' must match");
  const int64_t b = sparse.size(0), m = sparse.size(1), k = sparse.size(2), n = dense.size(2);
  out.resize_({b, m, n});
  const Tensor indices = sparse._indices(), sum = at::zeros({b * m, n}, out.options());
  sum.index_add_(
      0, Number(indices, sparse.sizes(), {0, 1}),
      ScaledRows("bmm", Number(indices, sparse.sizes(), {0, 2}), sparse._values(), dense.reshape({b * k, n})));
  return out.copy_(sum.view({b, m, n}));
}

Tensor Bmm(const Tensor& sparse, const Tensor& dense) {
  Tensor out = at::empty({0}, dense.options());
  return BmmOut(sparse, dense, out);
}

// The result has one sparse and one dense dim, and holds only rows with an element.
Tensor& HspmmOut(const Tensor& sparse, const Tensor& dense, Tensor& out) {
  CheckDevices("hspmm", {out, sparse, dense});
  CheckMatrices("hspmm", sparse, dense);
  const Tensor indices = sparse._indices();
  const auto [rows, place, counts] = at::_unique2(indices.select(0, 0), true, true);
  const Tensor products = ScaledRows("hspmm", indices.select(0, 1), sparse._values(), dense);
  return Put(out, {sparse.size(0), dense.size(1)}, 1, rows.unsqueeze(0), SumRows(products, place, rows.size(0)), false);
}

Tensor Hspmm(const Tensor& sparse, const Tensor& dense) {
  Tensor out = at::empty({0}, sparse.options());
  return HspmmOut(sparse, dense, out);
}

// Pairs each element (i, k) of `a` with each element (k, j) of `b`.
Tensor SparseMatmul(const Tensor& a, const Tensor& b) {
  CheckDevices("_sparse_sparse_matmul", {a, b});
  for (const Tensor& t : {a, b}) {
    TORCH_CHECK(t.is_sparse() && t.dim() == 2, "torch.sparse.mm: expected two sparse matrices");
    TORCH_CHECK(t.dense_dim() == 0, "torch.sparse.mm: scalar values expected, got ", t.dense_dim(), "D values");
  }
  TORCH_CHECK(a.size(1) == b.size(0), "_sparse_sparse_matmul: mat1 and mat2 shapes cannot be multiplied (", a.size(0),
              "x", a.size(1), " and ", b.size(0), "x", b.size(1), ")");
  TORCH_CHECK(a.scalar_type() == b.scalar_type(), "mat1 dtype ", a.scalar_type(), " does not match mat2 dtype ",
              b.scalar_type());
  const Tensor x = Coalesce(a), y = Coalesce(b);
  const Tensor of_x = x._indices(), of_y = y._indices();
  const Pairs pairs = Join(of_x.select(0, 1), of_y.select(0, 0));
  const Tensor indices =
      at::stack({of_x.select(0, 0).index_select(0, pairs.left), of_y.select(0, 1).index_select(0, pairs.right)}, 0);
  const Tensor values = x._values().index_select(0, pairs.left).mul(y._values().index_select(0, pairs.right));
  return Coalesce(Make({a.size(0), b.size(1)}, 2, indices, values, false));
}

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  m.impl("addmm", &Addmm);
  m.impl("addmm_", &AddmmInPlace);
  m.impl("addmm.out", &AddmmOut);
  m.impl("bmm", &Bmm);
  m.impl("bmm.out", &BmmOut);
  m.impl("hspmm", &Hspmm);
  m.impl("hspmm.out", &HspmmOut);
  m.impl("_sparse_sparse_matmul", &SparseMatmul);
}

}  // namespace

}  // namespace mycelya::coo
