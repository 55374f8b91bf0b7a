// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Pinned memory: memory that a worker on this host reads where it lies. Tensors of kShareFrom bytes or more come from
// blocks of memory files (memfd); smaller ones, and all where there are no memory files left to be had, are ordinary
// memory that remembers that it was asked for, and travels as any other.
#ifndef MYCELYA_DEVICE_TENSOR_PINNED_H_
#define MYCELYA_DEVICE_TENSOR_PINNED_H_

#include <c10/core/Allocator.h>

#include <cstddef>

#include "abi/mycelya.h"

namespace mycelya {

// An upload of fewer bytes is copied into its message: to name them would cost a message and an answer.
constexpr size_t kShareFrom = 64 << 10;

c10::Allocator& pinned_allocator();

bool is_pinned(const void* data);

// If [data, data + bytes) is shared memory: fills `out`, counts one more reader, and says true. Until the reader is
// counted down the memory is not given to another tensor, whoever frees it.
bool share_pinned(const void* data, size_t bytes, myc_shared* out);

// Takes back what was freed while it was being read and is read no more.
void collect_pinned();

}  // namespace mycelya

#endif  // MYCELYA_DEVICE_TENSOR_PINNED_H_
