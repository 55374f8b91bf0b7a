// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Pinned memory: memory that a worker on this host can map. Tensors of kShareFrom bytes or more lie in blocks of memory
// files (memfd). Smaller tensors, and all tensors if no memory file is available, are ordinary memory that is reported
// as pinned and is sent like any other memory.
#ifndef MYCELYA_DEVICE_TENSOR_PINNED_H_
#define MYCELYA_DEVICE_TENSOR_PINNED_H_

#include <c10/core/Allocator.h>

#include <cstddef>

#include "abi/mycelya.h"

namespace mycelya {

// Smaller uploads are copied into their message. An upload of shared memory costs an extra message and an answer.
constexpr size_t kShareFrom = 64 << 10;

c10::Allocator& PinnedAllocator();

bool IsPinned(const void* data);

// If [data, data + bytes) is shared memory: fills `out`, adds a reader and returns true. Freed memory with readers is
// not reused.
bool SharePinned(const void* data, size_t bytes, myc_shared* out);

// Reclaims memory that was freed while it had readers and has none now.
void CollectPinned();

}  // namespace mycelya

#endif  // MYCELYA_DEVICE_TENSOR_PINNED_H_
