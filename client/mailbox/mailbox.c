// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// The queue of each mailbox, and how its sender sleeps.
#define _GNU_SOURCE
#include "mailbox.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"

struct mailbox {
  mailbox_credits credits;
  pthread_mutex_t lock;  // guards the fields below
  mailbox_item* items;   // the queue is items[first..end)
  uint64_t first, end, capacity;
  int32_t open;
  int32_t asleep;   // the sender reads the wake descriptor, or is about to; DOZING: for a limited time
  int32_t awoken;   // mailbox_wake was called while the sender was not asleep
  int32_t wake_fd;  // 0 until it is set
  mailbox_stall* stalls;
  uint64_t n_stalls, stalls_capacity;
  uint64_t upload_bytes;  // of uploads that were not given back; atomic
};

enum { AWAKE = 0, ASLEEP = 1, DOZING = 2 };

// Uploads may wait in the mailbox until the next trace. More of them go through Go, whose sender sends them.
enum { MAX_UPLOAD_BYTES = 4 << 20 };

static mailbox mailboxes[MAILBOXES] = {[0 ... MAILBOXES - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER}};

mailbox* mailbox_of(int32_t index) { return index >= 0 && index < MAILBOXES ? &mailboxes[index] : NULL; }

mailbox_credits* mailbox_credits_of(mailbox* b) { return &b->credits; }

int32_t mailbox_failing(mailbox* b) { return __atomic_load_n(&b->credits.failing, __ATOMIC_SEQ_CST) != 0; }

void mailbox_set_wake_fd(mailbox* b, int32_t fd) {
  pthread_mutex_lock(&b->lock);
  b->wake_fd = fd;
  pthread_mutex_unlock(&b->lock);
}

void mailbox_open(mailbox* b, int32_t open) {
  pthread_mutex_lock(&b->lock);
  b->open = open;
  pthread_mutex_unlock(&b->lock);
}

// The core of this thread, from 1 on; 0 if it is not known.
static int64_t current_core(void) {
#if defined(__linux__)
  return sched_getcpu() + 1;
#else
  return 0;
#endif
}

static void write_wake_byte(int32_t fd) {
  const char one = 1;
  while (write(fd, &one, 1) < 0 && errno == EINTR) {
  }
}

// Adds an item to the queue if the mailbox is open. Sets *behind for a trace only.
static int post(mailbox* b, const mailbox_item* item, int32_t* behind) {
  pthread_mutex_lock(&b->lock);
  if (b->first == b->end) b->first = b->end = 0;
  if (!b->open || !mailbox_grow((void**)&b->items, &b->capacity, b->end, sizeof *item)) {
    pthread_mutex_unlock(&b->lock);
    return 0;
  }
  b->items[b->end++] = *item;
  __atomic_store_n(&b->credits.core, current_core(), __ATOMIC_RELAXED);
  if (item->kind == ITEM_TRACE) {
    const int64_t on_way = __atomic_add_fetch(&b->credits.on_way, 1, __ATOMIC_SEQ_CST);
    *behind = on_way >= __atomic_load_n(&b->credits.allowed, __ATOMIC_SEQ_CST);
  }
  const int32_t waits = item->kind == ITEM_UPLOAD || (item->kind == ITEM_TRACE && b->asleep == DOZING && !*behind);
  const int32_t wakes = b->asleep && !waits, fd = b->wake_fd;
  if (wakes) b->asleep = AWAKE;
  pthread_mutex_unlock(&b->lock);
  if (wakes) write_wake_byte(fd);
  return 1;
}

int32_t mailbox_post_trace(mailbox* b, const myc_trace* trace, int32_t* behind) {
  const mailbox_item item = {.kind = ITEM_TRACE, .trace = *trace};
  return post(b, &item, behind);
}

int32_t mailbox_post_upload(mailbox* b, uint64_t id, const void* data, uint64_t bytes, myc_origin at) {
  if (bytes == 0 || bytes > MAILBOX_UPLOAD) return 0;
  mailbox_item item = {.kind = ITEM_UPLOAD, .at = at, .storage = id, .bytes = bytes, .data = malloc(bytes)};
  if (item.data == NULL) return 0;
  memcpy(item.data, data, bytes);
  if (__atomic_add_fetch(&b->upload_bytes, bytes, __ATOMIC_RELAXED) <= MAX_UPLOAD_BYTES && post(b, &item, NULL))
    return 1;
  mailbox_free_upload(b, item.data, bytes);
  return 0;
}

