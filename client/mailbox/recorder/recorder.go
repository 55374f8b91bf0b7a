// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package recorder posts to mailboxes and waits for answers as the threads of csrc/device do, for tests. It is never
// linked into the client library.
package recorder

/*
#cgo CFLAGS: -I${SRCDIR}/../../../csrc/abi
#include <stdlib.h>
#include "../mailbox.h"
*/
import "C"

import (
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/mycelya/mycelya/trace"
)

// Ended is the kind that Wait returns for a ticket that has ended.
const Ended = int32(C.MAILBOX_ENDED)

// Pending is the kind that Wait returns for a request without an answer.
const Pending = int32(C.MYC_PENDING)

func origin(at trace.Place) C.myc_origin {
	return C.myc_origin{code: C.uint32_t(at[0]), offset: C.uint32_t(at[1])}
}

// Post posts a trace that has only a key, and returns whether it was taken, whether the worker is behind, and whether
// the trace is still in use.
func Post(index int32, key uint64) (taken, behind bool, inUse func() bool) {
	flag := (*C.uint32_t)(C.malloc(4)) // never freed: the trace may be in use until the process ends
	*flag = 1
	t := C.myc_trace{in_use: flag}
	t.key[0] = C.uint64_t(key)
	var late C.int32_t
	ok := C.mailbox_post_trace(C.mailbox_of(C.int32_t(index)), &t, &late)
	return ok != 0, late != 0, func() bool { return atomic.LoadUint32((*uint32)(unsafe.Pointer(flag))) != 0 }
}

// Limit bounds the bytes of an upload that Upload takes.
const Limit = int(C.MAILBOX_UPLOAD)

// Upload posts an upload, and returns whether it was taken.
func Upload(index int32, storage uint64, data []byte, at trace.Place) bool {
	return C.mailbox_post_upload(C.mailbox_of(C.int32_t(index)), C.uint64_t(storage),
		unsafe.Pointer(unsafe.SliceData(data)), C.uint64_t(len(data)), origin(at)) != 0
}

// Read posts a read of n bytes of a storage and returns its ticket and the memory that receives the bytes, which is
// never freed.
func Read(index int32, storage uint64, n int64, at trace.Place) (uint64, []byte) {
	dims := (*[2]C.int64_t)(C.malloc(16))
	defer C.free(unsafe.Pointer(dims))
	dims[0], dims[1] = C.int64_t(n), 1
	dst := C.malloc(C.size_t(n))
	v := C.myc_view{storage: C.uint64_t(storage), dtype: C.MYC_U8, rank: 1, sizes: &dims[0], strides: &dims[1]}
	ticket := C.mailbox_post_read(C.int32_t(index), &v, dst, origin(at))
	return uint64(ticket), unsafe.Slice((*byte)(dst), n)
}

// Sync posts a sync and returns its ticket.
func Sync(index int32, at trace.Place) uint64 {
	return uint64(C.mailbox_post_sync(C.int32_t(index), origin(at)))
}

// Room posts a request for credits and returns its ticket.
func Room(index int32, at trace.Place) uint64 {
	return uint64(C.mailbox_post_room(C.int32_t(index), origin(at)))
}

// Wait waits for the answer of a ticket, and returns its kind and text.
func Wait(ticket uint64, timeout time.Duration) (kind int32, text string) {
	e := (*C.myc_error)(C.calloc(1, C.size_t(unsafe.Sizeof(C.myc_error{}))))
	defer C.free(unsafe.Pointer(e))
	kind = int32(C.mailbox_wait(C.uint64_t(ticket), C.int32_t(timeout.Milliseconds()), e))
	return kind, C.GoString(&e.text[0])
}

// Asleep reports whether the sender of a mailbox sleeps or dozes.
func Asleep(index int32) bool { return C.mailbox_is_asleep(C.mailbox_of(C.int32_t(index))) != 0 }

// End ends a ticket without its answer.
func End(ticket uint64) { C.mailbox_end(C.uint64_t(ticket)) }

// Device returns the index of the device that a ticket's request was posted to, or Ended.
func Device(ticket uint64) int32 { return int32(C.mailbox_device(C.uint64_t(ticket))) }

// IsTicket reports whether a number is one of a mailbox's tickets.
func IsTicket(number uint64) bool { return C.mailbox_is_ticket(C.uint64_t(number)) != 0 }
