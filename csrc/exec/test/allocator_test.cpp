// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// The pool of CPU memory: by itself, and as PyTorch's allocator under a session.
#include "exec/memory/Allocator.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstring>
#include <fstream>
#include <random>
#include <thread>

#include "exec/test/Session.h"

namespace mycelya::exec::test {
namespace {

constexpr size_t kKi = 1 << 10, kMi = 1 << 20, kGi = 1 << 30;
constexpr uint64_t kNoLimit = uint64_t{1} << 60;

// Statistics in numbers of blocks.
struct Blocks {
  explicit Blocks(Pool& pool) {
    const c10::CachingDeviceAllocator::DeviceStats s = pool.Stats();
    in_use = s.active_bytes[2].current;
    kept = s.reserved_bytes[2].current - in_use;
    count = s.segment[2].current;
    mapped = s.num_device_alloc;
  }
  int64_t in_use, kept, count, mapped;
};

TEST(Pool, SizesAreRoundedUpByLessThanAnEighth) {
  Pool pool(kNoLimit);
  std::vector<size_t> sizes = {Pool::kMapped};
  for (int shift = 17; shift < 31; ++shift) {
    for (const size_t off : {SIZE_MAX, size_t{0}, size_t{1}}) sizes.push_back((size_t{1} << shift) + off);
  }
  std::mt19937_64 random(1);
  for (int i = 0; i < 1000; ++i) sizes.push_back(Pool::kMapped + random() % (size_t{1} << (17 + i % 13)));
  for (const size_t n : sizes) {
    void* p = pool.Allocate(n);
    const auto bytes = static_cast<size_t>(Blocks(pool).in_use);
    EXPECT_GE(bytes, n);
    EXPECT_LE(bytes - n, n / 8) << n;
    EXPECT_EQ(bytes % 4096, 0u) << n;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % (n >= 2 * kMi ? 2 * kMi : 4096), 0u) << n;
    pool.Free(p);
    pool.Empty();
  }
}

TEST(Pool, SmallSizesAreMallocs) {
  Pool pool(kNoLimit);
  std::vector<std::pair<void*, size_t>> all;
  int64_t requested = 0;
  for (size_t n = 1; n < Pool::kMapped * 9 / 10; n = n * 3 / 2 + 1) {
    all.emplace_back(pool.Allocate(n), n);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(all.back().first) % 64, 0u);
    std::memset(all.back().first, 1, n);
    requested += std::max<int64_t>(static_cast<int64_t>(n), 64);
  }
  auto s = pool.Stats();
  EXPECT_EQ(s.allocation[1].current, static_cast<int64_t>(all.size()));
  EXPECT_EQ(s.num_device_alloc, s.allocation[1].current);
  EXPECT_GE(s.active_bytes[1].current, requested);
  EXPECT_LE(s.active_bytes[1].current, requested * 9 / 8);
  EXPECT_EQ(s.active_bytes[1].current, s.reserved_bytes[1].current);
  EXPECT_EQ(s.allocation[2].current + s.segment[2].current, 0);
  for (const auto& [p, n] : all) pool.Free(p);
  for (const auto& [p, n] : all) EXPECT_NE(pool.Allocate(n), nullptr);
  s = pool.Stats();
  EXPECT_EQ(s.num_device_alloc, static_cast<int64_t>(all.size())) << "all are reused";
  for (const auto& [p, n] : all) pool.Free(p);
  pool.Empty();
  s = pool.Stats();
  EXPECT_EQ(s.active_bytes[0].current + s.reserved_bytes[0].current + s.segment[0].current, 0);
}

TEST(Pool, ABlockIsReusedForAboutItsSize) {
  Pool pool(kNoLimit);
  void* big = pool.Allocate(8 * kMi);  // in use, so that the pool may keep the other blocks
  for (const size_t n : {80 * kKi, 100 * kKi, kMi, 5 * kMi + 1}) {
    void* p = pool.Allocate(n);
    std::memset(p, 1, n);
    pool.Free(p);
    const int64_t mapped = Blocks(pool).mapped;
    EXPECT_EQ(pool.Allocate(n), p);
    pool.Free(p);
    void* less = pool.Allocate(n - n / 9);
    EXPECT_EQ(less, p) << "a little less fits";
    EXPECT_EQ(Blocks(pool).mapped, mapped);
    void* again = pool.Allocate(n);
    EXPECT_NE(again, p);
    pool.Free(p);
    pool.Free(again);
    EXPECT_EQ(pool.Allocate(n), again) << "what was freed last comes first";
    pool.Free(again);
    pool.Empty();
  }
  void* p = pool.Allocate(4 * kMi);
  pool.Free(p);
  void* half = pool.Allocate(2 * kMi);
  EXPECT_EQ(Blocks(pool).kept, static_cast<int64_t>(4 * kMi)) << "a block twice the size is left to others";
  pool.Free(half);
  pool.Free(big);
}

