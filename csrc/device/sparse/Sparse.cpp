// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Shared by sparse COO and sparse compressed tensors.

#include "device/sparse/Sparse.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>

#include "device/client/Lives.h"
#include "device/tensor/Storage.h"

namespace mycelya {

using at::IntArrayRef;
using at::Tensor;

namespace {

// The device of the first argument that has one of ours: what they make without another hint is made there.
std::optional<c10::Device> DeviceOf(const torch::jit::Stack& stack, size_t arguments) {
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
void AsOnCpu(const c10::OperatorHandle& handle, torch::jit::Stack* stack) {
  const c10::OptionalDeviceGuard guard(DeviceOf(*stack, handle.schema().arguments().size()));
  handle.redispatchBoxed(c10::DispatchKeySet(kKey), stack);
}

}  // namespace

template <c10::DispatchKey kKey>
void RunAsOnCpu(torch::Library& library, at::ArrayRef<const char*> names) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const char* name : names) {
    const std::string_view n(name);
    const auto dot = n.find('.');
    const auto handle =
        dispatcher.findOp({"aten::" + std::string(n.substr(0, dot)),
                           dot == std::string_view::npos ? std::string() : std::string(n.substr(dot + 1))});
    if (!handle || !handle->hasKernelForDispatchKey(kKey)) continue;
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&AsOnCpu<kKey>>());
  }
}

template void RunAsOnCpu<c10::DispatchKey::CPU>(torch::Library&, at::ArrayRef<const char*>);
template void RunAsOnCpu<c10::DispatchKey::SparseCPU>(torch::Library&, at::ArrayRef<const char*>);
template void RunAsOnCpu<c10::DispatchKey::SparseCsrCPU>(torch::Library&, at::ArrayRef<const char*>);

// ---- Shared with compressed tensors ----

void CheckDevices(const char* op, std::initializer_list<std::reference_wrapper<const Tensor>> tensors) {
  std::optional<c10::Device> device;
  for (const Tensor& t : tensors) {
    if (t.is_cpu() && t.dim() == 0) continue;
    if (!device) device = t.device();
    TORCH_CHECK(t.device() == *device,
                "Expected all tensors to be on the same device, but found at least two devices, ", *device, " and ",
                t.device(), "! (when checking arguments of ", op, "). ", DevicesText(*device, t.device()));
  }
}

void CheckOutDtype(c10::ScalarType dtype, const Tensor& out) {
  TORCH_CHECK(c10::canCast(dtype, out.scalar_type()), "Can't convert result type ", dtype, " to output ",
              out.scalar_type());
}

Tensor Number(const Tensor& indices, IntArrayRef sizes, IntArrayRef dims) {
  if (dims.empty()) return at::zeros({indices.size(1)}, indices.options());
  Tensor flat = indices.select(0, dims[0]);
  for (const int64_t d : dims.slice(1)) flat = flat.mul(sizes[d]).add(indices.select(0, d));
  return flat;
}

Tensor Along(const Tensor& flat, const Tensor& values) {
  Dims shape(values.dim(), 1);
  shape[0] = flat.size(0);
  return flat.view(shape);
}

Dims WithRows(const Tensor& values, int64_t rows) {
  Dims shape = values.sizes().vec();
  shape[0] = rows;
  return shape;
}

Tensor SumRows(const Tensor& values, const Tensor& place, int64_t places) {
  const auto dtype = values.scalar_type();
  const Tensor terms = at::isReducedFloatingType(dtype) ? values.to(at::kFloat) : values;
  return at::zeros(WithRows(values, places), terms.options()).index_add_(0, place, terms).to(dtype);
}

Match FindMatch(const Tensor& keys, const Tensor& queries) {
  const Tensor position = at::searchsorted(keys.contiguous(), queries.contiguous()).clamp_max(keys.size(0) - 1);
  return {position, keys.index_select(0, position).eq(queries)};
}

}  // namespace mycelya
