// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// What mailbox.c and wait.c share.
#ifndef MYCELYA_CLIENT_MAILBOX_INTERNAL_H_
#define MYCELYA_CLIENT_MAILBOX_INTERNAL_H_

#include <stdlib.h>

#include "mailbox.h"

// Grows an array of items of size bytes so that it can hold end + 1 items; 0 if memory is short.
static inline int mailbox_grow(void** items, uint64_t* capacity, uint64_t end, uint64_t size) {
  if (end < *capacity) return 1;
  const uint64_t more = *capacity == 0 ? 16 : 2 * *capacity;
  void* moved = realloc(*items, more * size);
  if (moved == NULL) return 0;
  *items = moved;
  *capacity = more;
  return 1;
}

#pragma GCC visibility push(hidden)

// mailbox.c: adds a wait to the stalls of a place. If memory is short the wait is not counted.
void mailbox_note_stall(mailbox*, myc_origin, int first, int64_t nanoseconds);

// wait.c: reserves a wait slot and returns its ticket; 0 if there is no slot.
uint64_t wait_slot_reserve(int32_t index, myc_origin);

#pragma GCC visibility pop

#endif  // MYCELYA_CLIENT_MAILBOX_INTERNAL_H_
