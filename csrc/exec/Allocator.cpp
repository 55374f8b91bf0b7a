// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
#include "Allocator.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <sys/mman.h>
#include <unistd.h>
#ifdef __APPLE__
#include <malloc/malloc.h>
#else
#include <malloc.h>
#endif

#include <algorithm>
#include <atomic>
#include <bit>
#include <fstream>
#include <string>

namespace mycelya::exec {
namespace {

using c10::CachingAllocator::StatArray;
using c10::CachingAllocator::StatType;

constexpr auto kAll = static_cast<size_t>(StatType::AGGREGATE), kSmallPool = static_cast<size_t>(StatType::SMALL_POOL),
               kLargePool = static_cast<size_t>(StatType::LARGE_POOL);

// Blocks are aligned to pages of this size at least; of malloc's, few are.
constexpr size_t kPage = 4096;
// A huge page on x86-64, and on arm64 with pages of 4 KiB.
constexpr size_t kHugePage = size_t{2} << 20;
// A request takes a kept block of its class or of the next two: at most 11/9 of its own.
constexpr size_t kFit = 3;

// The bucket of the class that n belongs to, and the bytes of its blocks: less than 9/8 of n.
size_t BucketOf(size_t n, size_t* bytes) {
  static constexpr size_t kFirst = std::bit_width(Pool::kSmallest - 1);
  const size_t width = std::bit_width(n - 1), shift = width - 4;
  const size_t eighths = ((n - 1) >> shift) + 1;  // 9 to 16
  *bytes = eighths << shift;
  return (width - kFirst) * 8 + eighths - 9;
}

// Null if the system refuses.
void* Map(size_t bytes) {
  const bool huge = bytes >= kHugePage;
  const size_t room = huge ? bytes + kHugePage : bytes;  // to align it in
  void* mapped = mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  if (!huge) return mapped;
  char* const begin = static_cast<char*>(mapped);
  char* const aligned = begin + (kHugePage - reinterpret_cast<uintptr_t>(begin) % kHugePage) % kHugePage;
  if (aligned != begin) munmap(begin, aligned - begin);
  if (aligned + bytes != begin + room) munmap(aligned + bytes, begin + room - (aligned + bytes));
#ifdef MADV_HUGEPAGE
  madvise(aligned, bytes, MADV_HUGEPAGE);  // a wish: where huge pages are switched off it does nothing
#endif
  return aligned;
}

size_t UsableBytes(void* p) {
#ifdef __APPLE__
  return malloc_size(p);
#else
  return malloc_usable_size(p);
#endif
}

void Increase(StatArray& stat, size_t pool, size_t amount) {
  stat[kAll].increase(amount);
  stat[pool].increase(amount);
}
void Decrease(StatArray& stat, size_t pool, size_t amount) {
  stat[kAll].decrease(amount);
  stat[pool].decrease(amount);
}

}  // namespace

void* Pool::Allocate(size_t n) {
  const std::lock_guard lock(mutex_);
  if (n >= kSmallest && n <= kLargest) {
    if (void* block = TakeBlock(n)) return block;
  }
  return TakeMalloc(n);
}

void* Pool::TakeBlock(size_t n) {
  size_t bytes;
  const size_t bucket = BucketOf(n, &bytes);
  for (size_t i = bucket; i < std::min(bucket + kFit, kBuckets); ++i) {
    std::vector<Kept>& kept = buckets_[i].kept;
    if (kept.empty()) continue;
    void* block = kept.back().block;  // the one that the processor's caches know best
    kept.pop_back();
    CountUse(true, blocks_.at(block));
    return block;
  }
  // Free() must not fail, so there is room for all blocks of the class to be kept.
  Bucket& b = buckets_[bucket];
  if (b.kept.capacity() <= b.blocks) b.kept.reserve(2 * b.blocks + 1);
  while (KeptBytes() > 0 && stats_.reserved_bytes[kAll].current + bytes > limit_) FreeOldest();
  void* block = Map(bytes);
  if (block == nullptr && KeptBytes() > 0) {
    ++stats_.num_alloc_retries;
    FreeAll();
    block = Map(bytes);
  }
  if (block == nullptr) return nullptr;
  try {
    blocks_.emplace(block, bytes);
  } catch (...) {
    munmap(block, bytes);
    throw;
  }
  ++b.blocks;
  ++stats_.num_device_alloc;
  Increase(stats_.segment, kLargePool, 1);
  Increase(stats_.reserved_bytes, kLargePool, bytes);
  CountUse(true, bytes);
  return block;
}

void* Pool::TakeMalloc(size_t n) {
  for (;;) {
    try {
      void* p = c10::alloc_cpu(n);
      const size_t bytes = UsableBytes(p);
      Increase(stats_.reserved_bytes, kSmallPool, bytes);
      CountUse(false, bytes);
      return p;
    } catch (const c10::Error&) {
      if (KeptBytes() == 0) {
        ++stats_.num_ooms;
        throw;
      }
    }
    ++stats_.num_alloc_retries;
    FreeAll();
  }
}

void Pool::Free(void* p) {
  const std::lock_guard lock(mutex_);
  const auto it = reinterpret_cast<uintptr_t>(p) % kPage == 0 ? blocks_.find(p) : blocks_.end();
  if (it == blocks_.end()) {
    const size_t bytes = UsableBytes(p);
    c10::free_cpu(p);
    CountEndOfUse(false, bytes);
    Decrease(stats_.reserved_bytes, kSmallPool, bytes);
    return;
  }
  size_t bytes = it->second;
  CountEndOfUse(true, bytes);
  if (bytes > MayKeep()) return Unmap(p);
  buckets_[BucketOf(bytes, &bytes)].kept.push_back({p, ++frees_});
  while (KeptBytes() > MayKeep()) FreeOldest();
}

// What is kept is no more than has been needed at once, so that a program whose sizes vary takes twice its peak at
// most.
uint64_t Pool::MayKeep() const {
  const auto in_use = static_cast<uint64_t>(stats_.active_bytes[kAll].current);
  return std::min(needed_, limit_ - std::min(limit_, in_use));
}

uint64_t Pool::KeptBytes() const {
  return static_cast<uint64_t>(stats_.reserved_bytes[kLargePool].current - stats_.active_bytes[kLargePool].current);
}

void Pool::Unmap(void* block) {
  const auto it = blocks_.find(block);
  size_t bytes = it->second;
  blocks_.erase(it);
  --buckets_[BucketOf(bytes, &bytes)].blocks;
  munmap(block, bytes);
  ++stats_.num_device_free;
  Decrease(stats_.segment, kLargePool, 1);
  Decrease(stats_.reserved_bytes, kLargePool, bytes);
}

void Pool::FreeOldest() {
  std::vector<Kept>* oldest = nullptr;
  for (Bucket& b : buckets_) {
    if (!b.kept.empty() && (oldest == nullptr || b.kept.front().since < oldest->front().since)) oldest = &b.kept;
  }
  Unmap(oldest->front().block);
  oldest->erase(oldest->begin());
}

void Pool::FreeAll() {
  for (Bucket& b : buckets_) {
    for (const Kept& k : b.kept) Unmap(k.block);
    b.kept.clear();
  }
}

void Pool::Empty() {
  const std::lock_guard lock(mutex_);
  FreeAll();
  needed_ = static_cast<uint64_t>(stats_.active_bytes[kAll].current);
}

void Pool::CountUse(bool block, size_t bytes) {
  const size_t pool = block ? kLargePool : kSmallPool;
  Increase(stats_.allocation, pool, 1);
  Increase(stats_.active_bytes, pool, bytes);
  needed_ = std::max(needed_, static_cast<uint64_t>(stats_.active_bytes[kAll].current));
}

void Pool::CountEndOfUse(bool block, size_t bytes) {
  const size_t pool = block ? kLargePool : kSmallPool;
  Decrease(stats_.allocation, pool, 1);
  Decrease(stats_.active_bytes, pool, bytes);
}

c10::CachingDeviceAllocator::DeviceStats Pool::Stats() {
  const std::lock_guard lock(mutex_);
  c10::CachingDeviceAllocator::DeviceStats stats = stats_;
  // A block is in use from its allocation to its end, and never split.
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

// PyTorch's allocator for the CPU: as its own one, but that memory is the pool's.
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

uint64_t NumberIn(const std::string& path) {
  std::ifstream file(path);
  uint64_t number = 0;
  return file >> number ? number : UINT64_MAX;  // no file, or "max"
}

// The machine's memory, or what control groups leave this process of it.
uint64_t MemoryOfProcess() {
  const long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGE_SIZE);
  uint64_t least = pages > 0 && size > 0 ? static_cast<uint64_t>(pages) * static_cast<uint64_t>(size) : 0;
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    // "0::/path" in version 2, "<number>:memory:/path" in version 1. A limit holds for all groups below.
    const size_t name = line.find(':') + 1, colon = line.find(':', name);
    if (colon == std::string::npos) continue;
    const std::string controller = line.substr(name, colon - name);
    if (!controller.empty() && controller != "memory") continue;
    const std::string root = controller.empty() ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    const std::string file = controller.empty() ? "/memory.max" : "/memory.limit_in_bytes";
    std::string path = line.substr(colon + 1);
    while (!path.empty() && path[0] == '/') {
      least = std::min(least, NumberIn(root + path + file));
      path.resize(path.rfind('/'));
    }
    least = std::min(least, NumberIn(root + file));
  }
  return least;
}

Pool& Install() {
#ifdef __GLIBC__
  // Until large blocks have come and gone, malloc gives back what lies above 128 KiB at the top of its heap: ten
  // tensors of 16 KiB then cost ten times as much (1.8 us each, not 0.2). It may keep as much as its own rule would at
  // most.
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 64 << 20);
#endif
  // Half of the memory: the client is often a process of the same machine.
  auto* pool = new Pool(MemoryOfProcess() / 2);  // neither is ever deleted: tensors outlive statics
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
