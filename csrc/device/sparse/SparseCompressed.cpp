// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Sparse compressed tensors: CSR, CSC, and BSR and BSC, whose elements are blocks. One is three dense tensors of the
// device: where each row (CSC, BSC: column) begins, the other coordinate of each element, and the values. As with COO
// (Sparse.cpp) PyTorch's kernels for the CPU run under our key where they are made of operators; what they would
// compute in memory is written here, and the rest is refused (Register.cpp). One file, because four layouts share each
// of its functions.

#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_convert_indices_from_coo_to_csr.h>
#include <ATen/ops/_convert_indices_from_csr_to_coo.h>
#include <ATen/ops/_sparse_compressed_tensor_unsafe.h>
#include <ATen/ops/_sparse_sparse_matmul.h>
#include <ATen/ops/_unique.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/unique_consecutive.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/accumulate.h>
#include <torch/library.h>

#include "device/sparse/Sparse.h"

namespace mycelya {
namespace {

using at::IntArrayRef;
using at::Layout;
using at::Scalar;
using at::Tensor;
using at::sparse_csr::is_sparse_compressed;

// ---- PyTorch's own kernels ----

// Made of operators: nothing in them asks where the memory is.
constexpr const char* kComposed[] = {
    // making, taking apart
    "empty.memory_format", "empty_like", "_nnz", "sparse_dim", "dense_dim", "values", "crow_indices", "col_indices",
    "ccol_indices", "row_indices", "is_pinned",
    // copies and conversions
    "clone", "copy_", "zero_", "fill_.Scalar", "normal_", "resize_", "resize_as_sparse_", "_to_dense", "_to_sparse",
    "_to_sparse.sparse_dim", "sparse_mask", "select.int", "select_copy.int",
    // arithmetic that ends in add.out, mul.out, addmm.out or an operator on the values
    "add.Tensor", "add_.Tensor", "mul.Scalar", "mul_.Scalar", "mul_.Tensor", "mm", "mm.out", "addmm", "sum",
    "sum.dim_IntList",
    // functions of the values with f(0) = 0
    "_conj_physical", "abs", "abs.out", "abs_", "angle", "angle.out", "asin", "asin.out", "asin_", "asinh", "asinh.out",
    "asinh_", "atan", "atan.out", "atan_", "atanh", "atanh.out", "atanh_", "ceil", "ceil.out", "ceil_",
    "conj_physical.out", "conj_physical_", "deg2rad", "deg2rad.out", "deg2rad_", "erf", "erf.out", "erf_", "erfinv",
    "erfinv.out", "erfinv_", "expm1", "expm1.out", "expm1_", "floor", "floor.out", "floor_", "frac", "frac.out",
    "frac_", "isinf", "isnan", "isneginf", "isneginf.out", "isposinf", "isposinf.out", "log1p", "log1p.out", "log1p_",
    "neg", "neg.out", "neg_", "rad2deg", "rad2deg.out", "rad2deg_", "relu", "relu_", "round", "round.out", "round_",
    "sgn", "sgn.out", "sgn_", "sign", "sign.out", "sign_", "signbit", "signbit.out", "sin", "sin.out", "sin_", "sinh",
    "sinh.out", "sinh_", "sqrt", "sqrt.out", "sqrt_", "tan", "tan.out", "tan_", "tanh", "tanh.out", "tanh_",
    "threshold_backward", "threshold_backward.grad_input", "trunc", "trunc.out", "trunc_"};

template <class F>
auto on_cpu(const char* name, const char* overload) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload).typed<F>();
}
constexpr c10::DispatchKeySet kCsrCpu(c10::DispatchKey::SparseCsrCPU);

// ---- The three tensors ----

struct Members {
  Tensor compressed, plain, values;
};

Members members(const Tensor& t) {
  const auto* impl = at::sparse_csr::get_sparse_csr_impl(t);
  return {impl->compressed_indices(), impl->plain_indices(), impl->values()};
}

bool by_rows(Layout layout) { return layout == at::kSparseCsr || layout == at::kSparseBsr; }
bool in_blocks(Layout layout) { return layout == at::kSparseBsr || layout == at::kSparseBsc; }

Tensor make(const Members& m, IntArrayRef sizes, Layout layout) {
  return at::_sparse_compressed_tensor_unsafe(m.compressed, m.plain, m.values, sizes,
                                              m.values.options().layout(layout));
}

