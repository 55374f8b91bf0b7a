// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Matrix products of sparse compressed tensors.

#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_sparse_sparse_matmul.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "device/sparse/Compressed.h"

namespace mycelya::compressed {

using at::IntArrayRef;
using at::Scalar;
using at::Tensor;

namespace {

// ---- Matrix products ----

void CheckMatrices(const char* op, const Tensor& a, const Tensor& b) {
  TORCH_CHECK(a.dim() == 2 && b.dim() == 2, op, ": expected two matrices, but got ", a.dim(), " and ", b.dim(),
              " dimensions");
  TORCH_CHECK(a.size(1) == b.size(0), op, ": mat1 and mat2 shapes cannot be multiplied (", a.size(0), "x", a.size(1),
              " and ", b.size(0), "x", b.size(1), ")");
  TORCH_CHECK(a.scalar_type() == b.scalar_type(), op, ": expected mat1 and mat2 to have the same dtype, but got ",
              a.scalar_type(), " and ", b.scalar_type());
}

// beta * self + alpha * a @ b. `self` is strided; at least one of `a` and `b` is sparse.
Tensor AddmmStrided(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha) {
  const Tensor t = self.expand({a.size(0), b.size(1)});
  if (a.layout() == at::kStrided) {
    return at::addmm(t.t(), b.to_sparse().t(), a.t(), beta, alpha).t();
  }
  if (b.layout() == at::kStrided) return at::addmm(t, a.to_sparse(), b, beta, alpha);
  const Tensor product = at::_sparse_sparse_matmul(a.to_sparse(), b.to_sparse());
  return (beta.equal(0) ? at::zeros(t.sizes(), t.options()) : t.mul(beta)).add(product, alpha);
}

Tensor& AddmmOut(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha,
                 Tensor& out) {
  CheckDevices("addmm", {out, self, a, b});
  CheckMatrices("addmm", a, b);
  const auto sparse = [](const Tensor& t) { return t.layout() == at::kSparseCsr || t.layout() == at::kSparseCsc; };
  // As on the CPU, a blocked left operand is BSR and a blocked right operand is BSC.
  const bool rows = (sparse(a) || a.layout() == at::kSparseBsr) && b.layout() == at::kStrided;
  const bool columns = a.layout() == at::kStrided && (sparse(b) || b.layout() == at::kSparseBsc);
  const bool strided =
      out.layout() == at::kStrided && self.layout() == at::kStrided && (rows || columns || (sparse(a) && sparse(b)));
  const bool csr = out.layout() == at::kSparseCsr && self.layout() == at::kSparseCsr && sparse(a) && sparse(b);
  TORCH_CHECK(strided || csr, "addmm: ", self.layout(), " + ", a.layout(), " @ ", b.layout(), " into ", out.layout(),
              " is not supported: convert an operand with .to_sparse_csr() or .to_dense().");
  for (const Tensor& t : {a, b}) {
    TORCH_CHECK(t.layout() == at::kStrided || t.dense_dim() == 0, "addmm: scalar values expected, got ",
                t.layout() == at::kStrided ? 0 : t.dense_dim(), "D values");
  }
  if (strided) {
    const Tensor result = AddmmStrided(self, a, b, beta, alpha);
    TORCH_CHECK(!out.is_same(self) || out.sizes() == result.sizes(), "addmm: expected an input of size ",
                result.sizes(), ", got ", self.sizes());
    out.resize_(result.sizes());
    return out.copy_(result);
  }
  TORCH_CHECK(self.size(0) == a.size(0) && self.size(1) == b.size(1), "addmm: expected an input of size (", a.size(0),
              ", ", b.size(1), "), got ", self.sizes());
  const Tensor product = at::_sparse_sparse_matmul(a.to_sparse(), b.to_sparse()).to_sparse_csr();
  const Members m = MembersOf(product);
  const Tensor scaled = alpha.equal(1) ? m.values : m.values.mul(alpha);
  if (beta.equal(0) || self._nnz() == 0) return Put(out, {m.compressed, m.plain, scaled}, product.sizes());
  const Members s = MembersOf(self);
  return AddMatrices(Make({s.compressed, s.plain, s.values.mul(beta)}, self.sizes(), self.layout()),
                     Make({m.compressed, m.plain, scaled}, product.sizes(), product.layout()), 1, out);
}

Tensor& AddmvOut(const Tensor& self, const Tensor& matrix, const Tensor& vector, const Scalar& beta,
                 const Scalar& alpha, Tensor& out) {
  CheckDevices("addmv", {out, self, matrix, vector});
  TORCH_CHECK(matrix.layout() != at::kSparseBsc, "addmv: a matrix of layout SparseBsc is not supported");
  TORCH_CHECK(matrix.dim() == 2 && vector.dim() == 1, "addmv: expected a matrix and a vector, but got ", matrix.dim(),
              " and ", vector.dim(), " dimensions");
  const Tensor column = vector.unsqueeze(1);
  CheckMatrices("addmv", matrix, column);
  const Tensor result =
      AddmmStrided(self.expand({matrix.size(0)}).unsqueeze(1), matrix, column, beta, alpha).squeeze(1);
  out.resize_(result.sizes());
  return out.copy_(result);
}

// ---- Sampled matrix products ----

Tensor& SampledAddmmOut(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha,
                        Tensor& out) {
  constexpr const char* kName = "sampled_addmm";
  CheckDevices(kName, {out, self, a, b});
  TORCH_CHECK(a.layout() == at::kStrided && b.layout() == at::kStrided, kName,
              ": expected mat1 and mat2 to be strided, but got ", a.layout(), " and ", b.layout());
  TORCH_CHECK(self.layout() == at::kSparseCsr && out.layout() == at::kSparseCsr, kName,
              ": expected an input and a result of layout SparseCsr, but got ", self.layout(), " and ", out.layout());
  TORCH_CHECK(self.dense_dim() == 0 && out.dense_dim() == 0, kName, ": scalar values expected, got ", self.dense_dim(),
              "D values");
  const auto dtype = self.scalar_type();
  TORCH_CHECK(a.scalar_type() == dtype && b.scalar_type() == dtype && out.scalar_type() == dtype, kName,
              ": expected all operands to have the dtype of the input, ", dtype, ", but got ", a.scalar_type(), ", ",
              b.scalar_type(), " and ", out.scalar_type());
  TORCH_CHECK(dtype == at::kFloat || dtype == at::kDouble || at::isComplexType(dtype), kName,
              ": expected float, double or a complex dtype, but got ", dtype);
  TORCH_CHECK(a.dim() >= 2 && b.dim() >= 2, kName, ": expected matrices, but got ", a.dim(), " and ", b.dim(),
              " dimensions");
  const IntArrayRef batch = a.sizes().slice(0, a.dim() - 2);
  TORCH_CHECK(batch == b.sizes().slice(0, b.dim() - 2), kName, ": expected mat1 and mat2 to have the same batch, but ",
              a.sizes(), " and ", b.sizes(), " have not");
  TORCH_CHECK(self.dim() == 2 || self.sizes().slice(0, self.dim() - 2) == batch, kName,
              ": expected an input with the batch ", batch, ", but got ", self.sizes());
  const int64_t m = a.size(-2), k = a.size(-1), n = b.size(-1);
  TORCH_CHECK(k == b.size(-2), kName, ": mat1 and mat2 shapes cannot be multiplied (", m, "x", k, " and ", b.size(-2),
              "x", n, ")");
  TORCH_CHECK(self.size(-2) == m && self.size(-1) == n, kName, ": expected an input of size (", m, ", ", n,
              "), but got ", self.sizes());
  if (!out.is_same(self)) {
    Dims sizes = batch.vec();
    sizes.insert(sizes.end(), {m, n});
    at::sparse_csr::get_sparse_csr_impl(out)->resize_(self._nnz(), sizes);
    out.copy_(self);
  }
  Tensor values = MembersOf(out).values;
  values.mul_(beta);
  if (values.numel() == 0 || k == 0) return out;
  Dims rows(batch.size() + 1), columns(batch.size() + 1);
  for (size_t d = 0; d < batch.size(); d++) rows[d] = columns[d] = static_cast<int64_t>(d);
  rows.back() = static_cast<int64_t>(batch.size());
  columns.back() = rows.back() + 1;
  const Tensor places = Coordinates(out);
  const Tensor left = a.reshape({-1, k}).index_select(0, Number(places, out.sizes(), rows));
  const Tensor right = b.mT().reshape({-1, k}).index_select(0, Number(places, out.sizes(), columns));
  values.add_(left.mul(right).sum(-1).view(values.sizes()), alpha);
  return out;
}

Tensor SampledAddmm(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha) {
  Tensor out = at::empty({0, 0}, self.options());
  return SampledAddmmOut(self, a, b, beta, alpha, out);
}

TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) {
  m.impl("addmm.out", &AddmmOut);
  m.impl("addmv.out", &AddmvOut);
  m.impl("sparse_sampled_addmm", &SampledAddmm);
  m.impl("sparse_sampled_addmm.out", &SampledAddmmOut);
}

}  // namespace

}  // namespace mycelya::compressed
