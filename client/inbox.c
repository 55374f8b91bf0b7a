// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

#define _GNU_SOURCE
#include "inbox.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

// The ways by a call, of main.go: where a device has no sender yet, or none any more.
extern int32_t mycFlushByCall(int32_t index, myc_trace* trace, myc_error* error);
extern uint64_t mycReadByCall(int32_t index, myc_view* view, void* dst, myc_origin at, myc_error* error);
extern uint64_t mycSyncByCall(int32_t index, myc_origin at, myc_error* error);
extern uint64_t mycRoomByCall(int32_t index, myc_origin at, myc_error* error);
extern int32_t mycWaitByCall(uint64_t ticket, int32_t timeout_ms, myc_error* error);
extern void mycCancelByCall(uint64_t ticket);
extern void mycCancelLeft(int32_t index, uint64_t ticket);

static inbox inboxes[INBOXES] = {[0 ... INBOXES - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER}};

inbox* inbox_of(int32_t index) { return index >= 0 && index < INBOXES ? &inboxes[index] : NULL; }

void inbox_hang(inbox* b, int32_t bell) {
  pthread_mutex_lock(&b->lock);
  b->bell = bell;
  pthread_mutex_unlock(&b->lock);
}

void inbox_open(inbox* b, int32_t open) {
  pthread_mutex_lock(&b->lock);
  b->open = open;
  pthread_mutex_unlock(&b->lock);
}

// Makes room for one more item of an array; 0 if there is no memory.
static int make_room(void** items, uint64_t* room, uint64_t end, uint64_t size) {
  if (end < *room) return 1;
  const uint64_t more = *room == 0 ? 16 : 2 * *room;
  void* moved = realloc(*items, more * size);
  if (moved == NULL) return 0;
  *items = moved;
  *room = more;
  return 1;
}

// The core of this thread, from 1 on; 0: not known.
static int64_t here(void) {
#if defined(__linux__)
  return sched_getcpu() + 1;
#else
  return 0;
#endif
}

static void wake(int32_t bell) {
  const char one = 1;
  while (write(bell, &one, 1) < 0 && errno == EINTR) {
  }
}

// Puts a letter into the inbox if it is open. Of a trace *behind says whether the credits are used up by it.
static int leave(inbox* b, const letter* l, int32_t* behind) {
  pthread_mutex_lock(&b->lock);
  if (b->first == b->end) b->first = b->end = 0;
  if (!b->open || !make_room((void**)&b->letters, &b->room, b->end, sizeof *l)) {
    pthread_mutex_unlock(&b->lock);
    return 0;
  }
  b->letters[b->end++] = *l;
  __atomic_store_n(&b->core, here(), __ATOMIC_RELAXED);
  if (l->what == LETTER_TRACE) {
    const int64_t on_way = __atomic_add_fetch(&b->on_way, 1, __ATOMIC_SEQ_CST);
    *behind = on_way >= __atomic_load_n(&b->allowed, __ATOMIC_SEQ_CST);
  }
  const int32_t asleep = b->asleep, bell = b->bell;
  b->asleep = 0;
  pthread_mutex_unlock(&b->lock);
  if (asleep) wake(bell);
  return 1;
}

int32_t inbox_take(inbox* b, letter* out) {
  pthread_mutex_lock(&b->lock);
  const int32_t found = b->first != b->end;
  if (found) *out = b->letters[b->first++];
  pthread_mutex_unlock(&b->lock);
  return found;
}

int32_t inbox_take_stall(inbox* b, stall* out) {
  pthread_mutex_lock(&b->lock);
  const int32_t found = b->n_stalls != 0;
  if (found) *out = b->stalls[--b->n_stalls];
  pthread_mutex_unlock(&b->lock);
  return found;
}

int32_t inbox_sleep(inbox* b) {
  pthread_mutex_lock(&b->lock);
  b->asleep = !b->rung && b->first == b->end;
  b->rung = 0;
  const int32_t asleep = b->asleep;
  pthread_mutex_unlock(&b->lock);
  return asleep;
}

void inbox_ring(inbox* b) {
  pthread_mutex_lock(&b->lock);
  const int32_t asleep = b->asleep, bell = b->bell;
  b->rung = !asleep;
  b->asleep = 0;
  pthread_mutex_unlock(&b->lock);
  if (asleep) wake(bell);
}

// ---- Waiting ----

// Who waits for an answer. Its ticket has the top bit, which no ticket of Go's has, then a number of its own, then the seat's place.
typedef struct seat {
  pthread_cond_t answered;
  uint64_t ticket;  // 0: nobody's
  int32_t index;    // of the device
  int32_t kind;     // MYC_PENDING until it is answered
  int32_t waited;
  char* text;
  myc_origin at;
  struct seat* next;  // of those that are nobody's
} seat;

