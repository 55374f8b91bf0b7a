// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Hand-written operators: construction, views (metadata only, no record), and operators that return a value to the CPU.

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_copy_from.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/all.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/MemoryFormat.h>
#include <torch/library.h>

#include <mutex>

#include "device/client/Client.h"
#include "device/client/Lives.h"
#include "device/client/State.h"
#include "device/record/Record.h"
#include "device/record/Recorder.h"
#include "device/record/Transfer.h"

namespace mycelya {
namespace {

void CountView() { GetCounters().views.fetch_add(1, std::memory_order_relaxed); }

c10::DeviceIndex IndexOf(std::optional<c10::Device> device) {
  CheckUsable();
  if (!device || !device->has_index()) return CurrentDevice();
  TORCH_CHECK(device->index() < DeviceCount(), "mycelya:", static_cast<int>(device->index()), " does not exist: there ",
              DeviceCount() == 1 ? "is 1 device" : "are " + std::to_string(DeviceCount()) + " devices",
              ", numbered from 0. A RemoteMachine adds one.");
  if (C10_UNLIKELY(IsClosed(device->index()) || IsOfOtherRank(device->index()))) RaiseStopped(device->index());
  return device->index();
}

at::Tensor NewTensor(at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout> layout, std::optional<c10::Device> device, std::optional<bool> pin) {
  TORCH_CHECK_NOT_IMPLEMENTED(layout.value_or(at::kStrided) == at::kStrided, "mycelya has no tensors of layout ",
                              *layout, ": use strided ones.");
  TORCH_CHECK(!pin.value_or(false), "Only dense CPU tensors can be pinned, not tensors of mycelya.");
  OutMeta m;
  m.defined = true;
  m.dtype = dtype.value_or(c10::typeMetaToScalarType(c10::get_default_dtype()));
  DtypeCode(m.dtype);  // throws if no worker has the dtype
  TORCH_CHECK(sizes.size() <= MYC_MAX_RANK, "mycelya tensors have at most ", static_cast<int>(MYC_MAX_RANK),
              " dimensions, got ", sizes.size(), ".");
  at::detail::check_size_nonnegative(sizes);
  m.sizes.assign(sizes.begin(), sizes.end());
  m.strides.assign(strides.begin(), strides.end());
  // Throws if the number of bytes overflows.
  at::detail::computeStorageNbytes(sizes, strides, c10::elementSize(m.dtype));
  return MakeTensor(m, IndexOf(device));
}

// Whether torch.use_deterministic_algorithms asks for fresh memory to be filled.
bool FillsMemory() {
  const auto& context = at::globalContext();
  return C10_UNLIKELY(context.deterministicAlgorithms()) && context.deterministicFillUninitializedMemory();
}

at::Tensor Empty(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                 std::optional<c10::Device> device, std::optional<bool> pin, std::optional<at::MemoryFormat> format) {
  at::detail::check_size_nonnegative(sizes);
  at::Tensor t = NewTensor(sizes, c10::contiguous_strides(sizes), dtype, layout, device, pin);
  if (format && *format != at::MemoryFormat::Contiguous) t.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  if (FillsMemory()) at::native::fill_empty_deterministic_(t);
  return t;
}

at::Tensor EmptyStrided(at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<at::ScalarType> dtype,
                        std::optional<at::Layout> layout, std::optional<c10::Device> device, std::optional<bool> pin) {
  TORCH_CHECK(sizes.size() == strides.size(), "dimensionality of sizes (", sizes.size(),
              ") must match dimensionality of strides (", strides.size(), ")");
  at::Tensor t = NewTensor(sizes, strides, dtype, layout, device, pin);
  if (FillsMemory()) at::native::fill_empty_deterministic_(t);
  return t;
}

// Zeros for forward-mode differentiation. Most operators check their dispatch key and never read the memory.
at::Tensor EfficientZeros(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                          std::optional<c10::Device> device, std::optional<bool> pin) {
  at::Tensor t = NewTensor(sizes, c10::contiguous_strides(sizes), dtype, layout, device, pin);
  auto zeros = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(t.storage()), c10::DispatchKeySet({c10::DispatchKey::PrivateUse1, c10::DispatchKey::ZeroTensor}),
      t.dtype());
  zeros.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return zeros;
}

at::Tensor AsStrided(const at::Tensor& self, at::IntArrayRef sizes, at::IntArrayRef strides,
                     std::optional<int64_t> offset) {
  CountView();
  return at::native::as_strided_tensorimpl(self, sizes, strides, offset);
}

at::Tensor View(const at::Tensor& self, at::IntArrayRef sizes) {
  CountView();
  return at::native::view(self, sizes);
}

at::Tensor ReshapeAlias(const at::Tensor& self, at::IntArrayRef sizes, at::IntArrayRef strides) {
  CountView();
  return at::native::_reshape_alias(self, sizes, strides);
}

at::Tensor Unfold(const at::Tensor& self, int64_t dim, int64_t size, int64_t step) {
  CountView();
  return at::native::unfold(self, dim, size, step);
}

at::Tensor ViewAsReal(const at::Tensor& self) {
  CountView();
  return at::native::view_as_real(self);
}

at::Tensor ViewAsComplex(const at::Tensor& self) {
  CountView();
  return at::native::view_as_complex(self);
}

// Bytes of storage that a geometry needs.
int64_t Reach(at::IntArrayRef sizes, at::IntArrayRef strides, int64_t offset, size_t itemsize) {
  return static_cast<int64_t>(at::detail::computeStorageNbytes(sizes, strides, itemsize, offset));
}

at::Tensor& SetStorage(at::Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef sizes,
                       at::IntArrayRef strides) {
  TORCH_CHECK(source.device_type() == kDevice && source.device() == self.device(),
              "Attempted to set the storage of a tensor on device \"", self.device(),
              "\" to a storage on different device \"", source.device(),
              "\". This is no longer allowed; the devices must match.");
  TORCH_CHECK(offset >= 0, "Tensor: invalid storage offset ", offset);
  auto* impl = self.unsafeGetTensorImpl();
  const bool given = strides.data() != nullptr || sizes.empty();
  // As in PyTorch: if the tensor already has the geometry, its storage does not grow.
  const bool keep = self.sizes() == sizes && (!given || self.strides() == strides);
  if (keep) {
    const int64_t bytes = Reach(self.sizes(), self.strides(), offset, self.itemsize());
    TORCH_CHECK(!given || self.numel() == 0 || bytes <= static_cast<int64_t>(source.nbytes()), "setStorage: sizes ",
                sizes, ", strides ", self.strides(), ", storage offset ", offset, ", and itemsize ", self.itemsize(),
                " requiring a storage size of ", bytes, " are out of bounds for storage of size ", source.nbytes());
  }
  impl->set_storage_keep_dtype(std::move(source));
  if (keep) {
    impl->set_storage_offset(offset);
  } else if (!given && !sizes.empty()) {
    const auto contiguous = c10::contiguous_strides(sizes);
    impl->set_sizes_and_strides(sizes, contiguous, offset);
  } else {
    impl->set_sizes_and_strides(sizes, strides, offset);
  }
  const int64_t need = Reach(self.sizes(), self.strides(), offset, self.itemsize());
  Storage& s = *StorageOf(*impl);
  if (self.numel() != 0 && need > static_cast<int64_t>(s.nbytes())) ResizeBytes(s, need);
  return self;
}

at::Tensor& SetWholeStorage(at::Tensor& self, at::Storage source) {
  const int64_t n = static_cast<int64_t>(source.nbytes() / self.itemsize());
  return SetStorage(self, std::move(source), 0, n, at::IntArrayRef());
}

at::Tensor& SetTensor(at::Tensor& self, const at::Tensor& source) {
  if (self.unsafeGetTensorImpl() == source.unsafeGetTensorImpl()) return self;
  return SetStorage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

at::Tensor& SetNothing(at::Tensor& self) {
  return SetStorage(self, MakeStorage(0, self.device().index()), 0, int64_t{0}, at::IntArrayRef());
}

const at::Tensor& Resize(const at::Tensor& self, at::IntArrayRef sizes, std::optional<at::MemoryFormat> format) {
  auto* impl = self.unsafeGetTensorImpl();
  at::detail::check_size_nonnegative(sizes);
  if (impl->sizes() == sizes && !format) return self;
  impl->set_sizes_contiguous(sizes);
  if (format) {
    TORCH_CHECK(*format != at::MemoryFormat::Preserve, "Unsupported memory format ", *format);
    impl->empty_tensor_restride(*format);
  }
  const int64_t need = Reach(impl->sizes(), impl->strides(), impl->storage_offset(), impl->itemsize());
  Storage& s = *StorageOf(*impl);
  const int64_t old = static_cast<int64_t>(s.nbytes());
  if (impl->numel() != 0 && need > old) {
    ResizeBytes(s, need);
    if (FillsMemory()) at::native::fill_resize_deterministic_(self, old);
  }
  return self;
}

at::Tensor CopyFromAndResize(const at::Tensor& self, const at::Tensor& dst) {
  dst.resize_(self.sizes());
  return CopyFrom(self, dst, false);
}

at::Scalar LocalScalarDense(const at::Tensor& self) {
  CheckUsable();
  TORCH_CHECK(self.numel() > 0, "_local_scalar_dense: Empty tensor not supported");
  return at::_local_scalar_dense(ToCpu(self));
}

bool Equal(const at::Tensor& self, const at::Tensor& other) {
  TORCH_CHECK(self.device() == other.device(), "Cannot compare two tensors on different devices. Got: ", self.device(),
              " and ", other.device());
  if (self.sizes() != other.sizes()) return false;
  if (self.numel() == 0) return true;
  return at::all(at::eq(self, other)).item().toBool();
}

bool IsSetTo(const at::Tensor& self, const at::Tensor& other) {
  return self.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() ==
             other.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() &&
         self.storage_offset() == other.storage_offset() && self.sizes() == other.sizes() &&
         self.strides() == other.strides();
}

// A device has one ordered stream, so a storage can be freed as soon as its last tensor is gone.
void RecordStream(at::Tensor&, c10::Stream) {}

// False, because a TransformerEncoder would make a nested tensor.
bool NestedTensorFromMaskLeftAligned(const at::Tensor&, const at::Tensor&) { return false; }

// True lets `.to()` replace a parameter's data and keep the object, so that tied weights stay tied.
bool HasCompatibleShallowCopyType(const at::Tensor& self, const at::Tensor& from) {
  const auto dense = [](const at::Tensor& t) {
    return t.layout() == at::kStrided && (t.is_cpu() || t.device().type() == kDevice);
  };
  return dense(self) && dense(from);
}

}  // namespace

// It has no gradient; autograd's fallback would require the view's history.
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("_has_compatible_shallow_copy_type", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_has_compatible_shallow_copy_type", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_has_compatible_shallow_copy_type", torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &Empty);
  m.impl("empty_strided", &EmptyStrided);
  m.impl("_efficientzerotensor", &EfficientZeros);
  m.impl("as_strided", &AsStrided);
  m.impl("view", &View);
  m.impl("_reshape_alias", &ReshapeAlias);
  m.impl("unfold", &Unfold);
  m.impl("view_as_real", &ViewAsReal);
  m.impl("view_as_complex", &ViewAsComplex);
  m.impl("set_", &SetNothing);
  m.impl("set_.source_Storage", &SetWholeStorage);
  m.impl("set_.source_Storage_storage_offset", &SetStorage);
  m.impl("set_.source_Tensor", &SetTensor);
  m.impl("resize_", &Resize);
  m.impl("_copy_from", &CopyFrom);
  m.impl("_copy_from_and_resize", &CopyFromAndResize);
  m.impl("_local_scalar_dense", &LocalScalarDense);
  m.impl("equal", &Equal);
  m.impl("is_set_to", &IsSetTo);
  m.impl("record_stream", &RecordStream);
  m.impl("_nested_tensor_from_mask_left_aligned", &NestedTensorFromMaskLeftAligned);
  m.impl("_has_compatible_shallow_copy_type", &HasCompatibleShallowCopyType);
}

}  // namespace mycelya
