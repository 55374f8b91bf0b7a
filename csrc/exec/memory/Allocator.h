// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// CPU memory that is kept for reuse. Fresh pages cost more than arithmetic: 64 MiB take 38 ms to write when they are
// new, 11 ms in huge pages, and 8 ms when they have been written before.
#ifndef MYCELYA_EXEC_MEMORY_ALLOCATOR_H_
#define MYCELYA_EXEC_MEMORY_ALLOCATOR_H_

#include <c10/core/CachingDeviceAllocator.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>

namespace mycelya::exec {

// Memory of one process, in blocks of size classes: malloc's below kMapped, else mapped for one block alone. A block
// that is given back is kept for the next request of about its size. Thread-safe.
class Pool {
 public:
  static constexpr size_t kMapped = size_t{64} << 10, kLargest = size_t{1} << 46;

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

  // As of PyTorch's allocators for devices. The small pool is malloc's blocks; "reserved" less "active" is kept; there
  // were "num_device_alloc" allocations that no kept block fitted.
  c10::CachingDeviceAllocator::DeviceStats Stats();
  void ResetPeaks();
  void ResetTotals();

 private:
  struct Block;
  struct Links {
    Block *older = nullptr, *newer = nullptr;
  };
  struct Block {
    void* data = nullptr;
    size_t bytes = 0, bucket = 0;
    Links in_bucket, in_all;  // among those that are kept
  };
  // Blocks that are kept, in the order in which they came.
  template <Links Block::*kLinks>
  struct Chain {
    Block *oldest = nullptr, *newest = nullptr;
    void Append(Block& b);
    void Remove(Block& b);
  };
  // Eight classes from one power of two to the next.
  static constexpr size_t kBuckets = 41 * 8;

  Block* TakeKept(size_t bucket);
  Block* TakeFresh(size_t bucket, size_t bytes);
  void Release(Block& b);
  void ReleaseOldest();
  uint64_t Kept() const;
  uint64_t MayKeep() const;

  const uint64_t limit_;
  std::mutex mutex_;
  std::unordered_map<const void*, Block> blocks_;
  std::array<Chain<&Block::in_bucket>, kBuckets> buckets_;
  Chain<&Block::in_all> all_;
  uint64_t needed_ = 0;  // most bytes in use since the last Empty()
  c10::CachingDeviceAllocator::DeviceStats stats_;
};

// The pool of this process. The first call makes it PyTorch's allocator for the CPU.
Pool& CpuMemory();
// Gives memory back to the system that only the pool or malloc holds. Does nothing if there is no pool.
void EmptyCpuMemory();

}  // namespace mycelya::exec

#endif  // MYCELYA_EXEC_MEMORY_ALLOCATOR_H_
