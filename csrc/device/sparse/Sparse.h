// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Shared by sparse COO and sparse compressed tensors: PyTorch's CPU kernels under our keys, and sums and searches along
// indices.
#ifndef MYCELYA_DEVICE_SPARSE_SPARSE_H_
#define MYCELYA_DEVICE_SPARSE_SPARSE_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <functional>
#include <initializer_list>
#include <vector>

namespace mycelya {

using Dims = std::vector<int64_t>;

// Registers PyTorch's CPU kernels of these operators. The kernels must be made of operators. Names without a kernel for
// kKey in this PyTorch are skipped.
template <c10::DispatchKey kKey>
void RunAsOnCpu(torch::Library& library, at::ArrayRef<const char*> names);

extern template void RunAsOnCpu<c10::DispatchKey::CPU>(torch::Library&, at::ArrayRef<const char*>);
extern template void RunAsOnCpu<c10::DispatchKey::SparseCPU>(torch::Library&, at::ArrayRef<const char*>);
extern template void RunAsOnCpu<c10::DispatchKey::SparseCsrCPU>(torch::Library&, at::ArrayRef<const char*>);

// Raises if the tensors are on several devices; a 0-dim CPU tensor may accompany any device.
void CheckDevices(const char* op, std::initializer_list<std::reference_wrapper<const at::Tensor>> tensors);
void CheckOutDtype(c10::ScalarType dtype, const at::Tensor& out);

// For each element, its indices along `dims` as one row-major number. indices: i64[all dims, nnz] -> i64[nnz]
at::Tensor Number(const at::Tensor& indices, at::IntArrayRef sizes, at::IntArrayRef dims);

// Views one number per row of values so that it broadcasts against them. [rows] -> [rows, 1, …]
at::Tensor Along(const at::Tensor& flat, const at::Tensor& values);

// The shape of `values` with another number of rows.
Dims WithRows(const at::Tensor& values, int64_t rows);

// Sums the rows of `values` that have the same place, in row order. As on CUDA, f16 and bf16 are added in f32.
at::Tensor SumRows(const at::Tensor& values, const at::Tensor& place, int64_t places);

// PyTorch's own implementation of an operator, to redispatch to.
template <class F>
auto AtenOp(const char* name, const char* overload) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload).typed<F>();
}

struct Match {
  at::Tensor position, found;
};

// Finds each query in sorted keys (at least one). Where `found` is false, the position is arbitrary but valid.
Match FindMatch(const at::Tensor& keys, const at::Tensor& queries);

}  // namespace mycelya

#endif  // MYCELYA_DEVICE_SPARSE_SPARSE_H_
