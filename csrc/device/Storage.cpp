// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

#include "Storage.h"

#include <c10/core/Allocator.h>

#include <atomic>

#include "Recorder.h"
#include "State.h"

namespace mycelya {
namespace {

std::atomic<uint64_t> next_id{1};
// Above anything the kernel hands out on x86-64 and arm64 with 47-bit user addresses, so a stray access faults.
std::atomic<uint64_t> next_address{0x7000'0000'0000'0000ull};

void keep(void*) {}

class Allocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override { return fake_memory(bytes, current_device()); }
  c10::DeleterFnPtr raw_deleter() const override { return &keep; }
  void copy_data(void*, const void*, std::size_t) const override {
    TORCH_CHECK(false, "The bytes of a mycelya storage are on its worker; copy tensors, not storages.");
  }
};

c10::intrusive_ptr<c10::StorageImpl> create(c10::StorageImpl::use_byte_size_t, c10::SymInt bytes, c10::DataPtr data,
                                            c10::Allocator*, bool resizable) {
  if (data.get() == nullptr) {
    data = fake_memory(bytes.expect_int(), data.device().has_index() ? data.device().index() : current_device());
  }
  return c10::make_intrusive<Storage>(std::move(bytes), std::move(data), resizable);
}

}  // namespace

void Geometry::set(const c10::TensorImpl& t) {
  dtype = c10::typeMetaToScalarType(t.dtype());
  contiguous = t.is_contiguous();
  sizes.assign(t.sizes().begin(), t.sizes().end());
  if (contiguous) {
    strides.clear();
  } else {
    strides.assign(t.strides().begin(), t.strides().end());
  }
}

void Geometry::set_flat_bytes(int64_t bytes) {
  dtype = c10::ScalarType::Byte;
  contiguous = true;
  sizes.assign(1, bytes);
  strides.clear();
}

bool Geometry::matches(const c10::TensorImpl& t) const {
  return dtype == c10::typeMetaToScalarType(t.dtype()) && t.storage_offset() == 0 && contiguous == t.is_contiguous() &&
         t.sizes() == c10::IntArrayRef(sizes) && (contiguous || t.strides() == c10::IntArrayRef(strides));
}

Storage::Storage(c10::SymInt bytes, c10::DataPtr data, bool resizable)
    : c10::StorageImpl(use_byte_size_t{}, std::move(bytes), std::move(data), &*mycelya::allocator(), resizable),
      id(next_id.fetch_add(1, std::memory_order_relaxed)) {}

Storage::~Storage() {
  if (defined) note_death(*this);
}

c10::DataPtr fake_memory(size_t bytes, c10::DeviceIndex device) {
  // Rounded up to 512 bytes, CUDA's allocation granularity, and never 0, so that addresses differ.
  const uint64_t span = (bytes + 512) & ~uint64_t{511};
  void* address = reinterpret_cast<void*>(next_address.fetch_add(span, std::memory_order_relaxed));
  return {address, nullptr, &keep, c10::Device(kDevice, device)};
}

c10::Storage make_storage(int64_t bytes, c10::DeviceIndex device) {
  return c10::Storage(c10::make_intrusive<Storage>(c10::SymInt(bytes), fake_memory(bytes, device), true));
}

c10::Allocator* allocator() {
  static auto* leaked = new Allocator();
  return leaked;
}

void register_storage() {
  c10::SetAllocator(kDevice, allocator());
  c10::SetStorageImplCreate(kDevice, &create);
}

}  // namespace mycelya
