// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Products and factorisations without a structured form. LAPACK's results are column-major.

#include <ATen/ExpandUtils.h>
#include <ATen/WrapDimUtils.h>

#include "device/rules/RulesInternal.h"

namespace mycelya::rules {
namespace {

// [*, m, n] with the last two dims column-major.
void AddColumnMajor(OutMetas& out, IntArrayRef sizes, ScalarType dtype) {
  TORCH_CHECK(sizes.size() >= 2, "The input tensor must have at least 2 dimensions, got ", sizes.size(), ".");
  DimVector swapped(sizes.begin(), sizes.end());
  std::swap(swapped[swapped.size() - 1], swapped[swapped.size() - 2]);
  auto strides = c10::contiguous_strides(swapped);
  std::swap(strides[strides.size() - 1], strides[strides.size() - 2]);
  Add(out, sizes, strides, dtype);
}

void CheckSquare(const Tensor& t, const char* name) {
  TORCH_CHECK(t.dim() >= 2, name, ": The input tensor A must have at least 2 dimensions.");
  TORCH_CHECK(t.size(-1) == t.size(-2), name, ": A must be batches of square matrices, but they are ", t.size(-2),
              " by ", t.size(-1), " matrices");
}

// self [n] tensor [n]
void Dot(Args args, OutMetas& out) {
  const Tensor a = TensorAt(args, 0), b = TensorAt(args, 1);
  TORCH_CHECK(a.dim() == 1 && b.dim() == 1, "1D tensors expected, but got ", a.dim(), "D and ", b.dim(), "D tensors");
  TORCH_CHECK(a.scalar_type() == b.scalar_type(), "dot : expected both vectors to have same dtype, but found ",
              a.scalar_type(), " and ", b.scalar_type());
  TORCH_CHECK(a.numel() == b.numel(), "inconsistent tensor size, expected tensor [", a.numel(), "] and src [",
              b.numel(), "] to have the same number of elements, but got ", a.numel(), " and ", b.numel(),
              " elements respectively");
  AddContiguous(out, {}, a.scalar_type());
}

// self [m, n] vec [n]
void Mv(Args args, OutMetas& out) {
  const Tensor a = TensorAt(args, 0), v = TensorAt(args, 1);
  at::maybe_wrap_dim(0, a.dim(), /*wrap_scalar=*/false);
  TORCH_CHECK(a.dim() == 2 && v.dim() == 1, "vector + matrix @ vector expected, got ", 1, ", ", a.dim(), ", ", v.dim());
  TORCH_CHECK(a.size(1) == v.size(0), "size mismatch, got input (", a.size(0), "), mat (", a.size(0), "x", a.size(1),
              "), vec (", v.size(0), ")");
  AddContiguous(out, {a.size(0)}, a.scalar_type());
}

// self, batch1 [b, n, k] batch2 [b, k, m]
void Addbmm(Args args, OutMetas& out) {
  const Tensor a = TensorAt(args, 1), b = TensorAt(args, 2);
  TORCH_CHECK(a.dim() == 3, "batch1 must be a 3D tensor");
  TORCH_CHECK(b.dim() == 3, "batch2 must be a 3D tensor");
  TORCH_CHECK(a.size(0) == b.size(0), "batch1 and batch2 must have same number of batches, got ", a.size(0), " and ",
              b.size(0));
  TORCH_CHECK(a.size(2) == b.size(1), "Incompatible matrix sizes for bmm (", a.size(1), "x", a.size(2), " and ",
              b.size(1), "x", b.size(2), ")");
  AddContiguous(out, {a.size(1), b.size(2)}, TensorAt(args, 0).scalar_type());
}

// self [n, k] mat2 [k, m], int8 -> int32
void IntMm(Args args, OutMetas& out) {
  const Tensor a = TensorAt(args, 0), b = TensorAt(args, 1);
  TORCH_CHECK(a.dim() == 2 && b.dim() == 2, "Expected self and mat2 to be of dimension 2 but got ", a.dim(), " and ",
              b.dim());
  TORCH_CHECK(a.size(1) == b.size(0), "self.size(1) needs to match mat2.size(0) but got ", a.size(1), " and ",
              b.size(0));
  AddContiguous(out, {a.size(0), b.size(1)}, ScalarType::Int);
}

// … out_dtype: the last dims of two matrices, and the batch
template <size_t kFirst>
void MmDtype(Args args, OutMetas& out) {
  const Tensor a = TensorAt(args, kFirst), b = TensorAt(args, kFirst + 1);
  TORCH_CHECK(a.size(-1) == b.size(-2), "mat1 and mat2 shapes cannot be multiplied (", a.size(-2), "x", a.size(-1),
              " and ", b.size(-2), "x", b.size(-1), ")");
  DimVector sizes(a.sizes().begin(), a.sizes().end());
  sizes.back() = b.size(-1);
  AddContiguous(out, sizes, args[kFirst + 2].toScalarType());
}

// self [n, k] mat2 [k, m] scale_a scale_b bias? scale_result? out_dtype? …
void ScaledMm(Args args, OutMetas& out) {
  const Tensor a = TensorAt(args, 0), b = TensorAt(args, 1);
  TORCH_CHECK(a.dim() == 2, "mat1 must be a matrix");
  TORCH_CHECK(b.dim() == 2, "mat2 must be a matrix");
  TORCH_CHECK(a.size(1) == b.size(0), "mat1 and mat2 shapes cannot be multiplied (", a.size(0), "x", a.size(1), " and ",
              b.size(0), "x", b.size(1), ")");
  AddContiguous(out, {a.size(0), b.size(1)}, MaybeDtype(args, 6).value_or(a.scalar_type()));
}

// x1 [*, p, d] x2 [*, r, d] -> [*, p, r]
void Cdist(Args args, OutMetas& out) {
  const Tensor a = TensorAt(args, 0), b = TensorAt(args, 1);
  const IntArrayRef lead_a = a.sizes().slice(0, a.dim() - 2), lead_b = b.sizes().slice(0, b.dim() - 2);
  auto sizes = at::infer_size_dimvector(lead_a, lead_b);
  sizes.push_back(a.size(-2));
  sizes.push_back(b.size(-2));
  AddContiguous(out, sizes, a.scalar_type());
}

// grad x1 x2 p cdist: x1, its batch broadcast
void CdistBackward(Args args, OutMetas& out) {
  const Tensor a = TensorAt(args, 1), b = TensorAt(args, 2);
  if (a.numel() == 0 || b.numel() == 0) return AddLike(out, a);  // zeros
  auto sizes = at::infer_size_dimvector(a.sizes().slice(0, a.dim() - 2), b.sizes().slice(0, b.dim() - 2));
  sizes.push_back(a.size(-2));
  sizes.push_back(a.size(-1));
  AddContiguous(out, sizes, a.scalar_type());
}

// self [n, d] -> [n (n - 1) / 2]
void Pdist(Args args, OutMetas& out) {
  const Tensor self = TensorAt(args, 0);
  const int64_t n = self.size(0);
  AddContiguous(out, {n <= 1 ? 0 : n * (n - 1) / 2}, self.scalar_type());
}

// grad self …
void PdistBackward(Args args, OutMetas& out) { AddLikeContiguous(out, TensorAt(args, 1)); }

void ColumnMajorLike(Args args, OutMetas& out) {
  const Tensor self = TensorAt(args, 0);
  AddColumnMajor(out, self.sizes(), self.scalar_type());
}

// self [*, m, n] tau [*, k]
void HouseholderProduct(Args args, OutMetas& out) {
  const Tensor self = TensorAt(args, 0), tau = TensorAt(args, 1);
  constexpr const char* kName = "torch.linalg.householder_product: ";
  TORCH_CHECK(self.dim() >= 2, kName, "input must have at least 2 dimensions.");
  TORCH_CHECK(self.size(-2) >= self.size(-1), kName,
              "input.shape[-2] must be greater than or equal to input.shape[-1]");
  TORCH_CHECK(self.dim() - tau.dim() == 1, kName, "Expected tau to have one dimension less than input, but got ",
              tau.dim(), " dimensions of tau and ", self.dim(), " of input");
  TORCH_CHECK(self.size(-1) >= tau.size(-1), kName, "input.shape[-1] must be greater than or equal to tau.shape[-1]");
  TORCH_CHECK(self.sizes().slice(0, self.dim() - 2) == tau.sizes().slice(0, tau.dim() - 1), kName,
              "Expected batch dimensions of tau to be those of input, ", self.sizes(), ", but got ", tau.sizes());
  TORCH_CHECK(self.scalar_type() == tau.scalar_type(), kName, "tau dtype ", tau.scalar_type(),
              " does not match input dtype ", self.scalar_type());
  ColumnMajorLike(args, out);
}

// self [*, m, n] -> a, tau [*, min(m, n)]
void Geqrf(Args args, OutMetas& out) {
  const Tensor self = TensorAt(args, 0);
  TORCH_CHECK(self.dim() >= 2, "torch.geqrf: input must have at least 2 dimensions.");
  AddColumnMajor(out, self.sizes(), self.scalar_type());
  DimVector sizes(self.sizes().begin(), self.sizes().end() - 2);
  sizes.push_back(std::min(self.size(-1), self.size(-2)));
  AddContiguous(out, sizes, self.scalar_type());
}

ScalarType ComplexType(ScalarType dtype) { return c10::isComplexType(dtype) ? dtype : c10::toComplexType(dtype); }

void Eigenvalues(Args args, OutMetas& out) {
  const Tensor self = TensorAt(args, 0);
  CheckSquare(self, "linalg.eigvals");
  AddContiguous(out, self.sizes().slice(0, self.dim() - 1), ComplexType(self.scalar_type()));
}

void Eig(Args args, OutMetas& out) {
  const Tensor self = TensorAt(args, 0);
  CheckSquare(self, "linalg.eig");
  const ScalarType dtype = ComplexType(self.scalar_type());
  AddContiguous(out, self.sizes().slice(0, self.dim() - 1), dtype);
  if (OnCuda()) {
    AddContiguous(out, self.sizes(), dtype);  // a copy of LAPACK's
  } else {
    AddColumnMajor(out, self.sizes(), dtype);
  }
}

// self [*, n, n]
void MatrixExp(Args args, OutMetas& out) {
  const Tensor self = TensorAt(args, 0);
  CheckSquare(self, "linalg.matrix_exp");
  AddLikeContiguous(out, self);
}

void MatrixRoot(Args args, OutMetas& out) {
  const Tensor self = TensorAt(args, 0);
  CheckSquare(self, "linalg.matrix_sqrth");
  AddLikeContiguous(out, self);
}

// A [*, n, n] B [*, n, k] …
void SolveTriangular(Args args, OutMetas& out) {
  const Tensor a = TensorAt(args, 0), b = TensorAt(args, 1);
  CheckSquare(a, "linalg.solve_triangular");
  auto sizes = at::infer_size_dimvector(a.sizes().slice(0, a.dim() - 2), b.sizes().slice(0, b.dim() - 2));
  sizes.push_back(b.size(-2));
  sizes.push_back(b.size(-1));
  AddColumnMajor(out, sizes, b.scalar_type());
}

// self tau other …
void Ormqr(Args args, OutMetas& out) {
  const Tensor self = TensorAt(args, 0), other = TensorAt(args, 2);
  TORCH_CHECK(self.dim() >= 2, "torch.ormqr: input must have at least 2 dimensions.");
  TORCH_CHECK(other.dim() >= 2, "torch.ormqr: other must have at least 2 dimensions.");
  AddColumnMajor(out, other.sizes(), other.scalar_type());
}

// input [k, *] coefficients [m, k] -> [m, *]
void LinearCombination(Args args, OutMetas& out) {
  const Tensor input = TensorAt(args, 0), coefficients = TensorAt(args, 1);
  DimVector sizes(input.sizes().begin(), input.sizes().end());
  sizes[0] = coefficients.size(0);
  AddContiguous(out, sizes, input.scalar_type());
}

constexpr RuleRow kLinalgRows[] = {
    {"_cdist_backward", CdistBackward},
    {"_cdist_forward", Cdist},
    {"_cholesky_solve_helper", ColumnMajorLike},
    {"_compute_linear_combination", LinearCombination},
    {"_int_mm", IntMm},
    {"_linalg_eigvals", Eigenvalues},
    {"_pdist_backward", PdistBackward},
    {"_pdist_forward", Pdist},
    {"_scaled_mm", ScaledMm},
    {"addbmm", Addbmm},
    {"addmm.dtype", MmDtype<1>},
    {"baddbmm.dtype", MmDtype<1>},
    {"bmm.dtype", MmDtype<0>},
    {"cholesky_inverse", ColumnMajorLike},
    {"dot", Dot},
    {"geqrf", Geqrf},
    {"linalg_eig", Eig},
    {"linalg_eigvals", Eigenvalues},
    {"linalg_householder_product", HouseholderProduct},
    {"linalg_matrix_exp", MatrixExp},
    {"linalg_matrix_sqrth", MatrixRoot},
    {"linalg_solve_triangular", SolveTriangular},
    {"mm.dtype", MmDtype<0>},
    {"mv", Mv},
    {"ormqr", Ormqr},
    {"vdot", Dot},
};

}  // namespace

RuleRows LinalgRules() { return kLinalgRows; }

}  // namespace mycelya::rules