TEST(Pool, KeepsNoMoreThanWasNeededAtOnce) {
  Pool pool(kNoLimit);
  // 16 sizes, one block alive at a time: the peak is the largest block.
  for (size_t i = 0; i < 16; ++i) pool.Free(pool.Allocate(4 * kMi * (i + 1)));
  EXPECT_LE(Blocks(pool).kept, static_cast<int64_t>(64 * kMi));
  EXPECT_EQ(Blocks(pool).count, 1) << "the oldest went first";
  pool.Free(pool.Allocate(64 * kMi));
  EXPECT_EQ(Blocks(pool).mapped, 16);
  EXPECT_LE(pool.Stats().reserved_bytes[0].peak, static_cast<int64_t>(128 * kMi));
  // Empty() also resets the peak. A small amount may always be kept.
  pool.Empty();
  for (size_t i = 0; i < 8; ++i) pool.Free(pool.Allocate(kMi << (i % 4)));
  EXPECT_EQ(Blocks(pool).count, 4);
  pool.Empty();
  EXPECT_EQ(Blocks(pool).kept + Blocks(pool).count, 0);
  std::vector<void*> all;
  for (int i = 0; i < 24; ++i) all.push_back(pool.Allocate(kMi));
  for (void* p : all) pool.Free(p);
  EXPECT_EQ(Blocks(pool).kept, static_cast<int64_t>(24 * kMi));
}

TEST(Pool, InUseAndKeptStayBelowTheLimit) {
  Pool pool(16 * kMi);
  std::vector<void*> all;
  for (int i = 0; i < 12; ++i) all.push_back(pool.Allocate(kMi));
  for (void* p : all) pool.Free(p);
  EXPECT_EQ(Blocks(pool).kept, static_cast<int64_t>(12 * kMi));
  void* big = pool.Allocate(14 * kMi);
  EXPECT_EQ(Blocks(pool).kept, static_cast<int64_t>(2 * kMi));
  void* larger = pool.Allocate(20 * kMi);  // the limit applies to kept memory, not to memory in use
  EXPECT_EQ(Blocks(pool).kept, 0);
  pool.Free(big);
  EXPECT_EQ(Blocks(pool).kept, 0);
  void* small = pool.Allocate(kMi);
  pool.Free(larger);
  EXPECT_EQ(Blocks(pool).kept, 0) << "it is larger than the limit by itself";
  pool.Free(small);
  EXPECT_EQ(Blocks(pool).kept, static_cast<int64_t>(kMi));
}

TEST(Pool, SizesBeyondAnyMemory) {
  Pool pool(kNoLimit);
  for (const size_t n :
       {size_t{1} << 46, (size_t{1} << 46) + 1, size_t{1} << 62, SIZE_MAX / 2, SIZE_MAX - 1, SIZE_MAX}) {
    EXPECT_THROW(pool.Allocate(n), c10::Error) << n;
  }
  EXPECT_EQ(pool.Stats().num_ooms, 6);
  EXPECT_EQ(pool.Stats().num_alloc_retries, 0) << "nothing was kept";
  EXPECT_EQ(pool.Stats().active_bytes[0].current, 0);
}

// Limits the address space of this process to `more` bytes beyond the current size.
class Tight {
 public:
  explicit Tight(size_t more) {
    getrlimit(RLIMIT_AS, &before_);
    std::ifstream statm("/proc/self/statm");
    size_t pages = 0;
    statm >> pages;
    rlimit now = before_;
    now.rlim_cur = pages * static_cast<size_t>(sysconf(_SC_PAGESIZE)) + more;
    setrlimit(RLIMIT_AS, &now);
  }
  ~Tight() { setrlimit(RLIMIT_AS, &before_); }

