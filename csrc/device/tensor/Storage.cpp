// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

#include "device/tensor/Storage.h"

#include <array>
#include <atomic>
#include <mutex>
#include <unordered_map>

#include "device/client/State.h"
#include "device/tensor/Register.h"

namespace mycelya {
namespace {

// The sizes of the ranges that a thread takes at once.
constexpr uint64_t kIds = 1 << 16, kAddresses = uint64_t{1} << 36;
std::atomic<uint64_t> next_id{1};
// Above anything the kernel hands out on x86-64 and arm64 with 47-bit user addresses, so a stray access faults.
std::atomic<uint64_t> next_address{0x7000'0000'0000'0000ull};

// Takes n consecutive numbers and returns the first.
C10_ALWAYS_INLINE uint64_t TakeNumbers(Range& range, uint64_t n, std::atomic<uint64_t>& next, uint64_t at_a_time) {
  if (C10_UNLIKELY(range.end - range.first < n)) {
    const uint64_t size = std::max(n, at_a_time);
    range.first = next.fetch_add(size, std::memory_order_relaxed);
    range.end = range.first + size;
  }
  const uint64_t first = range.first;
  range.first += n;
  return first;
}

void Keep(void*) {}

void CountAllocation(c10::DeviceIndex device, int64_t bytes) {
  Memory& m = MemoryOf(device);
  const int64_t allocated = m.allocated.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  const int64_t now = allocated - m.freed.load(std::memory_order_relaxed);
  int64_t peak = m.peak.load(std::memory_order_relaxed);
  while (C10_UNLIKELY(now > peak) && !m.peak.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
  }
}

void CountFree(c10::DeviceIndex device, int64_t bytes) {
  MemoryOf(device).freed.fetch_add(bytes, std::memory_order_relaxed);
}

// Storages of less bytes are not listed, because a list costs time at each op.
constexpr size_t kListed = size_t{64} << 10;

c10::intrusive_ptr<c10::StorageImpl> Create(c10::StorageImpl::use_byte_size_t, c10::SymInt bytes, c10::DataPtr data,
                                            c10::Allocator*, bool resizable) {
  TORCH_CHECK(
      data.get() == nullptr || data.get_deleter() == &Keep,
      "A mycelya tensor cannot be made around an address: the bytes of a mycelya tensor are on its worker. Copy "
      "it with .cpu() first.");
  if (data.get() == nullptr) {
    data = FakeMemory(bytes.expect_int(), data.device().has_index() ? data.device().index() : CurrentDevice());
  }
  return c10::intrusive_ptr<c10::StorageImpl>::unsafe_steal_from_new(
      new (this_thread) Storage(std::move(bytes), std::move(data), resizable, this_thread));
}

}  // namespace

// A chain through the storages of at least kListed bytes.
class LargeStorages {
 public:
  void Add(Storage& s) {
    const std::lock_guard<std::mutex> guard(mutex_);
    s.older_ = newest_;
    s.newer_ = nullptr;
    if (newest_ != nullptr) newest_->newer_ = &s;
    newest_ = &s;
  }
  void Remove(Storage& s) {
    const std::lock_guard<std::mutex> guard(mutex_);
    if (s.older_ != nullptr) s.older_->newer_ = s.newer_;
    (s.newer_ != nullptr ? s.newer_->older_ : newest_) = s.older_;
  }
  std::vector<Live> List(c10::DeviceIndex device, uint64_t end) {
    std::unordered_map<uint64_t, Live> by_place;
    const std::lock_guard<std::mutex> guard(mutex_);
    for (const Storage* s = newest_; s != nullptr; s = s->older_) {
      const myc_origin place = s->place();
      if (s->device_index() != device || s->id >= end || place.code == 0) continue;
      Live& live = by_place[uint64_t{place.code} << 32 | place.offset];
      live.place = place;
      live.bytes += s->nbytes();
      ++live.count;
    }
    std::vector<Live> out;
    for (const auto& [key, live] : by_place) out.push_back(live);
    return out;
  }

