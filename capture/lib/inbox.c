// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

#include "inbox.h"

#include <stdlib.h>

extern int32_t mycFlushByCall(int32_t index, myc_trace* trace, myc_error* error);  // main.go

static inbox inboxes[INBOXES] = {
    [0 ... INBOXES - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER, .bell = PTHREAD_COND_INITIALIZER}};

inbox* inbox_of(int32_t index) { return index >= 0 && index < INBOXES ? &inboxes[index] : NULL; }

void inbox_open(inbox* b, int32_t open) {
  pthread_mutex_lock(&b->lock);
  b->open = open;
  pthread_mutex_unlock(&b->lock);
}

// Room for one more; 0 if there is no memory.
static int make_room(inbox* b) {
  if (b->first == b->end) b->first = b->end = 0;
  if (b->end < b->room) return 1;
  const uint64_t room = b->room == 0 ? 16 : 2 * b->room;
  myc_trace* traces = realloc(b->traces, room * sizeof *traces);
  if (traces == NULL) return 0;
  b->traces = traces;
  b->room = room;
  return 1;
}

int32_t myc_flush(int32_t index, const myc_trace* trace, myc_error* error) {
  inbox* b = inbox_of(index);
  if (b == NULL) return mycFlushByCall(index, (myc_trace*)trace, error);
  pthread_mutex_lock(&b->lock);
  if (!b->open || !make_room(b)) {
    pthread_mutex_unlock(&b->lock);
    return mycFlushByCall(index, (myc_trace*)trace, error);
  }
  b->traces[b->end++] = *trace;
  const int64_t on_way = __atomic_add_fetch(&b->on_way, 1, __ATOMIC_SEQ_CST);
  const int32_t asleep = b->asleep;
  b->asleep = 0;
  pthread_mutex_unlock(&b->lock);
  if (asleep) pthread_cond_signal(&b->bell);
  return on_way >= __atomic_load_n(&b->allowed, __ATOMIC_SEQ_CST) ? MYC_PENDING : MYC_OK;
}

int32_t inbox_take(inbox* b, myc_trace* out) {
  pthread_mutex_lock(&b->lock);
  const int32_t found = b->first != b->end;
  if (found) *out = b->traces[b->first++];
  pthread_mutex_unlock(&b->lock);
  return found;
}

void inbox_wait(inbox* b) {
  pthread_mutex_lock(&b->lock);
  while (!b->rung && b->first == b->end) {
    b->asleep = 1;
    pthread_cond_wait(&b->bell, &b->lock);
  }
  b->asleep = b->rung = 0;
  pthread_mutex_unlock(&b->lock);
}

void inbox_ring(inbox* b) {
  pthread_mutex_lock(&b->lock);
  b->rung = 1;
  const int32_t asleep = b->asleep;
  b->asleep = 0;
  pthread_mutex_unlock(&b->lock);
  if (asleep) pthread_cond_signal(&b->bell);
}
