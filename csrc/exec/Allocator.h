// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// CPU memory that is kept for reuse. Fresh pages cost more than arithmetic: 64 MiB take 38 ms to write when they are
// new, 11 ms in huge pages, and 8 ms when they have been written before.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace mycelya::exec {

// Memory of one process. Requests below kSmallest are malloc's; larger ones get a block of a size class, mapped for it
// alone, and blocks that are given back are kept for the next request of about their size. Thread-safe.
class Pool {
 public:
  static constexpr size_t kSmallest = size_t{64} << 10, kLargest = size_t{1} << 46;

  // limit: no block is kept that would make the memory in use and kept larger than this.
  explicit Pool(uint64_t limit) : limit_(limit) {}
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  ~Pool() { Empty(); }

  // At least n bytes, n > 0, aligned to 64 bytes, with any content. Throws what PyTorch's own CPU allocator throws.
  void* Allocate(size_t n);
  void Free(void* p);
  // Gives all that is kept back to the system.
  void Empty();

  // As of PyTorch's allocators for devices: the small pool is what malloc has given; "reserved" less "active" is kept.
  c10::CachingDeviceAllocator::DeviceStats Stats();
  void ResetPeaks();
  void ResetTotals();

 private:
  struct Kept {
    void* block;
    uint64_t since;  // number of the Free() that brought it
  };
  struct Bucket {
    std::vector<Kept> kept;  // oldest first
    size_t blocks = 0;       // in use or kept
  };
  // Eight classes from one power of two to the next.
  static constexpr size_t kBuckets = 31 * 8;

  void* TakeBlock(size_t n);
  void* TakeMalloc(size_t n);
  void Unmap(void* block);
  void FreeOldest();
  void FreeAll();
  uint64_t KeptBytes() const;
  uint64_t MayKeep() const;
  void CountUse(bool block, size_t bytes);
  void CountEndOfUse(bool block, size_t bytes);

  const uint64_t limit_;
  std::mutex mutex_;
  std::unordered_map<const void*, size_t> blocks_;  // bytes of each
  std::array<Bucket, kBuckets> buckets_;
  uint64_t needed_ = 0;  // most bytes in use since the last Empty()
  uint64_t frees_ = 0;
  c10::CachingDeviceAllocator::DeviceStats stats_;
};

// The pool of this process. The first call makes it PyTorch's allocator for the CPU.
Pool& CpuMemory();
// Gives memory back to the system that only the pool or malloc holds. Does nothing if there is no pool.
void EmptyCpuMemory();

}  // namespace mycelya::exec