// An out= operand takes another shape and content, converted to its own dtypes.
Tensor& put(Tensor& out, const Members& m, IntArrayRef sizes) {
  const Tensor result = make(m, sizes, out.layout());
  out.resize_as_sparse_(result);
  return out.copy_(result);
}

// The coordinates of the elements, or blocks: batch dimensions, row, column. [batch + 2, elements]
Tensor coordinates(const Tensor& t) {
  const Members m = members(t);
  return at::_convert_indices_from_csr_to_coo(m.compressed, m.plain, /*out_int32=*/false,
                                              /*transpose=*/!by_rows(t.layout()));
}

// A matrix that has an element for each value, none of them a block or a row of its own.
bool is_plain(const Tensor& t) {
  return (t.layout() == at::kSparseCsr || t.layout() == at::kSparseCsc) && t.dim() == 2 && t.dense_dim() == 0;
}

// A strided matrix at the places of a sparse one.
Tensor values_at(const Tensor& dense, const Tensor& mask) {
  return dense.reshape({-1}).index_select(0, number(coordinates(mask), mask.sizes(), {0, 1}));
}

// ---- Invariants ----

// The one place that has to look at indices: five questions, one answer to wait for.
void validate_indices(bool by_row, const Tensor& compressed, const Tensor& plain, int64_t compressed_size,
                      int64_t plain_size, int64_t nnz) {
  TORCH_CHECK(compressed_size == compressed.size(-1) - 1, "_validate_compressed_sparse_indices: ", compressed.size(-1),
              " compressed indices can't be those of ", compressed_size, " rows or columns");
  TORCH_CHECK(nnz == plain.size(-1), "_validate_compressed_sparse_indices: got ", plain.size(-1), " plain indices for ",
              nnz, " elements");
  if (compressed.numel() == 0) return;
  const Tensor begin = compressed.slice(-1, 0, -1), end = compressed.slice(-1, 1), count = end.sub(begin);
  const Tensor all = at::ones({}, compressed.options().dtype(at::kBool));
  Tensor bounded = all, ascending = all;
  if (plain.numel() != 0) {
    bounded = plain.ge(0).logical_and(plain.lt(plain_size)).all();
    // Two neighbours of one row ascend. Which row an element is in makes sense if the checks before hold.
    const Tensor place = at::arange(nnz, compressed.options()).expand(plain.sizes()).contiguous();
    const Tensor row =
        compressed_size == 0 ? at::zeros_like(place) : at::searchsorted(end.contiguous(), place, false, /*right=*/true);
    ascending =
        plain.slice(-1, 1).gt(plain.slice(-1, 0, -1)).logical_or(row.slice(-1, 1).ne(row.slice(-1, 0, -1))).all();
  }
  const Tensor holds = at::stack({compressed.select(-1, 0).eq(0).all(), compressed.select(-1, -1).eq(nnz).all(),
                                  count.ge(0).logical_and(count.le(plain_size)).all(), bounded, ascending})
                           .cpu();
  const bool* ok = holds.const_data_ptr<bool>();
  const std::string c = by_row ? "crow_indices" : "ccol_indices", p = by_row ? "col_indices" : "row_indices",
                    n = by_row ? "ncols" : "nrows", rows = by_row ? "nrows" : "ncols";
  const std::string wanted[] = {c + "[..., 0] == 0", c + "[..., -1] == nnz",
                                "0 <= " + c + "[..., 1:] - " + c + "[..., :-1] <= " + n, "0 <= " + p + " < " + n,
                                p + "[..., " + c + "[..., i - 1]:" + c + "[..., i]] for all i = 1, ..., " + rows +
                                    " are sorted and distinct along the last dimension values"};
  for (size_t i = 0; i < 5; i++) TORCH_CHECK(ok[i], "`", wanted[i], "` is not satisfied.");
}

// ---- From one layout to another ----

// The size of the sparse dimensions in elements, or blocks.
Dims grid(const Tensor& t) {
  const Members m = members(t);
  const int64_t batch = m.compressed.dim() - 1;
  const bool blocks = in_blocks(t.layout());
  return {t.size(batch) / (blocks ? m.values.size(batch + 1) : 1),
          t.size(batch + 1) / (blocks ? m.values.size(batch + 2) : 1)};
}

