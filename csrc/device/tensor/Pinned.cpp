// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// A block is one memory file, mapped shared and divided into slots of one size: many slots for tensors up to kSlabSlot,
// one slot for larger ones. Freed slots are reused. Blocks without tensors are kept idle, up to kIdleBytes in total.
// Nothing is allocated before the first pinned tensor.
//
//   free ──► readers == 0 ? ──► slot ──► no tensor left? ──► idle ──► over kIdleBytes? ──► closed, workers notified
//                └─ deferred ─────┘ when readers == 0
//
// A forked child gets private copies of the blocks and makes none of its own. Its parent does not reuse such a block
// for another tensor, because the child shares its pages until it writes to them.

#include "device/tensor/Pinned.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <iterator>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#ifdef __linux__
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>
#endif

#include "device/client/Client.h"

namespace mycelya {
namespace {

constexpr size_t kLargest = size_t{1} << 40;  // bytes of a block; limit of the wire format
constexpr size_t kSlab = 4 << 20;             // a block of many slots, bytes: 64 tensors of 64 KiB
constexpr size_t kSlabSlot = 1 << 20;         // the largest slot of such a block
constexpr size_t kIdleBytes = 256 << 20;      // as much as a few batches of images
constexpr size_t kMaxBlocks = 256;            // descriptors; a worker takes as many (worker/session/blocks.go)
constexpr size_t kDescriptorShare = 4;        // at most a quarter of the process's descriptors
constexpr size_t kCollected = 16;             // deferred tensors that one call looks at

struct Block {
  uint64_t id;
  char* base;
  size_t bytes;
  int fd;
  size_t slot;                 // bytes
  std::vector<uint32_t> room;  // free slots
  size_t tensors = 0;          // slots in use, including deferred ones
  bool shared = false;         // a worker has mapped it
  bool retired = false;        // a forked child shares its pages
};

struct Tensor {
  size_t bytes;
  Block* block;  // null: ordinary memory
  std::atomic<uint32_t> readers{0};

  Tensor(size_t n, Block* b) : bytes(n), block(b) {}
};
static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t) && std::atomic<uint32_t>::is_always_lock_free,
              "the client library counts readers down as a plain word");

// Powers of two up to kSlabSlot, then eight sizes per doubling, so that batches of similar sizes reuse a block.
size_t SlotOf(size_t bytes) {
  const size_t power = std::bit_ceil(std::max(bytes, kShareFrom));
  if (power <= kSlabSlot) return power;
  const size_t step = power / 16;
  return (bytes + step - 1) / step * step;
}

#ifdef __linux__

// Asks for a file without execute permission, which some kernels require. Kernels before 6.3 do not know the flag.
int MemoryFile() {
  constexpr unsigned kNoExec = 8;  // MFD_NOEXEC_SEAL
  const int fd = memfd_create("mycelya-pinned", MFD_CLOEXEC | MFD_ALLOW_SEALING | kNoExec);
  return fd >= 0 || errno != EINVAL ? fd : memfd_create("mycelya-pinned", MFD_CLOEXEC | MFD_ALLOW_SEALING);
}

// With strict overcommit, a missing page would be a SIGBUS later, so allocate the pages now or fail. Otherwise pages
// are allocated when they are written, as for other memory: allocating them all could trigger the out-of-memory killer.
bool Reserve(int fd, off_t bytes) {
  static const bool strict = [] {
    char mode = '0';
    const int file = ::open("/proc/sys/vm/overcommit_memory", O_RDONLY | O_CLOEXEC);
    if (file < 0) return true;
    const bool known = ::read(file, &mode, 1) == 1;
    ::close(file);
    return !known || mode == '2';
  }();
  if (!strict) return true;
  int error = EINTR;  // a signal may interrupt it
  for (int i = 0; i < 4 && error == EINTR; ++i) error = posix_fallocate(fd, 0, bytes);
  return error == 0;
}

// Then the allocation falls back to ordinary memory, which raises PyTorch's error.
bool MoreThanThereIs(size_t bytes) {
  const long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGE_SIZE);
  return pages > 0 && size > 0 && bytes / static_cast<size_t>(size) >= static_cast<size_t>(pages);
}

