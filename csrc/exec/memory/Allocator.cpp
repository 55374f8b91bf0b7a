// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
#include "exec/memory/Allocator.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <sys/mman.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <utility>

#include "exec/memory/System.h"

namespace mycelya::exec {
namespace {

using c10::CachingAllocator::StatArray;
using c10::CachingAllocator::StatType;

constexpr auto kAll = static_cast<size_t>(StatType::AGGREGATE), kSmallPool = static_cast<size_t>(StatType::SMALL_POOL),
               kLargePool = static_cast<size_t>(StatType::LARGE_POOL);

// Bytes; the alignment of PyTorch's own allocator.
constexpr size_t kAlignment = 64;
// A huge page on x86-64, and on arm64 with pages of 4 KiB.
constexpr size_t kHugePage = size_t{2} << 20;
// A request takes a kept block of its class or of the next two: at most 11/9 of its own.
constexpr size_t kFit = 3;
// Bytes that may always be kept, so that programs with little memory do not wait for malloc.
constexpr uint64_t kKeptAnyway = uint64_t{16} << 20;

// The bucket for requests of n bytes. *bytes: the size of its blocks, at most 9/8 of n and at least 64.
size_t BucketOf(size_t n, size_t* bytes) {
  static constexpr size_t kFirst = std::bit_width(kAlignment - 1);
  n = std::max(n, kAlignment);
  const size_t width = std::bit_width(n - 1), shift = width - 4;
  const size_t eighths = ((n - 1) >> shift) + 1;  // 9 to 16
  *bytes = eighths << shift;
  return (width - kFirst) * 8 + eighths - 9;
}

// Null if the system refuses.
void* Map(size_t bytes) {
  const bool huge = bytes >= kHugePage;
  const size_t room = huge ? bytes + kHugePage : bytes;  // leaves space for the alignment
  void* mapped = mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  if (!huge) return mapped;
  char* const begin = static_cast<char*>(mapped);
  char* const aligned = begin + (kHugePage - reinterpret_cast<uintptr_t>(begin) % kHugePage) % kHugePage;
  if (aligned != begin) munmap(begin, aligned - begin);
  if (aligned + bytes != begin + room) munmap(aligned + bytes, begin + room - (aligned + bytes));
#ifdef MADV_HUGEPAGE
  madvise(aligned, bytes, MADV_HUGEPAGE);  // no effect if huge pages are switched off
#endif
  return aligned;
}

void ToSystem(void* p, size_t bytes) { bytes >= Pool::kMapped ? static_cast<void>(munmap(p, bytes)) : std::free(p); }

size_t PoolOf(size_t bytes) { return bytes >= Pool::kMapped ? kLargePool : kSmallPool; }

void Increase(StatArray& stat, size_t pool, size_t amount) {
  stat[kAll].increase(amount);
  stat[pool].increase(amount);
}
void Decrease(StatArray& stat, size_t pool, size_t amount) {
  stat[kAll].decrease(amount);
  stat[pool].decrease(amount);
}

}  // namespace

template <Pool::Links Pool::Block::*kLinks>
void Pool::Chain<kLinks>::Append(Block& b) {
  b.*kLinks = {newest, nullptr};
  (newest != nullptr ? (newest->*kLinks).newer : oldest) = &b;
  newest = &b;
}

template <Pool::Links Pool::Block::*kLinks>
void Pool::Chain<kLinks>::Remove(Block& b) {
  const auto [older, newer] = b.*kLinks;
  (older != nullptr ? (older->*kLinks).newer : oldest) = newer;
  (newer != nullptr ? (newer->*kLinks).older : newest) = older;
}

void* Pool::Allocate(size_t n) {
  const std::lock_guard lock(mutex_);
  if (n <= kLargest) {
    size_t bytes;
    const size_t bucket = BucketOf(n, &bytes);
    Block* b = TakeKept(bucket);
    if (b == nullptr) b = TakeFresh(bucket, bytes);
    if (b != nullptr) {
      const size_t pool = PoolOf(b->bytes);
      Increase(stats_.allocation, pool, 1);
      Increase(stats_.active_bytes, pool, b->bytes);
      needed_ = std::max(needed_, static_cast<uint64_t>(stats_.active_bytes[kAll].current));
      return b->data;
    }
  }
  // The number of mappings of a process is limited, so PyTorch's function may succeed where a mapping has failed.
  // Free() recognises such memory, because it is not in blocks_.
  if (n <= kLargest && (n < kMapped || Fits(n))) {
    try {
      return c10::alloc_cpu(n);
    } catch (const c10::Error&) {
    }
  }
  ++stats_.num_ooms;
  refused_ = n;
  TORCH_CHECK_WITH(OutOfMemoryError, false, "The CPU has not enough memory for ", n, " bytes.");
}

uint64_t Pool::TakeRefused() {
  const std::lock_guard lock(mutex_);
  return std::exchange(refused_, 0);
}

// Returns whether the system has `bytes` of free memory. Linux lets a process map more memory than is free, and kills
// the process when the process writes to that memory. Reading the amount of free memory costs as much as writing 200
// KiB of new memory, so later requests may use a fourth of that amount without a new reading.
bool Pool::Fits(size_t bytes) {
  if (bytes <= granted_) {
    granted_ -= bytes;
    return true;
  }
  const uint64_t free = FreeMemory();
  if (bytes > free) return false;
  granted_ = (free - bytes) / 4;
  return true;
}

void* Pool::FromSystem(size_t bytes) {
  if (bytes >= kMapped) return Fits(bytes) ? Map(bytes) : nullptr;
  void* p = nullptr;
  return posix_memalign(&p, kAlignment, bytes) == 0 ? p : nullptr;
}

// Takes the block that was freed last, because it is the most likely to be in the processor's caches.
Pool::Block* Pool::TakeKept(size_t bucket) {
  for (size_t i = bucket; i < std::min(bucket + kFit, kBuckets); ++i) {
    Block* b = buckets_[i].newest;
    if (b == nullptr) continue;
    buckets_[i].Remove(*b);
    all_.Remove(*b);
    return b;
  }
  return nullptr;
}

Pool::Block* Pool::TakeFresh(size_t bucket, size_t bytes) {
  while (all_.oldest != nullptr && static_cast<uint64_t>(stats_.reserved_bytes[kAll].current) + bytes > limit_) {
    ReleaseOldest();
  }
  void* data = FromSystem(bytes);
  if (data == nullptr && all_.oldest != nullptr) {
    ++stats_.num_alloc_retries;
    while (all_.oldest != nullptr) ReleaseOldest();
    data = FromSystem(bytes);
  }
  if (data == nullptr) return nullptr;
  Block* b;
  try {
    b = &blocks_[data];
  } catch (...) {
    ToSystem(data, bytes);
    throw;
  }
  b->data = data;
  b->bytes = bytes;
  b->bucket = bucket;
  ++stats_.num_device_alloc;
  Increase(stats_.segment, PoolOf(bytes), 1);
  Increase(stats_.reserved_bytes, PoolOf(bytes), bytes);
  return b;
}

void Pool::Free(void* p) {
  const std::lock_guard lock(mutex_);
  const auto it = blocks_.find(p);
  if (it == blocks_.end()) return c10::free_cpu(p);
  Block& b = it->second;
  Decrease(stats_.allocation, PoolOf(b.bytes), 1);
  Decrease(stats_.active_bytes, PoolOf(b.bytes), b.bytes);
  if (b.bytes > MayKeep()) return Release(b);
  buckets_[b.bucket].Append(b);
  all_.Append(b);
  while (Kept() > MayKeep()) ReleaseOldest();
}

uint64_t Pool::Kept() const {
  return static_cast<uint64_t>(stats_.reserved_bytes[kAll].current - stats_.active_bytes[kAll].current);
}

// Keeps at most the peak of the memory in use, so that a program with varying sizes takes at most twice its peak.
uint64_t Pool::MayKeep() const {
  const auto in_use = static_cast<uint64_t>(stats_.active_bytes[kAll].current);
  return std::min(std::max(needed_, kKeptAnyway), limit_ - std::min(limit_, in_use));
}

// b is in no chain.
void Pool::Release(Block& b) {
  void* const data = b.data;
  const size_t bytes = b.bytes;
  blocks_.erase(data);
  ToSystem(data, bytes);
  ++stats_.num_device_free;
  Decrease(stats_.segment, PoolOf(bytes), 1);
  Decrease(stats_.reserved_bytes, PoolOf(bytes), bytes);
}

void Pool::ReleaseOldest() {
  Block& b = *all_.oldest;
  all_.Remove(b);
  buckets_[b.bucket].Remove(b);
  Release(b);
}

void Pool::Empty() {
  const std::lock_guard lock(mutex_);
  while (all_.oldest != nullptr) ReleaseOldest();
  needed_ = static_cast<uint64_t>(stats_.active_bytes[kAll].current);
}

c10::CachingDeviceAllocator::DeviceStats Pool::Stats() {
  const std::lock_guard lock(mutex_);
  c10::CachingDeviceAllocator::DeviceStats stats = stats_;
  // Blocks are never split, so every allocated block is active.
  stats.active = stats.allocation;
  return stats;
}

void Pool::ResetPeaks() {
  const std::lock_guard lock(mutex_);
  for (StatArray* array : {&stats_.allocation, &stats_.segment, &stats_.active_bytes, &stats_.reserved_bytes}) {
    for (auto& stat : *array) stat.reset_peak();
  }
}

void Pool::ResetTotals() {
  const std::lock_guard lock(mutex_);
  for (StatArray* array : {&stats_.allocation, &stats_.segment, &stats_.active_bytes, &stats_.reserved_bytes}) {
    for (auto& stat : *array) stat.reset_accumulated();
  }
  stats_.num_alloc_retries = stats_.num_ooms = stats_.num_device_alloc = stats_.num_device_free = 0;
}

namespace {

std::atomic<Pool*> cpu_memory{nullptr};

void Give(void* p) {
  if (p == nullptr) return;
  c10::profiledCPUMemoryReporter().Delete(p);
  cpu_memory.load(std::memory_order_acquire)->Free(p);
}

// PyTorch's CPU allocator on memory of the pool.
class CpuAllocator final : public c10::Allocator {
 public:
  explicit CpuAllocator(Pool& pool) : pool_(pool) {}

