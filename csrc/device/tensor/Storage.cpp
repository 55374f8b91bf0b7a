// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

#include "device/tensor/Storage.h"

#include <c10/core/CachingDeviceAllocator.h>

#include <array>
#include <atomic>

#include "device/client/Client.h"
#include "device/client/State.h"
#include "device/operators/Transfer.h"
#include "device/pytorch/Register.h"
#include "device/record/Record.h"
#include "device/record/Recorder.h"

namespace mycelya {
namespace {

// The sizes of the ranges that a thread takes at once.
constexpr uint64_t kIds = 1 << 16, kAddresses = uint64_t{1} << 36;
std::atomic<uint64_t> next_id{1};
// Above anything the kernel hands out on x86-64 and arm64 with 47-bit user addresses, so a stray access faults.
std::atomic<uint64_t> next_address{0x7000'0000'0000'0000ull};

// Takes n consecutive numbers and returns the first.
C10_ALWAYS_INLINE uint64_t take_numbers(Range& range, uint64_t n, std::atomic<uint64_t>& next, uint64_t at_a_time) {
  if (C10_UNLIKELY(range.end - range.first < n)) {
    const uint64_t size = std::max(n, at_a_time);
    range.first = next.fetch_add(size, std::memory_order_relaxed);
    range.end = range.first + size;
  }
  const uint64_t first = range.first;
  range.first += n;
  return first;
}

void keep(void*) {}

void count_allocation(c10::DeviceIndex device, int64_t bytes) {
  Memory& m = memory(device);
  const int64_t allocated = m.allocated.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  const int64_t now = allocated - m.freed.load(std::memory_order_relaxed);
  int64_t peak = m.peak.load(std::memory_order_relaxed);
  while (C10_UNLIKELY(now > peak) && !m.peak.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
  }
}

void count_free(c10::DeviceIndex device, int64_t bytes) {
  memory(device).freed.fetch_add(bytes, std::memory_order_relaxed);
}

using c10::CachingDeviceAllocator::DeviceStats;

// Adds the statistics of the worker's allocator to `stats`. Sends the open trace first, so that freed storages are
// counted. Waits for the answer.
void read_worker_stats(c10::DeviceIndex device, DeviceStats& stats) {
  flush(device);
  const at::Tensor numbers = make_vector(at::kLong, MYC_M_NUMBERS, device);
  record_own(device, "mycelya::memory_stats", {}, numbers);
  const at::Tensor here = to_cpu(numbers);
  const auto* next = here.const_data_ptr<int64_t>();
  for (auto* pools : {&stats.allocation, &stats.segment, &stats.active, &stats.inactive_split, &stats.reserved_bytes,
                      &stats.active_bytes, &stats.inactive_split_bytes}) {
    for (auto& stat : *pools) {
      for (int64_t* value : {&stat.current, &stat.peak, &stat.allocated, &stat.freed}) *value = *next++;
    }
  }
  for (int64_t* value : {&stats.num_alloc_retries, &stats.num_ooms, &stats.num_device_alloc, &stats.num_device_free}) {
    *value = *next++;
  }
}

// The memory functions of torch.accelerator. Tensors are counted here; all other numbers are those of the worker's
// allocator.
class Allocator final : public c10::DeviceAllocator {
 public:
  bool initialized() override { return true; }
  // Sends the open trace first, so that freed storages leave the cache. Sends its own record now, because the next cut
  // may come late.
  void emptyCache(c10::MempoolId_t) override {
    for (c10::DeviceIndex device = 0; device < device_count(); ++device) {
      if (!is_open(device)) continue;
      flush(device);
      record_own(device, "mycelya::empty_cache", {});
      flush(device);
    }
  }
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const Memory& m = memory(device);
    DeviceStats stats;
    for (auto* stat : {&stats.allocated_bytes[0], &stats.requested_bytes[0]}) {
      stat->current = m.now();
      stat->peak = m.peak;
      stat->allocated = m.allocated - m.forgotten;
      stat->freed = m.freed - m.forgotten;
    }
    if (is_open(device)) read_worker_stats(device, stats);
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    memory(device).forgotten = memory(device).freed.load();
    if (is_open(device)) record_own(device, "mycelya::reset_memory_stats", {int64_t{MYC_M_TOTALS}});
  }
  void resetPeakStats(c10::DeviceIndex device) override { reset_peak_memory(device); }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override { return memory_info(device); }

  c10::DataPtr allocate(size_t bytes) override { return fake_memory(bytes, current_device()); }
  c10::DeleterFnPtr raw_deleter() const override { return &keep; }
  void copy_data(void*, const void*, std::size_t) const override {
    TORCH_CHECK(false, "The bytes of a mycelya storage are on its worker; copy tensors, not storages.");
  }
};

c10::intrusive_ptr<c10::StorageImpl> create(c10::StorageImpl::use_byte_size_t, c10::SymInt bytes, c10::DataPtr data,
                                            c10::Allocator*, bool resizable) {
  TORCH_CHECK(
      data.get() == nullptr || data.get_deleter() == &keep,
      "A mycelya tensor cannot be made around an address: the bytes of a mycelya tensor are on its worker. Copy "
      "it with .cpu() first.");
  if (data.get() == nullptr) {
    data = fake_memory(bytes.expect_int(), data.device().has_index() ? data.device().index() : current_device());
  }
  return c10::intrusive_ptr<c10::StorageImpl>::unsafe_steal_from_new(
      new (this_thread) Storage(std::move(bytes), std::move(data), resizable, this_thread));
}

}  // namespace

void Geometry::set(const c10::TensorImpl& t) {
  dtype = c10::typeMetaToScalarType(t.dtype());
  contiguous = t.is_contiguous();
  set_sizes(t.sizes());
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
  if (dtype != c10::typeMetaToScalarType(t.dtype()) || t.storage_offset() != 0 || contiguous != t.is_contiguous()) {
    return false;
  }
  return same_dims(t.sizes(), sizes) && (contiguous || same_dims(t.strides(), strides));
}

Storage::Storage(c10::SymInt bytes, c10::DataPtr data, bool resizable, Thread& thread)
    : c10::StorageImpl(use_byte_size_t{}, std::move(bytes), std::move(data), &*mycelya::allocator(), resizable),
      id(take_numbers(thread.ids, 1, next_id, kIds)) {
  register_fallbacks();
  count_allocation(device_index(), static_cast<int64_t>(nbytes()));
}

Storage::~Storage() {
  count_free(device_index(), static_cast<int64_t>(nbytes()));
  if (defined) note_death(*this);
}

void Storage::set_bytes(int64_t bytes) {
  count_free(device_index(), static_cast<int64_t>(nbytes()));
  count_allocation(device_index(), bytes);
  set_data_ptr_noswap(fake_memory(bytes, device_index()));
  set_nbytes(bytes);
}

void refuse_foreign_storage() {
  TORCH_CHECK(false,
              "This mycelya tensor was made around an address, but the bytes of a mycelya tensor are on its worker: "
              "copy it with .cpu() first.");
}

std::pair<size_t, size_t> memory_info(c10::DeviceIndex device) {
  const at::Tensor info = make_vector(at::kLong, 2, device);
  record_own(device, "mycelya::memory_info", {}, info);
  const at::Tensor here = to_cpu(info);
  const auto* words = here.const_data_ptr<int64_t>();
  return {words[0], words[1]};
}

Memory& memory(c10::DeviceIndex device) {
  static constinit std::array<Memory, kMaxDevices> all;  // never destroyed, because storages may outlive statics
  return all.at(device);
}

void reset_peak_memory(c10::DeviceIndex device) {
  memory(device).peak = memory(device).now();
  if (is_open(device)) record_own(device, "mycelya::reset_memory_stats", {int64_t{MYC_M_PEAKS}});
}

c10::DataPtr fake_memory(size_t bytes, c10::DeviceIndex device, Thread& thread) {
  if (bytes == 0) return {nullptr, nullptr, &keep, c10::Device(kDevice, device)};
  // Rounded up to 512 bytes, CUDA's allocation granularity, and never 0, so that addresses differ.
  const uint64_t span = (bytes + 512) & ~uint64_t{511};
  void* address = reinterpret_cast<void*>(take_numbers(thread.addresses, span, next_address, kAddresses));
  return {address, nullptr, &keep, c10::Device(kDevice, device)};
}

c10::Storage make_storage(int64_t bytes, c10::DeviceIndex device, Thread& thread) {
  return c10::Storage(c10::intrusive_ptr<c10::StorageImpl>::unsafe_steal_from_new(
      new (thread) Storage(c10::SymInt(bytes), fake_memory(bytes, device, thread), true, thread)));
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
