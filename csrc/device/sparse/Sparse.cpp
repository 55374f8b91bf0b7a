// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Sparse COO tensors. One is a pair of dense tensors of the device, indices and values, so every operator here is made
// of dense ones. Where PyTorch's kernel for the CPU is made of operators too, it runs under our key; what it would
// compute in memory is written here. An operator that has neither is refused (Register.cpp). One file, a section for
// each kind of operator, because all stand on the few functions about indices at its beginning.

#include "device/sparse/Sparse.h"

#include <ATen/ExpandUtils.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/SparseTensorUtils.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_and_tensors.h>
#include <ATen/ops/_unique2.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/unique_consecutive.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <limits>

#include "device/tensor/Storage.h"

namespace mycelya {
namespace {

using at::IntArrayRef;
using at::Scalar;
using at::Tensor;

// ---- PyTorch's own kernels ----

// Made of operators: nothing in them asks where the memory is.
constexpr const char* kComposed[] = {
    // making, taking apart
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

// The device of the first argument that has one of ours: what they make without another hint is made there.
std::optional<c10::Device> device_of(const torch::jit::Stack& stack, size_t arguments) {
  for (const auto& value : torch::jit::last(stack, arguments)) {
    if (value.isTensor() && value.toTensor().defined() && value.toTensor().device().type() == kDevice) {
      return value.toTensor().device();
    }
    if (value.isDevice() && value.toDevice().type() == kDevice && value.toDevice().has_index()) {
      return value.toDevice();
    }
  }
  return std::nullopt;
}

template <c10::DispatchKey kKey>
void as_on_cpu(const c10::OperatorHandle& handle, torch::jit::Stack* stack) {
  const c10::OptionalDeviceGuard guard(device_of(*stack, handle.schema().arguments().size()));
  handle.redispatchBoxed(c10::DispatchKeySet(kKey), stack);
}

}  // namespace

template <c10::DispatchKey kKey>
void run_as_on_cpu(torch::Library& library, at::ArrayRef<const char*> names) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const char* name : names) {
    const std::string_view n(name);
    const auto dot = n.find('.');
    const auto handle =
        dispatcher.findOp({"aten::" + std::string(n.substr(0, dot)),
                           dot == std::string_view::npos ? std::string() : std::string(n.substr(dot + 1))});
    if (!handle || !handle->hasKernelForDispatchKey(kKey)) continue;
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&as_on_cpu<kKey>>());
  }
}

template void run_as_on_cpu<c10::DispatchKey::CPU>(torch::Library&, at::ArrayRef<const char*>);
template void run_as_on_cpu<c10::DispatchKey::SparseCPU>(torch::Library&, at::ArrayRef<const char*>);
template void run_as_on_cpu<c10::DispatchKey::SparseCsrCPU>(torch::Library&, at::ArrayRef<const char*>);

// ---- Shared with compressed tensors ----

void check_devices(const char* op, std::initializer_list<std::reference_wrapper<const Tensor>> tensors) {
  std::optional<c10::Device> device;
  for (const Tensor& t : tensors) {
    if (t.is_cpu() && t.dim() == 0) continue;
    if (!device) device = t.device();
    TORCH_CHECK(t.device() == *device,
                "Expected all tensors to be on the same device, but found at least two devices, ", *device, " and ",
                t.device(), "! (when checking arguments of ", op, ")");
  }
}

void check_out_dtype(c10::ScalarType dtype, const Tensor& out) {
  TORCH_CHECK(c10::canCast(dtype, out.scalar_type()), "Can't convert result type ", dtype, " to output ",
              out.scalar_type());
}

Tensor number(const Tensor& indices, IntArrayRef sizes, IntArrayRef dims) {
  if (dims.empty()) return at::zeros({indices.size(1)}, indices.options());
  Tensor flat = indices.select(0, dims[0]);
  for (const int64_t d : dims.slice(1)) flat = flat.mul(sizes[d]).add(indices.select(0, d));
  return flat;
}

Tensor along(const Tensor& flat, const Tensor& values) {
  Dims shape(values.dim(), 1);
  shape[0] = flat.size(0);
  return flat.view(shape);
}