// From rows to columns or back.
Tensor flipped(const Tensor& t) {
  const Members m = members(t);
  const int64_t batch = m.compressed.dim() - 1;
  const Dims batches = t.sizes().slice(0, batch).vec(), sparse = grid(t);
  const bool rows = by_rows(t.layout());
  Dims sizes = batches, dims(batch + 1);
  sizes.insert(sizes.end(), sparse.begin(), sparse.end());
  for (int64_t d = 0; d < batch; d++) dims[d] = d;
  dims[batch] = rows ? batch + 1 : batch;
  const int64_t old_dim = rows ? batch : batch + 1, n = sizes[dims[batch]];
  const Tensor places = coordinates(t), compressed = number(places, sizes, dims);
  const Tensor order = std::get<1>(compressed.mul(sizes[old_dim]).add(places.select(0, old_dim)).sort());
  const int64_t matrices = c10::multiply_integers(batches);
  const auto with = [&](int64_t last) {
    Dims shape = batches;
    shape.push_back(last);
    return shape;
  };
  Tensor begin = at::zeros(with(n + 1), places.options());
  if (n != 0 && matrices != 0) {
    begin = at::_convert_indices_from_coo_to_csr(compressed.index_select(0, order), matrices * n).unfold(0, n + 1, n);
    begin = begin.sub(begin.slice(1, 0, 1)).view(with(n + 1));
  }
  const auto index = m.plain.scalar_type();
  const Tensor plain = places.select(0, old_dim).index_select(0, order).view(m.plain.sizes());
  const Tensor values = m.values.flatten(0, batch).index_select(0, order).view(m.values.sizes());
  return make({begin.to(index), plain.to(index), values}, t.sizes(),
              at::sparse_csr::flip_compressed_layout(t.layout()));
}

// Elements into blocks, of which there is one where any of its elements is. Waits for how many.
Tensor blocks_of(const Tensor& t, IntArrayRef block) {
  const Members m = members(t);
  const bool rows = by_rows(t.layout());
  const Tensor places = coordinates(t), row = places.select(0, 0), column = places.select(0, 1);
  const Tensor block_row = row.floor_divide(block[0]), block_column = column.floor_divide(block[1]);
  const int64_t plain_size = rows ? t.size(1) / block[1] : t.size(0) / block[0];
  const int64_t compressed_size = rows ? t.size(0) / block[0] : t.size(1) / block[1];
  const auto [key, place] = at::_unique(
      rows ? block_row.mul(plain_size).add(block_column) : block_column.mul(plain_size).add(block_row), true, true);
  const int64_t n = key.size(0);
  Dims shape = with_rows(m.values, n * block[0] * block[1]);
  const Tensor element = place.mul(block[0]).add(row.remainder(block[0])).mul(block[1]).add(column.remainder(block[1]));
  const Tensor values = at::zeros(shape, m.values.options()).index_copy_(0, element, m.values);
  shape.erase(shape.begin());
  shape.insert(shape.begin(), {n, block[0], block[1]});
  const auto index = m.plain.scalar_type();
  const int64_t divisor = std::max<int64_t>(plain_size, 1);
  return make({at::_convert_indices_from_coo_to_csr(key.floor_divide(divisor), compressed_size).to(index),
               key.remainder(divisor).to(index), values.view(shape)},
              t.sizes(), rows ? at::kSparseBsr : at::kSparseBsc);
}

// What these don't convert is PyTorch's to refuse.
template <Layout kTo>
Tensor to_plain(const Tensor& self, std::optional<int64_t> dense_dim) {
  constexpr bool kRows = kTo == at::kSparseCsr;
  if (self.layout() == (kRows ? at::kSparseCsc : at::kSparseCsr) && !dense_dim) return flipped(self);
  static const auto op = on_cpu<decltype(to_plain<kTo>)>(kRows ? "aten::_to_sparse_csr" : "aten::_to_sparse_csc", "");
  return op.redispatch(kCsrCpu, self, dense_dim);
}