 private:
  std::mutex mutex_;
  Storage* newest_ = nullptr;
};

namespace {

LargeStorages& Large() {
  static auto& all = *new LargeStorages();  // storages may outlive statics
  return all;
}

}  // namespace

std::vector<Live> LiveStorages(c10::DeviceIndex device, uint64_t end) { return Large().List(device, end); }

void Geometry::Set(const c10::TensorImpl& t) {
  dtype = c10::typeMetaToScalarType(t.dtype());
  contiguous = t.is_contiguous();
  SetSizes(t.sizes());
  if (contiguous) {
    strides.clear();
  } else {
    strides.assign(t.strides().begin(), t.strides().end());
  }
}

void Geometry::SetFlatBytes(int64_t bytes) {
  dtype = c10::ScalarType::Byte;
  contiguous = true;
  sizes.assign(1, bytes);
  strides.clear();
}

bool Geometry::Matches(const c10::TensorImpl& t) const {
  if (dtype != c10::typeMetaToScalarType(t.dtype()) || t.storage_offset() != 0 || contiguous != t.is_contiguous()) {
    return false;
  }
  return SameDims(t.sizes(), sizes) && (contiguous || SameDims(t.strides(), strides));
}

Storage::Storage(c10::SymInt bytes, c10::DataPtr data, bool resizable, Thread& thread)
    : c10::StorageImpl(use_byte_size_t{}, std::move(bytes), std::move(data), mycelya::allocator, resizable),
      id(TakeNumbers(thread.ids, 1, next_id, kIds)) {
  RegisterOperators();
  CountAllocation(device_index(), static_cast<int64_t>(nbytes()));
  if (C10_UNLIKELY(nbytes() >= kListed)) Large().Add(*this);
}

uint64_t NextStorageId() {
  const Range& ids = this_thread.ids;
  return ids.first != ids.end ? ids.first : next_id.load(std::memory_order_relaxed);
}

Storage::~Storage() {
  if (C10_UNLIKELY(nbytes() >= kListed)) Large().Remove(*this);
  CountFree(device_index(), static_cast<int64_t>(nbytes()));
  if (defined) NoteDeath(*this);
}

void Storage::SetBytes(int64_t bytes) {
  known.reset();
  CountFree(device_index(), static_cast<int64_t>(nbytes()));
  CountAllocation(device_index(), bytes);
  if (nbytes() >= kListed) Large().Remove(*this);
  set_data_ptr_noswap(FakeMemory(bytes, device_index()));
  set_nbytes(bytes);
  if (nbytes() >= kListed) Large().Add(*this);
}

void RefuseForeignStorage() {
  TORCH_CHECK(false,
              "This mycelya tensor was made around an address, but the bytes of a mycelya tensor are on its worker: "
              "copy it with .cpu() first.");
}

Memory& MemoryOf(c10::DeviceIndex device) {
  static constinit std::array<Memory, kMaxDevices> all;  // never destroyed, because storages may outlive statics
  return all.at(device);
}

c10::DataPtr FakeMemory(size_t bytes, c10::DeviceIndex device, Thread& thread) {
  if (bytes == 0) return {nullptr, nullptr, &Keep, c10::Device(kDevice, device)};
  // Rounded up to 512 bytes, CUDA's allocation granularity, and never 0, so that addresses differ.
  const uint64_t span = (bytes + 512) & ~uint64_t{511};
  void* address = reinterpret_cast<void*>(TakeNumbers(thread.addresses, span, next_address, kAddresses));
  return {address, nullptr, &Keep, c10::Device(kDevice, device)};
}

c10::Storage MakeStorage(int64_t bytes, c10::DeviceIndex device, Thread& thread) {
  return c10::Storage(c10::intrusive_ptr<c10::StorageImpl>::unsafe_steal_from_new(
      new (thread) Storage(c10::SymInt(bytes), FakeMemory(bytes, device, thread), true, thread)));
}

void RegisterStorage() { c10::SetStorageImplCreate(kDevice, &Create); }

}  // namespace mycelya