  c10::DataPtr allocate(size_t n) override {
    void* p = nullptr;
    try {
      if (n > 0) p = pool_.Allocate(n);
    } catch (const c10::Error&) {
      c10::profiledCPUMemoryReporter().OutOfMemory(n);
      throw;
    }
    c10::profiledCPUMemoryReporter().New(p, n);
    return {p, p, &Give, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &Give; }
  void copy_data(void* to, const void* from, size_t n) const override { default_copy_data(to, from, n); }

 private:
  Pool& pool_;
};

Pool& Install() {
#ifdef __GLIBC__
  // Operators take temporary memory from malloc. By default malloc returns free memory above 128 KiB at the top of its
  // heap, and raises this threshold when a larger block is freed. Larger blocks now bypass malloc, so set the
  // thresholds to the largest values that malloc would choose. Without this, ten blocks of 16 KiB cost 1.8 us each
  // instead of 0.2.
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 64 << 20);
#endif
  // Half of the memory, because the client often runs on the same machine.
  auto* pool = new Pool(MemoryOfProcess() / 2);  // never deleted: tensors outlive statics
  cpu_memory.store(pool, std::memory_order_release);
  c10::SetCPUAllocator(new CpuAllocator(*pool), /*priority=*/1);  // PyTorch's own has 0
  return *pool;
}

}  // namespace

Pool& CpuMemory() {
  static Pool& pool = Install();
  return pool;
}

void EmptyCpuMemory() {
  Pool* pool = cpu_memory.load(std::memory_order_acquire);
  if (pool == nullptr) return;
  pool->Empty();
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

}  // namespace mycelya::exec
