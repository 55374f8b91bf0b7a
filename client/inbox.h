// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// Where threads that aren't Go's leave what they want of a device, traces and questions, and wait for answers, without a call into
// Go: such a call ends with its thread still counted as Go's, which Go's monitor then watches every few microseconds, and Go's
// threads wake each other on the way. This wakes the sender, if it sleeps, and an answer wakes who waits for it.
#pragma once

#include <pthread.h>

#include "mycelya.h"

enum { INBOXES = 64 };  // devices with one; what others' threads want goes by a call

enum { LETTER_TRACE = 0, LETTER_READ = 1, LETTER_SYNC = 2, LETTER_ROOM = 3 };

typedef struct {
  int32_t what;
  uint64_t ticket;  // of a question
  myc_origin at;
  myc_trace trace;
  myc_view view;  // of a read: its sizes, and after them its strides, are to be freed
  void* dst;
} letter;

// What waits at one place of the program have cost since they were taken.
typedef struct {
  myc_origin at;
  uint64_t waits;  // that were not over at once
  int64_t nanoseconds;
} stall;

typedef struct {
  int64_t on_way, allowed, core, hurry;  // atomic: see runtime.Credits
  pthread_mutex_t lock;            // of what follows
  letter* letters;          // first … end of room
  uint64_t first, end, room;
  int32_t open, rung, asleep;
  int32_t bell;  // written a byte when the sender sleeps and is to wake; 0 until there is one
  stall* stalls;
  uint64_t n_stalls, stalls_room;
} inbox;

inbox* inbox_of(int32_t index);  // NULL if it has none
void inbox_hang(inbox* b, int32_t bell);
void inbox_open(inbox* b, int32_t open);
int32_t inbox_take(inbox* b, letter* out);      // 0: there is none
int32_t inbox_take_stall(inbox* b, stall* out);  // likewise
int32_t inbox_sleep(inbox* b);                  // 0: there is a letter, or was a ring; otherwise the bell's next byte will tell
void inbox_ring(inbox* b);                      // is not lost if nobody waits yet
// Answers a question; text, which is to be free()d, is NULL with MYC_OK. A ticket that has been canceled is none any more.
void inbox_answer(uint64_t ticket, int32_t kind, char* text);