template <Layout kTo>
Tensor to_blocks(const Tensor& self, IntArrayRef block, std::optional<int64_t> dense_dim) {
  constexpr bool kRows = kTo == at::kSparseBsr;
  const bool two = block.size() == 2 && block[0] > 0 && block[1] > 0 && !dense_dim;
  if (two && self.layout() == (kRows ? at::kSparseBsc : at::kSparseBsr)) {
    if (at::sparse_csr::getBlockSize(self) == block) return flipped(self);
  } else if (two && !in_blocks(self.layout()) && members(self).compressed.dim() == 1 && self.size(0) % block[0] == 0 &&
             self.size(1) % block[1] == 0) {
    return blocks_of(by_rows(self.layout()) == kRows ? self : flipped(self), block);
  }
  static const auto op = on_cpu<decltype(to_blocks<kTo>)>(kRows ? "aten::_to_sparse_bsr" : "aten::_to_sparse_bsc", "");
  return op.redispatch(kCsrCpu, self, block, dense_dim);
}

// ---- Sums ----

// Elements of either, in the order of their places. Waits for how many are distinct.
Tensor& add_compressed(const Tensor& self, const Tensor& other, const Scalar& alpha, Tensor& out) {
  TORCH_CHECK(self.sizes() == other.sizes(), "add: expected 'self' and 'other' to have same size, but ", self.sizes(),
              " != ", other.sizes());
  const Members a = members(self), b = members(other);
  TORCH_CHECK(self.layout() == other.layout() && out.layout() == self.layout() && a.compressed.dim() == 1 &&
                  a.values.sizes().slice(1) == b.values.sizes().slice(1),
              "add: expected two sparse compressed matrices of one layout and block size, but got ", self.layout(),
              " and ", other.layout(), ". Convert one of them, or both .to_sparse().");
  const auto dtype = at::result_type(self, other);
  check_out_dtype(dtype, out);
  Tensor addend = b.values.to(dtype);
  if (!alpha.equal(1)) addend = addend.mul(alpha);
  if (self.is_same(other)) {
    return put(out, {a.compressed.clone(), a.plain.clone(), a.values.to(dtype).add(addend)}, self.sizes());
  }
  const bool rows = by_rows(self.layout());
  const Dims sizes = grid(self);
  const Dims order = rows ? Dims{0, 1} : Dims{1, 0};
  const auto [sorted, from] =
      at::cat({number(coordinates(self), sizes, order), number(coordinates(other), sizes, order)})
          .sort(/*stable=*/true, 0, false);
  const auto [key, place, counts] = at::unique_consecutive(sorted, true);
  const Tensor values = at::cat({a.values.to(dtype), addend}).index_select(0, from);
  const int64_t plain_size = std::max<int64_t>(sizes[order[1]], 1);
  return put(out,
             {at::_convert_indices_from_coo_to_csr(key.floor_divide(plain_size), sizes[order[0]]),
              key.remainder(plain_size), sum_rows(values, place, key.size(0))},
             self.sizes());
}

Tensor& add_out(const Tensor& self, const Tensor& other, const Scalar& alpha, Tensor& out) {
  check_devices("add", {out, self, other});
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
  return add_compressed(self, other, alpha, out);
}

// ---- Products, element by element ----

// What only one of them has is dropped, which waits for how much is left.
Tensor& mul_out(const Tensor& self, const Tensor& other, Tensor& out) {
  check_devices("mul", {out, self, other});
  TORCH_CHECK(out.layout() == at::kSparseCsr, "mul: expected a result of layout SparseCsr, but out is ", out.layout(),
              ". Convert the operands with .to_sparse_csr() or .to_sparse().");
  check_out_dtype(at::result_type(self, other), out);
  for (const auto& [sparse, dense] : {std::tie(self, other), std::tie(other, self)}) {
    if (dense.layout() != at::kStrided || sparse.layout() != at::kSparseCsr) continue;
    if (!is_plain(sparse) || dense.sizes() != sparse.sizes()) return mul_out(sparse, dense.sparse_mask(sparse), out);
    const Members m = members(sparse);
    return put(out, {m.compressed.clone(), m.plain.clone(), m.values.mul(values_at(dense, sparse))}, sparse.sizes());
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
    const Match m = match(number(y._indices(), y.sizes(), {0, 1}), number(x._indices(), x.sizes(), {0, 1}));
    element = m.found.nonzero().squeeze(1);
    at_y = m.position.index_select(0, element);
  }
  const Tensor indices = x._indices().index_select(1, element);
  return put(out,
             {at::_convert_indices_from_coo_to_csr(indices.select(0, 0), x.size(0)), indices.select(0, 1).contiguous(),
              x._values().index_select(0, element).mul(y._values().index_select(0, at_y))},
             x.sizes());
}

