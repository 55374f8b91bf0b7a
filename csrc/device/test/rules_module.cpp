// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// A Python module that applies the shape rules to a call. It replaces the tensors of the call by tensors with the same
// metadata, device PrivateUse1 and no memory. A rule that reads data crashes; a rule that computes finds no kernel.

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include "device/rules/MetaTable.h"
#include "device/rules/RulesInternal.h"

namespace {

using at::Tensor;
constexpr auto kDevice = c10::DeviceType::PrivateUse1;

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kDevice; }
  c10::Device exchangeDevice(c10::Device) const override { return {kDevice, 0}; }
  c10::Device getDevice() const override { return {kDevice, 0}; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device d) const override { return c10::Stream(c10::Stream::DEFAULT, d); }
  c10::Stream exchangeStream(c10::Stream s) const override { return s; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

Tensor ViewOf(const Tensor& t, at::IntArrayRef sizes, at::IntArrayRef strides, int64_t offset) {
  Tensor view = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(t.storage()), t.key_set(),
                                                         t.dtype());
  view.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return view;
}

Tensor AsStrided(const Tensor& t, at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<int64_t> offset) {
  return ViewOf(t, sizes, strides, offset.value_or(t.storage_offset()));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { m.impl("as_strided", &AsStrided); }

Tensor WithoutMemory(const Tensor& t) {
  // Numbers stay on the CPU, as on a real device.
  if (!t.defined() || t.unsafeGetTensorImpl()->is_wrapped_number()) return t;
  void* const nowhere = reinterpret_cast<void*>(uintptr_t{1} << 46);
  c10::Storage storage(c10::Storage::use_byte_size_t(), t.storage().nbytes(),
                       c10::DataPtr(nowhere, c10::Device(kDevice, 0)), nullptr, false);
  Tensor result = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), t.dtype());
  result.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
  return result;
}

c10::IValue WithoutMemory(const c10::IValue& v) {
  if (v.isTensor()) return WithoutMemory(v.toTensor());
  if (v.isTensorList()) {
    c10::List<Tensor> list;
    for (const Tensor& t : v.toTensorVector()) list.push_back(WithoutMemory(t));
    return list;
  }
  if (v.isList() && v.toList().elementType()->kind() == c10::TypeKind::OptionalType) {
    c10::List<std::optional<Tensor>> list;
    for (const c10::IValue& item : v.toListRef()) {
      list.push_back(item.isNone() ? std::optional<Tensor>() : std::optional<Tensor>(WithoutMemory(item.toTensor())));
    }
    return list;
  }
  if (v.isDevice()) return c10::Device(kDevice, 0);
  if (v.isGenerator()) return c10::IValue();
  return v;
}

c10::OperatorHandle Find(const std::string& name) {
  const auto dot = name.find('.');
  return c10::Dispatcher::singleton().findSchemaOrThrow(("aten::" + name.substr(0, dot)).c_str(),
                                                        dot == std::string::npos ? "" : name.substr(dot + 1).c_str());
}

// (source, results): source "rule", "meta" or ""; a result is (dtype, sizes, strides) or None.
py::tuple Infer(const std::string& name, const std::string& schema_name, const py::args& args,
                const py::kwargs& kwargs) {
  const auto op = Find(schema_name);
  torch::jit::ToIValueAllowNumbersAsTensors numbers(true);
  auto stack = torch::jit::createStackForSchema(op.schema(), torch::jit::tuple_slice(args), kwargs, std::nullopt);
  for (c10::IValue& v : stack) v = WithoutMemory(v);
  mycelya::OutMetas metas;
  std::string source;
  {
    py::gil_scoped_release release;
    if (mycelya::InferByRule(name, stack, metas)) {
      source = "rule";
    } else if (mycelya::InferByMeta(name, Find(name), stack, metas)) {
      source = "meta";
    }
  }
  py::list results;
  for (const auto& m : metas) {
    if (m.defined) {
      results.append(py::make_tuple(m.dtype, std::vector<int64_t>(m.sizes.begin(), m.sizes.end()),
                                    std::vector<int64_t>(m.strides.begin(), m.strides.end())));
    } else {
      results.append(py::none());
    }
  }
  return py::make_tuple(source, results);
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("infer", &Infer);
  m.def("source", [](const std::string& name) {
    return mycelya::rules::HasRule(name) ? "rule" : mycelya::FindMeta(name) != nullptr ? "meta" : "";
  });
  m.def("unmarked_writes", [](const std::string& name, const py::args& args, const py::kwargs& kwargs) {
    const auto op = Find(name);
    auto stack = torch::jit::createStackForSchema(op.schema(), torch::jit::tuple_slice(args), kwargs, std::nullopt);
    c10::SmallVector<int, 4> indices;
    mycelya::UnmarkedWrites(mycelya::ColumnsOf(name), stack, indices);
    return std::vector<int>(indices.begin(), indices.end());
  });
}
