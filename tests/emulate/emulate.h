// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Emulates the part of CUDA that printed kernels use on a CPU, so that a C++ compiler can compile their text. Blocks
// run one after another. The threads of a block are fibers, which switch only at waits. Each round runs the fibers in
// another random order, to detect results that depend on the order. The process ends if not all threads reach a barrier
// or shuffle.
#ifndef MYCELYA_TESTS_EMULATE_EMULATE_H_
#define MYCELYA_TESTS_EMULATE_EMULATE_H_

#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <functional>
#include <vector>

#define __global__
#define __device__
#define __shared__ static
#define __grid_constant__
#define __launch_bounds__(n)

struct Dim {
  unsigned x, y;
};
static Dim threadIdx, blockIdx, blockDim;

namespace emulate {

// The state of a thread of a block, and how many times it has waited with its warp and with its block.
struct Fiber {
  jmp_buf at;
  ucontext_t start;
  bool begun, done;
  unsigned long block_waits, warp_waits;
  Dim index;
  std::vector<char> stack;
};
static std::vector<Fiber> fibers;
static size_t count, current;
static jmp_buf scheduler;
static std::function<void()> body;
static std::vector<uint64_t> exchange;  // by thread
static uint64_t random_state = 1;

[[noreturn]] static void Die(const char* why) {
  fprintf(stderr, "emulate: %s, block %u, thread %u,%u\n", why, blockIdx.x, threadIdx.x, threadIdx.y);
  exit(3);
}
static void Yield() {
  if (_setjmp(fibers[current].at) == 0) _longjmp(scheduler, 1);
}
static void Enter() {
  body();
  fibers[current].done = true;
  _longjmp(scheduler, 1);
}
// Waits until all threads from first to last have waited as many times.
static void Wait(unsigned long Fiber::*waits, size_t first, size_t last) {
  const unsigned long mine = ++(fibers[current].*waits);
  for (int rounds = 0;; ++rounds) {
    bool all = true;
    for (size_t i = first; i < last; ++i) {
      all = all && fibers[i].*waits >= mine;
      if (fibers[i].done && fibers[i].*waits < mine) Die("a thread is over that others wait for");
    }
    if (all) return;
    if (rounds > 100000) Die("threads wait for each other at different places");
    Yield();
  }
}
static void WaitBlock() { Wait(&Fiber::block_waits, 0, count); }
static void WaitWarp() { Wait(&Fiber::warp_waits, current / 32 * 32, current / 32 * 32 + 32); }

template <class T>
static T Shuffle(unsigned mask, T v, size_t from) {
  if (mask != ~0u || count % 32 != 0) Die("a shuffle within a part of a warp");
  exchange[current] = 0;
  memcpy(&exchange[current], &v, sizeof v);
  WaitWarp();
  memcpy(&v, &exchange[from], sizeof v);
  WaitWarp();
  return v;
}

static void RunBlock(bool alone) {
  count = size_t(blockDim.x) * blockDim.y;
  if (fibers.size() < count) fibers.resize(count);
  exchange.resize(count);
  for (size_t i = 0; i < count; ++i) {
    Fiber& f = fibers[i];
    f.begun = f.done = false;
    f.block_waits = f.warp_waits = 0;
    f.index = {unsigned(i % blockDim.x), unsigned(i / blockDim.x)};
  }
  if (alone) {  // no thread waits for another
    for (current = 0; current < count; ++current) {
      threadIdx = fibers[current].index;
      body();
    }
    return;
  }
  for (size_t left = count; left > 0;) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    const size_t shift = (random_state >> 33) % count;
    const bool down = random_state >> 63;
    for (size_t i = 0; i < count; ++i) {
      current = ((down ? count - 1 - i : i) + shift) % count;
      Fiber& f = fibers[current];
      if (f.done) continue;
      threadIdx = f.index;
      if (_setjmp(scheduler) == 0) {
        if (f.begun) _longjmp(f.at, 1);
        f.begun = true;
        if (f.stack.empty()) f.stack.resize(128 << 10);
        getcontext(&f.start);
        f.start.uc_stack.ss_sp = f.stack.data();
        f.start.uc_stack.ss_size = f.stack.size();
        f.start.uc_link = nullptr;
        makecontext(&f.start, Enter, 0);
        setcontext(&f.start);
      }
      if (fibers[current].done) --left;
    }
  }
}

}  // namespace emulate

