// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Sums, elementwise products and reductions of sparse compressed tensors.

#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_convert_indices_from_coo_to_csr.h>
#include <ATen/ops/_unique.h>
#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/unique_consecutive.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>

#include "device/sparse/Compressed.h"

namespace mycelya::compressed {

using at::IntArrayRef;
using at::Scalar;
using at::Tensor;
using at::sparse_csr::is_sparse_compressed;

// ---- Sums ----

Tensor& AddMatrices(const Tensor& self, const Tensor& other, const Scalar& alpha, Tensor& out) {
  TORCH_CHECK(self.sizes() == other.sizes(), "add: expected 'self' and 'other' to have same size, but ", self.sizes(),
              " != ", other.sizes());
  const Members a = MembersOf(self), b = MembersOf(other);
  TORCH_CHECK(self.layout() == other.layout() && out.layout() == self.layout() && a.compressed.dim() == 1 &&
                  a.values.sizes().slice(1) == b.values.sizes().slice(1),
              "add: expected two sparse compressed matrices of one layout and block size, but got ", self.layout(),
              " and ", other.layout(), ". Convert one of them, or both .to_sparse().");
  const auto dtype = at::result_type(self, other);
  CheckOutDtype(dtype, out);
  Tensor addend = b.values.to(dtype);
  if (!alpha.equal(1)) addend = addend.mul(alpha);
  if (self.is_same(other)) {
    return Put(out, {a.compressed.clone(), a.plain.clone(), a.values.to(dtype).add(addend)}, self.sizes());
  }
  const bool rows = ByRows(self.layout());
  const Dims sizes = Grid(self);
  const Dims order = rows ? Dims{0, 1} : Dims{1, 0};
  const auto [sorted, from] =
      at::cat({Number(Coordinates(self), sizes, order), Number(Coordinates(other), sizes, order)})
          .sort(/*stable=*/true, 0, false);
  const auto [key, place, counts] = at::unique_consecutive(sorted, true);
  const Tensor values = at::cat({a.values.to(dtype), addend}).index_select(0, from);
  const int64_t plain_size = std::max<int64_t>(sizes[order[1]], 1);
  return Put(out,
             {at::_convert_indices_from_coo_to_csr(key.floor_divide(plain_size), sizes[order[0]]),
              key.remainder(plain_size), SumRows(values, place, key.size(0))},
             self.sizes());
}

namespace {

Tensor& AddOut(const Tensor& self, const Tensor& other, const Scalar& alpha, Tensor& out) {
  CheckDevices("add", {out, self, other});
  if (self.layout() == at::kStrided) {
    if (is_sparse_compressed(other)) return at::add_out(out, self, other.to_sparse(), alpha);
  } else if (other.layout() == at::kStrided) {
    TORCH_CHECK(out.layout() == at::kStrided, "add: the sum of a sparse and a strided tensor is strided, but out is ",
                out.layout());
    const auto dtype = at::result_type(self, other);
    const Tensor dense = other.to(dtype);
    return at::add_out(out, alpha.equal(1) ? dense : dense.mul(alpha), self.to_sparse());
  }
  TORCH_CHECK(is_sparse_compressed(self) && is_sparse_compressed(other) && is_sparse_compressed(out),
              "add: expected tensors of one sparse compressed layout, but got ", self.layout(), " and ", other.layout(),
              ". Convert one of them, or both .to_sparse().");
  return AddMatrices(self, other, alpha, out);
}

// ---- Elementwise products ----

// Elements that only one operand has are dropped. Waits for the number of elements that remain.
Tensor& MulOut(const Tensor& self, const Tensor& other, Tensor& out) {
  CheckDevices("mul", {out, self, other});
  TORCH_CHECK(out.layout() == at::kSparseCsr, "mul: expected a result of layout SparseCsr, but out is ", out.layout(),
              ". Convert the operands with .to_sparse_csr() or .to_sparse().");
  CheckOutDtype(at::result_type(self, other), out);
  for (const auto& [sparse, dense] : {std::tie(self, other), std::tie(other, self)}) {
    if (dense.layout() != at::kStrided || sparse.layout() != at::kSparseCsr) continue;
    if (!IsPlain(sparse) || dense.sizes() != sparse.sizes()) return MulOut(sparse, dense.sparse_mask(sparse), out);
    const Members m = MembersOf(sparse);
    return Put(out, {m.compressed.clone(), m.plain.clone(), m.values.mul(ValuesAt(dense, sparse))}, sparse.sizes());
  }
  TORCH_CHECK(self.layout() != at::kStrided && other.layout() != at::kStrided, "mul: the product of ", self.layout(),
              " and ", other.layout(), " is not supported");
  TORCH_CHECK(self.sizes() == other.sizes(), "mul: expected operands of the same size, but got ", self.sizes(), " and ",
              other.sizes());
  const auto coo = [](const Tensor& t) { return (t.is_sparse() ? t : t.to_sparse()).coalesce(); };
  const Tensor x = coo(self), y = coo(other);
  TORCH_CHECK(x.sparse_dim() == 2 && y.sparse_dim() == 2, "mul: expected matrices, but got ", x.dim(), " dimensions");
  Tensor element = at::empty({0}, x._indices().options()), at_y = element;
  if (x._nnz() != 0 && y._nnz() != 0) {
    const Match m = FindMatch(Number(y._indices(), y.sizes(), {0, 1}), Number(x._indices(), x.sizes(), {0, 1}));
    element = m.found.nonzero().squeeze(1);
    at_y = m.position.index_select(0, element);
  }
  const Tensor indices = x._indices().index_select(1, element);
  return Put(out,
             {at::_convert_indices_from_coo_to_csr(indices.select(0, 0), x.size(0)), indices.select(0, 1).contiguous(),
              x._values().index_select(0, element).mul(y._values().index_select(0, at_y))},
             x.sizes());
}

// PyTorch would first take the sparse_mask of a strided operand, which waits. Indexing it at the places of the sparse
// operand does not.
Tensor MulTensor(const Tensor& self, const Tensor& other) {
  if (self.layout() == at::kStrided && self.dim() == 2 && other.layout() == at::kSparseCsr)
    return MulTensor(other, self);
  if (other.layout() == at::kStrided && other.sizes() == self.sizes() && self.layout() == at::kSparseCsr &&
      IsPlain(self)) {
    CheckDevices("mul", {self, other});
    const Members m = MembersOf(self);
    return Make({m.compressed.clone(), m.plain.clone(), m.values.mul(ValuesAt(other, self))}, self.sizes(),
                self.layout());
  }
  static const auto op = AtenOp<decltype(MulTensor)>("aten::mul", "Tensor");
  return op.redispatch(c10::DispatchKeySet(c10::DispatchKey::SparseCsrCPU), self, other);
}

// ---- Sums and products along dimensions ----

template <bool kSum>
Tensor ReduceRows(const Tensor& values, const Tensor& place, int64_t places) {
  if constexpr (kSum) return SumRows(values, place, places);
  const Tensor factors = values.to(ReduceDtype(values));
  return at::ones({places}, factors.options()).scatter_reduce(0, place, factors, "prod").to(values.scalar_type());
}

// The result is a CSR matrix with one row or column. It has an element where a sum or product has at least one term.
// Waits for their number.
template <bool kSum>
Tensor ReduceValues(const Tensor& self, IntArrayRef dim, bool keepdim, std::optional<at::ScalarType> dtype) {
  constexpr const char* kName = kSum ? "_sparse_csr_sum" : "_sparse_csr_prod";
  TORCH_CHECK(self.layout() == at::kSparseCsr && IsPlain(self), kName, ": expected a SparseCsr matrix, but got ",
              self.layout(), " of size ", self.sizes());
  TORCH_CHECK(keepdim, kName, ": only keepdim=True is supported, a SparseCsr tensor being a matrix");
  const Members m = MembersOf(self);
  const auto from = dtype.value_or(self.scalar_type());
  const auto to = at::isIntegralType(from, /*includeBool=*/true) ? at::kLong : from;
  const Tensor values = m.values.to(from).to(to);
  bool along_dim[2] = {dim.empty(), dim.empty()};
  for (const int64_t d : dim) along_dim[at::maybe_wrap_dim(d, 2)] = true;
  const auto options = m.plain.options();
  const auto from_zero = [&](const Tensor& ends) { return at::cat({at::zeros({1}, options), ends.to(options)}); };
  if (along_dim[0] && along_dim[1]) {
    const int64_t nnz = std::min<int64_t>(1, values.size(0));
    const Tensor total = kSum ? values.sum() : values.prod();
    return Make({from_zero(at::full({1}, nnz, options)), at::zeros({nnz}, options), total.expand({nnz}).contiguous()},
                {1, std::min<int64_t>(1, self.size(1))}, self.layout());
  }
  if (along_dim[0]) {
    const auto [columns, place] = at::_unique(m.plain, true, true);
    const int64_t n = columns.size(0);
    return Make({from_zero(at::full({1}, n, options)), columns, ReduceRows<kSum>(values, place, n)}, {1, self.size(1)},
                self.layout());
  }
  const Tensor some = m.compressed.slice(0, 1).ne(m.compressed.slice(0, 0, -1)), ends = some.cumsum(0);
  const int64_t n = some.nonzero().size(0);
  const Tensor place = ends.index_select(0, Coordinates(self).select(0, 0)).sub(1);
  return Make({from_zero(ends), at::zeros({n}, options), ReduceRows<kSum>(values, place, n)}, {self.size(0), 1},
              self.layout());
}

TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) {
  m.impl("add.out", &AddOut);
  m.impl("mul.Tensor", &MulTensor);
  m.impl("mul.out", &MulOut);
  m.impl("_sparse_csr_sum.dim_dtype", &ReduceValues<true>);
  m.impl("_sparse_csr_prod.dim_dtype", &ReduceValues<false>);
}

}  // namespace

}  // namespace mycelya::compressed
