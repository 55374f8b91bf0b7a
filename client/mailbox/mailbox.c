// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// The queue of each mailbox, what is posted, and how the sender sleeps.
#define _GNU_SOURCE
#include "mailbox.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "internal.h"

struct mailbox {
  mailbox_credits credits;
  pthread_mutex_t lock;  // guards the fields below
  mailbox_item* items;   // the queue is items[first..end)
  uint64_t first, end, capacity;
  int32_t opened;
  int32_t refuses;  // the kind of the error with which an opened mailbox refuses items; MYC_OK: it takes them
  char* why;        // its text
  int32_t fresh;    // nothing was posted since the mailbox was opened
  uint64_t quiet;   // bytes of uploads that have not woken the sender, since it slept last
  int32_t asleep;   // the sender reads the wake descriptor, or is about to; DOZING: for a limited time
  int32_t awoken;   // mailbox_wake was called while the sender was not asleep
  int32_t wake_fd;  // 0 until it is set
  mailbox_stall* stalls;
  uint64_t n_stalls, stalls_capacity;
  uint64_t used;  // bytes of uploads that were not given back; atomic
};

enum { AWAKE = 0, ASLEEP = 1, DOZING = 2 };

static mailbox mailboxes[MAILBOXES] = {[0 ... MAILBOXES - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER}};

mailbox* mailbox_of(int32_t index) { return index >= 0 && index < MAILBOXES ? &mailboxes[index] : NULL; }

mailbox_credits* mailbox_credits_of(mailbox* b) { return &b->credits; }

int32_t mailbox_failing(mailbox* b) { return __atomic_load_n(&b->credits.failing, __ATOMIC_SEQ_CST) != 0; }

void mailbox_set_wake_fd(mailbox* b, int32_t fd) {
  pthread_mutex_lock(&b->lock);
  b->wake_fd = fd;
  pthread_mutex_unlock(&b->lock);
}

static void set_refusal(mailbox* b, int32_t kind, char* text) {
  pthread_mutex_lock(&b->lock);
  free(b->why);
  b->why = text;
  b->refuses = kind;
  if (kind == MYC_OK) b->opened = b->fresh = 1;
  pthread_mutex_unlock(&b->lock);
}

void mailbox_open(mailbox* b) { set_refusal(b, MYC_OK, NULL); }
void mailbox_close(mailbox* b, int32_t kind, char* text) { set_refusal(b, kind, text); }

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

static int32_t not_open(int32_t index, myc_error* error) {
  char text[64];
  snprintf(text, sizeof text, "mycelya:%d is not open.", index);
  return mailbox_fail(error, MYC_E_RUNTIME, text);
}

static int32_t no_memory(myc_error* error) {
  return mailbox_fail(error, MYC_E_RUNTIME, "This process has too little memory for another request to its worker.");
}

// Whether an item leaves the sender asleep. Small uploads wait until something else is posted, unless they have many
// bytes: they are sent with what uses them. The caller holds the lock.
static int leaves_asleep(mailbox* b, const mailbox_item* item, int behind) {
  if (b->fresh) return 0;  // the first one starts the worker
  if (item->kind == ITEM_TRACE) return b->asleep == DOZING && !behind;
  if (item->kind != ITEM_UPLOAD || !item->copied || item->bytes > MYC_UPLOAD_SMALL) return 0;
  return (b->quiet += item->bytes) <= MYC_UPLOAD_SMALL_ALL;
}

// Adds an item to the queue, and returns MYC_OK, or the kind of the error. Sets *behind for a trace only: the worker
// has no credits left after it.
static int32_t post(int32_t index, const mailbox_item* item, int32_t* behind, myc_error* error) {
  mailbox* b = mailbox_of(index);
  if (b == NULL) return not_open(index, error);
  pthread_mutex_lock(&b->lock);
  if (b->first == b->end) b->first = b->end = 0;
  int32_t kind = MYC_OK;
  if (!b->opened) {
    kind = not_open(index, error);
  } else if (b->refuses != MYC_OK) {
    kind = mailbox_fail(error, b->refuses, b->why == NULL ? "" : b->why);
  } else if (!mailbox_grow((void**)&b->items, &b->capacity, b->end, sizeof *item)) {
    kind = no_memory(error);
  }
  if (kind != MYC_OK) {
    pthread_mutex_unlock(&b->lock);
    return kind;
  }
  b->items[b->end++] = *item;
  __atomic_store_n(&b->credits.core, current_core(), __ATOMIC_RELAXED);
  if (item->kind == ITEM_TRACE) {
    const int64_t on_way = __atomic_add_fetch(&b->credits.on_way, 1, __ATOMIC_SEQ_CST);
    *behind = on_way >= __atomic_load_n(&b->credits.allowed, __ATOMIC_SEQ_CST);
  }
  const int32_t wakes = b->asleep && !leaves_asleep(b, item, behind != NULL && *behind), fd = b->wake_fd;
  b->fresh = 0;
  if (wakes) b->asleep = AWAKE;
  pthread_mutex_unlock(&b->lock);
  if (wakes) write_wake_byte(fd);
  return MYC_OK;
}

