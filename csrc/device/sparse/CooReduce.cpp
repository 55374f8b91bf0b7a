// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Selection, gradients of sums, and softmax along dims of sparse COO tensors.

#include <ATen/SparseTensorImpl.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/SparseTensorUtils.h>
#include <ATen/ops/_unique2.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <limits>

#include "device/sparse/Coo.h"

namespace mycelya::coo {

using at::IntArrayRef;
using at::Tensor;

namespace {

// ---- Selection ----

Tensor IndexSelect(const Tensor& self, int64_t dim, const Tensor& index) {
  TORCH_CHECK_INDEX(self.dim() > 0, "index_select() cannot be applied to a 0-dim tensor.");
  TORCH_CHECK_INDEX(index.dim() == 1 && index.dtype() == at::kLong && index.layout() == at::kStrided,
                    "index_select() argument index must be 1-D strided (non-sparse) long-tensor.");
  CheckDevices("index_select", {self, index});
  dim = at::maybe_wrap_dim(dim, self.dim());
  const int64_t sparse_dim = self.sparse_dim();
  Dims sizes = self.sizes().vec();
  sizes[dim] = index.size(0);
  const Tensor indices = self._indices(), values = self._values();
  if (dim >= sparse_dim) {
    return Make(sizes, sparse_dim, indices.clone(), values.index_select(dim - sparse_dim + 1, index),
                self.is_coalesced());
  }
  const Tensor wanted = at::where(index.lt(0), index.add(self.size(dim)), index);
  const auto [sorted, order] = indices.select(0, dim).sort(/*stable=*/true, 0, false);
  const Pairs pairs = Join(wanted, sorted);
  const Tensor element = order.index_select(0, pairs.right);
  std::vector<Tensor> rows(sparse_dim);
  for (int64_t d = 0; d < sparse_dim; d++) {
    rows[d] = d == dim ? pairs.left : indices.select(0, d).index_select(0, element);
  }
  return Make(sizes, sparse_dim, at::stack(rows, 0), values.index_select(0, element), false);
}

// ---- Sums along dimensions, backward ----

// The gradient of an element is the gradient of its sum.
Tensor SparseSumBackward(const Tensor& grad, const Tensor& self, IntArrayRef summed) {
  CheckDevices("_sparse_sum_backward", {grad, self});
  const Tensor input = Coalesce(self), values = input._values();
  const int64_t sparse_dim = input.sparse_dim();
  std::vector<bool> gone(input.dim(), false);
  for (const int64_t d : summed) gone[at::maybe_wrap_dim(d, input.dim())] = true;
  Dims kept;
  for (int64_t d = 0; d < sparse_dim; d++) {
    if (!gone[d]) kept.push_back(d);
  }
  Tensor rows;  // of the gradient: one per element, or a single row for all
  if (kept.empty()) {
    TORCH_CHECK(!grad.is_sparse(),
                "_sparse_sum_backward: expected grad Tensor to be dense since all sparse dims are summed");
    rows = grad.unsqueeze(0);
  } else {
    TORCH_CHECK(grad.is_sparse(), "_sparse_sum_backward: expected grad_ Tensor to be sparse, but got dense");
    const Tensor g = Coalesce(grad);
    rows = g._nnz() == 0 ? at::zeros(WithRows(g._values(), input._nnz()), g._values().options())
                         : Take(g._values(), FindMatch(Numbers(g), Number(input._indices(), input.sizes(), kept)));
  }
  for (int64_t d = sparse_dim; d < input.dim(); d++) {
    if (gone[d]) rows = rows.unsqueeze(d - sparse_dim + 1);
  }
  return Make(input.sizes(), sparse_dim, input._indices().clone(),
              rows.expand(values.sizes()).clone(at::MemoryFormat::Contiguous), input.is_coalesced());
}

// ---- Softmax ----

// Absent elements count as minus infinity. The elements of one pool agree in all sparse dims except `dim`.
struct Pools {
  Tensor place;
  int64_t count;
};

Pools PoolsOf(const Tensor& sparse, int64_t dim) {
  Dims others;
  for (int64_t d = 0; d < sparse.sparse_dim(); d++) {
    if (d != dim) others.push_back(d);
  }
  const auto [flat, place, counts] = at::_unique2(Number(sparse._indices(), sparse.sizes(), others), true, true);
  return {place, flat.size(0)};
}

template <bool kLog>
Tensor Softmax(const Tensor& self, int64_t dim, bool half_to_float) {
  TORCH_CHECK(!half_to_float, "softmax with half to float conversion is not supported for sparse tensors");
  dim = at::maybe_wrap_dim(dim, self.dim());
  const Tensor t = Coalesce(self);
  const int64_t sparse_dim = t.sparse_dim();
  Tensor values = t._values();
  if (values.numel() == 0) return t.clone();
  if (dim >= sparse_dim) {
    const int64_t d = dim - sparse_dim + 1;
    values = kLog ? at::log_softmax(values, d) : at::softmax(values, d);
  } else {
    const Pools p = PoolsOf(t, dim);
    const Tensor lowest =
        at::full(WithRows(values, p.count), -std::numeric_limits<double>::infinity(), values.options());
    const Tensor maximum = lowest.scatter_reduce(0, Along(p.place, values).expand(values.sizes()), values, "amax");
    const Tensor shifted = values.sub(maximum.index_select(0, p.place));
    const Tensor e = shifted.exp(), sum = SumRows(e, p.place, p.count);
    values = kLog ? shifted.sub(sum.log().index_select(0, p.place)) : e.div(sum.index_select(0, p.place));
  }
  return Make(t.sizes(), sparse_dim, t._indices().clone(), values, true);
}

template <bool kLog>
Tensor SoftmaxBackward(const Tensor& grad, const Tensor& output, int64_t dim, const Tensor&) {
  dim = at::maybe_wrap_dim(dim, grad.dim());
  TORCH_CHECK(grad.sizes() == output.sizes() && at::sparse::is_same_density(grad, output),
              "softmax backward: grad and output must have the same shape and number of sparse dimensions");
  const Tensor out = Coalesce(output), y = out._values();
  if (y.numel() == 0) return out.clone();
  const int64_t sparse_dim = out.sparse_dim();
  const Tensor g = ValuesAt(grad, out), product = kLog ? g : g.mul(y);
  Tensor sum;
  if (dim >= sparse_dim) {
    sum = product.sum(dim - sparse_dim + 1, true);
  } else {
    const Pools p = PoolsOf(out, dim);
    sum = SumRows(product, p.place, p.count).index_select(0, p.place);
  }
  return Make(out.sizes(), sparse_dim, out._indices().clone(), kLog ? g.sub(y.exp().mul(sum)) : y.mul(g.sub(sum)),
              true);
}

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  m.impl("index_select", &IndexSelect);
  m.impl("_sparse_sum_backward", &SparseSumBackward);
  m.impl("_sparse_softmax", &Softmax<false>);
  m.impl("_sparse_log_softmax", &Softmax<true>);
  m.impl("_sparse_softmax_backward_data", &SoftmaxBackward<false>);
  m.impl("_sparse_log_softmax_backward_data", &SoftmaxBackward<true>);
}

}  // namespace

}  // namespace mycelya::coo