enum { PLACE_BITS = 20 };
static const uint64_t kLeft = 1ull << 63;

static pthread_mutex_t seats_lock = PTHREAD_MUTEX_INITIALIZER;  // of what follows, and of what is in seats
static seat** seats;
static uint64_t n_seats, seats_room, tickets;
static seat* nobodys;

static seat* new_seat(void) {
  if (n_seats == 1 << PLACE_BITS || !make_room((void**)&seats, &seats_room, n_seats, sizeof *seats)) return NULL;
  seat* s = calloc(1, sizeof *s);
  pthread_condattr_t steady;
  if (s == NULL || pthread_condattr_init(&steady) != 0) {
    free(s);
    return NULL;
  }
  pthread_condattr_setclock(&steady, CLOCK_MONOTONIC);
  pthread_cond_init(&s->answered, &steady);
  pthread_condattr_destroy(&steady);
  s->ticket = n_seats;
  seats[n_seats++] = s;
  return s;
}

// A ticket for a question to a device; 0 if there is no room.
static uint64_t take_seat(int32_t index, myc_origin at) {
  pthread_mutex_lock(&seats_lock);
  seat* s = nobodys;
  if (s != NULL) {
    nobodys = s->next;
  } else {
    s = new_seat();
  }
  uint64_t ticket = 0;
  if (s != NULL) {
    const uint64_t place = s->ticket & ((1 << PLACE_BITS) - 1);
    ticket = kLeft | (++tickets << PLACE_BITS & ~kLeft) | place;
    s->ticket = ticket;
    s->index = index;
    s->kind = MYC_PENDING;
    s->waited = 0;
    s->at = at;
  }
  pthread_mutex_unlock(&seats_lock);
  return ticket;
}

// The lock is held. NULL: the ticket is over.
static seat* seat_of(uint64_t ticket) {
  const uint64_t place = ticket & ((1 << PLACE_BITS) - 1);
  return place < n_seats && seats[place]->ticket == ticket ? seats[place] : NULL;
}

// The lock is held.
static void leave_seat(seat* s) {
  free(s->text);
  s->text = NULL;
  s->ticket &= (1 << PLACE_BITS) - 1;
  s->next = nobodys;
  nobodys = s;
}

void inbox_answer(uint64_t ticket, int32_t kind, char* text) {
  pthread_mutex_lock(&seats_lock);
  seat* s = seat_of(ticket);
  if (s == NULL || s->kind != MYC_PENDING) {
    free(text);
  } else {
    s->text = text;
    __atomic_store_n(&s->kind, kind, __ATOMIC_RELAXED);
    pthread_cond_signal(&s->answered);
  }
  pthread_mutex_unlock(&seats_lock);
}

static int64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ll + t.tv_nsec;
}

// Notes that a place has waited; without memory for it that is not counted.
static void note_stall(int32_t index, myc_origin at, int first, int64_t nanoseconds) {
  inbox* b = inbox_of(index);
  pthread_mutex_lock(&b->lock);
  uint64_t i = 0;
  while (i < b->n_stalls && (b->stalls[i].at.code != at.code || b->stalls[i].at.offset != at.offset)) ++i;
  if (i < b->n_stalls || make_room((void**)&b->stalls, &b->stalls_room, i, sizeof *b->stalls)) {
    if (i == b->n_stalls) b->stalls[b->n_stalls++] = (stall){.at = at};
    b->stalls[i].waits += first != 0;
    b->stalls[i].nanoseconds += nanoseconds;
  }
  pthread_mutex_unlock(&b->lock);
}

static void breathe(void) {
  for (int i = 0; i < 16; ++i) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#endif
  }
}

// A core that sleeps takes some 50 us to wake. So who expects an answer soon looks for it at first, on the core that the worker leaves
// to it. The lock is held, but not while it looks.
static void look_for(seat* s, int64_t until) {
  pthread_mutex_unlock(&seats_lock);
  while (__atomic_load_n(&s->kind, __ATOMIC_RELAXED) == MYC_PENDING && now() < until) breathe();
  pthread_mutex_lock(&seats_lock);
}

enum { NEAR_NS = 1000000 };