int32_t myc_flush(int32_t index, const myc_trace* trace, myc_error* error) {
  int32_t behind = 0;
  const mailbox_item item = {.kind = ITEM_TRACE, .trace = *trace};
  const int32_t kind = post(index, &item, &behind, error);
  if (kind != MYC_OK) __atomic_store_n(trace->in_use, 0, __ATOMIC_RELEASE);
  return kind == MYC_OK && behind ? MYC_PENDING : kind;
}

// Posts a request and returns its ticket; 0 with the error set.
static uint64_t post_request(int32_t index, mailbox_item* item, int32_t stalls, myc_error* error) {
  if ((item->ticket = mailbox_ticket(index, item->at, stalls)) == 0) {
    no_memory(error);
  } else if (post(index, item, NULL, error) != MYC_OK) {
    mailbox_end(item->ticket);
    item->ticket = 0;
  }
  return item->ticket;
}

// From this size on, copies have pages of their own, which are the system's again when they are freed: a process that
// moves a model to its device must not stay as large as the model.
enum { MAPPED = 64 << 10 };

// Copies bytes; NULL if memory is short.
static void* copy_of(const void* data, uint64_t bytes) {
  void* copy;
  if (bytes < MAPPED) {
    copy = malloc(bytes + 1);  // malloc(0) may return NULL
  } else {
    copy = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_PRIVATE, -1, 0);
    if (copy == MAP_FAILED) return NULL;
  }
  if (copy != NULL && bytes != 0) memcpy(copy, data, bytes);
  return copy;
}

static void free_copy(void* copy, uint64_t bytes) {
  if (bytes < MAPPED) {
    free(copy);
  } else if (copy != NULL) {
    munmap(copy, bytes);
  }
}

// Whether bytes more fit among those of the uploads under way; then they are counted.
static int counts(mailbox* b, uint64_t bytes) {
  if (__atomic_add_fetch(&b->used, bytes, __ATOMIC_RELAXED) <= MYC_UPLOAD_UNDER_WAY) return 1;
  __atomic_sub_fetch(&b->used, bytes, __ATOMIC_RELAXED);
  return 0;
}

int32_t myc_upload(int32_t index, uint64_t id, const void* data, uint64_t bytes, const myc_shared* shared,
                   myc_origin at, uint64_t* ticket, myc_error* error) {
  mailbox* b = mailbox_of(index);
  if (b == NULL) {
    if (shared != NULL) __atomic_sub_fetch(shared->readers, 1, __ATOMIC_SEQ_CST);
    return not_open(index, error);
  }
  mailbox_item item = {
      .kind = ITEM_UPLOAD, .at = at, .storage = id, .bytes = bytes, .data = data, .address = (uintptr_t)data};
  int waits = 0;
  if (shared != NULL) {
    item.shared = *shared;
    const uint64_t used = __atomic_add_fetch(&b->used, bytes, __ATOMIC_RELAXED);
    waits = used > MYC_UPLOAD_UNDER_WAY && used != bytes;  // one is always taken
  } else if (bytes <= MYC_UPLOAD_COPIED && counts(b, bytes)) {
    item.copied = 1;
    item.data = copy_of(data, bytes);
  } else {
    waits = 1;
  }
  int32_t kind;
  if (item.copied && item.data == NULL) {
    kind = no_memory(error);
  } else if (!waits) {
    kind = post(index, &item, NULL, error);
  } else {
    *ticket = post_request(index, &item, 0, error);
    kind = *ticket == 0 ? error->kind : MYC_PENDING;
  }
  if (kind != MYC_OK && kind != MYC_PENDING && (item.copied || shared != NULL)) mailbox_release(b, &item);
  return kind;
}

void mailbox_release(mailbox* b, const mailbox_item* upload) {
  if (upload->copied) free_copy((void*)upload->data, upload->bytes);
  if (upload->shared.block != 0) __atomic_sub_fetch(upload->shared.readers, 1, __ATOMIC_SEQ_CST);
  __atomic_sub_fetch(&b->used, upload->bytes, __ATOMIC_RELAXED);
}

uint64_t myc_read(int32_t index, const myc_view* view, void* dst, myc_origin at, myc_error* error) {
  mailbox_item item = {.kind = ITEM_READ, .at = at, .view = *view, .dst = dst};
  const size_t bytes = view->rank * sizeof(int64_t);
  int64_t* dims = malloc(2 * bytes + 1);
  if (dims == NULL) {
    no_memory(error);
    return 0;
  }
  if (bytes != 0) {
    memcpy(dims, view->sizes, bytes);
    memcpy(dims + view->rank, view->strides, bytes);
  }
  item.view.sizes = dims;
  item.view.strides = dims + view->rank;
  const uint64_t ticket = post_request(index, &item, 1, error);
  if (ticket == 0) free(dims);
  return ticket;
}

uint64_t myc_sync(int32_t index, myc_origin at, myc_error* error) {
  mailbox_item item = {.kind = ITEM_SYNC, .at = at};
  return post_request(index, &item, 1, error);
}

uint64_t myc_room(int32_t index, myc_origin at, myc_error* error) {
  mailbox_item item = {.kind = ITEM_ROOM, .at = at};
  return post_request(index, &item, 1, error);
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
  b->quiet = 0;
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
