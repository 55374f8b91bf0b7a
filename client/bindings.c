// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later
//
// The exported functions that call Go in rare cases only.
#include "mailbox/mailbox.h"

// main.go
extern int32_t mycRaise(int32_t index, uint64_t* lost, myc_error* error);
extern void mycCancel(int32_t index, uint64_t ticket);

int32_t myc_failure(int32_t index, uint64_t* lost, myc_error* error) {
  mailbox* b = mailbox_of(index);
  if (b == NULL || !mailbox_failing(b)) return MYC_OK;
  return lost == NULL ? MYC_E_RUNTIME : mycRaise(index, lost, error);
}

void myc_cancel(uint64_t ticket) {
  const int32_t index = mailbox_device(ticket);
  if (index == MAILBOX_ENDED) return;
  mycCancel(index, ticket);
  mailbox_end(ticket);
}
