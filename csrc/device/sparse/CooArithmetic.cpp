// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Sums, elementwise products and masks of sparse COO tensors.

#include <ATen/ExpandUtils.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/SparseTensorUtils.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "device/sparse/Coo.h"

namespace mycelya::coo {

using at::Scalar;
using at::Tensor;

namespace {

// ---- Sums ----

// `out` may be `dense`.
Tensor& AddToDense(const Tensor& dense, const Tensor& sparse, const Scalar& alpha, Tensor& out) {
  TORCH_CHECK(dense.sizes() == sparse.sizes(), "add: expected 'self' and 'other' to have same size, but self has size ",
              dense.sizes(), " while other has size ", sparse.sizes(),
              " (FYI: dense-sparse addition does not currently support broadcasting)");
  const auto dtype = at::result_type(dense, sparse);
  CheckOutDtype(dtype, out);
  const bool in_place = out.is_same(dense);
  if (!in_place) out.resize_(dense.sizes());
  if (sparse._values().numel() == 0) return in_place ? out : out.copy_(dense);
  // index_add_ needs the sum as a matrix.
  const bool direct = out.scalar_type() == dtype && out.is_contiguous();
  const Tensor sum = direct ? out : at::empty(dense.sizes(), dense.options().dtype(dtype));
  if (!direct || !in_place) sum.copy_(dense);
  const int64_t nnz = sparse._nnz(), columns = sparse._values().numel() / nnz;
  sum.view({sum.numel() / columns, columns})
      .index_add_(0, Numbers(sparse), sparse._values().to(dtype).reshape({nnz, columns}), alpha);
  return direct ? out : out.copy_(sum);
}

// As on CUDA, the elements of both operands are concatenated, so that the number of distinct elements is not needed.
Tensor& AddOut(const Tensor& self, const Tensor& other, const Scalar& alpha, Tensor& out) {
  CheckDevices("add", {out, self, other});
  if (!self.is_sparse()) return AddToDense(self, other, alpha, out);
  TORCH_CHECK(other.is_sparse(), "add(sparse, dense) is not supported. Use add(dense, sparse) instead.");
  const auto dtype = at::result_type(self, other);
  CheckOutDtype(dtype, out);
  TORCH_CHECK(self.sizes() == other.sizes(), "add: expected 'self' and 'other' to have same size, but ", self.sizes(),
              " != ", other.sizes());
  const auto scaled = [&] {
    const Tensor values = other._values().to(dtype);
    return alpha.equal(1) ? values : values.mul(alpha);
  };
  if (other._nnz() == 0) {
    if (out.is_same(self)) return out;
    return Put(out, self.sizes(), self.sparse_dim(), self._indices().clone(), self._values().clone(),
               self.is_coalesced());
  }
  if (self._nnz() == 0) {
    return Put(out, other.sizes(), other.sparse_dim(), other._indices().clone(), scaled().clone(),
               other.is_coalesced());
  }
  TORCH_CHECK(at::sparse::is_same_density(self, other),
              "add: expected 'self' and 'other' to have same density, but 'self' has ", self.sparse_dim(),
              " sparse dimensions while 'other' has ", other.sparse_dim(), " sparse dimensions");
  const Dims sizes = self.sizes().vec();  // out may be self
  Put(out, sizes, self.sparse_dim(), at::cat({self._indices(), other._indices()}, 1),
      at::cat({self._values().to(dtype), scaled()}, 0), false);
  // A gradient that is accumulated many times must not grow without bound.
  if (out._nnz() > out.numel()) {
    const Tensor c = Coalesce(out);
    Put(out, sizes, c.sparse_dim(), c._indices(), c._values(), true);
  }
  return out;
}

// ---- Elementwise products ----

// As on CUDA, the result has one element per element of the operand that has fewer, with explicit zeros. It does not
// wait.
Tensor& MulSparse(const Tensor& x, const Tensor& y, Tensor& out) {
  const int64_t sparse_dim = x.sparse_dim();
  TORCH_CHECK(
      x.dim() == y.dim() && sparse_dim == y.sparse_dim() &&
          x.sizes().slice(0, sparse_dim) == y.sizes().slice(0, sparse_dim),
      "mul(): expects sparse inputs with equal dimensionality, number of sparse dimensions, and shape of sparse "
      "dimensions");
  const auto dtype = at::result_type(x, y);
  CheckOutDtype(dtype, out);
  const auto sizes = at::infer_size(x.sizes(), y.sizes());
  if (x._nnz() == 0 || y._nnz() == 0) {
    Dims shape(sizes.begin() + sparse_dim, sizes.end());
    shape.insert(shape.begin(), 0);
    return Put(out, sizes, sparse_dim, at::empty({sparse_dim, 0}, x._indices().options()),
               at::empty(shape, x._values().options().dtype(dtype)), true);
  }
  // The product distributes over sums, so only the searched operand must be coalesced.
  const bool search_x = x.is_coalesced() == y.is_coalesced() ? x._nnz() >= y._nnz() : x.is_coalesced();
  const Tensor keys = Coalesce(search_x ? x : y), from = search_x ? y : x;
  const Match m = FindMatch(Numbers(keys), Numbers(from));
  const Tensor products = from._values().mul(keys._values().index_select(0, m.position));
  return Put(out, sizes, sparse_dim, from._indices().clone(), OrZero(m.found, products), from.is_coalesced());
}

Tensor& MulOut(const Tensor& self, const Tensor& other, Tensor& out) {
  CheckDevices("mul", {out, self, other});
  if (self.is_sparse() && other.is_sparse() && self.dim() != 0 && other.dim() != 0) return MulSparse(self, other, out);
  static const auto op = AtenOp<decltype(MulSparse)>("aten::mul", "out");
  return op.redispatch(c10::DispatchKeySet(c10::DispatchKey::SparseCPU), self, other, out);
}

// ---- Masks ----

Tensor SparseMask(const Tensor& self, const Tensor& mask) {
  CheckDevices("sparse_mask", {self, mask});
  if (!self.is_sparse() || !mask.is_sparse() || self.sizes() != mask.sizes() || self.is_same(mask)) {
    static const auto op = AtenOp<decltype(SparseMask)>("aten::sparse_mask", "");
    return op.redispatch(c10::DispatchKeySet(c10::DispatchKey::SparseCPU), self, mask);
  }
  TORCH_CHECK(self.sparse_dim() == mask.sparse_dim(),
              "sparse_mask(): the number of sparse dimensions in `self` should match that of the `mask`. Got `self.",
              "sparse_dim() == ", self.sparse_dim(), "` != `mask.sparse_dim() == ", mask.sparse_dim(), "`.");
  return Make(mask.sizes(), mask.sparse_dim(), mask._indices().clone(), ValuesAt(self, mask), mask.is_coalesced());
}

// Keeps the elements of `t` at indices of `mask` and sets the others to zero. With `accumulate`, an element is
// multiplied by the number of mask elements at its index.
Tensor SparseMaskProjection(const Tensor& t, const Tensor& mask, bool accumulate) {
  CheckDevices("_sparse_mask_projection", {t, mask});
  TORCH_CHECK(t.is_sparse() && mask.is_sparse() && t.sizes() == mask.sizes() && t.sparse_dim() == mask.sparse_dim(),
              "_sparse_mask_projection: expected two sparse tensors with the same sizes and sparse dimensions");
  Tensor keys = Numbers(mask);
  if (!mask.is_coalesced()) keys = std::get<0>(keys.sort(0));
  const Tensor queries = Numbers(t).contiguous();
  keys = keys.contiguous();
  const Tensor count = at::searchsorted(keys, queries, false, /*right=*/true).sub(at::searchsorted(keys, queries));
  Tensor values = OrZero(count.ne(0), t._values());
  if (accumulate && !mask.is_coalesced()) values = values.mul(Along(count, values).to(values.scalar_type()));
  return Make(t.sizes(), t.sparse_dim(), t._indices().clone(), values, t.is_coalesced());
}

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  m.impl("add.out", &AddOut);
  m.impl("mul.out", &MulOut);
  m.impl("sparse_mask", &SparseMask);
  m.impl("_sparse_mask_projection", &SparseMaskProjection);
}

}  // namespace

}  // namespace mycelya::coo