 private:
  rlimit before_{};
};

TEST(Pool, AFailureGivesBackWhatIsKeptAndTriesAgain) {
  if (!std::ifstream("/proc/self/statm")) GTEST_SKIP() << "no /proc on this system";
  Pool pool(kNoLimit);
  pool.Free(pool.Allocate(kGi));  // never written, so it takes only addresses
  const Tight tight(256 * kMi);
  EXPECT_THROW(pool.Allocate(Pool::kLargest + 1), c10::Error);
  EXPECT_EQ(Blocks(pool).kept, static_cast<int64_t>(kGi)) << "it would not help";
  pool.Free(pool.Allocate(512 * kMi));
  EXPECT_EQ(pool.Stats().num_alloc_retries, 1);
  EXPECT_EQ(pool.Stats().num_device_free, 1);
  EXPECT_EQ(pool.Stats().num_ooms, 1);
  try {
    pool.Allocate(3 * kGi);
    ADD_FAILURE();
  } catch (const c10::Error& e) {
    EXPECT_NE(std::string(e.what()).find("The CPU has not enough memory for 3221225472 bytes."), std::string::npos)
        << e.what();
    EXPECT_EQ(pool.TakeRefused(), 3 * kGi);
    EXPECT_EQ(pool.TakeRefused(), 0u);
  }
  EXPECT_EQ(pool.Stats().num_alloc_retries, 2);
  EXPECT_EQ(pool.Stats().num_ooms, 2);
  EXPECT_EQ(Blocks(pool).kept, 0);
}

TEST(Pool, ThreadsShareIt) {
  Pool pool(64 * kMi);
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < 4; ++seed) {
    threads.emplace_back([&pool, seed] {
      std::mt19937_64 random(seed);
      std::vector<std::pair<uint64_t*, size_t>> alive;
      for (int i = 0; i < 3000; ++i) {
        if (alive.size() > random() % 8) {
          std::swap(alive[random() % alive.size()], alive.back());
          const auto [p, n] = alive.back();
          EXPECT_EQ(p[0], n + seed);  // no other thread has written to it
          EXPECT_EQ(p[n / 8 - 1], n + seed);
          alive.pop_back();
          pool.Free(p);
        } else {
          const size_t n = 16 + random() % (size_t{1} << (5 + random() % 17));
          auto* p = static_cast<uint64_t*>(pool.Allocate(n));
          p[0] = p[n / 8 - 1] = n + seed;
          alive.emplace_back(p, n);
        }
        if (i % 500 == 0) pool.Empty();
        if (i % 100 == 0) pool.Stats();
      }
      for (const auto& [p, n] : alive) pool.Free(p);
    });
  }
  for (std::thread& t : threads) t.join();
  const auto s = pool.Stats();
  EXPECT_EQ(s.active_bytes[0].current + s.allocation[0].current, 0);
  EXPECT_LE(s.reserved_bytes[0].current, static_cast<int64_t>(64 * kMi));
  EXPECT_EQ(s.num_device_alloc - s.num_device_free, s.segment[0].current);
}

TEST(Pool, PeaksAndTotalsBeginAgain) {
  Pool pool(kNoLimit);
  void* p = pool.Allocate(4 * kMi);
  pool.Free(pool.Allocate(8 * kMi));
  EXPECT_EQ(pool.Stats().active_bytes[0].peak, static_cast<int64_t>(12 * kMi));
  EXPECT_EQ(pool.Stats().active_bytes[0].allocated, static_cast<int64_t>(12 * kMi));
  pool.ResetPeaks();
  pool.ResetTotals();
  const auto s = pool.Stats();
  EXPECT_EQ(s.active_bytes[0].peak, static_cast<int64_t>(4 * kMi));
  EXPECT_EQ(s.reserved_bytes[0].peak, static_cast<int64_t>(12 * kMi));
  EXPECT_EQ(s.active_bytes[0].allocated + s.allocation[0].freed + s.num_device_alloc, 0);
  pool.Free(p);
}

// ---- As PyTorch's allocator ----

constexpr int kReservedBytes = 4 * 12, kActiveBytes = 5 * 12, kRetries = 7 * 12;  // numbers of memory_stats
constexpr int kLargePool = 2 * 4;

