// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// The mailbox of a device. Recorder threads post traces and requests; the device's sender, a goroutine, takes them and
// answers the requests. Recorder threads post and wait in C, without a call into Go: after such a call Go still counts
// the thread as its own, so Go's monitor checks it every few microseconds, and Go's threads wake each other during the
// call.
//
// All functions may be called from any thread, except that one thread at a time is the sender.
#ifndef MYCELYA_CLIENT_MAILBOX_MAILBOX_H_
#define MYCELYA_CLIENT_MAILBOX_MAILBOX_H_

#include <pthread.h>

#include "mycelya.h"

#pragma GCC visibility push(hidden)  // the library exports myc_* only

enum { MAILBOXES = 64 };  // device indices with a mailbox

typedef struct mailbox mailbox;

mailbox* mailbox_of(int32_t index);  // NULL if the index has no mailbox

// ---- Recorder threads ----

// Posts a trace; 0 if the mailbox is closed or memory is short. *behind: the worker has no credits left after this
// trace.
int32_t mailbox_post_trace(mailbox*, const myc_trace*, int32_t* behind);

// Posts an upload of 1 to MAILBOX_UPLOAD bytes, which are copied; 0 if there are other numbers of bytes, if too many
// wait already, if the mailbox is closed, or if memory is short. It does not wake the sender: the upload is sent with
// what is posted next.
enum { MAILBOX_UPLOAD = 64 << 10 };
int32_t mailbox_post_upload(mailbox*, uint64_t id, const void* data, uint64_t bytes, myc_origin);

// Post a request and return its ticket; 0 if the mailbox is closed or memory is short. A ticket ends when mailbox_wait
// returns its answer, or with mailbox_end. The view's arrays are copied.
uint64_t mailbox_post_read(int32_t index, const myc_view*, void* dst, myc_origin);
uint64_t mailbox_post_sync(int32_t index, myc_origin);
uint64_t mailbox_post_room(int32_t index, myc_origin);

// Whether there is an error that no thread has raised.
int32_t mailbox_failing(mailbox*);

int32_t mailbox_is_ticket(uint64_t);  // whether it is the number of a mailbox's ticket; Go's tickets have other numbers

enum { MAILBOX_ENDED = -1 };  // the ticket has ended

// Waits at most timeout_ms and returns what myc_wait returns, or MAILBOX_ENDED.
int32_t mailbox_wait(uint64_t ticket, int32_t timeout_ms, myc_error*);

int32_t mailbox_device(uint64_t ticket);  // the device index that the request was posted to, or MAILBOX_ENDED
void mailbox_end(uint64_t ticket);        // ends a ticket without its answer

// ---- The sender ----

enum { ITEM_TRACE = 0, ITEM_READ = 1, ITEM_SYNC = 2, ITEM_ROOM = 3, ITEM_UPLOAD = 4 };

typedef struct {
  int32_t kind;  // ITEM_*
  uint64_t ticket;
  myc_origin at;
  myc_trace trace;
  myc_view view;  // of a read: the taker frees view.sizes; view.strides is part of the same allocation
  void* dst;
  // Of an upload: the new storage and its bytes, which the taker gives back with mailbox_free_upload.
  uint64_t storage, bytes;
  void* data;
} mailbox_item;

// Waits for answers that one place of the program has had since the sender took them last.
typedef struct {
  myc_origin at;
  uint64_t waits;  // tickets whose answer was not there yet
  int64_t nanoseconds;
} mailbox_stall;

// The counters of runtime.Credits; atomic.
typedef struct {
  int64_t on_way, allowed, core, hurry, failing;
} mailbox_credits;

mailbox_credits* mailbox_credits_of(mailbox*);
// A closed mailbox takes no new items; it keeps those that it has.
void mailbox_open(mailbox*, int32_t open);
int32_t mailbox_take(mailbox*, mailbox_item* out);  // removes the oldest item; 0 if the mailbox is empty
void mailbox_free_upload(mailbox*, void* data, uint64_t bytes);
int32_t mailbox_take_stall(mailbox*, mailbox_stall* out);  // removes one; 0 if there is none

// The file descriptor to which a thread writes one byte to wake a sleeping sender. It must be set before the first
// mailbox_sleep and stay open.
void mailbox_set_wake_fd(mailbox*, int32_t fd);
// Returns 0 if there is an item, or was a mailbox_wake since the last sleep. Otherwise the next post or wake writes to
// the wake descriptor, and the sender must read that byte.
int32_t mailbox_sleep(mailbox*);
void mailbox_wake(mailbox*);
// mailbox_sleep for a limited time, in which traces do not wake the sender. If it returns 1, the sender must wait for
// the byte, and call mailbox_get_up if it has waited long enough. If that returns 1, the byte is there, or will be at
// once.
int32_t mailbox_doze(mailbox*);
int32_t mailbox_get_up(mailbox*);
// Returns 1 while the sender sleeps or dozes: the next post or wake that is due writes to the wake descriptor.
int32_t mailbox_is_asleep(mailbox*);

// Answers a request; text, which is freed here, is NULL with MYC_OK. Does nothing if the ticket has ended.
void mailbox_answer(uint64_t ticket, int32_t kind, char* text);

#pragma GCC visibility pop

#endif  // MYCELYA_CLIENT_MAILBOX_MAILBOX_H_
