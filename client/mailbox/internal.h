// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// What mailbox.c and wait.c share.
#ifndef MYCELYA_CLIENT_MAILBOX_INTERNAL_H_
#define MYCELYA_CLIENT_MAILBOX_INTERNAL_H_

#include <stdlib.h>
#include <string.h>

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

// Fills in an error and returns its kind.
static inline int32_t mailbox_fail(myc_error* error, int32_t kind, const char* text) {
  error->kind = kind;
  strncpy(error->text, text, sizeof error->text - 1);
  error->text[sizeof error->text - 1] = 0;
  return kind;
}

#pragma GCC visibility push(hidden)

// mailbox.c: adds a wait to the stalls of a place. If memory is short the wait is not counted.
void mailbox_note_stall(mailbox*, myc_origin, int first, int64_t nanoseconds);

#pragma GCC visibility pop

#endif  // MYCELYA_CLIENT_MAILBOX_INTERNAL_H_