Dims with_rows(const Tensor& values, int64_t rows) {
  Dims shape = values.sizes().vec();
  shape[0] = rows;
  return shape;
}

Tensor sum_rows(const Tensor& values, const Tensor& place, int64_t places) {
  const auto dtype = values.scalar_type();
  const Tensor terms = at::isReducedFloatingType(dtype) ? values.to(at::kFloat) : values;
  return at::zeros(with_rows(values, places), terms.options()).index_add_(0, place, terms).to(dtype);
}

Match match(const Tensor& keys, const Tensor& queries) {
  const Tensor position = at::searchsorted(keys.contiguous(), queries.contiguous()).clamp_max(keys.size(0) - 1);
  return {position, keys.index_select(0, position).eq(queries)};
}

namespace {

// ---- Indices as numbers ----

Tensor numbers(const Tensor& sparse) {
  Dims dims(sparse.sparse_dim());
  for (size_t d = 0; d < dims.size(); d++) dims[d] = static_cast<int64_t>(d);
  return number(sparse._indices(), sparse.sizes(), dims);
}

// The way back, for all of `sizes`.
Tensor unflatten(const Tensor& flat, IntArrayRef sizes) {
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

// Rows where found, else zeros.
Tensor or_zero(const Tensor& found, const Tensor& rows) {
  return at::where(along(found, rows), rows, at::zeros({}, rows.options()));
}

Tensor take(const Tensor& values, const Match& m) { return or_zero(m.found, values.index_select(0, m.position)); }

struct Pairs {
  Tensor left, right;
};

// All (l, r) with left[l] == right[r], in left's order; right is sorted. Waits for their number.
Pairs join(const Tensor& left, const Tensor& right) {
  const Tensor queries = left.contiguous(), keys = right.contiguous();
  const Tensor begin = at::searchsorted(keys, queries);
  const Tensor count = at::searchsorted(keys, queries, false, /*right=*/true).sub(begin);
  const Tensor l = at::repeat_interleave(count);
  const Tensor nth = at::arange(l.size(0), l.options()).sub(count.cumsum(0).sub(count).index_select(0, l));
  return {l, begin.index_select(0, l).add(nth)};
}

Tensor make(IntArrayRef sizes, int64_t sparse_dim, const Tensor& indices, const Tensor& values, bool coalesced) {
  return at::_sparse_coo_tensor_with_dims_and_tensors(sparse_dim, static_cast<int64_t>(sizes.size()) - sparse_dim,
                                                      sizes, indices, values, values.options().layout(at::kSparse),
                                                      coalesced);
}

// An out= operand takes another shape and content, converted to its own dtype.
Tensor& put(Tensor& out, IntArrayRef sizes, int64_t sparse_dim, const Tensor& indices, const Tensor& values,
            bool coalesced) {
  auto* impl = at::sparse::get_sparse_impl(out);
  impl->raw_resize_(sparse_dim, static_cast<int64_t>(sizes.size()) - sparse_dim, sizes);
  impl->set_indices_and_values_unsafe(indices, values.to(out.scalar_type()));
  impl->set_coalesced(coalesced);
  return out;
}

// ---- Coalescing ----

// Waits for the number of distinct indices.
Tensor coalesce(const Tensor& self) {
  if (self.is_coalesced()) return self;
  if (self._nnz() < 2) return self.clone()._coalesced_(true);
  const int64_t sparse_dim = self.sparse_dim();
  // The order in which the CPU adds the elements of one place.
  const auto [sorted, order] = numbers(self).sort(0);
  const auto [flat, place, counts] = at::unique_consecutive(sorted, true);
  return make(self.sizes(), sparse_dim, unflatten(flat, self.sizes().slice(0, sparse_dim)),
              sum_rows(self._values().index_select(0, order), place, flat.size(0)), true);
}

// ---- Sums ----

// The dense operand may be the result itself.
Tensor& add_to_dense(const Tensor& dense, const Tensor& sparse, const Scalar& alpha, Tensor& out) {
  TORCH_CHECK(dense.sizes() == sparse.sizes(), "add: expected 'self' and 'other' to have same size, but self has size ",
              dense.sizes(), " while other has size ", sparse.sizes(),
              " (FYI: dense-sparse addition does not currently support broadcasting)");
  const auto dtype = at::result_type(dense, sparse);
  check_out_dtype(dtype, out);
  const bool in_place = out.is_same(dense);
  if (!in_place) out.resize_(dense.sizes());
  if (sparse._values().numel() == 0) return in_place ? out : out.copy_(dense);
  // Rows of a matrix are added, so the sum has to be one.
  const bool direct = out.scalar_type() == dtype && out.is_contiguous();
  const Tensor sum = direct ? out : at::empty(dense.sizes(), dense.options().dtype(dtype));
  if (!direct || !in_place) sum.copy_(dense);
  const int64_t nnz = sparse._nnz(), columns = sparse._values().numel() / nnz;
  sum.view({sum.numel() / columns, columns})
      .index_add_(0, numbers(sparse), sparse._values().to(dtype).reshape({nnz, columns}), alpha);
  return direct ? out : out.copy_(sum);
}

// As on CUDA the elements of both stand one after the other: nobody has to wait for how many are distinct.
Tensor& add_out(const Tensor& self, const Tensor& other, const Scalar& alpha, Tensor& out) {
  check_devices("add", {out, self, other});
  if (!self.is_sparse()) return add_to_dense(self, other, alpha, out);
  TORCH_CHECK(other.is_sparse(), "add(sparse, dense) is not supported. Use add(dense, sparse) instead.");
  const auto dtype = at::result_type(self, other);
  check_out_dtype(dtype, out);
  TORCH_CHECK(self.sizes() == other.sizes(), "add: expected 'self' and 'other' to have same size, but ", self.sizes(),
              " != ", other.sizes());
  const auto scaled = [&] {
    const Tensor values = other._values().to(dtype);
    return alpha.equal(1) ? values : values.mul(alpha);
  };
  if (other._nnz() == 0) {
    if (out.is_same(self)) return out;
    return put(out, self.sizes(), self.sparse_dim(), self._indices().clone(), self._values().clone(),
               self.is_coalesced());
  }
  if (self._nnz() == 0) {
    return put(out, other.sizes(), other.sparse_dim(), other._indices().clone(), scaled().clone(),
               other.is_coalesced());
  }
  TORCH_CHECK(at::sparse::is_same_density(self, other),
              "add: expected 'self' and 'other' to have same density, but 'self' has ", self.sparse_dim(),
              " sparse dimensions while 'other' has ", other.sparse_dim(), " sparse dimensions");
  const Dims sizes = self.sizes().vec();  // out may be self
  put(out, sizes, self.sparse_dim(), at::cat({self._indices(), other._indices()}, 1),
      at::cat({self._values().to(dtype), scaled()}, 0), false);
  // A gradient that is accumulated again and again must not grow without end.
  if (out._nnz() > out.numel()) {
    const Tensor c = coalesce(out);
    put(out, sizes, c.sparse_dim(), c._indices(), c._values(), true);
  }
  return out;
}

// ---- Products, element by element ----

// As on CUDA an element for each of the operand that has fewer, zero where the other has none: nobody waits.
Tensor& mul_sparse(const Tensor& x, const Tensor& y, Tensor& out) {
  const int64_t sparse_dim = x.sparse_dim();
  TORCH_CHECK(
      x.dim() == y.dim() && sparse_dim == y.sparse_dim() &&
          x.sizes().slice(0, sparse_dim) == y.sizes().slice(0, sparse_dim),
      "mul(): expects sparse inputs with equal dimensionality, number of sparse dimensions, and shape of sparse "
      "dimensions");
  const auto dtype = at::result_type(x, y);
  check_out_dtype(dtype, out);
  const auto sizes = at::infer_size(x.sizes(), y.sizes());
  if (x._nnz() == 0 || y._nnz() == 0) {
    Dims shape(sizes.begin() + sparse_dim, sizes.end());
    shape.insert(shape.begin(), 0);
    return put(out, sizes, sparse_dim, at::empty({sparse_dim, 0}, x._indices().options()),
               at::empty(shape, x._values().options().dtype(dtype)), true);
  }
  // The product distributes over sums: only the one that is searched has to be coalesced.
  const bool search_x = x.is_coalesced() == y.is_coalesced() ? x._nnz() >= y._nnz() : x.is_coalesced();
  const Tensor keys = coalesce(search_x ? x : y), from = search_x ? y : x;
  const Match m = match(numbers(keys), numbers(from));
  const Tensor products = from._values().mul(keys._values().index_select(0, m.position));
  return put(out, sizes, sparse_dim, from._indices().clone(), or_zero(m.found, products), from.is_coalesced());
}

Tensor& mul_out(const Tensor& self, const Tensor& other, Tensor& out) {
  check_devices("mul", {out, self, other});
  if (self.is_sparse() && other.is_sparse() && self.dim() != 0 && other.dim() != 0) return mul_sparse(self, other, out);
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::mul", "out").typed<decltype(mul_sparse)>();
  return op.redispatch(c10::DispatchKeySet(c10::DispatchKey::SparseCPU), self, other, out);
}

// ---- Masks ----

// t at the places of a mask.
Tensor values_at(const Tensor& t, const Tensor& mask) {
  if (t._nnz() == 0) return at::zeros(with_rows(t._values(), mask._nnz()), t._values().options());
  const Tensor c = coalesce(t);
  return take(c._values(), match(numbers(c), numbers(mask)));
}

Tensor sparse_mask(const Tensor& self, const Tensor& mask) {
  check_devices("sparse_mask", {self, mask});
  if (!self.is_sparse() || !mask.is_sparse() || self.sizes() != mask.sizes() || self.is_same(mask)) {
    static const auto op =
        c10::Dispatcher::singleton().findSchemaOrThrow("aten::sparse_mask", "").typed<decltype(sparse_mask)>();
    return op.redispatch(c10::DispatchKeySet(c10::DispatchKey::SparseCPU), self, mask);
  }
  TORCH_CHECK(self.sparse_dim() == mask.sparse_dim(),
              "sparse_mask(): the number of sparse dimensions in `self` should match that of the `mask`. Got `self.",
              "sparse_dim() == ", self.sparse_dim(), "` != `mask.sparse_dim() == ", mask.sparse_dim(), "`.");
  return make(mask.sizes(), mask.sparse_dim(), mask._indices().clone(), values_at(self, mask), mask.is_coalesced());
}

// t's elements where mask has any, else zero; if accumulate, times how many it has.
Tensor sparse_mask_projection(const Tensor& t, const Tensor& mask, bool accumulate) {
  check_devices("_sparse_mask_projection", {t, mask});
  TORCH_CHECK(t.is_sparse() && mask.is_sparse() && t.sizes() == mask.sizes() && t.sparse_dim() == mask.sparse_dim(),
              "_sparse_mask_projection: expected two sparse tensors with the same sizes and sparse dimensions");
  Tensor keys = numbers(mask);
  if (!mask.is_coalesced()) keys = std::get<0>(keys.sort(0));
  const Tensor queries = numbers(t).contiguous();
  keys = keys.contiguous();
  const Tensor count = at::searchsorted(keys, queries, false, /*right=*/true).sub(at::searchsorted(keys, queries));
  Tensor values = or_zero(count.ne(0), t._values());
  if (accumulate && !mask.is_coalesced()) values = values.mul(along(count, values).to(values.scalar_type()));
  return make(t.sizes(), t.sparse_dim(), t._indices().clone(), values, t.is_coalesced());
}

// ---- Matrix products ----

void check_matrices(const char* op, const Tensor& sparse, const Tensor& dense) {
  TORCH_CHECK(dense.dim() == 2, op, ": 2D tensor expected, got ", dense.dim(), "D tensor");
  const int64_t sparse_dim = sparse.is_sparse() ? sparse.sparse_dim() : 0;
  TORCH_CHECK(sparse_dim == 2, op, ": expected first two dims to be sparse (indices has size 2 at first dim), but got ",
              sparse_dim, " sparse dims");
  TORCH_CHECK(sparse.dense_dim() == 0, op, ": scalar values expected, got ", sparse.dense_dim(), "D values");
  TORCH_CHECK(dense.layout() == at::kStrided, op, ": expected 'mat2' to be dense, but it is ", dense.layout(), ".");
  TORCH_CHECK(dense.size(0) == sparse.size(1), op, ": Argument #3 (dense): Expected dim 0 size ", sparse.size(1),
              ", got ", dense.size(0));
}

// For each element of a sparse matrix, its value times the row of dense that its column names.
Tensor scaled_rows(const char* op, const Tensor& column, const Tensor& values, const Tensor& dense) {
  TORCH_CHECK(values.scalar_type() == dense.scalar_type(), op,
              ": expected 'mat1' and 'mat2' to have the same dtype, but got ", values.scalar_type(), " and ",
              dense.scalar_type(), ".");
  return dense.index_select(0, column).mul(values.unsqueeze(1));
}

Tensor& addmm_out(const Tensor& self, const Tensor& sparse, const Tensor& dense, const Scalar& beta,
                  const Scalar& alpha, Tensor& out) {
  check_devices("addmm", {out, self, sparse, dense});
  check_matrices("addmm", sparse, dense);
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
  return out.index_add_(0, indices.select(0, 0), scaled_rows("addmm", indices.select(0, 1), sparse._values(), dense),
                        alpha);
}

Tensor addmm(const Tensor& self, const Tensor& sparse, const Tensor& dense, const Scalar& beta, const Scalar& alpha) {
  Tensor out = at::empty({0}, self.options());
  return addmm_out(self, sparse, dense, beta, alpha, out);
}

Tensor& addmm_(Tensor& self, const Tensor& sparse, const Tensor& dense, const Scalar& beta, const Scalar& alpha) {
  return addmm_out(self, sparse, dense, beta, alpha, self);
}

Tensor& bmm_out(const Tensor& sparse, const Tensor& dense, Tensor& out) {
  check_devices("bmm", {out, sparse, dense});
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
      0, number(indices, sparse.sizes(), {0, 1}),
      scaled_rows("bmm", number(indices, sparse.sizes(), {0, 2}), sparse._values(), dense.reshape({b * k, n})));
  return out.copy_(sum.view({b, m, n}));
}

Tensor bmm(const Tensor& sparse, const Tensor& dense) {
  Tensor out = at::empty({0}, dense.options());
  return bmm_out(sparse, dense, out);
}

// Only the rows that have an element: one sparse and one dense dimension.
Tensor& hspmm_out(const Tensor& sparse, const Tensor& dense, Tensor& out) {
  check_devices("hspmm", {out, sparse, dense});
  check_matrices("hspmm", sparse, dense);
  const Tensor indices = sparse._indices();
  const auto [rows, place, counts] = at::_unique2(indices.select(0, 0), true, true);
  const Tensor products = scaled_rows("hspmm", indices.select(0, 1), sparse._values(), dense);
  return put(out, {sparse.size(0), dense.size(1)}, 1, rows.unsqueeze(0), sum_rows(products, place, rows.size(0)),
             false);
}

Tensor hspmm(const Tensor& sparse, const Tensor& dense) {
  Tensor out = at::empty({0}, sparse.options());
  return hspmm_out(sparse, dense, out);
}

// Each element (i, k) of a meets each element (k, j) of b.
Tensor sparse_matmul(const Tensor& a, const Tensor& b) {
  check_devices("_sparse_sparse_matmul", {a, b});
  for (const Tensor& t : {a, b}) {
    TORCH_CHECK(t.is_sparse() && t.dim() == 2, "torch.sparse.mm: expected two sparse matrices");
    TORCH_CHECK(t.dense_dim() == 0, "torch.sparse.mm: scalar values expected, got ", t.dense_dim(), "D values");
  }
  TORCH_CHECK(a.size(1) == b.size(0), "_sparse_sparse_matmul: mat1 and mat2 shapes cannot be multiplied (", a.size(0),
              "x", a.size(1), " and ", b.size(0), "x", b.size(1), ")");
  TORCH_CHECK(a.scalar_type() == b.scalar_type(), "mat1 dtype ", a.scalar_type(), " does not match mat2 dtype ",
              b.scalar_type());
  const Tensor x = coalesce(a), y = coalesce(b);
  const Tensor of_x = x._indices(), of_y = y._indices();
  const Pairs pairs = join(of_x.select(0, 1), of_y.select(0, 0));
  const Tensor indices =
      at::stack({of_x.select(0, 0).index_select(0, pairs.left), of_y.select(0, 1).index_select(0, pairs.right)}, 0);
  const Tensor values = x._values().index_select(0, pairs.left).mul(y._values().index_select(0, pairs.right));
  return coalesce(make({a.size(0), b.size(1)}, 2, indices, values, false));
}

// ---- Selection ----

Tensor index_select(const Tensor& self, int64_t dim, const Tensor& index) {
  TORCH_CHECK_INDEX(self.dim() > 0, "index_select() cannot be applied to a 0-dim tensor.");
  TORCH_CHECK_INDEX(index.dim() == 1 && index.dtype() == at::kLong && index.layout() == at::kStrided,
                    "index_select() argument index must be 1-D strided (non-sparse) long-tensor.");
  check_devices("index_select", {self, index});
  dim = at::maybe_wrap_dim(dim, self.dim());
  const int64_t sparse_dim = self.sparse_dim();
  Dims sizes = self.sizes().vec();
  sizes[dim] = index.size(0);
  const Tensor indices = self._indices(), values = self._values();
  if (dim >= sparse_dim) {
    return make(sizes, sparse_dim, indices.clone(), values.index_select(dim - sparse_dim + 1, index),
                self.is_coalesced());
  }
  const Tensor wanted = at::where(index.lt(0), index.add(self.size(dim)), index);
  const auto [sorted, order] = indices.select(0, dim).sort(/*stable=*/true, 0, false);
  const Pairs pairs = join(wanted, sorted);
  const Tensor element = order.index_select(0, pairs.right);
  std::vector<Tensor> rows(sparse_dim);
  for (int64_t d = 0; d < sparse_dim; d++) {
    rows[d] = d == dim ? pairs.left : indices.select(0, d).index_select(0, element);
  }
  return make(sizes, sparse_dim, at::stack(rows, 0), values.index_select(0, element), false);
}

// ---- Sums along dimensions, backward ----

// The gradient of an element is that of the sum it went into.
Tensor sparse_sum_backward(const Tensor& grad, const Tensor& self, IntArrayRef summed) {
  check_devices("_sparse_sum_backward", {grad, self});
  const Tensor input = coalesce(self), values = input._values();
  const int64_t sparse_dim = input.sparse_dim();
  std::vector<bool> gone(input.dim(), false);
  for (const int64_t d : summed) gone[at::maybe_wrap_dim(d, input.dim())] = true;
  Dims kept;
  for (int64_t d = 0; d < sparse_dim; d++) {
    if (!gone[d]) kept.push_back(d);
  }
  Tensor rows;  // of the gradient: one for each element, or one for all
  if (kept.empty()) {
    TORCH_CHECK(!grad.is_sparse(),
                "_sparse_sum_backward: expected grad Tensor to be dense since all sparse dims are summed");
    rows = grad.unsqueeze(0);
  } else {
    TORCH_CHECK(grad.is_sparse(), "_sparse_sum_backward: expected grad_ Tensor to be sparse, but got dense");
    const Tensor g = coalesce(grad);
    rows = g._nnz() == 0 ? at::zeros(with_rows(g._values(), input._nnz()), g._values().options())
                         : take(g._values(), match(numbers(g), number(input._indices(), input.sizes(), kept)));
  }
  for (int64_t d = sparse_dim; d < input.dim(); d++) {
    if (gone[d]) rows = rows.unsqueeze(d - sparse_dim + 1);
  }
  return make(input.sizes(), sparse_dim, input._indices().clone(),
              rows.expand(values.sizes()).clone(at::MemoryFormat::Contiguous), input.is_coalesced());
}

// ---- Softmax ----

// What is not there counts as minus infinity. The elements of one sum agree in all sparse dimensions but dim.
struct Pools {
  Tensor place;
  int64_t count;
};

Pools pools(const Tensor& sparse, int64_t dim) {
  Dims others;
  for (int64_t d = 0; d < sparse.sparse_dim(); d++) {
    if (d != dim) others.push_back(d);
  }
  const auto [flat, place, counts] = at::_unique2(number(sparse._indices(), sparse.sizes(), others), true, true);
  return {place, flat.size(0)};
}

template <bool kLog>
Tensor softmax(const Tensor& self, int64_t dim, bool half_to_float) {
  TORCH_CHECK(!half_to_float, "softmax with half to float conversion is not supported for sparse tensors");
  dim = at::maybe_wrap_dim(dim, self.dim());
  const Tensor t = coalesce(self);
  const int64_t sparse_dim = t.sparse_dim();
  Tensor values = t._values();
  if (values.numel() == 0) return t.clone();
  if (dim >= sparse_dim) {
    const int64_t d = dim - sparse_dim + 1;
    values = kLog ? at::log_softmax(values, d) : at::softmax(values, d);
  } else {
    const Pools p = pools(t, dim);
    const Tensor lowest =
        at::full(with_rows(values, p.count), -std::numeric_limits<double>::infinity(), values.options());
    const Tensor maximum = lowest.scatter_reduce(0, along(p.place, values).expand(values.sizes()), values, "amax");
    const Tensor shifted = values.sub(maximum.index_select(0, p.place));
    const Tensor e = shifted.exp(), sum = sum_rows(e, p.place, p.count);
    values = kLog ? shifted.sub(sum.log().index_select(0, p.place)) : e.div(sum.index_select(0, p.place));
  }
  return make(t.sizes(), sparse_dim, t._indices().clone(), values, true);
}

template <bool kLog>
Tensor softmax_backward(const Tensor& grad, const Tensor& output, int64_t dim, const Tensor&) {
  dim = at::maybe_wrap_dim(dim, grad.dim());
  TORCH_CHECK(grad.sizes() == output.sizes() && at::sparse::is_same_density(grad, output),
              "softmax backward: grad and output must have the same shape and number of sparse dimensions");
  const Tensor out = coalesce(output), y = out._values();
  if (y.numel() == 0) return out.clone();
  const int64_t sparse_dim = out.sparse_dim();
  const Tensor g = values_at(grad, out), product = kLog ? g : g.mul(y);
  Tensor sum;
  if (dim >= sparse_dim) {
    sum = product.sum(dim - sparse_dim + 1, true);
  } else {
    const Pools p = pools(out, dim);
    sum = sum_rows(product, p.place, p.count).index_select(0, p.place);
  }
  return make(out.sizes(), sparse_dim, out._indices().clone(), kLog ? g.sub(y.exp().mul(sum)) : y.mul(g.sub(sum)),
              true);
}

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  run_as_on_cpu<c10::DispatchKey::SparseCPU>(m, kComposed);
  m.impl("_coalesce", &coalesce);
  m.impl("add.out", &add_out);
  m.impl("mul.out", &mul_out);
  m.impl("sparse_mask", &sparse_mask);
  m.impl("_sparse_mask_projection", &sparse_mask_projection);
  m.impl("addmm", &addmm);
  m.impl("addmm_", &addmm_);
  m.impl("addmm.out", &addmm_out);
  m.impl("bmm", &bmm);
  m.impl("bmm.out", &bmm_out);
  m.impl("hspmm", &hspmm);
  m.impl("hspmm.out", &hspmm_out);
  m.impl("_sparse_sparse_matmul", &sparse_matmul);
  m.impl("index_select", &index_select);
  m.impl("_sparse_sum_backward", &sparse_sum_backward);
  m.impl("_sparse_softmax", &softmax<false>);
  m.impl("_sparse_log_softmax", &softmax<true>);
  m.impl("_sparse_softmax_backward_data", &softmax_backward<false>);
  m.impl("_sparse_log_softmax_backward_data", &softmax_backward<true>);
}

// From dense to sparse: nonzero, which waits, and index. The gradient of a bag's weight may be sparse.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  run_as_on_cpu<c10::DispatchKey::CPU>(m, {"_to_sparse", "_to_sparse.sparse_dim", "_embedding_bag_backward"});
}

}  // namespace
}  // namespace mycelya