std::vector<int64_t> MemoryStats(Session& s) {
  Builder b;
  b.Call("mycelya::memory_stats", {}, {b.Fresh(MYC_I64, {MYC_M_NUMBERS})});
  EXPECT_TRUE(s.Run(b, {}, {}, {{0, 1000}}).empty());
  const Got got = s.Read(1000, MYC_I64, c10::ScalarType::Long, {MYC_M_NUMBERS}, {1});
  const auto* words = got.tensor.const_data_ptr<int64_t>();
  s.Free({1000});
  return {words, words + MYC_M_NUMBERS};
}

void Own(Session& s, const std::string& name, const std::vector<int64_t>& args = {}) {
  Builder b;
  std::vector<Words> values;
  for (const int64_t v : args) values.push_back(Int(v));
  b.Call("mycelya::" + name, values);
  ASSERT_TRUE(s.Run(b, {}, {}, {}).empty());
}

TEST(CpuAllocator, IsPyTorchs) {
  const Session s;
  c10::Allocator* a = c10::GetCPUAllocator();
  ASSERT_NE(a->raw_deleter(), nullptr);
  EXPECT_EQ(a->allocate(0).get(), nullptr);
  for (const size_t n : {size_t{1}, kKi, 3 * kMi}) {
    c10::DataPtr p = a->allocate(n);
    EXPECT_EQ(p.get(), p.get_context());
    EXPECT_EQ(p.get_deleter(), a->raw_deleter());
    EXPECT_TRUE(a->is_simple_data_ptr(p));
    std::memset(p.get(), 7, n);
    EXPECT_EQ(std::memcmp(a->clone(p.get(), n).get(), p.get(), n), 0);
    void* raw = a->raw_allocate(n);
    std::memset(raw, 7, n);
    a->raw_deallocate(raw);
  }
  EXPECT_THROW(a->allocate(SIZE_MAX), c10::Error);
}

TEST(CpuAllocator, GivesTheMemoryOfUploadsAndResults) {
  Session s;
  s.Upload(1, at::ones({4 << 20}));
  Builder b;
  const uint64_t x = b.Fresh(MYC_F32, {4 << 20}), y = b.Fresh(MYC_F32, {4 << 20});
  b.Call("aten::neg", {T(x)}, {y});
  myc_prog* p = s.Prepare(b);
  Own(s, "empty_cache");
  const auto active = [&] { return MemoryStats(s)[kActiveBytes + kLargePool]; };
  const int64_t before = active();
  ASSERT_TRUE(s.Run(p, {}, {{0, 1}}, {{1, 2}}).empty());
  EXPECT_EQ(active() - before, 16 << 20);
  s.Free({2});
  std::vector<int64_t> stats = MemoryStats(s);
  EXPECT_EQ(stats[kActiveBytes + kLargePool], before);
  EXPECT_EQ(stats[kReservedBytes + kLargePool] - stats[kActiveBytes + kLargePool], 16 << 20);
  const int64_t mapped = stats[kRetries + 2];
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(s.Run(p, {}, {{0, 1}}, {{1, 2}}).empty());
    s.Free({2});
  }
  EXPECT_EQ(MemoryStats(s)[kRetries + 2], mapped) << "the same memory again";
  for (const bool whole : {false, true}) {
    ASSERT_TRUE(s.Run(p, {}, {{0, 1}}, {{1, 2}}).empty());
    s.Free({2});
    whole ? myc_exec_trim() : Own(s, "empty_cache");
    stats = MemoryStats(s);
    EXPECT_EQ(stats[kReservedBytes + kLargePool], stats[kActiveBytes + kLargePool]);
  }
  Own(s, "reset_memory_stats", {MYC_M_PEAKS});
  Own(s, "reset_memory_stats", {MYC_M_TOTALS});
  stats = MemoryStats(s);
  EXPECT_EQ(stats[kReservedBytes + kLargePool + 1], stats[kReservedBytes + kLargePool]);
  EXPECT_EQ(stats[kRetries + 2], 0);
  Builder wrong;
  wrong.Call("mycelya::reset_memory_stats", {Int(3)});
  EXPECT_EQ(s.Run(wrong, {}, {}, {}).size(), 1u);
}

}  // namespace
}  // namespace mycelya::exec::test
