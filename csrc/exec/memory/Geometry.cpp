// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
#include "exec/memory/Geometry.h"

#include "exec/Dtype.h"

namespace mycelya::exec {
namespace {

constexpr uint64_t kMaxBytes = INT64_MAX;

bool MulInto(uint64_t& a, uint64_t b) { return !__builtin_mul_overflow(a, b, &a) && a <= kMaxBytes; }
bool AddInto(uint64_t& a, uint64_t b) { return !__builtin_add_overflow(a, b, &a) && a <= kMaxBytes; }

}  // namespace

void Geometry::SetContiguous() {
  strides.resize(sizes.size());
  uint64_t stride = 1;
  bool fits = true;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = static_cast<int64_t>(stride);
    fits = fits && MulInto(stride, sizes[i] > 1 ? static_cast<uint64_t>(sizes[i]) : 1);
  }
  TORCH_CHECK_VALUE(fits, "A tensor ", TypeText(dtype, sizes), " has more elements than 63 bits can count.");
}

uint64_t Geometry::Bytes() const {
  bool valid = sizes.size() == strides.size() && offset >= 0;
  bool fits = true;
  bool empty = false;
  uint64_t numel = c10::elementSize(dtype);  // in bytes: numel * itemsize must fit too
  uint64_t last = offset >= 0 ? static_cast<uint64_t>(offset) : 0;
  for (size_t i = 0; valid && i < sizes.size(); ++i) {
    valid = sizes[i] >= 0 && strides[i] >= 0;
    empty = empty || sizes[i] == 0;
  }
  TORCH_CHECK_VALUE(valid, "The geometry ", Text(), " has a negative size, stride or offset.");
  for (size_t i = 0; i < sizes.size(); ++i) {
    // Check for overflow even if another size is zero: PyTorch multiplies the sizes in any order.
    if (sizes[i] != 0) fits = fits && MulInto(numel, static_cast<uint64_t>(sizes[i]));
    if (empty || sizes[i] == 1) continue;
    uint64_t span = static_cast<uint64_t>(sizes[i]) - 1;
    fits = fits && MulInto(span, static_cast<uint64_t>(strides[i])) && AddInto(last, span);
  }
  uint64_t bytes = last;
  fits = fits && AddInto(bytes, 1) && MulInto(bytes, c10::elementSize(dtype));
  TORCH_CHECK_VALUE(fits, "The geometry ", Text(), " reaches beyond what 63 bits can count.");
  return empty ? 0 : bytes;
}

bool Geometry::SameLayout(c10::IntArrayRef other) const {
  for (size_t i = 0; i < strides.size(); ++i) {
    if (sizes[i] > 1 && strides[i] != other[i]) return false;
  }
  return true;
}

std::string Geometry::Text() const {
  return TypeText(dtype, sizes) + " with strides " + ListText(strides) + " and offset " + std::to_string(offset);
}

uint64_t CheckWithin(const c10::Storage& storage, const Geometry& g) {
  const uint64_t need = g.Bytes();
  TORCH_CHECK_INDEX(need <= storage.nbytes(), "A view ", g.Text(), " needs ", need, " bytes, but its storage has ",
                    storage.nbytes(), ".");
  return need;
}

char* AddressIn(const c10::Storage& storage, const Geometry& g) {
  const uint64_t need = CheckWithin(storage, g);
  // A 0-byte storage may have no memory; an offset would be arithmetic on a null pointer.
  const int64_t offset = need == 0 ? 0 : g.offset * static_cast<int64_t>(c10::elementSize(g.dtype));
  return static_cast<char*>(storage.mutable_data()) + offset;
}

at::Tensor MakeTensor(const c10::Storage& storage, const Geometry& g) {
  const uint64_t need = CheckWithin(storage, g);
  const bool cpu = storage.device_type() == c10::DeviceType::CPU;
  at::Tensor t = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(cpu ? c10::DispatchKey::CPU : c10::DispatchKey::CUDA),
      caffe2::TypeMeta::fromScalarType(g.dtype));
  // A 0-byte storage may have no memory; an offset would be arithmetic on a null pointer.
  t.unsafeGetTensorImpl()->set_sizes_and_strides(g.sizes, g.strides, need == 0 ? 0 : g.offset);
  return t;
}

at::Tensor BytesOf(const c10::Storage& storage) {
  Geometry g;
  g.dtype = c10::ScalarType::Byte;
  g.sizes = {static_cast<int64_t>(storage.nbytes())};
  g.strides = {1};
  return MakeTensor(storage, g);
}

}  // namespace mycelya::exec
