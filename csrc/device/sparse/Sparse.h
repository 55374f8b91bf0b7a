// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// What sparse COO and sparse compressed tensors share: PyTorch's own kernels under our keys, and sums and searches
// along indices.
#ifndef MYCELYA_DEVICE_SPARSE_SPARSE_H_
#define MYCELYA_DEVICE_SPARSE_SPARSE_H_

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <functional>
#include <initializer_list>
#include <vector>

namespace mycelya {

using Dims = std::vector<int64_t>;

// Registers, for operators made of operators, PyTorch's kernel for a key of the CPU. Names that this PyTorch lacks, or
// has no such kernel for, are passed over.
template <c10::DispatchKey kKey>
void run_as_on_cpu(torch::Library& library, at::ArrayRef<const char*> names);

extern template void run_as_on_cpu<c10::DispatchKey::CPU>(torch::Library&, at::ArrayRef<const char*>);
extern template void run_as_on_cpu<c10::DispatchKey::SparseCPU>(torch::Library&, at::ArrayRef<const char*>);
extern template void run_as_on_cpu<c10::DispatchKey::SparseCsrCPU>(torch::Library&, at::ArrayRef<const char*>);

// Raises if the tensors are on several devices; a CPU tensor with no dimension is on any.
void check_devices(const char* op, std::initializer_list<std::reference_wrapper<const at::Tensor>> tensors);
void check_out_dtype(c10::ScalarType dtype, const at::Tensor& out);

// The coordinates along some dimensions, rows of indices, as one row-major number for each element.
at::Tensor number(const at::Tensor& indices, at::IntArrayRef sizes, at::IntArrayRef dims);

// One number for each row of values, to broadcast against them.
at::Tensor along(const at::Tensor& flat, const at::Tensor& values);

// The shape of values, with another number of rows.
Dims with_rows(const at::Tensor& values, int64_t rows);

// The sums of the rows of values that have the same place, in their order. As on CUDA, short floats add up in float.
at::Tensor sum_rows(const at::Tensor& values, const at::Tensor& place, int64_t places);

struct Match {
  at::Tensor position, found;
};

// Where each query stands in sorted keys, of which there is at least one; any position where it doesn't.
Match match(const at::Tensor& keys, const at::Tensor& queries);

}  // namespace mycelya

#endif  // MYCELYA_DEVICE_SPARSE_SPARSE_H_
