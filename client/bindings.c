// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// The exported functions that recorder threads call often. Each uses the device's mailbox, and Go only where the
// mailbox is closed (the device has no sender yet, or no longer) or the ticket is one of Go's.
#include "mailbox/mailbox.h"

// main.go
extern int32_t mycFlushByCall(int32_t index, myc_trace* trace, myc_error* error);
extern int32_t mycFailureByCall(int32_t index, uint64_t* lost, myc_error* error);
extern int32_t mycUploadByCall(int32_t index, uint64_t id, void* data, uint64_t bytes, myc_origin at, uint64_t* ticket,
                               myc_error* error);
extern uint64_t mycReadByCall(int32_t index, myc_view* view, void* dst, myc_origin at, myc_error* error);
extern uint64_t mycSyncByCall(int32_t index, myc_origin at, myc_error* error);
extern uint64_t mycRoomByCall(int32_t index, myc_origin at, myc_error* error);
extern int32_t mycWaitByCall(uint64_t ticket, int32_t timeout_ms, myc_error* error);
extern void mycCancelByCall(uint64_t ticket);
extern void mycCancelPosted(int32_t index, uint64_t ticket);

int32_t myc_flush(int32_t index, const myc_trace* trace, myc_error* error) {
  mailbox* b = mailbox_of(index);
  int32_t behind = 0;
  if (b == NULL || !mailbox_post_trace(b, trace, &behind)) return mycFlushByCall(index, (myc_trace*)trace, error);
  return behind ? MYC_PENDING : MYC_OK;
}

int32_t myc_failure(int32_t index, uint64_t* lost, myc_error* error) {
  mailbox* b = mailbox_of(index);
  if (b == NULL || !mailbox_failing(b)) return MYC_OK;
  return lost == NULL ? MYC_E_RUNTIME : mycFailureByCall(index, lost, error);
}

int32_t myc_upload(int32_t index, uint64_t id, const void* data, uint64_t bytes, myc_origin at, uint64_t* ticket,
                   myc_error* error) {
  mailbox* b = mailbox_of(index);
  if (b != NULL && mailbox_post_upload(b, id, data, bytes, at)) return MYC_OK;
  return mycUploadByCall(index, id, (void*)data, bytes, at, ticket, error);
}

uint64_t myc_read(int32_t index, const myc_view* view, void* dst, myc_origin at, myc_error* error) {
  const uint64_t ticket = mailbox_post_read(index, view, dst, at);
  return ticket != 0 ? ticket : mycReadByCall(index, (myc_view*)view, dst, at, error);
}

uint64_t myc_sync(int32_t index, myc_origin at, myc_error* error) {
  const uint64_t ticket = mailbox_post_sync(index, at);
  return ticket != 0 ? ticket : mycSyncByCall(index, at, error);
}

uint64_t myc_room(int32_t index, myc_origin at, myc_error* error) {
  const uint64_t ticket = mailbox_post_room(index, at);
  return ticket != 0 ? ticket : mycRoomByCall(index, at, error);
}

int32_t myc_wait(uint64_t ticket, int32_t timeout_ms, myc_error* error) {
  const int32_t kind = mailbox_is_ticket(ticket) ? mailbox_wait(ticket, timeout_ms, error) : MAILBOX_ENDED;
  return kind != MAILBOX_ENDED ? kind : mycWaitByCall(ticket, timeout_ms, error);  // which refuses an ended ticket
}

void myc_cancel(uint64_t ticket) {
  if (!mailbox_is_ticket(ticket)) {
    mycCancelByCall(ticket);
    return;
  }
  const int32_t index = mailbox_device(ticket);
  if (index == MAILBOX_ENDED) return;
  mycCancelPosted(index, ticket);
  mailbox_end(ticket);
}
