// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// State of a thread that keeps malloc, the dynamic linker and other threads' cache lines off the hot path: memory of
// freed tensors and storages, ranges of ids and addresses, and pointers to its caches.
#ifndef MYCELYA_DEVICE_TENSOR_THREAD_H_
#define MYCELYA_DEVICE_TENSOR_THREAD_H_

#include <c10/macros/Macros.h>

#include <cstddef>
#include <cstdint>
#include <new>

namespace mycelya {

// Freed memory of objects of one size: the first word of each points to the next.
struct Spares {
  void* first;
  uint32_t count;
};

// Numbers [first, end) reserved for this thread.
struct Range {
  uint64_t first, end;
};

struct Thread {
  Spares tensors, storages;
  Range ids, addresses;
  void *origins, *shapes;  // caches of Origin.cpp and Shape.cpp
  bool keeps_backward;     // see KeepBackwardInThisThread
  bool keeps;              // it keeps freed memory
};

// Zero-initialised. One variable, because each access calls the dynamic linker. (The initial-exec TLS model needs no
// call, but uses a small static area: if other libraries have filled it, this library would not load.)
extern thread_local constinit Thread this_thread;

// The most freed objects of one kind that a thread keeps.
constexpr uint32_t kMaxSpares = 512;

// Handles the first object that a thread frees, and those beyond kMaxSpares.
C10_NOINLINE void GiveSlow(Spares& spares, void* p);

C10_ALWAYS_INLINE void* Take(Spares& spares, size_t bytes) {
  void* p = spares.first;
  if (C10_UNLIKELY(p == nullptr)) return ::operator new(bytes);
  spares.first = *static_cast<void**>(p);
  --spares.count;
  return p;
}

C10_ALWAYS_INLINE void Give(Spares& spares, void* p) {
  if (C10_UNLIKELY(spares.count >= kMaxSpares || !this_thread.keeps)) return GiveSlow(spares, p);
  *static_cast<void**>(p) = spares.first;
  spares.first = p;
  ++spares.count;
}

}  // namespace mycelya

#endif  // MYCELYA_DEVICE_TENSOR_THREAD_H_
