// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// A vector to append to: its memory stays when it is cleared, and an append is a compare and a store.
#pragma once

#include <c10/macros/Macros.h>

#include <cstddef>
#include <vector>

namespace mycelya {

template <class T>
class Buffer {
 public:
  C10_ALWAYS_INLINE void push_back(T value) {
    if (C10_UNLIKELY(size_ == memory_.size())) grow();
    memory_[size_++] = value;
  }
  void clear() { size_ = 0; }
  size_t size() const { return size_; }
  const T* data() const { return memory_.data(); }
  T& operator[](size_t i) { return memory_[i]; }

 private:
  C10_NOINLINE void grow() { memory_.resize(memory_.size() * 2); }

  std::vector<T> memory_ = std::vector<T>(256);
  size_t size_ = 0;
};

}  // namespace mycelya