// The lock is held, but not while it waits. Returns how long it has waited.
static int64_t wait_in(seat* s, int32_t timeout_ms, int hurry) {
  const int64_t start = now(), end = start + timeout_ms * 1000000ll;
  const struct timespec until = {.tv_sec = end / 1000000000, .tv_nsec = end % 1000000000};
  if (hurry) look_for(s, start + NEAR_NS);
  while (s->kind == MYC_PENDING && pthread_cond_timedwait(&s->answered, &seats_lock, &until) == 0) {
  }
  return now() - start;
}

int32_t myc_wait(uint64_t ticket, int32_t timeout_ms, myc_error* error) {
  if ((ticket & kLeft) == 0) return mycWaitByCall(ticket, timeout_ms, error);
  pthread_mutex_lock(&seats_lock);
  seat* s = seat_of(ticket);
  if (s == NULL) {
    pthread_mutex_unlock(&seats_lock);
    return mycWaitByCall(ticket, timeout_ms, error);  // says that there is none
  }
  const int32_t index = s->index;
  const myc_origin at = s->at;
  int64_t waited = 0;
  int first = 0;
  if (s->kind == MYC_PENDING && timeout_ms > 0) {
    first = !s->waited;
    s->waited = 1;
    const inbox* b = inbox_of(index);
    waited = wait_in(s, timeout_ms, first && __atomic_load_n(&b->hurry, __ATOMIC_RELAXED) != 0);
  }
  const int32_t kind = s->kind;
  if (kind != MYC_PENDING) {
    if (kind != MYC_OK) {
      error->kind = kind;
      strncpy(error->text, s->text == NULL ? "" : s->text, sizeof error->text - 1);
      error->text[sizeof error->text - 1] = 0;
    }
    leave_seat(s);
  }
  pthread_mutex_unlock(&seats_lock);
  if (waited != 0) note_stall(index, at, first, waited);
  return kind;
}

void myc_cancel(uint64_t ticket) {
  if ((ticket & kLeft) == 0) {
    mycCancelByCall(ticket);
    return;
  }
  pthread_mutex_lock(&seats_lock);
  seat* s = seat_of(ticket);
  const int32_t index = s == NULL ? 0 : s->index;
  pthread_mutex_unlock(&seats_lock);
  if (s == NULL) return;
  mycCancelLeft(index, ticket);
  pthread_mutex_lock(&seats_lock);
  s = seat_of(ticket);
  if (s != NULL) leave_seat(s);
  pthread_mutex_unlock(&seats_lock);
}

// ---- Asking ----

int32_t myc_flush(int32_t index, const myc_trace* trace, myc_error* error) {
  inbox* b = inbox_of(index);
  const letter l = {.what = LETTER_TRACE, .trace = *trace};
  int32_t behind = 0;
  if (b == NULL || !leave(b, &l, &behind)) return mycFlushByCall(index, (myc_trace*)trace, error);
  return behind ? MYC_PENDING : MYC_OK;
}

// Leaves a question and returns its ticket, 0 if it can't be left.
static uint64_t ask(int32_t index, letter* l) {
  inbox* b = inbox_of(index);
  if (b == NULL || (l->ticket = take_seat(index, l->at)) == 0) return 0;
  if (leave(b, l, NULL)) return l->ticket;
  pthread_mutex_lock(&seats_lock);
  leave_seat(seat_of(l->ticket));
  pthread_mutex_unlock(&seats_lock);
  return 0;
}

uint64_t myc_read(int32_t index, const myc_view* view, void* dst, myc_origin at, myc_error* error) {
  letter l = {.what = LETTER_READ, .at = at, .view = *view, .dst = dst};
  const size_t bytes = view->rank * sizeof(int64_t);
  int64_t* dims = malloc(2 * bytes + 1);  // never of nothing, which may be NULL
  if (dims != NULL) {
    if (bytes != 0) {
      memcpy(dims, view->sizes, bytes);
      memcpy(dims + view->rank, view->strides, bytes);
    }
    l.view.sizes = dims;
    l.view.strides = dims + view->rank;
    const uint64_t ticket = ask(index, &l);
    if (ticket != 0) return ticket;
    free(dims);
  }
  return mycReadByCall(index, (myc_view*)view, dst, at, error);
}

uint64_t myc_sync(int32_t index, myc_origin at, myc_error* error) {
  letter l = {.what = LETTER_SYNC, .at = at};
  const uint64_t ticket = ask(index, &l);
  return ticket != 0 ? ticket : mycSyncByCall(index, at, error);
}

uint64_t myc_room(int32_t index, myc_origin at, myc_error* error) {
  letter l = {.what = LETTER_ROOM, .at = at};
  const uint64_t ticket = ask(index, &l);
  return ticket != 0 ? ticket : mycRoomByCall(index, at, error);
}