// A sealed and mapped memory file; null if the system refuses.
std::unique_ptr<Block> OpenBlock(uint64_t id, size_t slot) {
  const size_t bytes = slot <= kSlabSlot ? kSlab : slot;
  const int fd = MoreThanThereIs(bytes) ? -1 : MemoryFile();
  if (fd < 0) return nullptr;
  void* base = MAP_FAILED;
  if (ftruncate(fd, static_cast<off_t>(bytes)) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0 &&
      Reserve(fd, static_cast<off_t>(bytes))) {
    base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  if (base == MAP_FAILED) {
    ::close(fd);
    return nullptr;
  }
  auto block = std::make_unique<Block>();
  block->id = id;
  block->base = static_cast<char*>(base);
  block->bytes = bytes;
  block->fd = fd;
  block->slot = slot;
  for (size_t i = bytes / slot; i-- > 0;) block->room.push_back(static_cast<uint32_t>(i));
  return block;
}

void CloseBlock(const Block& block) {
  munmap(block.base, block.bytes);
  ::close(block.fd);
}

// Gives a forked child a private copy of the block's content, without the descriptor.
void MakePrivate(const Block& block) {
  if (block.tensors == 0) {
    munmap(block.base, block.bytes);
  } else {
    mmap(block.base, block.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, block.fd, 0);
  }
  ::close(block.fd);
}

size_t MaxBlocks() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kMaxBlocks;
  return std::min(kMaxBlocks, static_cast<size_t>(limit.rlim_cur) / kDescriptorShare);
}

#else

std::unique_ptr<Block> OpenBlock(uint64_t, size_t) { return nullptr; }
void CloseBlock(const Block&) {}
void MakePrivate(const Block&) {}
size_t MaxBlocks() { return 0; }

#endif

class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* data = bytes >= kShareFrom && bytes <= kLargest ? Take(bytes) : nullptr;
    if (data == nullptr) data = Ordinary(bytes);
    return {data, data, &Free, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &Free; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

  bool Has(const void* data) {
    const std::lock_guard<std::mutex> guard(mutex_);
    return Find(data) != tensors_.end();
  }

  bool Share(const void* data, size_t bytes, myc_shared* out) {
    const std::lock_guard<std::mutex> guard(mutex_);
    const auto it = Find(data);
    if (it == tensors_.end() || it->second.block == nullptr || forked_) return false;
    const size_t at = reinterpret_cast<uintptr_t>(data) - it->first;
    if (bytes > it->second.bytes - at) return false;
    Tensor& t = it->second;
    t.block->shared = true;
    t.readers.fetch_add(1, std::memory_order_relaxed);
    *out = {t.block->id, t.block->bytes, static_cast<uint64_t>(static_cast<const char*>(data) - t.block->base),
            t.block->fd, reinterpret_cast<uint32_t*>(&t.readers)};
    return true;
  }

  void Collect() {
    if (!any_deferred_.load(std::memory_order_relaxed)) return;
    std::vector<uint64_t> gone;
    {
      const std::lock_guard<std::mutex> guard(mutex_);
      CollectLocked(deferred_.size());
      gone.swap(gone_);
    }
    Notify(gone);
  }

  void BeforeFork() { mutex_.lock(); }
  void InParent() {
    for (auto& [id, block] : blocks_) {
      if (block->tensors == 0) continue;
      block->retired = true;
      WithoutRoom(*block);
    }
    mutex_.unlock();
  }
  void InChild() {
    if (!forked_) {
      for (auto& [id, block] : blocks_) MakePrivate(*block);
    }
    forked_ = true;
    mutex_.unlock();
  }

 private:
  using Tensors = std::map<uintptr_t, Tensor>;

  static void Free(void* data);

  // The tensor that contains an address.
  Tensors::iterator Find(const void* data) {
    const auto address = reinterpret_cast<uintptr_t>(data);
    auto it = tensors_.upper_bound(address);
    if (it == tensors_.begin()) return tensors_.end();
    --it;
    return address < it->first + it->second.bytes ? it : tensors_.end();
  }

  void* Ordinary(size_t bytes) {
    void* data = c10::alloc_cpu(bytes);
    if (data == nullptr) return data;  // no bytes
    const std::lock_guard<std::mutex> guard(mutex_);
    tensors_.try_emplace(reinterpret_cast<uintptr_t>(data), bytes, nullptr);
    return data;
  }

  // Returns shared memory, or null.
  void* Take(size_t bytes) {
    const size_t slot = SlotOf(bytes);
    std::vector<uint64_t> gone;
    void* data = nullptr;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      if (forked_) return nullptr;
      CollectLocked(kCollected);
      if (room_[slot].empty() && MayOpen()) {
        const uint64_t id = ++last_id_;
        ++opening_;
        lock.unlock();
        WatchForksOnce();
        std::unique_ptr<Block> made = OpenBlock(id, slot);  // may take a second for a GiB
        lock.lock();
        --opening_;
        if (made != nullptr) {
          room_[slot].push_back(made.get());
          MakeIdle(*made);
          blocks_.emplace(id, std::move(made));
        }
      }
      if (!room_[slot].empty()) data = From(*room_[slot].back(), bytes);
      Trim();
      gone.swap(gone_);
    }
    Notify(gone);
    return data;
  }

  void* From(Block& block, size_t bytes) {
    if (block.tensors++ == 0) NoLongerIdle(block);
    char* data = block.base + block.room.back() * block.slot;
    block.room.pop_back();
    if (block.room.empty()) WithoutRoom(block);
    tensors_.try_emplace(reinterpret_cast<uintptr_t>(data), bytes, &block);
    return data;
  }

  void GiveBack(uintptr_t address, const Tensor& tensor) {
    Block& block = *tensor.block;
    --block.tensors;
    if (block.retired) {
      if (block.tensors == 0) Close(block);
      return;
    }
    block.room.push_back(static_cast<uint32_t>((address - reinterpret_cast<uintptr_t>(block.base)) / block.slot));
    if (block.room.size() == 1) room_[block.slot].push_back(&block);
    if (block.tensors == 0) MakeIdle(block);
    Trim();
  }

  void MakeIdle(Block& block) {
    idle_.push_back(&block);
    idle_bytes_ += block.bytes;
  }

  void NoLongerIdle(Block& block) {
    idle_.remove(&block);
    idle_bytes_ -= block.bytes;
  }

  void WithoutRoom(Block& block) {
    auto& with = room_[block.slot];
    with.erase(std::remove(with.begin(), with.end(), &block), with.end());
  }

  void CloseOldestIdle() {
    Block& block = *idle_.front();
    NoLongerIdle(block);
    WithoutRoom(block);
    Close(block);
  }

  void Trim() {
    while (idle_bytes_ > kIdleBytes) CloseOldestIdle();
  }

  void Close(Block& block) {
    if (block.shared) gone_.push_back(block.id);
    CloseBlock(block);
    blocks_.erase(block.id);
  }

  // Whether one more block may be opened. Closes an idle block if that helps.
  bool MayOpen() {
    const size_t most = MaxBlocks();
    if (blocks_.size() + opening_ >= most && !idle_.empty()) CloseOldestIdle();
    return blocks_.size() + opening_ < most;
  }

  void CollectLocked(size_t most) {
    for (size_t i = std::min(most, deferred_.size()); i > 0; --i) {
      Tensors::node_type node = std::move(deferred_.front());
      deferred_.pop_front();
      if (node.mapped().readers.load(std::memory_order_acquire) == 0) {
        GiveBack(node.key(), node.mapped());
      } else {
        deferred_.push_back(std::move(node));
      }
    }
    any_deferred_.store(!deferred_.empty(), std::memory_order_relaxed);
  }

  // Called without the lock, because the client library takes its own.
  static void Notify(const std::vector<uint64_t>& gone) {
    for (const uint64_t block : gone) ForgetBlock(block);
  }

  static void WatchForksOnce();

  std::mutex mutex_;
  Tensors tensors_;
  std::map<uint64_t, std::unique_ptr<Block>> blocks_;
  std::map<size_t, std::vector<Block*>> room_;  // by slot size: blocks with a free slot
  std::list<Block*> idle_;                      // without tensors, oldest first
  size_t idle_bytes_ = 0;
  std::list<Tensors::node_type> deferred_;  // freed while they have readers
  std::atomic<bool> any_deferred_{false};
  std::vector<uint64_t> gone_;  // closed blocks that workers have mapped
  uint64_t last_id_ = 0;
  size_t opening_ = 0;  // blocks being opened without the lock
  bool forked_ = false;
};