// With a strided matrix PyTorch would take that one's sparse_mask first: nobody has to wait for the same places.
Tensor mul_tensor(const Tensor& self, const Tensor& other) {
  if (self.layout() == at::kStrided && self.dim() == 2 && other.layout() == at::kSparseCsr)
    return mul_tensor(other, self);
  if (other.layout() == at::kStrided && other.sizes() == self.sizes() && self.layout() == at::kSparseCsr &&
      is_plain(self)) {
    check_devices("mul", {self, other});
    const Members m = members(self);
    return make({m.compressed.clone(), m.plain.clone(), m.values.mul(values_at(other, self))}, self.sizes(),
                self.layout());
  }
  static const auto op = on_cpu<decltype(mul_tensor)>("aten::mul", "Tensor");
  return op.redispatch(kCsrCpu, self, other);
}

// ---- Matrix products ----

void check_matrices(const char* op, const Tensor& a, const Tensor& b) {
  TORCH_CHECK(a.dim() == 2 && b.dim() == 2, op, ": expected two matrices, but got ", a.dim(), " and ", b.dim(),
              " dimensions");
  TORCH_CHECK(a.size(1) == b.size(0), op, ": mat1 and mat2 shapes cannot be multiplied (", a.size(0), "x", a.size(1),
              " and ", b.size(0), "x", b.size(1), ")");
  TORCH_CHECK(a.scalar_type() == b.scalar_type(), op, ": expected mat1 and mat2 to have the same dtype, but got ",
              a.scalar_type(), " and ", b.scalar_type());
}

// beta * self + alpha * a @ b, all of it strided but one of a and b, or both.
Tensor addmm_strided(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha) {
  const Tensor t = self.expand({a.size(0), b.size(1)});
  if (a.layout() == at::kStrided) {
    return at::addmm(t.t(), b.to_sparse().t(), a.t(), beta, alpha).t();
  }
  if (b.layout() == at::kStrided) return at::addmm(t, a.to_sparse(), b, beta, alpha);
  const Tensor product = at::_sparse_sparse_matmul(a.to_sparse(), b.to_sparse());
  return (beta.equal(0) ? at::zeros(t.sizes(), t.options()) : t.mul(beta)).add(product, alpha);
}

Tensor& addmm_out(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha,
                  Tensor& out) {
  check_devices("addmm", {out, self, a, b});
  check_matrices("addmm", a, b);
  const auto sparse = [](const Tensor& t) { return t.layout() == at::kSparseCsr || t.layout() == at::kSparseCsc; };
  // As on the CPU, blocks stand in rows on the left and in columns on the right.
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
    const Tensor result = addmm_strided(self, a, b, beta, alpha);
    TORCH_CHECK(!out.is_same(self) || out.sizes() == result.sizes(), "addmm: expected an input of size ",
                result.sizes(), ", got ", self.sizes());
    out.resize_(result.sizes());
    return out.copy_(result);
  }
  TORCH_CHECK(self.size(0) == a.size(0) && self.size(1) == b.size(1), "addmm: expected an input of size (", a.size(0),
              ", ", b.size(1), "), got ", self.sizes());
  const Tensor product = at::_sparse_sparse_matmul(a.to_sparse(), b.to_sparse()).to_sparse_csr();
  const Members m = members(product);
  const Tensor scaled = alpha.equal(1) ? m.values : m.values.mul(alpha);
  if (beta.equal(0) || self._nnz() == 0) return put(out, {m.compressed, m.plain, scaled}, product.sizes());
  const Members s = members(self);
  return add_compressed(make({s.compressed, s.plain, s.values.mul(beta)}, self.sizes(), self.layout()),
                        make({m.compressed, m.plain, scaled}, product.sizes(), product.layout()), 1, out);
}