void mailbox_free_upload(mailbox* b, void* data, uint64_t bytes) {
  free(data);
  __atomic_sub_fetch(&b->upload_bytes, bytes, __ATOMIC_RELAXED);
}

// Posts a request and returns its ticket; 0 if it cannot be posted.
static uint64_t post_request(int32_t index, mailbox_item* item) {
  mailbox* b = mailbox_of(index);
  if (b == NULL || (item->ticket = wait_slot_reserve(index, item->at)) == 0) return 0;
  if (post(b, item, NULL)) return item->ticket;
  mailbox_end(item->ticket);
  return 0;
}

uint64_t mailbox_post_read(int32_t index, const myc_view* view, void* dst, myc_origin at) {
  mailbox_item item = {.kind = ITEM_READ, .at = at, .view = *view, .dst = dst};
  const size_t bytes = view->rank * sizeof(int64_t);
  int64_t* dims = malloc(2 * bytes + 1);  // malloc(0) may return NULL
  if (dims == NULL) return 0;
  if (bytes != 0) {
    memcpy(dims, view->sizes, bytes);
    memcpy(dims + view->rank, view->strides, bytes);
  }
  item.view.sizes = dims;
  item.view.strides = dims + view->rank;
  const uint64_t ticket = post_request(index, &item);
  if (ticket == 0) free(dims);
  return ticket;
}

uint64_t mailbox_post_sync(int32_t index, myc_origin at) {
  mailbox_item item = {.kind = ITEM_SYNC, .at = at};
  return post_request(index, &item);
}

uint64_t mailbox_post_room(int32_t index, myc_origin at) {
  mailbox_item item = {.kind = ITEM_ROOM, .at = at};
  return post_request(index, &item);
}

int32_t mailbox_take(mailbox* b, mailbox_item* out) {
  pthread_mutex_lock(&b->lock);
  const int32_t found = b->first != b->end;
  if (found) *out = b->items[b->first++];
  pthread_mutex_unlock(&b->lock);
  return found;
}

void mailbox_note_stall(mailbox* b, myc_origin at, int first, int64_t nanoseconds) {
  pthread_mutex_lock(&b->lock);
  uint64_t i = 0;
  while (i < b->n_stalls && (b->stalls[i].at.code != at.code || b->stalls[i].at.offset != at.offset)) ++i;
  if (i < b->n_stalls || mailbox_grow((void**)&b->stalls, &b->stalls_capacity, i, sizeof *b->stalls)) {
    if (i == b->n_stalls) b->stalls[b->n_stalls++] = (mailbox_stall){.at = at};
    b->stalls[i].waits += first != 0;
    b->stalls[i].nanoseconds += nanoseconds;
  }
  pthread_mutex_unlock(&b->lock);
}

int32_t mailbox_take_stall(mailbox* b, mailbox_stall* out) {
  pthread_mutex_lock(&b->lock);
  const int32_t found = b->n_stalls != 0;
  if (found) *out = b->stalls[--b->n_stalls];
  pthread_mutex_unlock(&b->lock);
  return found;
}

static int32_t lie_down(mailbox* b, int32_t how) {
  pthread_mutex_lock(&b->lock);
  const int32_t asleep = !b->awoken && b->first == b->end;
  b->asleep = asleep ? how : AWAKE;
  b->awoken = 0;
  pthread_mutex_unlock(&b->lock);
  return asleep;
}

int32_t mailbox_sleep(mailbox* b) { return lie_down(b, ASLEEP); }
int32_t mailbox_doze(mailbox* b) { return lie_down(b, DOZING); }

int32_t mailbox_get_up(mailbox* b) {
  pthread_mutex_lock(&b->lock);
  const int32_t woken = b->asleep == AWAKE;
  b->asleep = AWAKE;
  pthread_mutex_unlock(&b->lock);
  return woken;
}

int32_t mailbox_is_asleep(mailbox* b) {
  pthread_mutex_lock(&b->lock);
  const int32_t asleep = b->asleep != AWAKE;
  pthread_mutex_unlock(&b->lock);
  return asleep;
}

void mailbox_wake(mailbox* b) {
  pthread_mutex_lock(&b->lock);
  const int32_t asleep = b->asleep, fd = b->wake_fd;
  b->awoken = !asleep;
  b->asleep = AWAKE;
  pthread_mutex_unlock(&b->lock);
  if (asleep) write_wake_byte(fd);
}
