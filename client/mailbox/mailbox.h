// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// The mailbox of a device: what a recorder thread posts, and the device's sender, a goroutine, takes. mailbox.c and
// wait.c define the functions of csrc/abi/mycelya.h with which recorder threads post and wait: myc_flush, myc_upload,
// myc_read, myc_sync, myc_room and myc_wait. They call no Go: after such a call Go still counts the thread as its own,
// so Go's monitor checks it every few microseconds, and Go's threads wake each other during the call.
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

// Whether there is an error that no thread has raised.
int32_t mailbox_failing(mailbox*);

enum { MAILBOX_ENDED = -1 };
// The device index that a request was posted to, or MAILBOX_ENDED if its ticket has ended.
int32_t mailbox_device(uint64_t ticket);
// Ends a ticket without its answer.
void mailbox_end(uint64_t ticket);

// ---- The sender ----

enum { ITEM_TRACE = 0, ITEM_READ = 1, ITEM_SYNC = 2, ITEM_ROOM = 3, ITEM_UPLOAD = 4 };

typedef struct {
  int32_t kind;     // ITEM_*
  uint64_t ticket;  // 0: the caller does not wait
  myc_origin at;
  myc_trace trace;
  myc_view view;  // of a read: the taker frees view.sizes; view.strides is part of the same allocation
  void* dst;
  // Of an upload: the new storage and its bytes, and the address at which the caller has them. Its taker gives those
  // that are copied, or in shared memory, back with mailbox_release.
  uint64_t storage, bytes;
  const void* data;
  uintptr_t address;
  int32_t copied;
  myc_shared shared;  // block 0: they are not in shared memory
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
void mailbox_open(mailbox*);
// Has the mailbox refuse items with this error; text is freed later. It keeps those that it has.
void mailbox_close(mailbox*, int32_t kind, char* text);
int32_t mailbox_take(mailbox*, mailbox_item* out);  // removes the oldest item; 0 if the mailbox is empty
void mailbox_release(mailbox*, const mailbox_item* upload);
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

// A new ticket, for a request that a call into Go has begun; 0 if memory is short. stalls: waits for it are stalls.
uint64_t mailbox_ticket(int32_t index, myc_origin, int32_t stalls);

// Answers a request; text, which is freed here, is NULL with MYC_OK. Does nothing if the ticket has ended.
void mailbox_answer(uint64_t ticket, int32_t kind, char* text);

#pragma GCC visibility pop

#endif  // MYCELYA_CLIENT_MAILBOX_MAILBOX_H_