Tensor& addmv_out(const Tensor& self, const Tensor& matrix, const Tensor& vector, const Scalar& beta,
                  const Scalar& alpha, Tensor& out) {
  check_devices("addmv", {out, self, matrix, vector});
  TORCH_CHECK(matrix.layout() != at::kSparseBsc, "addmv: a matrix of layout SparseBsc is not supported");
  TORCH_CHECK(matrix.dim() == 2 && vector.dim() == 1, "addmv: expected a matrix and a vector, but got ", matrix.dim(),
              " and ", vector.dim(), " dimensions");
  const Tensor column = vector.unsqueeze(1);
  check_matrices("addmv", matrix, column);
  const Tensor result =
      addmm_strided(self.expand({matrix.size(0)}).unsqueeze(1), matrix, column, beta, alpha).squeeze(1);
  out.resize_(result.sizes());
  return out.copy_(result);
}

// ---- A matrix product where a sparse matrix has elements ----

Tensor& sampled_addmm_out(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha,
                          Tensor& out) {
  constexpr const char* kName = "sampled_addmm";
  check_devices(kName, {out, self, a, b});
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
  Tensor values = members(out).values;
  values.mul_(beta);
  if (values.numel() == 0 || k == 0) return out;
  Dims rows(batch.size() + 1), columns(batch.size() + 1);
  for (size_t d = 0; d < batch.size(); d++) rows[d] = columns[d] = static_cast<int64_t>(d);
  rows.back() = static_cast<int64_t>(batch.size());
  columns.back() = rows.back() + 1;
  const Tensor places = coordinates(out);
  const Tensor left = a.reshape({-1, k}).index_select(0, number(places, out.sizes(), rows));
  const Tensor right = b.mT().reshape({-1, k}).index_select(0, number(places, out.sizes(), columns));
  values.add_(left.mul(right).sum(-1).view(values.sizes()), alpha);
  return out;
}

Tensor sampled_addmm(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha) {
  Tensor out = at::empty({0, 0}, self.options());
  return sampled_addmm_out(self, a, b, beta, alpha, out);
}

// ---- Matrix products that reduce with something else than a sum ----

enum class Reduce : uint8_t { kSum, kMean, kMax, kMin };

Reduce reduction(std::string_view name) {
  if (name == "sum") return Reduce::kSum;
  if (name == "mean") return Reduce::kMean;
  if (name == "amax" || name == "max") return Reduce::kMax;
  if (name == "amin" || name == "min") return Reduce::kMin;
  TORCH_CHECK(false, "sparse_mm_reduce: expected sum, mean, amax or amin, but got ", name);
}

void check_mm_reduce(const Tensor& self, const Tensor& other) {
  constexpr const char* kName = "sparse_mm_reduce";
  TORCH_CHECK(self.layout() == at::kSparseCsr && is_plain(self), kName, ": expected a SparseCsr matrix, but got ",
              self.layout(), " of size ", self.sizes());
  TORCH_CHECK(other.layout() == at::kStrided, kName, ": expected a strided matrix to multiply, but got ",
              other.layout());
  TORCH_CHECK(other.size(0) == self.size(1) && other.size(1) >= 0 && other.dim() == 2, kName, ": expected a matrix of ",
              self.size(1), " rows to multiply, but got ", other.sizes());
  TORCH_CHECK(self.scalar_type() == other.scalar_type(), kName, ": expected operands of the same dtype, but got ",
              self.scalar_type(), " and ", other.scalar_type());
  TORCH_CHECK(at::isFloatingType(self.scalar_type()), kName, ": expected a floating-point dtype, but got ",
              self.scalar_type());
}

// How many elements each row has, at least 1, to broadcast against [rows, columns].
Tensor divisors(const Tensor& self, const Tensor& like) {
  const Tensor begin = members(self).compressed;
  return begin.slice(0, 1).sub(begin.slice(0, 0, -1)).clamp_min(1).to(like.scalar_type()).unsqueeze(1);
}

at::ScalarType wide(const Tensor& t) {
  return at::isReducedFloatingType(t.scalar_type()) ? at::kFloat : t.scalar_type();
}