#define __syncthreads() emulate::WaitBlock()
template <class T>
static T __shfl_xor_sync(unsigned mask, T v, int lanes) {
  return emulate::Shuffle(mask, v, emulate::current ^ size_t(lanes));
}
template <class T>
static T __shfl_sync(unsigned mask, T v, int lane, int width) {
  return emulate::Shuffle(mask, v, emulate::current / width * width + lane);
}
template <class To, class From>
static To Bits(From v) {
  To to;
  static_assert(sizeof to == sizeof v);
  memcpy(&to, &v, sizeof v);
  return to;
}
static float __int_as_float(int v) { return Bits<float>(v); }
static float __uint_as_float(unsigned v) { return Bits<float>(v); }
static unsigned __float_as_uint(float v) { return Bits<unsigned>(v); }
static double __longlong_as_double(long long v) { return Bits<double>(v); }
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
template <class T>
static T __ldg(const T* from) {
  return *from;
}
static unsigned __umulhi(unsigned a, unsigned b) { return uint64_t(a) * b >> 32; }
// A number out of range becomes the least integer, as on x86 and in ir/eval. CUDA takes the nearest integer.
static long long __double2ll_rz(double v) { return v >= -0x1p63 && v < 0x1p63 ? (long long)v : INT64_MIN; }
static long long __float2ll_rz(float v) { return __double2ll_rz(v); }

// As CUDA's instructions do: 0 is greater than -0.
#define fmaxf(a, b) Most(a, b)
#define fmax(a, b) Most(a, b)
#define fminf(a, b) Least(a, b)
#define fmin(a, b) Least(a, b)
template <class T>
static T Most(T a, T b) {
  return a == b ? (signbit(a) ? b : a) : a > b ? a : b;
}
template <class T>
static T Least(T a, T b) {
  return a == b ? (signbit(a) ? a : b) : a < b ? a : b;
}
static float rsqrtf(float v) { return 1 / sqrtf(v); }
static double rsqrt(double v) { return 1 / sqrt(v); }

static float of_half(unsigned short b) {
  const int exponent = b >> 10 & 31, fraction = b & 1023;
  float v = exponent == 31  ? (fraction != 0 ? NAN : INFINITY)
            : exponent == 0 ? ldexpf(float(fraction), -24)
                            : ldexpf(float(1024 + fraction), exponent - 25);
  return b >> 15 ? -v : v;
}
static unsigned short to_half(float v) {
  const unsigned sign = Bits<unsigned>(v) >> 16 & 0x8000;
  const double x = fabs(double(v));
  if (x != x) return sign | 0x7e00;
  if (x >= 65520) return sign | 0x7c00;
  if (x < 0x1p-14) return sign | unsigned(nearbyint(x * 0x1p24));
  int exponent;
  const double fraction = frexp(x, &exponent);
  return sign | ((unsigned(exponent + 13) << 10) + unsigned(nearbyint(fraction * 2048)));
}

// A job file: words, and the bytes of memory. The test chooses the address at which the memory begins.
static uint64_t Word(FILE* f) {
  uint64_t w;
  if (fread(&w, 8, 1, f) != 1) exit(4);
  return w;
}
struct Entry {
  void (*run)(const uint64_t* args, const uint64_t* chunks);
  size_t words;  // of its Args
  bool table, alone;
};

static int Run(const Entry* entries, size_t nentries, const char* in, const char* out) {
  FILE *f = fopen(in, "rb"), *g = fopen(out, "wb");
  if (f == nullptr || g == nullptr) return 4;
  for (uint64_t jobs = Word(f); jobs > 0; --jobs) {
    void* const base = reinterpret_cast<void*>(Word(f));
    const uint64_t bytes = Word(f);
    if (mmap(base, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE | MAP_NORESERVE, -1,
             0) != base) {
      return 5;
    }
    std::vector<std::pair<char*, size_t>> segments(Word(f));
    for (auto& s : segments) {
      s.first = reinterpret_cast<char*>(Word(f));
      s.second = Word(f);
      if (s.second > 0 && fread(s.first, 1, s.second, f) != s.second) return 4;
    }
    for (uint64_t launches = Word(f); launches > 0; --launches) {
      const Entry& e = entries[Word(f) % nentries];
      const auto grid = unsigned(Word(f));
      blockDim.x = unsigned(Word(f));
      blockDim.y = unsigned(Word(f));
      std::vector<uint64_t> args(Word(f)), chunks;
      for (uint64_t& w : args) w = Word(f);
      chunks.resize(Word(f));
      for (uint64_t& w : chunks) w = Word(f);
      if (args.size() % e.words != 0 || (e.table ? chunks.size() != grid : args.size() != e.words)) return 6;
      emulate::body = [&] { e.run(args.data(), chunks.data()); };
      for (blockIdx.x = 0; blockIdx.x < grid; ++blockIdx.x) emulate::RunBlock(e.alone);
    }
    for (const auto& s : segments) fwrite(s.first, 1, s.second, g);
    munmap(base, bytes);
  }
  fclose(f);
  return fclose(g) == 0 ? 0 : 4;
}

#endif  // MYCELYA_TESTS_EMULATE_EMULATE_H_
