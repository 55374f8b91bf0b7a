// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// A vector for fast appends: an append is a compare and a store, and clear() keeps the memory.
#ifndef MYCELYA_DEVICE_TENSOR_BUFFER_H_
#define MYCELYA_DEVICE_TENSOR_BUFFER_H_

#include <c10/macros/Macros.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

namespace mycelya {

template <class T>
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }

  C10_ALWAYS_INLINE void push_back(T value) {
    if (C10_UNLIKELY(next_ == end_)) Grow();
    *next_++ = value;
  }
  void clear() { next_ = memory_.get(); }
  size_t size() const { return static_cast<size_t>(next_ - memory_.get()); }
  const T* data() const { return memory_.get(); }
  T& operator[](size_t i) { return memory_[i]; }

 private:
  C10_NOINLINE void Grow() {
    const size_t old = size(), room = std::max<size_t>(256, 2 * old);
    auto bigger = std::make_unique_for_overwrite<T[]>(room);
    std::copy_n(memory_.get(), old, bigger.get());
    memory_ = std::move(bigger);
    next_ = memory_.get() + old;
    end_ = memory_.get() + room;
  }
  void swap(Buffer& other) {
    std::swap(memory_, other.memory_);
    std::swap(next_, other.next_);
    std::swap(end_, other.end_);
  }

  std::unique_ptr<T[]> memory_;
  T *next_ = nullptr, *end_ = nullptr;
};

}  // namespace mycelya

#endif  // MYCELYA_DEVICE_TENSOR_BUFFER_H_