PinnedAllocator& GetPinned() {
  static auto& leaked = *new PinnedAllocator();
  return leaked;
}

void PinnedAllocator::Free(void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  PinnedAllocator& a = GetPinned();
  std::vector<uint64_t> gone;
  {
    const std::lock_guard<std::mutex> guard(a.mutex_);
    Tensors::node_type node = a.tensors_.extract(address);
    if (node.empty()) return;
    if (node.mapped().block != nullptr) {
      if (a.forked_) return;  // the block is the parent's
      if (node.mapped().readers.load(std::memory_order_acquire) != 0) {
        a.deferred_.push_back(std::move(node));
        a.any_deferred_.store(true, std::memory_order_relaxed);
      } else {
        a.GiveBack(address, node.mapped());
      }
      gone.swap(a.gone_);
      data = nullptr;
    }
  }
  Notify(gone);
  if (data != nullptr) c10::free_cpu(data);
}

void PinnedAllocator::WatchForksOnce() {
  static std::once_flag once;
  std::call_once(once, [] {
    pthread_atfork([] { GetPinned().BeforeFork(); }, [] { GetPinned().InParent(); }, [] { GetPinned().InChild(); });
  });
}

}  // namespace

c10::Allocator& PinnedAllocator() { return GetPinned(); }

bool IsPinned(const void* data) { return GetPinned().Has(data); }

bool SharePinned(const void* data, size_t bytes, myc_shared* out) { return GetPinned().Share(data, bytes, out); }

void CollectPinned() { GetPinned().Collect(); }

}  // namespace mycelya
