// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Where myc_flush leaves the traces of a device. Handing one over to Go by a call would wake two threads for it, Go's
// monitor and the sender; this wakes the sender, if it sleeps.
#pragma once

#include <pthread.h>

#include "mycelya.h"

enum { INBOXES = 64 };  // devices with one; others' traces go by a call

typedef struct {
  int64_t on_way, allowed;  // atomic: see runtime.Credits
  pthread_mutex_t lock;     // of what follows
  pthread_cond_t bell;
  myc_trace* traces;  // first … end of room
  uint64_t first, end, room;
  int32_t open, rung, asleep;
} inbox;

inbox* inbox_of(int32_t index);  // NULL if it has none
void inbox_open(inbox* b, int32_t open);
int32_t inbox_take(inbox* b, myc_trace* out);  // 0: there is none
void inbox_wait(inbox* b);                     // until there is a trace, or a ring
void inbox_ring(inbox* b);                     // is not lost if nobody waits yet
