// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Sparse compressed tensors: CSR, CSC, and BSR and BSC, whose elements are blocks. One is three dense tensors of the
// device: where each row (CSC, BSC: column) begins, the other coordinate of each element, and the values. As with COO
// (Coo.cpp), PyTorch's CPU kernels that are made of operators run under our key (kComposed).

#include "device/sparse/Compressed.h"

#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_convert_indices_from_coo_to_csr.h>
#include <ATen/ops/_convert_indices_from_csr_to_coo.h>
#include <ATen/ops/_sparse_compressed_tensor_unsafe.h>
#include <ATen/ops/_unique.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/accumulate.h>
#include <torch/library.h>

#include <algorithm>

namespace mycelya::compressed {

using at::IntArrayRef;
using at::Layout;
using at::Scalar;
using at::Tensor;

Members MembersOf(const Tensor& t) {
  const auto* impl = at::sparse_csr::get_sparse_csr_impl(t);
  return {impl->compressed_indices(), impl->plain_indices(), impl->values()};
}

Tensor Make(const Members& m, IntArrayRef sizes, Layout layout) {
  return at::_sparse_compressed_tensor_unsafe(m.compressed, m.plain, m.values, sizes,
                                              m.values.options().layout(layout));
}

Tensor& Put(Tensor& out, const Members& m, IntArrayRef sizes) {
  const Tensor result = Make(m, sizes, out.layout());
  out.resize_as_sparse_(result);
  return out.copy_(result);
}

Tensor Coordinates(const Tensor& t) {
  const Members m = MembersOf(t);
  return at::_convert_indices_from_csr_to_coo(m.compressed, m.plain, /*out_int32=*/false,
                                              /*transpose=*/!ByRows(t.layout()));
}

bool IsPlain(const Tensor& t) {
  return (t.layout() == at::kSparseCsr || t.layout() == at::kSparseCsc) && t.dim() == 2 && t.dense_dim() == 0;
}

Tensor ValuesAt(const Tensor& dense, const Tensor& mask) {
  return dense.reshape({-1}).index_select(0, Number(Coordinates(mask), mask.sizes(), {0, 1}));
}

Dims Grid(const Tensor& t) {
  const Members m = MembersOf(t);
  const int64_t batch = m.compressed.dim() - 1;
  const bool blocks = InBlocks(t.layout());
  return {t.size(batch) / (blocks ? m.values.size(batch + 1) : 1),
          t.size(batch + 1) / (blocks ? m.values.size(batch + 2) : 1)};
}

namespace {

// PyTorch's CPU kernels that are made of operators: none of them reads memory.
constexpr const char* kComposed[] = {
    // construction and access
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

// ---- Invariants ----

// The only function that reads indices. It computes five conditions and waits once for all of them.
void ValidateIndices(bool by_row, const Tensor& compressed, const Tensor& plain, int64_t compressed_size,
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
    // Neighbours in one row ascend. The row of an element is only meaningful if the earlier conditions hold.
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

// CSR to CSC, BSR to BSC, or back.
Tensor Flipped(const Tensor& t) {
  const Members m = MembersOf(t);
  const int64_t batch = m.compressed.dim() - 1;
  const Dims batches = t.sizes().slice(0, batch).vec(), sparse = Grid(t);
  const bool rows = ByRows(t.layout());
  Dims sizes = batches, dims(batch + 1);
  sizes.insert(sizes.end(), sparse.begin(), sparse.end());
  for (int64_t d = 0; d < batch; d++) dims[d] = d;
  dims[batch] = rows ? batch + 1 : batch;
  const int64_t old_dim = rows ? batch : batch + 1, n = sizes[dims[batch]];
  const Tensor places = Coordinates(t), compressed = Number(places, sizes, dims);
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
  return Make({begin.to(index), plain.to(index), values}, t.sizes(),
              at::sparse_csr::flip_compressed_layout(t.layout()));
}

// Groups elements into blocks; a block exists if any of its elements does. Waits for the number of blocks.
Tensor BlocksOf(const Tensor& t, IntArrayRef block) {
  const Members m = MembersOf(t);
  const bool rows = ByRows(t.layout());
  const Tensor places = Coordinates(t), row = places.select(0, 0), column = places.select(0, 1);
  const Tensor block_row = row.floor_divide(block[0]), block_column = column.floor_divide(block[1]);
  const int64_t plain_size = rows ? t.size(1) / block[1] : t.size(0) / block[0];
  const int64_t compressed_size = rows ? t.size(0) / block[0] : t.size(1) / block[1];
  const auto [key, place] = at::_unique(
      rows ? block_row.mul(plain_size).add(block_column) : block_column.mul(plain_size).add(block_row), true, true);
  const int64_t n = key.size(0);
  Dims shape = WithRows(m.values, n * block[0] * block[1]);
  const Tensor element = place.mul(block[0]).add(row.remainder(block[0])).mul(block[1]).add(column.remainder(block[1]));
  const Tensor values = at::zeros(shape, m.values.options()).index_copy_(0, element, m.values);
  shape.erase(shape.begin());
  shape.insert(shape.begin(), {n, block[0], block[1]});
  const auto index = m.plain.scalar_type();
  const int64_t divisor = std::max<int64_t>(plain_size, 1);
  return Make({at::_convert_indices_from_coo_to_csr(key.floor_divide(divisor), compressed_size).to(index),
               key.remainder(divisor).to(index), values.view(shape)},
              t.sizes(), rows ? at::kSparseBsr : at::kSparseBsc);
}

// PyTorch's kernel refuses the conversions that are not implemented here.
template <Layout kTo>
Tensor ToPlain(const Tensor& self, std::optional<int64_t> dense_dim) {
  constexpr bool kRows = kTo == at::kSparseCsr;
  if (self.layout() == (kRows ? at::kSparseCsc : at::kSparseCsr) && !dense_dim) return Flipped(self);
  static const auto op = AtenOp<decltype(ToPlain<kTo>)>(kRows ? "aten::_to_sparse_csr" : "aten::_to_sparse_csc", "");
  return op.redispatch(c10::DispatchKeySet(c10::DispatchKey::SparseCsrCPU), self, dense_dim);
}

template <Layout kTo>
Tensor ToBlocks(const Tensor& self, IntArrayRef block, std::optional<int64_t> dense_dim) {
  constexpr bool kRows = kTo == at::kSparseBsr;
  const bool two = block.size() == 2 && block[0] > 0 && block[1] > 0 && !dense_dim;
  if (two && self.layout() == (kRows ? at::kSparseBsc : at::kSparseBsr)) {
    if (at::sparse_csr::getBlockSize(self) == block) return Flipped(self);
  } else if (two && !InBlocks(self.layout()) && MembersOf(self).compressed.dim() == 1 && self.size(0) % block[0] == 0 &&
             self.size(1) % block[1] == 0) {
    return BlocksOf(ByRows(self.layout()) == kRows ? self : Flipped(self), block);
  }
  static const auto op = AtenOp<decltype(ToBlocks<kTo>)>(kRows ? "aten::_to_sparse_bsr" : "aten::_to_sparse_bsc", "");
  return op.redispatch(c10::DispatchKeySet(c10::DispatchKey::SparseCsrCPU), self, block, dense_dim);
}

// PyTorch's shallow copy of a compressed tensor would leave its three tensors on the old device, so it is never used.
bool HasCompatibleShallowCopyType(const Tensor&, const Tensor&) { return false; }

TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) {
  RunAsOnCpu<c10::DispatchKey::SparseCsrCPU>(m, kComposed);
  m.impl("_has_compatible_shallow_copy_type", &HasCompatibleShallowCopyType);
  m.impl("_to_sparse_csr", &ToPlain<at::kSparseCsr>);
  m.impl("_to_sparse_csc", &ToPlain<at::kSparseCsc>);
  m.impl("_to_sparse_bsr", &ToBlocks<at::kSparseBsr>);
  m.impl("_to_sparse_bsc", &ToBlocks<at::kSparseBsc>);
}

// COO to compressed sorts the elements, and waits for their number.
TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  RunAsOnCpu<c10::DispatchKey::SparseCPU>(m, {"_to_sparse_csr", "_to_sparse_csc", "_to_sparse_bsr", "_to_sparse_bsc"});
}

// Dense to compressed is nonzero, which waits, and index.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  RunAsOnCpu<c10::DispatchKey::CPU>(m, {"_to_sparse_csr", "_to_sparse_csc", "_to_sparse_bsr", "_to_sparse_bsc"});
  m.impl("_validate_compressed_sparse_indices", &ValidateIndices);
}

}  // namespace

}  // namespace mycelya::compressed
