// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Sparse COO tensors. One is a pair of dense tensors of the device, indices and values, so every operator here is made
// of dense operators. If PyTorch's CPU kernel is also made of operators, it runs under our key (kComposed). An operator
// that has neither form is refused (Register.cpp).

#include "device/sparse/Coo.h"

#include <ATen/SparseTensorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/SparseTensorUtils.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_and_tensors.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/unique_consecutive.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

namespace mycelya::coo {

using at::IntArrayRef;
using at::Tensor;

Tensor Numbers(const Tensor& sparse) {
  Dims dims(sparse.sparse_dim());
  for (size_t d = 0; d < dims.size(); d++) dims[d] = static_cast<int64_t>(d);
  return Number(sparse._indices(), sparse.sizes(), dims);
}

Tensor Unflatten(const Tensor& flat, IntArrayRef sizes) {
  if (sizes.empty()) return at::empty({0, flat.size(0)}, flat.options());
  std::vector<Tensor> rows(sizes.size());
  Tensor rest = flat;
  for (size_t d = sizes.size(); d-- > 1;) {
    rows[d] = rest.remainder(sizes[d]);
    rest = rest.floor_divide(sizes[d]);
  }
  rows[0] = rest;
  return at::stack(rows, 0);
}

Tensor OrZero(const Tensor& found, const Tensor& rows) {
  return at::where(Along(found, rows), rows, at::zeros({}, rows.options()));
}

Tensor Take(const Tensor& values, const Match& m) { return OrZero(m.found, values.index_select(0, m.position)); }

Pairs Join(const Tensor& left, const Tensor& right) {
  const Tensor queries = left.contiguous(), keys = right.contiguous();
  const Tensor begin = at::searchsorted(keys, queries);
  const Tensor count = at::searchsorted(keys, queries, false, /*right=*/true).sub(begin);
  const Tensor l = at::repeat_interleave(count);
  const Tensor nth = at::arange(l.size(0), l.options()).sub(count.cumsum(0).sub(count).index_select(0, l));
  return {l, begin.index_select(0, l).add(nth)};
}

Tensor Make(IntArrayRef sizes, int64_t sparse_dim, const Tensor& indices, const Tensor& values, bool coalesced) {
  return at::_sparse_coo_tensor_with_dims_and_tensors(sparse_dim, static_cast<int64_t>(sizes.size()) - sparse_dim,
                                                      sizes, indices, values, values.options().layout(at::kSparse),
                                                      coalesced);
}

Tensor& Put(Tensor& out, IntArrayRef sizes, int64_t sparse_dim, const Tensor& indices, const Tensor& values,
            bool coalesced) {
  auto* impl = at::sparse::get_sparse_impl(out);
  impl->raw_resize_(sparse_dim, static_cast<int64_t>(sizes.size()) - sparse_dim, sizes);
  impl->set_indices_and_values_unsafe(indices, values.to(out.scalar_type()));
  impl->set_coalesced(coalesced);
  return out;
}

Tensor Coalesce(const Tensor& self) {
  if (self.is_coalesced()) return self;
  if (self._nnz() < 2) return self.clone()._coalesced_(true);
  const int64_t sparse_dim = self.sparse_dim();
  // This is the order in which the CPU adds the elements of one place.
  const auto [sorted, order] = Numbers(self).sort(0);
  const auto [flat, place, counts] = at::unique_consecutive(sorted, true);
  return Make(self.sizes(), sparse_dim, Unflatten(flat, self.sizes().slice(0, sparse_dim)),
              SumRows(self._values().index_select(0, order), place, flat.size(0)), true);
}

Tensor ValuesAt(const Tensor& t, const Tensor& mask) {
  if (t._nnz() == 0) return at::zeros(WithRows(t._values(), mask._nnz()), t._values().options());
  const Tensor c = Coalesce(t);
  return Take(c._values(), FindMatch(Numbers(c), Numbers(mask)));
}

namespace {

// PyTorch's CPU kernels that are made of operators: none of them reads memory.
constexpr const char* kComposed[] = {
    // construction and access
    "empty.memory_format", "empty_like", "zeros.out", "_sparse_coo_tensor_with_dims",
    "_sparse_coo_tensor_with_dims_and_tensors", "sparse_dim", "_dimI", "dense_dim", "_dimV", "_nnz", "is_coalesced",
    "_coalesced_", "_indices", "indices", "_values", "values", "is_pinned",
    // copies and conversions
    "clone", "copy_", "copy_sparse_to_sparse_", "_to_dense", "_to_sparse", "_to_sparse.sparse_dim", "zero_",
    "sparse_resize_", "sparse_resize_and_clear_", "resize_as_sparse_", "view_as_real", "view_as_complex",
    // dimensions
    "unsqueeze", "permute", "cat", "narrow_copy", "_sparse_broadcast_to",
    // arithmetic that ends in add.out, mul.out or an operator on the values
    "add.Tensor", "add_.Tensor", "sub.Tensor", "sub_.Tensor", "sub.out", "mul.Tensor", "mul_.Tensor", "div.Tensor",
    "div_.Tensor", "div.out", "div.Tensor_mode", "div_.Tensor_mode", "div.out_mode", "floor_divide",
    "floor_divide_.Tensor", "floor_divide.out", "pow.Tensor_Scalar", "pow.Tensor_Scalar_out", "mm", "mm.out", "mv",
    "conj_physical.out",
    // reductions
    "sum", "sum.dim_IntList", "any", "norm.ScalarOpt_dim", "norm.ScalarOpt_dim_dtype", "native_norm",
    "native_norm.ScalarOpt_dim_dtype", "linalg_vector_norm",
    // functions of the values with f(0) = 0
    "abs", "abs_", "abs.out", "asin", "asin_", "asin.out", "asinh", "asinh_", "asinh.out", "atan", "atan_", "atan.out",
    "atanh", "atanh_", "atanh.out", "ceil", "ceil_", "ceil.out", "deg2rad", "deg2rad_", "deg2rad.out", "erf", "erf_",
    "erf.out", "erfinv", "erfinv_", "erfinv.out", "expm1", "expm1_", "expm1.out", "floor", "floor_", "floor.out",
    "frac", "frac_", "frac.out", "isinf", "isnan", "isneginf", "isneginf.out", "isposinf", "isposinf.out", "log1p",
    "log1p_", "log1p.out", "nan_to_num", "nan_to_num_", "nan_to_num.out", "neg", "neg_", "neg.out", "rad2deg",
    "rad2deg_", "rad2deg.out", "relu", "relu_", "round", "round_", "round.out", "sgn", "sgn_", "sgn.out", "sign",
    "sign_", "sign.out", "signbit", "signbit.out", "sin", "sin_", "sin.out", "sinh", "sinh_", "sinh.out", "sqrt",
    "sqrt_", "sqrt.out", "tan", "tan_", "tan.out", "tanh", "tanh_", "tanh.out", "threshold_backward",
    "threshold_backward.grad_input", "trunc", "trunc_", "trunc.out"};

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  RunAsOnCpu<c10::DispatchKey::SparseCPU>(m, kComposed);
  m.impl("_coalesce", &Coalesce);
}

// Dense to sparse is nonzero, which waits, and index. The gradient of an embedding bag's weight may be sparse.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  RunAsOnCpu<c10::DispatchKey::CPU>(m, {"_to_sparse", "_to_sparse.sparse_dim", "_embedding_bag_backward"});
}

}  // namespace

}  // namespace mycelya::coo
