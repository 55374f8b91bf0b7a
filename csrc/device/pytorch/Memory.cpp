// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

#include "device/pytorch/Memory.h"

#include <c10/core/CachingDeviceAllocator.h>

#include "device/client/Client.h"
#include "device/client/State.h"
#include "device/record/Record.h"
#include "device/record/Transfer.h"
#include "device/tensor/Storage.h"

namespace mycelya {
namespace {

using c10::CachingDeviceAllocator::DeviceStats;

// Adds the statistics of the worker's allocator to `stats`. Sends the open trace first, so that freed storages are
// counted. Waits for the answer.
void ReadWorkerStats(c10::DeviceIndex device, DeviceStats& stats) {
  Flush(device);
  const at::Tensor numbers = MakeVector(at::kLong, MYC_M_NUMBERS, device);
  RecordOwn(device, "mycelya::memory_stats", {}, numbers);
  const at::Tensor here = ToCpu(numbers);
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
    for (c10::DeviceIndex device = 0; device < DeviceCount(); ++device) {
      if (!IsOpen(device)) continue;
      Flush(device);
      RecordOwn(device, "mycelya::empty_cache", {});
      Flush(device);
    }
  }
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const Memory& m = MemoryOf(device);
    DeviceStats stats;
    for (auto* stat : {&stats.allocated_bytes[0], &stats.requested_bytes[0]}) {
      stat->current = m.Now();
      stat->peak = m.peak;
      stat->allocated = m.allocated - m.forgotten;
      stat->freed = m.freed - m.forgotten;
    }
    if (IsOpen(device)) ReadWorkerStats(device, stats);
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    MemoryOf(device).forgotten = MemoryOf(device).freed.load();
    if (IsOpen(device)) RecordOwn(device, "mycelya::reset_memory_stats", {int64_t{MYC_M_TOTALS}});
  }
  void resetPeakStats(c10::DeviceIndex device) override { ResetPeakMemory(device); }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override { return MemoryInfo(device); }

  c10::DataPtr allocate(size_t bytes) override { return FakeMemory(bytes, CurrentDevice()); }
  c10::DeleterFnPtr raw_deleter() const override { return FakeMemory(0, 0).get_deleter(); }
  void copy_data(void*, const void*, std::size_t) const override {
    TORCH_CHECK(false, "The bytes of a mycelya storage are on its worker; copy tensors, not storages.");
  }
};

}  // namespace

c10::Allocator* const allocator = new Allocator();  // never destroyed: storages may outlive statics

std::pair<size_t, size_t> MemoryInfo(c10::DeviceIndex device) {
  const at::Tensor info = MakeVector(at::kLong, 2, device);
  RecordOwn(device, "mycelya::memory_info", {}, info);
  const at::Tensor here = ToCpu(info);
  const auto* words = here.const_data_ptr<int64_t>();
  return {words[0], words[1]};
}

void ResetPeakMemory(c10::DeviceIndex device) {
  MemoryOf(device).peak = MemoryOf(device).Now();
  if (IsOpen(device)) RecordOwn(device, "mycelya::reset_memory_stats", {int64_t{MYC_M_PEAKS}});
}

void RegisterAllocator() { c10::SetAllocator(kDevice, allocator); }

}  // namespace mycelya
