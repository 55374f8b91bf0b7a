// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// What a thread has at hand, so that a call asks neither malloc nor the dynamic linker nor another thread's cache line:
// memory of tensors and storages that it has freed, numbers that it alone gives out, and where its caches are.
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

// Numbers from first up to end that no other thread gives out.
struct Range {
  uint64_t first, end;
};

struct Thread {
  Spares tensors, storages;
  Range ids, addresses;
  void *origins, *shapes;  // caches of Origin.cpp and Shape.cpp
  bool settled;            // see keep_backward_in_this_thread
  bool keeps;              // what it frees
};

// All zero at first. One variable, because a look at it is a call of the dynamic linker's. (The model that needs no
// call takes room that a process has little of: where other libraries have used it up, this one would not load.)
extern thread_local constinit Thread this_thread;

// More than a thread frees at once seldom comes back.
constexpr uint32_t kMaxSpares = 512;

// The first that the thread gives, or one too many.
C10_NOINLINE void give_slow(Spares& spares, void* p);

C10_ALWAYS_INLINE void* take(Spares& spares, size_t bytes) {
  void* p = spares.first;
  if (C10_UNLIKELY(p == nullptr)) return ::operator new(bytes);
  spares.first = *static_cast<void**>(p);
  --spares.count;
  return p;
}

C10_ALWAYS_INLINE void give(Spares& spares, void* p) {
  if (C10_UNLIKELY(spares.count >= kMaxSpares || !this_thread.keeps)) return give_slow(spares, p);
  *static_cast<void**>(p) = spares.first;
  spares.first = p;
  ++spares.count;
}

}  // namespace mycelya

#endif  // MYCELYA_DEVICE_TENSOR_THREAD_H_