// The second result, if a gradient will ask for it: which element each maximum or minimum is the product of.
std::tuple<Tensor, Tensor> mm_reduce(const Tensor& self, const Tensor& other, c10::string_view name) {
  check_devices("sparse_mm_reduce", {self, other});
  check_mm_reduce(self, other);
  const Reduce reduce = reduction({name.data(), name.size()});
  const Members m = members(self);
  const int64_t nnz = m.plain.size(0);
  const Dims sizes = {self.size(0), other.size(1)};
  Tensor argument = at::empty({0}, m.plain.options());
  if (nnz == 0 || other.size(1) == 0) return {at::zeros(sizes, other.options()), argument};
  const auto dtype = wide(other);  // as on the CPU short floats are reduced in float
  const Tensor row = coordinates(self).select(0, 0);
  const Tensor products = other.index_select(0, m.plain).to(dtype).mul(m.values.to(dtype).unsqueeze(1));
  Tensor out = at::zeros(sizes, products.options());
  if (reduce == Reduce::kSum || reduce == Reduce::kMean) {
    out = out.index_add_(0, row, products).to(other.scalar_type());
    return {reduce == Reduce::kMean ? out.div(divisors(self, out)) : out, argument};
  }
  const Tensor rows = row.unsqueeze(1).expand(products.sizes());
  out = out.scatter_reduce(0, rows, products, reduce == Reduce::kMax ? "amax" : "amin", /*include_self=*/false);
  if (at::GradMode::is_enabled() && (self.requires_grad() || other.requires_grad())) {
    const Tensor best = out.index_select(0, row);
    const Tensor is_best = products.eq(best).logical_or(products.isnan());
    const Tensor element = at::arange(nnz, row.options()).unsqueeze(1);
    argument = at::full(sizes, nnz, row.options())
                   .scatter_reduce(0, rows, at::where(is_best, element, nnz), "amin")
                   .to(m.plain.scalar_type());
  }
  return {out.to(other.scalar_type()), argument};
}

std::tuple<Tensor, Tensor> mm_reduce_backward(const Tensor& self, const Tensor& grad, const Tensor& other,
                                              c10::string_view name, const Tensor& argument,
                                              std::array<bool, 2> wanted) {
  check_devices("sparse_mm_reduce", {self, grad, other});
  check_mm_reduce(self, other);
  const Reduce reduce = reduction({name.data(), name.size()});
  const Members m = members(self);
  const int64_t nnz = m.plain.size(0);
  const auto like_self = [&](const Tensor& values) {
    return make({m.compressed.clone(), m.plain.clone(), values.to(self.scalar_type())}, self.sizes(), self.layout());
  };
  Tensor of_self, of_other;
  if (nnz == 0 || grad.numel() == 0) {
    if (wanted[0]) of_self = like_self(at::zeros(m.values.sizes(), m.values.options()));
    if (wanted[1]) of_other = at::zeros(other.sizes(), other.options());
    return {of_self, of_other};
  }
  if (reduce == Reduce::kSum || reduce == Reduce::kMean) {
    const auto dtype = wide(other);
    const Tensor row = coordinates(self).select(0, 0), rows = grad.to(dtype).index_select(0, row);
    // As on the CPU means are divided in the dtype of the operands.
    const bool mean = reduce == Reduce::kMean;
    const Tensor count = mean ? divisors(self, other).squeeze(1).index_select(0, row) : Tensor();
    if (wanted[0]) {
      const Tensor sums = rows.mul(other.to(dtype).index_select(0, m.plain)).sum(1).to(other.scalar_type());
      of_self = like_self(mean ? sums.div(count) : sums);
    }
    if (wanted[1]) {
      const Tensor scale = (mean ? m.values.div(count) : m.values).to(dtype);
      of_other = at::zeros(other.sizes(), rows.options()).index_add_(0, m.plain, rows.mul(scale.unsqueeze(1)));
    }
  } else {
    // For each place of the result its element, the element's column, and the place in the other operand; one that has
    // no element adds zero to the first. As on the CPU short floats are rounded at every step.
    const Tensor some = argument.lt(nnz), element = at::where(some, argument, 0).to(at::kLong).view({-1});
    const Tensor column = m.plain.to(at::kLong).index_select(0, element).view(grad.sizes());
    const Tensor terms = at::where(some, grad, at::zeros({}, grad.options()));
    if (wanted[0]) {
      const Tensor products = other.gather(0, column).mul(terms).view({-1});
      of_self = like_self(at::zeros({nnz}, products.options()).index_add_(0, element, products));
    }
    if (wanted[1]) {
      const int64_t n = other.size(1);
      const Tensor place = column.mul(n).add(at::arange(n, column.options())).view({-1});
      const Tensor products = m.values.index_select(0, element).mul(terms.reshape({-1}));
      of_other = at::zeros({other.numel()}, products.options()).index_add_(0, place, products).view(other.sizes());
    }
  }
  if (wanted[1]) of_other = of_other.to(other.scalar_type());
  return {of_self, of_other};
}

