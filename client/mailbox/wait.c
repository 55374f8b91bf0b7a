// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Wait slots: a request's ticket names a slot, in which the recorder thread waits for the answer.
//
// A ticket is a serial number, from 1 on, and then the slot's index in the low SLOT_BITS bits. A slot is reused under
// another serial number, so an old ticket finds no slot.
#include <stdio.h>
#include <time.h>

#include "internal.h"

typedef struct wait_slot {
  pthread_cond_t answered;
  uint64_t ticket;  // the slot's index alone while the slot is free
  int32_t device;
  int32_t kind;    // MYC_PENDING until the request is answered
  int32_t stalls;  // its waits are counted
  int32_t waited;  // a thread has begun to wait for the answer
  char* text;
  myc_origin at;
  struct wait_slot* next_free;
} wait_slot;

enum { SLOT_BITS = 20 };
static const uint64_t kSlotMask = (1 << SLOT_BITS) - 1;

static pthread_mutex_t slots_lock = PTHREAD_MUTEX_INITIALIZER;  // guards the variables below and all slots
static wait_slot** slots;
static uint64_t n_slots, slots_capacity, serial;
static wait_slot* free_slots;

// Adds a slot; NULL if memory is short or there are 2^SLOT_BITS slots.
static wait_slot* new_slot(void) {
  if (n_slots == 1 << SLOT_BITS || !mailbox_grow((void**)&slots, &slots_capacity, n_slots, sizeof *slots)) return NULL;
  wait_slot* s = calloc(1, sizeof *s);
  pthread_condattr_t monotonic;
  if (s == NULL || pthread_condattr_init(&monotonic) != 0) {
    free(s);
    return NULL;
  }
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(&s->answered, &monotonic);
  pthread_condattr_destroy(&monotonic);
  s->ticket = n_slots;
  slots[n_slots++] = s;
  return s;
}

uint64_t mailbox_ticket(int32_t device, myc_origin at, int32_t stalls) {
  pthread_mutex_lock(&slots_lock);
  wait_slot* s = free_slots;
  if (s != NULL) {
    free_slots = s->next_free;
  } else {
    s = new_slot();
  }
  uint64_t ticket = 0;
  if (s != NULL) {
    ticket = ++serial << SLOT_BITS | (s->ticket & kSlotMask);
    s->ticket = ticket;
    s->device = device;
    s->kind = MYC_PENDING;
    s->stalls = stalls;
    s->waited = 0;
    s->at = at;
  }
  pthread_mutex_unlock(&slots_lock);
  return ticket;
}

// The slot of a ticket; NULL if the ticket has ended. The caller holds the lock.
static wait_slot* slot_of(uint64_t ticket) {
  const uint64_t i = ticket & kSlotMask;
  return i < n_slots && slots[i]->ticket == ticket ? slots[i] : NULL;
}

// Ends a slot's ticket. The caller holds the lock.
static void release(wait_slot* s) {
  free(s->text);
  s->text = NULL;
  s->ticket &= kSlotMask;
  s->next_free = free_slots;
  free_slots = s;
}

int32_t mailbox_device(uint64_t ticket) {
  pthread_mutex_lock(&slots_lock);
  const wait_slot* s = slot_of(ticket);
  const int32_t device = s == NULL ? MAILBOX_ENDED : s->device;
  pthread_mutex_unlock(&slots_lock);
  return device;
}

void mailbox_end(uint64_t ticket) {
  pthread_mutex_lock(&slots_lock);
  wait_slot* s = slot_of(ticket);
  if (s != NULL) release(s);
  pthread_mutex_unlock(&slots_lock);
}

void mailbox_answer(uint64_t ticket, int32_t kind, char* text) {
  pthread_mutex_lock(&slots_lock);
  wait_slot* s = slot_of(ticket);
  if (s == NULL || s->kind != MYC_PENDING) {
    free(text);
  } else {
    s->text = text;
    __atomic_store_n(&s->kind, kind, __ATOMIC_RELAXED);
    pthread_cond_signal(&s->answered);
  }
  pthread_mutex_unlock(&slots_lock);
}

static int64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static void pause_core(void) {
  for (int i = 0; i < 16; ++i) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#endif
  }
}

// Polls for the answer until a time. A sleeping core takes about 50 us to wake, so a thread that expects its answer
// soon polls first, on the core that the worker leaves to it. The caller holds the lock, which is released during the
// poll.
static void poll_answer(wait_slot* s, int64_t until) {
  pthread_mutex_unlock(&slots_lock);
  while (__atomic_load_n(&s->kind, __ATOMIC_RELAXED) == MYC_PENDING && now() < until) pause_core();
  pthread_mutex_lock(&slots_lock);
}

enum { POLL_NS = 1000000 };

// Waits for the answer of a slot and returns for how long, in nanoseconds. The caller holds the lock, which is released
// during the wait.
static int64_t wait_in(wait_slot* s, int32_t timeout_ms, int poll) {
  const int64_t start = now(), end = start + timeout_ms * 1000000ll;
  const struct timespec until = {.tv_sec = end / 1000000000, .tv_nsec = end % 1000000000};
  if (poll) poll_answer(s, start + POLL_NS);
  while (s->kind == MYC_PENDING && pthread_cond_timedwait(&s->answered, &slots_lock, &until) == 0) {
  }
  return now() - start;
}

int32_t myc_wait(uint64_t ticket, int32_t timeout_ms, myc_error* error) {
  pthread_mutex_lock(&slots_lock);
  wait_slot* s = slot_of(ticket);
  if (s == NULL) {
    pthread_mutex_unlock(&slots_lock);
    char text[64];
    snprintf(text, sizeof text, "BUG: ticket %llu does not exist.", (unsigned long long)ticket);
    return mailbox_fail(error, MYC_E_RUNTIME, text);
  }
  mailbox* b = mailbox_of(s->device);
  const myc_origin at = s->at;
  int64_t waited = 0;
  int first = 0;
  if (s->kind == MYC_PENDING && timeout_ms > 0) {
    first = !s->waited;
    s->waited = 1;
    waited = wait_in(s, timeout_ms, first && __atomic_load_n(&mailbox_credits_of(b)->hurry, __ATOMIC_RELAXED) != 0);
  }
  const int32_t kind = s->kind, stalls = s->stalls;
  if (kind != MYC_PENDING) {
    if (kind != MYC_OK) mailbox_fail(error, kind, s->text == NULL ? "" : s->text);
    release(s);
  }
  pthread_mutex_unlock(&slots_lock);
  if (waited != 0 && stalls) mailbox_note_stall(b, at, first, waited);
  return kind;
}