// ---- Sums and products along dimensions ----

template <bool kSum>
Tensor reduce_rows(const Tensor& values, const Tensor& place, int64_t places) {
  if constexpr (kSum) return sum_rows(values, place, places);
  const Tensor factors = values.to(wide(values));
  return at::ones({places}, factors.options()).scatter_reduce(0, place, factors, "prod").to(values.scalar_type());
}

// A CSR matrix with a row or column of results, for those that have an element. Waits for how many they are.
template <bool kSum>
Tensor reduce(const Tensor& self, IntArrayRef dim, bool keepdim, std::optional<at::ScalarType> dtype) {
  constexpr const char* kName = kSum ? "_sparse_csr_sum" : "_sparse_csr_prod";
  TORCH_CHECK(self.layout() == at::kSparseCsr && is_plain(self), kName, ": expected a SparseCsr matrix, but got ",
              self.layout(), " of size ", self.sizes());
  TORCH_CHECK(keepdim, kName, ": only keepdim=True is supported, a SparseCsr tensor being a matrix");
  const Members m = members(self);
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
    return make({from_zero(at::full({1}, nnz, options)), at::zeros({nnz}, options), total.expand({nnz}).contiguous()},
                {1, std::min<int64_t>(1, self.size(1))}, self.layout());
  }
  if (along_dim[0]) {
    const auto [columns, place] = at::_unique(m.plain, true, true);
    const int64_t n = columns.size(0);
    return make({from_zero(at::full({1}, n, options)), columns, reduce_rows<kSum>(values, place, n)}, {1, self.size(1)},
                self.layout());
  }
  const Tensor some = m.compressed.slice(0, 1).ne(m.compressed.slice(0, 0, -1)), ends = some.cumsum(0);
  const int64_t n = some.nonzero().size(0);
  const Tensor place = ends.index_select(0, coordinates(self).select(0, 0)).sub(1);
  return make({from_zero(ends), at::zeros({n}, options), reduce_rows<kSum>(values, place, n)}, {self.size(0), 1},
              self.layout());
}

// Never: PyTorch's shallow copy of such a tensor leaves the three behind, on the device where they were.
bool has_compatible_shallow_copy_type(const Tensor&, const Tensor&) { return false; }

TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) {
  run_as_on_cpu<c10::DispatchKey::SparseCsrCPU>(m, kComposed);
  m.impl("_has_compatible_shallow_copy_type", &has_compatible_shallow_copy_type);
  m.impl("_to_sparse_csr", &to_plain<at::kSparseCsr>);
  m.impl("_to_sparse_csc", &to_plain<at::kSparseCsc>);
  m.impl("_to_sparse_bsr", &to_blocks<at::kSparseBsr>);
  m.impl("_to_sparse_bsc", &to_blocks<at::kSparseBsc>);
  m.impl("add.out", &add_out);
  m.impl("mul.Tensor", &mul_tensor);
  m.impl("mul.out", &mul_out);
  m.impl("addmm.out", &addmm_out);
  m.impl("addmv.out", &addmv_out);
  m.impl("sparse_sampled_addmm", &sampled_addmm);
  m.impl("sparse_sampled_addmm.out", &sampled_addmm_out);
  m.impl("_sparse_mm_reduce_impl", &mm_reduce);
  m.impl("_sparse_mm_reduce_impl_backward", &mm_reduce_backward);
  m.impl("_sparse_csr_sum.dim_dtype", &reduce<true>);
  m.impl("_sparse_csr_prod.dim_dtype", &reduce<false>);
}

// From COO: its elements in order, which waits.
TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  run_as_on_cpu<c10::DispatchKey::SparseCPU>(m,
                                             {"_to_sparse_csr", "_to_sparse_csc", "_to_sparse_bsr", "_to_sparse_bsc"});
}

// From dense: nonzero, which waits, and index.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  run_as_on_cpu<c10::DispatchKey::CPU>(m, {"_to_sparse_csr", "_to_sparse_csc", "_to_sparse_bsr", "_to_sparse_bsc"});
  m.impl("_validate_compressed_sparse_indices", &validate_indices);
}

}  // namespace
}  // namespace mycelya
